#!/usr/bin/env python3
"""gpu.py: the CUDA backend's figures, each beside the GPU's own limits measured in the same run, and beside torch.

    gpu.py RHAPSODE --models DIR [--rows ROW,...] [--torch] [--file MODEL ...] [--seconds N]

ROW: bf16, q8, q4, moe, 135m, 270m (decode of one sequence, prompts), many (64 and 256 sequences), attention, start, linear (bench_kernels),
attend (bench_attend: attention of many sequences alone), host (bench_step: the host's work of a step of 256 sequences); the last three are programs
beside RHAPSODE, in bench/.  Without --rows: all.
Synthetic models (make_synthetic*.py: numpy and gguf needed) are written to DIR where they are not there yet.  --torch: after
a row, torch_peer.py's answer to the same question.  --file: further models, decode of one sequence.  Prints one line a measurement.
What does not work, or takes more than N seconds (180), is said in a line that begins with #, and the other rows go on; the status is 1 then.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MADE = {
    "bf16": ["make_synthetic.py", "--type", "BF16"],
    "q8": ["make_synthetic.py", "--type", "Q8_0"],
    "q4": ["make_synthetic.py", "--type", "Q4_K"],
    "short": ["make_synthetic.py", "--type", "Q4_K", "--layers", "2"],
    "moe": ["make_synthetic_moe.py"],
    "135m": ["make_synthetic_small.py", "--shape", "135m"],
    "270m": ["make_synthetic_small.py", "--shape", "270m"],
}


class Failed(Exception):
    pass


failures = []


def fail(what):
    failures.append(what)
    print(f"# failed: {what}", flush=True)


def output_of(a, command):
    """What a command prints; Failed with its message where it did not work."""
    command = list(map(str, command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=a.seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: more than {a.seconds} s") from None
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise Failed(f"{' '.join(command)}: status {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def path_of(a, name):
    path = os.path.join(a.models, f"synthetic-{name}.gguf")
    if not os.path.exists(path):
        script, *flags = MADE[name]
        began = time.time()
        output_of(a, [sys.executable, os.path.join(HERE, script), path + ".part", *flags])
        os.rename(path + ".part", path)
        print(f"# wrote {path} in {time.time() - began:.0f} s", flush=True)
    return path


def bench(a, model, *flags):
    """The JSON of `rhapsode bench`, or None where it did not work."""
    try:
        out = json.loads(output_of(a, [a.program, "bench", model, "--device", "cuda", "--json", *flags]))
    except (Failed, ValueError) as error:
        return fail(error)
    if not out["sanity"]["equal"]:
        fail(f"sanity: different ids in chunks of other sizes: {model} {' '.join(map(str, flags))}")
    return out


def say(what, out, part):
    if not out:
        return
    p = out[part]
    limit = p.get("percent_of_read_limit" if part == "decode" else "percent_of_f16_limit", float("nan"))
    print(f"{what:44} {p['median_tokens_per_s']:10.0f} tok/s  {limit:5.1f} % of the {'read' if part == 'decode' else 'f16'} limit"
          f"  spread {p['spread_percent']:.1f} %", flush=True)


def one(a, name, model, prompts=(2048,)):
    for i, prompt in enumerate(prompts):
        out = bench(a, model, "-p", prompt, "-n", 0 if i else 128, "-r", 3, "--rows", 2048, "--context", prompt + 2048)
        if i == 0:
            say(f"{name}: decode, 1 sequence", out, "decode")
        say(f"{name}: prompt of {prompt}", out, "prefill")


def many(a, name, counts=(64, 256), depth=1500):
    for n in counts:
        out = bench(a, path_of(a, name), "-p", 0, "-n", 32, "-r", 2, "-d", depth, "--sequences", n, "--rows", 2048, "--context", 2048,
                    "--state", f"{n * 256}M")
        say(f"{name}: decode, {n} sequences at {depth}", out, "decode")


def attention(a, sequences=32, depth=32768):
    """A layer's attention: the step at that depth less the step at none, of a model of two layers."""
    for kv in ("f16", "q8"):
        shared = ["-p", 0, "-n", 16, "-r", 2, "--sequences", sequences, "--rows", 2048, "--context", depth + 2048, "--kv", kv, "--state", "40G"]
        none, deep = bench(a, path_of(a, "short"), *shared), bench(a, path_of(a, "short"), *shared, "-d", depth)
        if none and deep:
            seconds = [sequences / x["decode"]["median_tokens_per_s"] for x in (none, deep)]
            rate = (deep["decode"]["state_gb_per_step"] - none["decode"]["state_gb_per_step"]) / (seconds[1] - seconds[0])
            limit = deep["limits"]["read_gb_per_s"]["best"]
            print(f"attention, {kv}, {sequences} sequences at {depth}: {rate:.0f} GB/s, {100 * rate / limit:.1f} % of the read limit", flush=True)


def start(a, name):
    path, times = path_of(a, name), []
    for _ in range(4):
        began = time.perf_counter()
        output_of(a, [a.program, "generate", path, "--device", "cuda", "--prompt", "hi", "--max-tokens", "1", "--context", "4096"])
        times.append(time.perf_counter() - began)
    print(f"{name}: from start to the first token {statistics.median(times[1:]):.2f} s (first {times[0]:.2f})", flush=True)


def beside(a, *command):
    """What a bench program prints."""
    print(output_of(a, [os.path.join(os.path.dirname(a.program), "bench", command[0]), *command[1:]]).strip(), flush=True)


def torch_peer(a, *flags):
    print("torch:", output_of(a, [sys.executable, os.path.join(HERE, "torch_peer.py"), *flags]).strip(), flush=True)


def tried(row):
    try:
        row()
    except Failed as error:
        fail(error)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("--models", default=".")
    p.add_argument("--rows", default="bf16,q8,q4,moe,135m,270m,many,attention,start,linear,attend,host")
    p.add_argument("--torch", action="store_true")
    p.add_argument("--file", action="append", default=[])
    p.add_argument("--seconds", type=int, default=180)
    a = p.parse_args()
    os.makedirs(a.models, exist_ok=True)
    rows = {
        "bf16": lambda: one(a, "bf16", path_of(a, "bf16"), (2048, 8192)),
        "q8": lambda: one(a, "q8", path_of(a, "q8")),
        "q4": lambda: one(a, "q4", path_of(a, "q4")),
        "moe": lambda: one(a, "moe", path_of(a, "moe")),
        "135m": lambda: one(a, "135m", path_of(a, "135m")),
        "270m": lambda: one(a, "270m", path_of(a, "270m")),
        "linear": lambda: [beside(a, "bench_kernels", "-b", "cuda", "-f", kind, "-s", "4096x14336", "-n", "1,2,4,8,16,32,64,256", "-m", 2048)
                           for kind in ("Q4_K", "Q4_0", "BF16")],
        "attend": lambda: [beside(a, "bench_attend", "-n", n, "-d", depth, "-k", kv)
                           for n, depth in ((1, 1535), (64, 1535), (256, 1535), (32, 32767)) for kv in ("f16", "bf16", "q8")],
        "host": lambda: beside(a, "bench_step", path_of(a, "q4"), "-b", "cuda", "-n", 256, "-r", 100, "-e"),
        "many": lambda: many(a, "bf16"),
        "attention": lambda: attention(a),
        "start": lambda: start(a, "q4"),
    }
    wanted = a.rows.split(",")
    for row in wanted:
        if row not in rows:
            p.error(f"--rows: {row!r}: expected some of {', '.join(rows)}")
    for row in wanted:
        tried(rows[row])
    for file in a.file:
        one(a, os.path.basename(file), file)
    if a.torch:
        tried(lambda: torch_peer(a, "--sequences", "1,64"))
    sys.exit(1 if failures else 0)


main()
