#!/usr/bin/env python3
"""What state formats cost: KL divergence of ours and of llama.cpp's cache types, each against its own f32 state, on the same ids.

    kv_quality.py --tool build/release/logits_tool --peer FOLDER/venv-llama MODEL.gguf [--tokens 4096] [--text FILE]
                  [--formats q8,a8g32,a8g64,q4h] [--types q8_0,q4_0]

Take a model of float weights: quantised ones round activations to 8 bits, and that noise hides what the state costs.
llama.cpp rotates quantised caches (Hadamard) where the head size is a multiple of 64.  Prints one JSON line a format or type: mean KL, p99,
top-1 agreement.  Logits of one run at a time are kept on disk beside the reference: 4 bytes a token and vocabulary entry.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

import quality

HERE = os.path.dirname(os.path.abspath(__file__))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tool", required=True)
    parser.add_argument("--peer")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--text", default=os.path.join(HERE, "..", "src", "front", "kvcheck.txt"))
    parser.add_argument("--formats", default="q8,a8g32,a8g64,q4h")
    parser.add_argument("--types", default="q8_0,q4_0")
    args = parser.parse_args()
    with open(args.text, "rb") as f:
        ids = quality.text_ids(os.path.join(os.path.dirname(args.tool), "rhapsode"), args.model, f.read(), args.tokens)
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "ids.u32")
        np.array(ids, dtype="<u4").tofile(source)

        def ours(kv):
            out = os.path.join(folder, "ours_f32" if kv == "f32" else "ours")
            subprocess.run([args.tool, args.model, source, out, "cpu", kv, str(len(ids))], check=True, stdout=subprocess.DEVNULL)
            return np.memmap(out, dtype="<f4", mode="r").reshape(len(ids), -1)

        def peer(kv):
            out = os.path.join(folder, "peer_f32.npy" if kv == "f32" else "peer.npy")
            return quality.peer(args.peer, args.model, ids, folder, kv, out)

        for who, score, names in (("ours", ours, args.formats), ("peer", peer, args.types)):
            if who == "peer" and not args.peer:
                continue
            reference = score("f32")
            for kv in names.split(","):
                row = quality.compare(reference, score(kv), ids)
                print(json.dumps({"who": who, "kv": kv, "model": os.path.basename(args.model), "tokens": len(ids)} | row), flush=True)


sys.exit(main())
