"""rounds.py: what guessing ahead saves, and that it changes nothing.

usage: rounds.py RHAPSODE MODEL [--draft MODEL] [--tokens N] [--repeat N] [--lines N] [--tasks edit,prose]
       rounds.py RHAPSODE MODEL --script BENCH_SCRIPT [--tokens N] [--repeat N] [--lines N] [--tasks edit,prose]

Two tasks: an edit (a file of 400 lines to be written again with one name changed; the answer's first lines are given, so that a small model goes
on) and a text without repetition.  Each is answered plainly and with every way of guessing, interleaved; ids must be equal.  Prints median decode
tokens/s, the ratio to plain, forwards and what was guessed.

--script: the model computes, and the right answer is chosen (bench/script.c): the renamed file, whole; a piece of prose.
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile

WORDS = ("width height depth colour weight price name owner angle speed limit index level shape phase token stack queue table block"
         " range value label event frame layer panel route state track").split()
GIVEN = 12  # lines of the answer that the prompt holds


def source(lines):
    """Functions that differ: `lines` lines in all."""
    draw, out = random.Random(7), []
    while len(out) < lines:
        a, b, c = draw.sample(WORDS, 3)
        body = [f"    it->{a} = {b} + {draw.randrange(100)};", f"    if (it->{b} > {c})\n        it->{c} -= {draw.randrange(9) + 1};",
                f"    it->count_total += {draw.randrange(50)};", f"    set_{c}(it, {a}, {b});", f"    it->{b} *= it->{c};"]
        out += [f"int {a}_{b}(struct item *it, int {b}, int {c})", "{", *"\n".join(draw.sample(body, draw.randrange(3, 6))).split("\n"),
                f"    return it->{a};", "}", ""]
    return out[:lines]


def edit_prompt(lines):
    file = source(lines)
    begun = [line.replace("count_total", "total") for line in file[:GIVEN]]
    return "The file item.c:\n\n" + "\n".join(file) + "\n\nThe file item.c with count_total renamed to total:\n\n" + "\n".join(begun) + "\n"


PROSE = "Write a long story about a lighthouse keeper who finds a map. Never repeat a sentence."


def run(args, task, who):
    common = ["--json", "--max-tokens", str(args.tokens), "--seed", "1", "--propose", who, *(["--draft", args.draft] if args.draft else [])]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump([{"role": "user", "content": PROSE}], f)
        f.flush()
        what = ["--prompt", edit_prompt(args.lines), "--temperature", "0"] if task == "edit" else ["--chat", f.name, "--temperature", "0.8"]
        return json.loads(subprocess.run([args.rhapsode, "generate", args.model, *what, *common], check=True, capture_output=True).stdout)


def ids_of(args, text):
    out = subprocess.run([args.rhapsode, "tokenize", args.model, "--json"], input=text, text=True, check=True, capture_output=True).stdout
    return json.loads(out)


def run_script(args, task):
    """The right answer to the task, whatever the model would say."""
    if task == "edit":
        prompt = edit_prompt(args.lines)
        answer = "\n".join(source(args.lines)[GIVEN:]).replace("count_total", "total") + "\n"
    else:
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "prose.txt"), encoding="utf-8") as f:
            prompt, _, answer = f.read().partition("Inside lay")
    ids, count = ids_of(args, prompt + answer), len(ids_of(args, prompt))
    ids = ids[:count + args.tokens] if args.tokens else ids
    with tempfile.NamedTemporaryFile("wb") as f:
        f.write(b"".join(i.to_bytes(4, "little") for i in ids))
        f.flush()
        print(task, flush=True)
        subprocess.run([args.script, args.model, f.name, str(count), str(args.repeat)], check=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("rhapsode")
    p.add_argument("model")
    p.add_argument("--draft")
    p.add_argument("--tokens", type=int, default=300, help="0 with --script: all")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--lines", type=int, default=400)
    p.add_argument("--tasks", default="edit,prose")
    p.add_argument("--script")
    args = p.parse_args()
    if args.script:
        for task in args.tasks.split(","):
            run_script(args, task)
        return 0
    ways = ["none", "echo", "lookup", "echo,lookup"] + (["draft"] if args.draft else [])
    wrong = 0
    for name in args.tasks.split(","):
        rates = {w: [] for w in ways}
        last = {}
        for _ in range(args.repeat):
            for w in ways:
                last[w] = run(args, name, w)
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
