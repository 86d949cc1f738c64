#!/usr/bin/env python3
"""Peers for the benchmarks: builds llama.cpp and ik_llama.cpp, measures them, scores with them.

    peers.py install FOLDER [--peer llama|ik|all]     venvs FOLDER/venv-llama, FOLDER/venv-ik; wheels FOLDER/wheels
    peers.py run     MODEL.gguf [-r 5] pp512 tg128    one JSON line per test, every repetition in it
    peers.py serve   MODEL.gguf                       one repetition per line of stdin (below), one JSON line each
    peers.py score   MODEL.gguf IDS OUT.npy           float32 logits of every position, for KL
    peers.py quantize IN.gguf OUT.gguf TYPE           llama_model_quantize, requantising allowed (llama.cpp only)

`install` runs with any Python; the others run with the Python of a peer's venv, and measure the peer found there.

The work is that of llama-bench: a context of exactly n + depth positions, f16 KV, n_batch 2048, n_ubatch 512, one
warm-up run per test (the prompt itself, or one token), KV cleared before each repetition, logits of the last position
only in pp, one token per call in tg and no sampling; threads pinned to the first CPUs of the affinity mask (-C,
--cpu-strict 1, --poll 50).  Two differences: token ids come from ids() below instead of rand(), so that another
engine can be fed the same ones, and a context lives as long as the process, so repetitions can be interleaved.

Flash attention is auto for llama.cpp and on for ik_llama.cpp (its llama-bench's default; it has no auto).

Lines of `serve`: `pp N [DEPTH]`, `tg N [DEPTH]`, `quit`.  DEPTH ids are prefilled first, untimed.  An answer is
{"peer", "version", "model", "test", "n", "depth", "threads", "tokens_per_s": [x]}, or {"error": text}.
"""

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

# Peer: package, version, SHA-256 of its source package, CMake options.  llama.cpp has a thread pool of its own, which
# llama-bench and this script attach; ik_llama.cpp has none and would start threads for every graph without OpenMP.
# IQK_FA_ALL_QUANTS only adds KV types that are not measured here.
PEERS = {
    "llama": (
        "llama-cpp-python",
        "0.3.36",
        "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
        "-DGGML_NATIVE=ON -DGGML_LLAMAFILE=ON -DGGML_OPENMP=OFF -DLLAVA_BUILD=OFF -DLLAMA_BUILD_TESTS=OFF "
        "-DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF",
    ),
    "ik": (
        "ik-llama-cpp-python",
        "0.1.5",
        "33c67eb99e4dcab5e611050433243815709b8b3067753f9ce18375013cf002ad",
        "-DGGML_NATIVE=ON -DGGML_OPENMP=ON -DGGML_IQK_FA_ALL_QUANTS=OFF -DLLAMA_CURL=OFF",
    ),
}

N_BATCH = 2048
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8}
N_UBATCH = 512
POLL = 50  # llama-bench's default
GGML_TYPE_F16 = 1
GGML_MAX_N_THREADS = 512

FTYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11,
    "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
    "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4_MOE": 38,
}  # fmt: skip

LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)


# --- install ---------------------------------------------------------------------------------------------------------


def install(folder, names, jobs):
    """Build each peer's wheel once (FOLDER/wheels keeps it) and install it in a venv of its own."""
    wheels = folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    for name in names:
        package, version, sha256, options = PEERS[name]
        venv = folder / f"venv-{name}"
        pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        if not (venv / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        stem = package.replace("-", "_")
        if not list(wheels.glob(f"{stem}-{version}-*.whl")):
            pin = wheels / f"{package}.txt"
            pin.write_text(f"{package}=={version} --hash=sha256:{sha256}\n")
            env = dict(os.environ, CMAKE_ARGS=options, CMAKE_BUILD_PARALLEL_LEVEL=str(jobs))
            command = [*pip, "wheel", "-v", "--no-deps", "--no-binary", package, "-w", str(wheels), "-r", str(pin)]
            print(f"building {package} {version}: {wheels / package}.log", file=sys.stderr)
            with open(wheels / f"{package}.log", "wb") as log:
                subprocess.run(command, check=True, env=env, stdout=log, stderr=subprocess.STDOUT)
        (wheel,) = wheels.glob(f"{stem}-{version}-*.whl")
        subprocess.run([*pip, "install", "-q", str(wheel)], check=True)


# --- the two peers behind one face -----------------------------------------------------------------------------------


def ids(count, n_vocab, first=None):
    """The token ids that every repetition is fed: x = x * 1664525 + 1013904223 (mod 2^32) from x = 1, id = (x >> 8)
    mod n_vocab; `first` (the BOS of a model that adds one) replaces the first, as in llama-bench."""
    x, out = 1, (ctypes.c_int32 * count)()
    for i in range(count):
        x = (x * 1664525 + 1013904223) & 0xFFFFFFFF
        out[i] = (x >> 8) % n_vocab
    if first is not None and count:
        out[0] = first
    return out


class ThreadpoolParams(ctypes.Structure):
    """struct ggml_threadpool_params"""

    _fields_ = [
        ("cpumask", ctypes.c_bool * GGML_MAX_N_THREADS),
        ("n_threads", ctypes.c_int),
        ("prio", ctypes.c_int),
        ("poll", ctypes.c_uint32),
        ("strict_cpu", ctypes.c_bool),
        ("paused", ctypes.c_bool),
    ]


class Peer:
    """What both share.  Owns the model, and every context until close()."""

    name = ""
    kv_type = GGML_TYPE_F16

    def __init__(self, path, threads, repack, verbose):
        self.path, self.threads = path, threads
        self.version = importlib.metadata.version(PEERS[self.name][0])
        self._bind()
        self._log = LOG_CALLBACK(lambda level, text, data: None)
        if not verbose:
            self.lib.llama_log_set(self._log, None)
        self.api.llama_backend_init()
        self.model = self._load(str(path).encode(), repack)
        if not self.model:
            raise SystemExit(f"{self.name}: cannot load {path}")

    def function(self, name, restype, *argtypes):
        """A function of the peer's library that its Python package leaves out."""
        f = getattr(self.lib, name)
        f.restype, f.argtypes = restype, argtypes
        return f

    def feed(self, ctx, tokens, start, count, past):
        """Decode tokens[start : start + count] in batches of N_BATCH, logits of each batch's last position only."""
        address = ctypes.addressof(tokens)
        for at in range(start, start + count, N_BATCH):
            n = min(N_BATCH, start + count - at)
            part = (ctypes.c_int32 * n).from_address(address + 4 * at)
            self.decode(ctx, self.batch_of(part, n, past + at - start))
        self.synchronize(ctx)

    def step(self, ctx, tokens, past):
        """Decode one token per call."""
        one = (ctypes.c_int32 * 1)()
        for i, token in enumerate(tokens):
            one[0] = token
            self.decode(ctx, self.batch_of(one, 1, past + i))
            self.synchronize(ctx)

    def decode(self, ctx, batch):
        rc = self.api.llama_decode(ctx, batch)
        if rc != 0:
            raise RuntimeError(f"llama_decode: {rc}")

    def score(self, ctx, batch, tokens, past):
        """Logits of every position of `tokens`, as a [len(tokens), n_vocab] view that lives until the next call."""
        import numpy as np

        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i] = int(token)
            batch.pos[i] = past + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 1
        self.decode(ctx, batch)
        self.synchronize(ctx)
        return np.ctypeslib.as_array(self.logits(ctx), shape=(len(tokens), self.n_vocab))


class Llama(Peer):
    """llama.cpp"""

    name = "llama"

    def _bind(self):
        import llama_cpp.llama_cpp as api

        self.api, self.lib = api, api._lib
        self.synchronize = api.llama_synchronize
        self.logits = api.llama_get_logits
        default = self.function("ggml_threadpool_params_default", ThreadpoolParams, ctypes.c_int)
        new = self.function("ggml_threadpool_new", ctypes.c_void_p, ctypes.POINTER(ThreadpoolParams))
        params = default(self.threads)
        for c in sorted(os.sched_getaffinity(0))[: self.threads]:
            params.cpumask[c] = True
        params.strict_cpu, params.poll = True, POLL
        self.pool = new(ctypes.byref(params))
        self._attach = self.function("llama_attach_threadpool", None, *[ctypes.c_void_p] * 3)

    def _load(self, path, repack):
        params = self.api.llama_model_default_params()
        params.n_gpu_layers = 0
        if repack is not None:
            params.use_extra_bufts = repack
        model = self.api.llama_model_load_from_file(path, params)
        if model:
            vocab = self.api.llama_model_get_vocab(model)
            self.n_vocab = self.api.llama_vocab_n_tokens(vocab)
            self.bos = self.api.llama_vocab_bos(vocab) if self.api.llama_vocab_get_add_bos(vocab) else None
        return model

    def context(self, n_ctx, n_batch=N_BATCH):
        params = self.api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, N_UBATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = self.kv_type
        params.flash_attn_type = -1  # LLAMA_FLASH_ATTN_TYPE_AUTO
        params.swa_full = False
        ctx = self.api.llama_init_from_model(self.model, params)
        if not ctx:
            raise RuntimeError(f"no context of {n_ctx}")
        self._attach(ctx, self.pool, None)
        return ctx

    def batch_of(self, tokens, n, past):
        return self.api.llama_batch_get_one(tokens, n)  # positions follow what is in the cache

    def clear(self, ctx):
        self.api.llama_memory_clear(self.api.llama_get_memory(ctx), False)


class Ik(Peer):
    """ik_llama.cpp"""

    name = "ik"

    def _bind(self):
        os.environ.setdefault("OMP_PROC_BIND", "true")
        folder = Path(importlib.util.find_spec("ik_llama_cpp").origin).parent / "lib"
        ctypes.CDLL(str(folder / "libggml.so"), ctypes.RTLD_GLOBAL)  # libllama.so has no path to it
        import ik_llama_cpp._ctypes_api as api

        self.api, self.lib = api, api._lib
        context, model, i32 = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32
        self.synchronize = self.function("llama_synchronize", None, context)
        self.logits = self.function("llama_get_logits", ctypes.POINTER(ctypes.c_float), context)
        self.batch_of = self.function("llama_batch_get_one", api.llama_batch, ctypes.POINTER(i32), i32, i32, i32)
        self._n_vocab = self.function("llama_n_vocab", i32, model)
        self._bos = self.function("llama_token_bos", i32, model)
        self._add_bos = self.function("llama_add_bos_token", i32, model)

    def _load(self, path, repack):
        params = self.api.llama_model_default_params()
        params.n_gpu_layers = 0
        if repack is not None:
            params.repack_tensors = repack
        model = self.api.llama_model_load_from_file(path, params)
        if model:
            self.n_vocab = self._n_vocab(model)
            self.bos = self._bos(model) if self._add_bos(model) else None
            get_one = self.batch_of
            self.batch_of = lambda tokens, n, past: get_one(tokens, n, past, 0)
        return model

    def context(self, n_ctx, n_batch=N_BATCH):
        params = self.api.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_ctx, n_batch, N_UBATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = self.kv_type
        params.flash_attn = True
        ctx = self.api.llama_init_from_model(self.model, params)
        if not ctx:
            raise RuntimeError(f"no context of {n_ctx}")
        return ctx

    def clear(self, ctx):
        self.api.llama_kv_cache_clear(ctx)


def open_peer(args):
    """The peer of this venv."""
    repack = {"default": None, "on": True, "off": False}[args.repack]
    for kind, module in ((Llama, "llama_cpp"), (Ik, "ik_llama_cpp")):
        if importlib.util.find_spec(module):
            return kind(args.model, args.threads, repack, args.verbose)
    raise SystemExit("neither llama_cpp nor ik_llama_cpp here: run with the Python of a venv that `install` made")


# --- measuring -------------------------------------------------------------------------------------------------------


class Bench:
    """Contexts by test, each warmed up when it is made."""

    def __init__(self, peer):
        self.peer, self.contexts = peer, {}

    def once(self, test, n, depth):
        """One repetition: seconds."""
        peer, ctx, tokens = self.peer, *self._context(test, n, depth)
        peer.clear(ctx)
        peer.feed(ctx, tokens, 0, depth, 0)
        start = time.perf_counter_ns()
        self._work(ctx, test, tokens, n, depth)
        return (time.perf_counter_ns() - start) / 1e9

    def result(self, test, n, depth, seconds):
        """The JSON object of some repetitions."""
        return {
            "peer": self.peer.name,
            "version": self.peer.version,
            "model": Path(self.peer.path).name,
            "test": test,
            "n": n,
            "depth": depth,
            "threads": self.peer.threads,
            "tokens_per_s": [round(n / s, 3) for s in seconds],
        }

    def _work(self, ctx, test, tokens, n, depth):
        if test == "pp":
            self.peer.feed(ctx, tokens, depth, n, depth)
        else:
            self.peer.step(ctx, tokens[depth : depth + n], depth)

    def _context(self, test, n, depth):
        key = (test, n, depth)
        if key not in self.contexts:
            ctx = self.peer.context(n + depth)
            tokens = ids(n + depth, self.peer.n_vocab, self.peer.bos)
            self._work(ctx, test, tokens, n if test == "pp" else 1, 0)
            self.contexts[key] = ctx, tokens
        return self.contexts[key]


def parse_test(text):
    """`pp512`, `tg 128`, `tg 128 4096`, `tg128@4096` -> (test, n, depth)"""
    m = re.fullmatch(r"(pp|tg) ?([1-9][0-9]{0,6})(?:[ @]([0-9]{1,7}))?", text)
    if not m:
        raise ValueError(f"not a test: {text!r}")
    return m[1], int(m[2]), int(m[3] or 0)


def run(args):
    bench = Bench(open_peer(args))
    for test in args.tests:
        seconds = [bench.once(*test) for _ in range(args.repetitions)]
        print(json.dumps(bench.result(*test, seconds)), flush=True)


def serve(args):
    bench = Bench(open_peer(args))
    for line in sys.stdin:
        text = " ".join(line.split())
        if text == "quit":
            break
        try:
            test = parse_test(text)
            answer = bench.result(*test, [bench.once(*test)])
        except (ValueError, RuntimeError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


# --- scoring, quantising ---------------------------------------------------------------------------------------------


def score(args):
    """Every window of `ctx` ids starts from an empty cache, and nothing (no BOS) is added to it."""
    import numpy as np

    tokens = np.load(args.ids) if args.ids.suffix == ".npy" else np.array(args.ids.read_text().split(), dtype=np.int64)
    peer = open_peer(args)
    peer.kv_type = KV_TYPES[args.kv]
    if tokens.ndim != 1 or not len(tokens) or tokens.min() < 0 or tokens.max() >= peer.n_vocab:
        raise SystemExit(f"{args.ids}: not a list of ids below {peer.n_vocab}")
    shape = (len(tokens), peer.n_vocab)
    out = np.lib.format.open_memmap(args.out, mode="w+", dtype=np.float32, shape=shape)
    n_batch = min(args.ctx, N_UBATCH)
    ctx, batch = peer.context(args.ctx, n_batch), peer.api.llama_batch_init(n_batch, 0, 1)
    for window in range(0, len(tokens), args.ctx):
        peer.clear(ctx)
        end = min(window + args.ctx, len(tokens))
        for at in range(window, end, n_batch):
            stop = min(at + n_batch, end)
            out[at:stop] = peer.score(ctx, batch, tokens[at:stop], at - window)
    out.flush()
    about = {"peer": peer.name, "version": peer.version, "model": Path(peer.path).name, "ctx": args.ctx}
    print(json.dumps(about | {"positions": shape[0], "n_vocab": shape[1], "out": args.out.name}))


def quantize(args):
    """One file to another type.  llama.cpp falls back, tensor by tensor, where a row is no multiple of the block."""
    import llama_cpp.llama_cpp as api

    log = LOG_CALLBACK(lambda level, text, data: None)
    if not args.verbose:
        api._lib.llama_log_set(log, None)
    params = api.llama_model_quantize_default_params()
    params.ftype, params.nthread, params.allow_requantize, params.pure = FTYPES[args.type], args.threads, True, args.pure
    rc = api.llama_model_quantize(str(args.model).encode(), str(args.out).encode(), ctypes.byref(params))
    if rc != 0:
        raise SystemExit(f"llama_model_quantize to {args.type}: {rc}")


# --- command line ----------------------------------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    p = commands.add_parser("install", help="build the peers and make their venvs")
    p.add_argument("folder", type=Path)
    p.add_argument("--peer", choices=[*PEERS, "all"], default="all")
    p.add_argument("-j", "--jobs", type=int, default=os.cpu_count())

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
    common.add_argument("--verbose", action="store_true", help="let the peer log to stderr")

    bench = argparse.ArgumentParser(add_help=False, parents=[common])
    bench.add_argument("model", type=Path)
    bench.add_argument(
        "--repack",
        choices=["default", "on", "off"],
        default="default",
        help="repack weights when loading (default: llama.cpp on, ik_llama.cpp off, as in their llama-bench)",
    )

    p = commands.add_parser("run", parents=[bench], help="measure")
    p.add_argument("tests", nargs="+", type=parse_test, metavar="TEST", help="pp512, tg128, tg128@4096 ...")
    p.add_argument("-r", "--repetitions", type=int, default=5)

    commands.add_parser("serve", parents=[bench], help="one repetition per line of stdin")

    p = commands.add_parser("score", parents=[bench], help="logits of every position")
    p.add_argument("--kv", choices=KV_TYPES, default="f16", help="type of the KV cache; quantised ones are rotated where llama.cpp does so")
    p.add_argument("ids", type=Path, help="token ids: text, separated by white space, or a .npy")
    p.add_argument("out", type=Path, help="float32 .npy [ids, vocabulary]")
    p.add_argument("--ctx", type=int, default=512, help="ids per window")

    p = commands.add_parser("quantize", parents=[common], help="requantise a file")
    p.add_argument("model", type=Path)
    p.add_argument("out", type=Path)
    p.add_argument("type", choices=FTYPES)
    p.add_argument("--pure", action="store_true", help="every tensor the same type, as far as its rows allow")

    args = parser.parse_args()
    if args.command == "install":
        install(args.folder, list(PEERS) if args.peer == "all" else [args.peer], args.jobs)
    else:
        {"run": run, "serve": serve, "score": score, "quantize": quantize}[args.command](args)


if __name__ == "__main__":
    main()
