#!/usr/bin/env python3
"""A GGUF file with the shape of Gemma 4 26B-A4B, or of some of its layers, and random weights, for speed.

    make_synthetic_moe.py OUT.gguf [--layers 30] [--seed 1]

Weights are drawn as synthetic.py says.  The types are those of a Q4_K_M file: Q4_K; Q6_K for attn_v, ffn_down and ffn_down_exps of half of
the layers and for the embedding, which is also the head; where rows are no multiple of 256, Q5_0 instead of Q4_K and Q8_0 instead of
Q6_K.  128 experts, 8 a row; a router's weights are random, so all experts are taken about equally often.
"""

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import LlamaFileType

from synthetic import arguments, begin, more_bits, put_tensors, put_vocabulary

LAYERS, HIDDEN, FFN, HEADS = 30, 2816, 2112, 16
EXPERTS, USED, EXPERT_FFN = 128, 8, 704
HEAD, KV_HEADS, FULL_HEAD, FULL_KV_HEADS, WINDOW, PERIOD = 256, 8, 512, 2, 1024, 6
CONTEXT, VOCAB, PLAIN = 262144, 262144, 262000
BOS, EOS = 262000, 262001


def kind_of(cols, large):
    if cols % 256:
        return T.Q8_0 if large else T.Q5_0
    return T.Q6_K if large else T.Q4_K


def slides(i):
    return (i + 1) % PERIOD != 0


def tensors(layers):
    """(name, shape, type) of every tensor, in file order"""
    yield "token_embd.weight", (VOCAB, HIDDEN), T.Q6_K
    for i in range(layers):
        p, large = f"blk.{i}.", more_bits(i, layers)
        head, kv = (HEAD, KV_HEADS) if slides(i) else (FULL_HEAD, FULL_KV_HEADS)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "post_ffw_norm_1", "post_ffw_norm_2", "pre_ffw_norm_2"):
            yield p + name + ".weight", (HIDDEN,), T.F32
        yield p + "layer_output_scale.weight", (1,), T.F32
        yield p + "attn_q_norm.weight", (head,), T.F32
        yield p + "attn_k_norm.weight", (head,), T.F32
        yield p + "attn_q.weight", (HEADS * head, HIDDEN), T.Q4_K
        yield p + "attn_k.weight", (kv * head, HIDDEN), T.Q4_K
        if slides(i):  # full layers take k for v
            yield p + "attn_v.weight", (kv * head, HIDDEN), kind_of(HIDDEN, large)
        yield p + "attn_output.weight", (HIDDEN, HEADS * head), T.Q4_K
        yield p + "ffn_gate.weight", (FFN, HIDDEN), T.Q4_K
        yield p + "ffn_up.weight", (FFN, HIDDEN), T.Q4_K
        yield p + "ffn_down.weight", (HIDDEN, FFN), kind_of(FFN, large)
        yield p + "ffn_gate_inp.weight", (EXPERTS, HIDDEN), T.F32
        yield p + "ffn_gate_inp.scale", (HIDDEN,), T.F32
        yield p + "ffn_down_exps.scale", (EXPERTS,), T.F32
        yield p + "ffn_gate_up_exps.weight", (EXPERTS, 2 * EXPERT_FFN, HIDDEN), T.Q4_K
        yield p + "ffn_down_exps.weight", (EXPERTS, HIDDEN, EXPERT_FFN), kind_of(EXPERT_FFN, large)
    yield "output_norm.weight", (HIDDEN,), T.F32
    yield "rope_freqs.weight", (FULL_HEAD // 2,), T.F32


def write(path, layers, seed):
    w = begin(path, "gemma4", "synthetic 26B-A4B shape", LlamaFileType.MOSTLY_Q4_K_M)
    w.add_block_count(layers)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(FFN)
    w.add_expert_count(EXPERTS)
    w.add_expert_used_count(USED)
    w.add_expert_feed_forward_length(EXPERT_FFN)
    w.add_head_count(HEADS)
    w.add_head_count_kv([KV_HEADS if slides(i) else FULL_KV_HEADS for i in range(layers)])
    w.add_key_length(FULL_HEAD)
    w.add_value_length(FULL_HEAD)
    w.add_key_length_swa(HEAD)
    w.add_value_length_swa(HEAD)
    w.add_rope_dimension_count(FULL_HEAD)
    w.add_rope_dimension_count_swa(HEAD)
    w.add_rope_freq_base(1e6)
    w.add_rope_freq_base_swa(1e4)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_final_logit_softcapping(30.0)
    w.add_sliding_window(WINDOW)
    w.add_sliding_window_pattern([slides(i) for i in range(layers)])
    w.add_shared_kv_layers(0)
    w.add_embedding_length_per_layer_input(0)
    put_vocabulary(w, PLAIN, VOCAB, {BOS: "<bos>", EOS: "<eos>"}, BOS, EOS)
    turned = FULL_HEAD // 8
    freqs = np.array([1.0] * turned + [1e30] * (FULL_HEAD // 2 - turned), np.float32)
    put_tensors(w, list(tensors(layers)), seed, {"rope_freqs.weight": freqs})


def main():
    args = arguments(__doc__, LAYERS)
    write(args.out, args.layers, args.seed)


if __name__ == "__main__":
    main()
