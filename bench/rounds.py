"""rounds.py: what guessing ahead saves, and that it changes nothing.

usage: rounds.py RHAPSODE MODEL [--draft MODEL] [--tokens N] [--repeat N]

Two tasks: an edit (a file to be repeated with one name changed) and a text without repetition.  Each is answered plainly and with every way of
guessing, interleaved; ids must be equal.  Prints median decode tokens/s, the ratio to plain, forwards and what was guessed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SOURCE = "\n".join(f"int item_{name}(struct item *it, int value)\n{{\n    it->{name} = value;\n    it->count_total += {i};\n    return it->{name};\n}}\n"
                   for i, name in enumerate(("width", "height", "depth", "colour", "weight", "price", "name", "owner")))
EDIT = f"Here is a C file:\n\n```c\n{SOURCE}```\n\nWrite the whole file again, with count_total renamed to total. Change nothing else.\n"
PROSE = "Write a long story about a lighthouse keeper who finds a map. Never repeat a sentence."


def run(args, text, who):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump([{"role": "user", "content": text}], f)
        f.flush()
        command = [args.rhapsode, "generate", args.model, "--chat", f.name, "--json", "--max-tokens", str(args.tokens), "--seed", "1",
                   "--temperature", "0" if text is EDIT else "0.8", "--propose", who]
        command += ["--draft", args.draft] if args.draft else []
        return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("rhapsode")
    p.add_argument("model")
    p.add_argument("--draft")
    p.add_argument("--tokens", type=int, default=300)
    p.add_argument("--repeat", type=int, default=3)
    args = p.parse_args()
    ways = ["none", "echo", "lookup", "echo,lookup"] + (["draft"] if args.draft else [])
    wrong = 0
    for name, text in (("edit", EDIT), ("prose", PROSE)):
        rates = {w: [] for w in ways}
        last = {}
        for _ in range(args.repeat):
            for w in ways:
                last[w] = run(args, text, w)
                rates[w].append(last[w]["timings"]["decode_tokens_per_s"])
        plain = statistics.median(rates["none"])
        for w in ways:
            s, f, rate = last[w]["speculation"], last[w]["fill"], statistics.median(rates[w])
            same = last[w]["ids"] == last["none"]["ids"]
            wrong += not same
            print(f"{name:5} {w:12} {rate:8.1f} tokens/s  {rate / plain:5.2f} x  {len(last[w]['ids'])} tokens in {s['decode_forwards']} forwards, "
                  f"drafted {s['drafted']} accepted {s['accepted']}, copied {f['by_kind']['echo']} refused {f['verify_rejected']}"
                  f"{'' if same else '  NOT THE PLAIN TEXT'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
