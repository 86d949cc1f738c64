#!/usr/bin/env python3
"""Ours and the peers side by side: interleaved repetitions of prefill and decode on the same files, with the machine's limits.

    compare.py --program build/release/rhapsode [--peer FOLDER/venv-llama/bin/python]... [-t 2] [-p 512] [-n 128] [-r 5] MODEL.gguf...

Each round runs ours once and every peer once (peers.py serve: the work of llama-bench).  Prints JSON lines, then a table in
Markdown: medians, the ratio to the fastest peer of the round medians, and what part of the measured limit ours reaches.
A second file of the same model for the peers only is given as MODEL=OTHER.gguf (the fastest of both counts).
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


class Peer:
    def __init__(self, python, model, threads):
        command = [python, os.path.join(HERE, "peers.py"), "serve", model, "-t", str(threads)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.file = os.path.basename(model)
        self.name = self.version = "?"

    def once(self, test):
        self.process.stdin.write(test + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise SystemExit(f"{self.file}: {answer['error']}")
        self.name, self.version = answer["peer"], answer["version"]
        return answer["tokens_per_s"][0]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(args, model):
    command = [args.program, "bench", model, "-p", str(args.p), "-n", str(args.n), "-r", "1", "-t", str(args.t), "--json"]
    if args.level:
        command += ["--cpu-isa", args.level]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def compare(args, spec):
    model, _, other = spec.partition("=")
    files = [model] + ([other] if other else [])
    peers = [Peer(python, file, args.t) for python in args.peer for file in files]
    tests = [f"{kind} {n}" for kind, n in (("pp", args.p), ("tg", args.n)) if n]
    mine = {test: [] for test in tests}
    limits = {test: [] for test in tests}
    theirs = {test: [[] for _ in peers] for test in tests}
    for _ in range(args.r):
        result = ours(args, model)
        for test in tests:
            part = result["prefill" if test.startswith("pp") else "decode"]
            mine[test].append(part["median_tokens_per_s"])
            limits[test].append(part.get("percent_of_int8_limit" if test.startswith("pp") else "percent_of_read_limit"))
            for i, peer in enumerate(peers):
                theirs[test][i].append(peer.once(test))
    rows = []
    for test in tests:
        medians = [statistics.median(x) for x in theirs[test]]
        best = max(range(len(peers)), key=lambda i: medians[i]) if peers else None
        row = {
            "model": os.path.basename(model), "test": test, "level": result["level"], "threads": args.t,
            "ours": statistics.median(mine[test]), "ours_best": max(mine[test]), "ours_runs": mine[test],
            "limit_percent": [x for x in limits[test] if x is not None], "limits": result["limits"],
            "peers": [{"peer": p.name, "version": p.version, "file": p.file, "median": m, "best": max(x)}
                      for p, m, x in zip(peers, medians, theirs[test])],
        }
        if best is not None:
            row["fastest_peer"], row["ratio"] = f"{peers[best].name} on {peers[best].file}", row["ours"] / medians[best]
            row["ratio_first_file"] = row["ours"] / max(m for p, m in zip(peers, medians) if p.file == os.path.basename(model))
        rows.append(row)
        print(json.dumps(row), flush=True)
    for peer in peers:
        peer.close()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--program", required=True)
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--level")
    for flag, value in (("-t", 2), ("-p", 512), ("-n", 128), ("-r", 5)):
        parser.add_argument(flag, type=int, default=value)
    args = parser.parse_args()
    rows = [row for spec in args.models for row in compare(args, spec)]
    print("\n| model | test | ours tok/s | peer tok/s, same file | ratio | fastest peer | ratio | % of limit |\n|---|---|---|---|---|---|---|---|")
    for r in rows:
        limit = f"{statistics.median(r['limit_percent']):.0f}" if r["limit_percent"] else "-"
        same = max((p["median"] for p in r["peers"] if p["file"] == r["model"]), default=float("nan"))
        print(f"| {r['model']} | {r['test']} | {r['ours']:.1f} | {same:.1f} | {r.get('ratio_first_file', float('nan')):.2f} | "
              f"{r.get('fastest_peer', '-')} | {r.get('ratio', float('nan')):.2f} | {limit} |")


sys.exit(main())
