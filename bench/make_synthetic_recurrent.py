#!/usr/bin/env python3
"""A GGUF file with recurrent layers of a real model's sizes, a few of them, and random weights, for speed.

    make_synthetic_recurrent.py qwen3_5|qwen3_next|nemotron_h|lfm2 OUT.gguf [--layers 8] [--type Q4_K|Q8_0] [--seed 1]

Weights are drawn as synthetic.py says, all of one type; vectors, convolutions, routers and gates are F32.  What `bench_guess` measures on it:
a span of several rows beside a span of one.
"""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import LlamaFileType

from synthetic import arguments, begin, put_tensors, put_vocabulary

HIDDEN, VOCAB, PLAIN = 2048, 32768, 32512
BOS, EOS = 32512, 32513
KEYS, VALUES, STATE = 16, 32, 128  # delta nets: heads, and elements of a head
MAMBA, MAMBA_HEAD, MAMBA_STATE, GROUPS = 64, 64, 128, 8
PATTERN = {"qwen3_5": "RRRA", "qwen3_next": "RRRA", "nemotron_h": "R-R*R-R-", "lfm2": "RRAR"}
ARCH = {"qwen3_5": "qwen35", "qwen3_next": "qwen3next", "nemotron_h": "nemotron_h", "lfm2": "lfm2"}
EXPERTS, USED, EXPERT_FFN = 128, 8, 512
FFN = {"qwen3_5": 6144, "qwen3_next": EXPERT_FFN, "nemotron_h": 8192, "lfm2": 8192}
HEADS = {"qwen3_5": (8, 2, 256), "qwen3_next": (16, 2, 256), "nemotron_h": (16, 8, 128), "lfm2": (32, 8, 64)}


def kinds(name, layers):
    return [PATTERN[name][i % len(PATTERN[name])] for i in range(layers)]


def attention(name, p, t):
    heads, kv, head = HEADS[name]
    gated = 2 if name.startswith("qwen") else 1
    yield p + "attn_q.weight", (gated * heads * head, HIDDEN), t
    yield p + "attn_k.weight", (kv * head, HIDDEN), t
    yield p + "attn_v.weight", (kv * head, HIDDEN), t
    yield p + "attn_output.weight", (HIDDEN, heads * head), t
    if name != "nemotron_h":
        yield p + "attn_q_norm.weight", (head,), T.F32
        yield p + "attn_k_norm.weight", (head,), T.F32


def delta(name, p, t):
    channels, out = (2 * KEYS + VALUES) * STATE, VALUES * STATE
    yield p + "attn_qkv.weight", (channels, HIDDEN), t
    yield p + "attn_gate.weight", (out, HIDDEN), t
    if name == "qwen3_next":
        yield p + "ssm_ba.weight", (2 * VALUES, HIDDEN), t
    else:
        yield p + "ssm_alpha.weight", (VALUES, HIDDEN), t
        yield p + "ssm_beta.weight", (VALUES, HIDDEN), t
    yield p + "ssm_conv1d.weight", (channels, 4), T.F32
    yield p + "ssm_a", (VALUES,), T.F32
    yield p + "ssm_dt.bias", (VALUES,), T.F32
    yield p + "ssm_norm.weight", (STATE,), T.F32
    yield p + "ssm_out.weight", (HIDDEN, out), t


def mamba(p, t):
    inner = MAMBA * MAMBA_HEAD
    yield p + "ssm_in.weight", (2 * inner + 2 * GROUPS * MAMBA_STATE + MAMBA, HIDDEN), t
    yield p + "ssm_conv1d.weight", (inner + 2 * GROUPS * MAMBA_STATE, 4), T.F32
    yield p + "ssm_conv1d.bias", (inner + 2 * GROUPS * MAMBA_STATE,), T.F32
    yield p + "ssm_a", (MAMBA, 1), T.F32
    yield p + "ssm_d", (MAMBA, 1), T.F32
    yield p + "ssm_dt.bias", (MAMBA,), T.F32
    yield p + "ssm_norm.weight", (GROUPS, inner // GROUPS), T.F32
    yield p + "ssm_out.weight", (HIDDEN, inner), t


def conv(p, t):
    yield p + "shortconv.in_proj.weight", (3 * HIDDEN, HIDDEN), t
    yield p + "shortconv.conv.weight", (HIDDEN, 3), T.F32
    yield p + "shortconv.out_proj.weight", (HIDDEN, HIDDEN), t


def feed_forward(name, p, t):
    ffn = FFN[name]
    if name == "qwen3_next":
        yield p + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), T.F32
        for part, shape in (("gate", (EXPERTS, ffn, HIDDEN)), ("up", (EXPERTS, ffn, HIDDEN)), ("down", (EXPERTS, HIDDEN, ffn))):
            yield f"{p}ffn_{part}_exps.weight", shape, t
            yield f"{p}ffn_{part}_shexp.weight", shape[1:], t
        yield p + "ffn_gate_inp_shexp.weight", (HIDDEN,), T.F32
        return
    if name != "nemotron_h":
        yield p + "ffn_gate.weight", (ffn, HIDDEN), t
    yield p + "ffn_up.weight", (ffn, HIDDEN), t
    yield p + "ffn_down.weight", (HIDDEN, ffn), t


def tensors(name, layers, t):
    """(name, shape, type) of every tensor, in file order"""
    recurrent = {"qwen3_5": lambda p: delta(name, p, t), "qwen3_next": lambda p: delta(name, p, t), "nemotron_h": lambda p: mamba(p, t),
                 "lfm2": lambda p: conv(p, t)}[name]
    yield "token_embd.weight", (VOCAB, HIDDEN), t
    for i, kind in enumerate(kinds(name, layers)):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", (HIDDEN,), T.F32
        if kind == "R":
            yield from recurrent(p)
        elif kind in "A*":
            yield from attention(name, p, t)
        if name == "nemotron_h" and kind != "-":
            continue
        if name != "nemotron_h":
            yield p + {"lfm2": "ffn_norm.weight"}.get(name, "post_attention_norm.weight"), (HIDDEN,), T.F32
        yield from feed_forward(name, p, t)
    yield {"lfm2": "token_embd_norm.weight"}.get(name, "output_norm.weight"), (HIDDEN,), T.F32
    yield "output.weight", (VOCAB, HIDDEN), t


def put_sizes(w, name, layers):
    heads, kv, head = HEADS[name]
    list_of = kinds(name, layers)
    w.add_block_count(layers)
    w.add_context_length(32768)
    w.add_embedding_length(HIDDEN)
    w.add_head_count(heads)
    w.add_key_length(head)
    w.add_value_length(head)
    w.add_layer_norm_rms_eps(1e-6)
    if name == "nemotron_h":
        w.add_layer_norm_eps(1e-6)
        w.add_feed_forward_length([FFN[name] if k == "-" else 0 for k in list_of])
    else:
        w.add_feed_forward_length(FFN[name])
        w.add_rope_freq_base(1e6)
    if name.startswith("qwen"):
        w.add_head_count_kv(kv)
        w.add_rope_dimension_count(head // 4)
        w.add_array(f"{ARCH[name]}.attention.recurrent_layers", [k == "R" for k in list_of])
    else:
        w.add_head_count_kv([kv if k in "A*" else 0 for k in list_of])


def put_state(w, name):
    if name == "lfm2":
        w.add_shortconv_l_cache(3)
        return
    mamba = name == "nemotron_h"
    w.add_ssm_conv_kernel(4)
    w.add_ssm_state_size(MAMBA_STATE if mamba else STATE)
    w.add_ssm_group_count(GROUPS if mamba else KEYS)
    w.add_ssm_time_step_rank(MAMBA if mamba else VALUES)
    w.add_ssm_inner_size(MAMBA * MAMBA_HEAD if mamba else VALUES * STATE)
    if name == "qwen3_next":
        w.add_expert_count(EXPERTS)
        w.add_expert_used_count(USED)
        w.add_expert_feed_forward_length(EXPERT_FFN)
        w.add_expert_shared_feed_forward_length(EXPERT_FFN)


def write(name, path, layers, kind, seed):
    w = begin(path, ARCH[name], f"synthetic {name} shape", LlamaFileType.MOSTLY_Q4_K_M if kind == "Q4_K" else LlamaFileType.MOSTLY_Q8_0)
    put_sizes(w, name, layers)
    put_state(w, name)
    put_vocabulary(w, PLAIN, VOCAB, {BOS: "<bos>", EOS: "<eos>"}, BOS, EOS)
    listed = list(tensors(name, layers, T[kind]))
    rates = {n: -np.linspace(0.1, 2.0, int(np.prod(s))).astype(np.float32).reshape(s) for n, s, _ in listed if n.endswith("ssm_a")}
    put_tensors(w, listed, seed, rates)


def more(parser):
    parser.add_argument("name", choices=PATTERN)
    parser.add_argument("--type", choices=("Q4_K", "Q8_0"), default="Q4_K")


def main():
    args = arguments(__doc__, 8, more)
    write(args.name, args.out, args.layers, args.type, args.seed)


if __name__ == "__main__":
    main()
