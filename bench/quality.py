#!/usr/bin/env python3
"""What quantised arithmetic costs: KL divergence and perplexity of ours and llama.cpp against f32 on the same dequantised weights.

    quality.py --tool build/release/logits_tool --peer FOLDER/venv-llama MODEL.gguf... [--tokens 2000] [--text FILE] [--out FILE]

F is the reference backend (plain f32 on dequantised weights, f32 state).  Ours is the CPU backend with its defaults (f16 state);
the peer is llama.cpp through llama-cpp-python with f16 state, run by bench/peers.py.  All see the same ids in one window.
Prints one JSON line a model: mean KL(F, x) over the positions, p99, top-1 agreement with F, perplexity of the text's own next ids.
"""
import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def text_ids(program, model, text, count):
    done = subprocess.run([program, "tokenize", model, "--json"], input=text, stdout=subprocess.PIPE, check=True)
    ids = json.loads(done.stdout)
    return (ids["ids"] if isinstance(ids, dict) else ids)[:count]


def log_softmax(x):
    x = x.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def compare(reference, other, ids):
    """Position by position, so that a large vocabulary fits."""
    kls, agree, nll = [], 0, 0.0
    for i in range(len(ids)):
        a, b = log_softmax(reference[i]), log_softmax(other[i])
        kls.append(float((np.exp(a) * (a - b)).sum()))
        agree += int(a.argmax() == b.argmax())
        if i + 1 < len(ids):
            nll -= b[ids[i + 1]]
    return {
        "kl": float(np.mean(kls)),
        "kl_p99": float(np.quantile(kls, 0.99)),
        "top1": agree / len(ids),
        "perplexity": float(np.exp(nll / (len(ids) - 1))),
    }


def ours(tool, model, ids, folder, backend, kv):
    key = hashlib.sha256(f"{os.path.basename(model)} {os.path.getsize(model)} {ids}".encode()).hexdigest()[:16]
    out, source = os.path.join(folder, f"{key}.{backend}.f32"), os.path.join(folder, f"{key}.u32")
    np.array(ids, dtype="<u4").tofile(source)
    if backend == "cpu" or not os.path.exists(out):  # the reference is slow and never changes: kept
        subprocess.run([tool, model, source, out + ".tmp", backend, kv, str(len(ids))], check=True, stdout=subprocess.DEVNULL)
        os.replace(out + ".tmp", out)
    return np.memmap(out, dtype="<f4", mode="r").reshape(len(ids), -1)


def peer(venv, model, ids, folder, kv="f16", out=None):
    source, out = os.path.join(folder, "peer_ids.txt"), out or os.path.join(folder, "peer.npy")
    with open(source, "w") as f:
        f.write(" ".join(map(str, ids)))
    command = [os.path.join(venv, "bin", "python"), os.path.join(HERE, "peers.py"), "score", model, source, out, "--ctx", str(len(ids)), "--kv", kv]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return np.load(out, mmap_mode="r")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--peer")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--text", default=os.path.join(HERE, "..", "tests", "data", "quality.txt"))
    parser.add_argument("--keep", default=None, help="folder for logits; the reference's are kept there between runs")
    args = parser.parse_args()
    program = os.path.join(os.path.dirname(args.tool), "rhapsode")
    with open(args.text, "rb") as f:
        text = f.read()
    folder = args.keep or tempfile.mkdtemp()
    os.makedirs(folder, exist_ok=True)
    for model in args.models:
        ids = text_ids(program, model, text, args.tokens)
        reference = ours(args.tool, model, ids, folder, "ref", "f32")
        row = {"model": os.path.basename(model), "tokens": len(ids), "f32": compare(reference, reference, ids)}
        row["ours"] = compare(reference, ours(args.tool, model, ids, folder, "cpu", "f16"), ids)
        if args.peer:
            row["peer"] = compare(reference, peer(args.peer, model, ids, folder)[:, : reference.shape[1]], ids)
            row["kl_ratio"] = row["ours"]["kl"] / row["peer"]["kl"]
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    sys.exit(main())
