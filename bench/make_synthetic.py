#!/usr/bin/env python3
"""A GGUF file with the shape of Llama 3.1 8B and random weights, for speed: no real model of that size is needed.
(With experts, in the shape of Gemma 4 26B-A4B: make_synthetic_moe.py.)

    make_synthetic.py OUT.gguf --type Q4_K|Q8_0|BF16 [--layers 32] [--seed 1]

Needs numpy and gguf (PyPI).  The same arguments give the same bytes; --layers changes no layer's weights, save which of
them are Q6_K in the Q4_K mix.

Blocks are drawn, not quantised: every bit of the quants is random, the scales are small and finite, and the weights
have mean 0 and standard deviation 1 / sqrt(row length) (BF16, of two exponents only: up to 1.21 times that), so
activations stay sane through all layers.  Q4_K is mixed as llama.cpp's Q4_K_M does: attn_v and ffn_down of half of the
layers in Q6_K, and so is output.weight.

The vocabulary has the size and the special ids of Llama 3.1 and is a valid byte-level BPE: 256 bytes, then all pairs,
then triples, each the merge of two tokens before it.  It means nothing.  No more than one tensor is held in memory.
"""

import math

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import LlamaFileType

from synthetic import arguments, begin, more_bits, put_tensors, put_vocabulary

HIDDEN, FFN, HEADS, KV_HEADS, HEAD, LAYERS = 4096, 14336, 32, 8, 128, 32
CONTEXT, ROPE_BASE, RMS_EPS = 131072, 500000.0, 1e-5
N_PLAIN, N_VOCAB = 128000, 128256
BOS, EOS, EOT = 128000, 128001, 128009

FILE_TYPE = {
    "Q4_K": LlamaFileType.MOSTLY_Q4_K_M,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "BF16": LlamaFileType.MOSTLY_BF16,
}


def rope_factors():
    """Llama 3's frequency factors: 8 for wavelengths over 8192, 1 for those under 2048, smooth between."""
    factor, low, high, old = 8.0, 1.0, 4.0, 8192
    wave = 2 * math.pi * ROPE_BASE ** (np.arange(0, HEAD, 2, dtype=np.float64) / HEAD)
    smooth = (old / wave - low) / (high - low)
    middle = 1 / ((1 - smooth) / factor + smooth)
    return np.where(wave < old / high, 1.0, np.where(wave > old / low, factor, middle)).astype(np.float32)


# --- the file --------------------------------------------------------------------------------------------------------


def tensors(kind, layers):
    """(name, shape, type) of every tensor, in file order"""
    base = {"Q4_K": T.Q4_K, "Q8_0": T.Q8_0, "BF16": T.BF16}[kind]
    large = T.Q6_K if kind == "Q4_K" else base
    yield "token_embd.weight", (N_VOCAB, HIDDEN), base
    for i in range(layers):
        mixed = large if more_bits(i, layers) else base
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (HIDDEN,), T.F32
        yield p + "attn_q.weight", (HEADS * HEAD, HIDDEN), base
        yield p + "attn_k.weight", (KV_HEADS * HEAD, HIDDEN), base
        yield p + "attn_v.weight", (KV_HEADS * HEAD, HIDDEN), mixed
        yield p + "attn_output.weight", (HIDDEN, HEADS * HEAD), base
        yield p + "ffn_norm.weight", (HIDDEN,), T.F32
        yield p + "ffn_gate.weight", (FFN, HIDDEN), base
        yield p + "ffn_up.weight", (FFN, HIDDEN), base
        yield p + "ffn_down.weight", (HIDDEN, FFN), mixed
    yield "output_norm.weight", (HIDDEN,), T.F32
    yield "output.weight", (N_VOCAB, HIDDEN), large
    yield "rope_freqs.weight", (HEAD // 2,), T.F32


def write(path, kind, layers, seed):
    w = begin(path, "llama", f"synthetic 8B shape {kind}", FILE_TYPE[kind])
    w.add_block_count(layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_rope_dimension_count(HEAD)
    w.add_rope_freq_base(ROPE_BASE)
    w.add_layer_norm_rms_eps(RMS_EPS)
    w.add_vocab_size(N_VOCAB)
    put_vocabulary(w, N_PLAIN, N_VOCAB, {BOS: "<|begin_of_text|>", EOS: "<|end_of_text|>", EOT: "<|eot_id|>"}, BOS, EOT)
    put_tensors(w, list(tensors(kind, layers)), seed, {"rope_freqs.weight": rope_factors()})


def main():
    args = arguments(__doc__, LAYERS, lambda parser: parser.add_argument("--type", choices=FILE_TYPE, required=True))
    write(args.out, args.type, args.layers, args.seed)


if __name__ == "__main__":
    main()
