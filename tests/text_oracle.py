#!/usr/bin/env python3
"""text_oracle.py --tool TEXT_TOOL [--lines N] [--seed S] [--cache DIR] SOURCE[=WEIGHT] ...

Compares our tokenizer with the `tokenizers` library, line by line (text_corpus.py): ids with and without special tokens, special tokens
kept as text, and decoding.  A SOURCE is a tokenizer.json or a GGUF (its tokenizer.json is made by fixtures/gguf_to_tokenizer_json.py);
the lines are shared out by weight.  Prints one line per source and `N comparisons, N differences`; exit status 1 if there is one.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(HERE, "fixtures"))
import text_corpus  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

CHUNK = 400


class Ours:
    def __init__(self, tool, source):
        kind = "--gguf" if source.endswith(".gguf") else "--json"
        self.p = subprocess.Popen([tool, kind, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=1 << 20)

    def close(self):
        self.p.stdin.close()
        self.p.wait()
        return self.p.stderr.read().decode().strip()

    def ask(self, mode, items):
        """All requests at once, by a writer thread; then the replies."""
        data = b"".join(mode + struct.pack("<I", len(d)) + d for d in items)

        def write():
            try:
                self.p.stdin.write(data + b"f" + struct.pack("<I", 0))
                self.p.stdin.flush()
            except BrokenPipeError:
                pass
        w = threading.Thread(target=write)
        w.start()
        out = []
        for _ in items:
            head = self.p.stdout.read(4)
            if len(head) < 4:
                raise SystemExit("text_tool stopped: " + self.p.stderr.read().decode())
            n, = struct.unpack("<I", head)
            if mode in (b"d", b"s"):
                out.append(self.p.stdout.read((n + 3) // 4 * 4)[:n])
            else:
                out.append(list(struct.unpack(f"<{n}I", self.p.stdout.read(4 * n))))
        w.join()
        return out


def reference(source, cache):
    if not source.endswith(".gguf"):
        return source
    import gguf_to_tokenizer_json
    os.makedirs(cache, exist_ok=True)
    stat = os.stat(source)
    path = os.path.join(cache, f"{os.path.basename(source)}.{stat.st_size}.json")
    script = gguf_to_tokenizer_json.__file__
    if not os.path.exists(path) or os.stat(path).st_mtime < max(os.stat(script).st_mtime, stat.st_mtime):
        with open(path + ".part", "w", encoding="utf-8") as f:
            json.dump(gguf_to_tokenizer_json.convert(source), f, ensure_ascii=False)
        os.replace(path + ".part", path)
    return path


def show(source, mode, line, ours, theirs, tok):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    name = [f"{i} {tok.id_to_token(i)!r}" for i in theirs[max(0, at - 2):at + 4]] if isinstance(theirs, list) else theirs[max(0, at - 10):at + 20]
    mine = [f"{i} {tok.id_to_token(i)!r}" for i in ours[max(0, at - 2):at + 4]] if isinstance(theirs, list) else ours[max(0, at - 10):at + 20]
    print(f"  {source} mode {mode}: {line[:300]!r}\n    at {at}: expected {name}\n    got {mine}", flush=True)


def compare(source, count, seed, args):
    start = time.monotonic()
    path = reference(source, args.cache)
    tok = Tokenizer.from_file(path)
    tok.no_truncation()
    tok.no_padding()
    with open(path, encoding="utf-8") as f:
        spec = json.load(f)
    specials = [t["content"] for t in spec["added_tokens"]]
    fallback = "ByteFallback" in json.dumps(spec["decoder"])
    ours = Ours(args.tool, source)
    done = wrong = bytes_total = 0
    batch, modes = [], [b"p", b"e", b"t", b"p"]
    generator = text_corpus.lines(seed, count, specials[:40] + specials[-20:])
    turn = 0
    while done < count:
        batch = [line for _, line in zip(range(min(CHUNK, count - done)), generator)]
        mode = modes[turn % len(modes)]
        turn += 1
        tok.encode_special_tokens = mode == b"t"
        texts = [line.decode("utf-8", "replace") for line in batch]
        theirs = [e.ids for e in tok.encode_batch_fast(texts, add_special_tokens=mode == b"e")]
        mine = ours.ask(mode, batch)
        for line, a, b in zip(batch, mine, theirs):
            bytes_total += len(line)
            if a != b:
                wrong += 1
                if wrong <= args.show:
                    show(source, mode.decode(), line, a, b, tok)
        done += len(batch)
        if turn % 3 == 0:  # decoding what was encoded
            want = tok.decode_batch(theirs, skip_special_tokens=False)
            packed = [struct.pack(f"<{len(i)}I", *i) for i in theirs]
            got = [d.decode("utf-8", "replace") for d in ours.ask(b"d", packed)]
            wrong += sum(a != b.decode("utf-8") for a, b in zip(got, ours.ask(b"s", packed)))  # one id at a time: the same text
            for line, a, b in zip(batch, got, want):
                # bytes that are no text: one sign per byte there, one per broken sequence here
                if a != b and not (fallback and a.replace("\ufffd", "") == b.replace("\ufffd", "")):
                    wrong += 1
                    if wrong <= args.show:
                        show(source, "d", line, a, b, tok)
            done += len(want)
    info = ours.close()
    print(f"{os.path.basename(os.path.dirname(source))}/{os.path.basename(source)}: {done} comparisons, {wrong} differences "
          f"({bytes_total / 1e6:.1f} MB, {time.monotonic() - start:.1f} s; {info})".replace("comparisons,", "lines,"), flush=True)
    return done, wrong


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tool", required=True)
    ap.add_argument("--lines", type=int, default=100000)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=3)
    ap.add_argument("--cache", default=os.path.join(os.path.dirname(HERE), "build", "text_oracle"))
    ap.add_argument("sources", nargs="+")
    args = ap.parse_args()
    weights = []
    for s in args.sources:
        name, _, w = s.partition("=")
        weights.append((name, float(w or 1)))
    total = sum(w for _, w in weights)
    done = wrong = 0
    for i, (name, w) in enumerate(weights):
        n, d = compare(name, max(1, round(args.lines * w / total)), args.seed + i, args)
        done += n
        wrong += d
    print(f"{done} comparisons, {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
