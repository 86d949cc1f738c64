#!/usr/bin/env python3
"""away_law.py: weights that stay in the host's memory change no bit.

    away_law.py RHAPSODE MODEL...

Each model on the GPU with all its weights there, with none and with one layer's: logits of a text of 300 ids read at once (or as many as the model
has positions), log-probabilities of every position, and 24 tokens with theirs must be the same text of digits.
"""
import json
import subprocess
import sys


def ask(program, *args):
    done = subprocess.run([program, *args, "--device", "cuda", "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(args)}: {done.stderr.strip()}")
    out = json.loads(done.stdout)
    for key in ("timings", "speculation", "fill"):  # they follow the clock
        out.pop(key, None)
    return json.dumps(out)


def main():
    program, models = sys.argv[1], sys.argv[2:]
    compared = wrong = 0
    for model in models:
        info = json.loads(ask(program, "info", model))
        vocab, most = info["vocab"], min(300, info["context"] - 32)
        ids = ",".join(str(1 + i * 7919 % (vocab - 1)) for i in range(most))
        few = ",".join(ids.split(",")[:9])
        asked = [("score", model, "--ids", ids, "--top", "4", "--logits", "last"), ("score", model, "--ids", few, "--logits", "last"),
                 ("generate", model, "--ids", few, "--max-tokens", "24", "--ignore-eos", "--seed", "1", "--top-logprobs", "4")]
        for question in asked:
            there = ask(program, *question, "--gpu-layers", "all")
            for layers in ("0", "1"):
                compared += 1
                if ask(program, *question, "--gpu-layers", layers) != there:
                    wrong += 1
                    print(f"different: {' '.join(question)[:80]} --gpu-layers {layers}")
    print(f"away_law: {compared} comparisons, {wrong} different")
    sys.exit(wrong != 0 or compared == 0)


main()
