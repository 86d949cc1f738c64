#!/usr/bin/env python3
"""A GGUF file with the shape of a small model and random weights, for speed where the model itself is not at hand.

    make_synthetic_small.py OUT.gguf --shape 135m|270m [--layers N] [--seed 1]

135m: SmolLM2 135M in Q4_1.  270m: Gemma 3 270M as a Q4_K_M file, where rows of 640, which no block of 256 divides, are Q5_0 or Q8_0.  Weights are
drawn as synthetic.py says.
"""

from gguf import GGMLQuantizationType as T
from gguf import LlamaFileType

from synthetic import arguments, begin, more_bits, put_tensors, put_vocabulary


class Smol:
    arch, layers, hidden, ffn, heads, kv_heads, head = "llama", 30, 576, 1536, 9, 3, 64
    context, rope_base, eps, file_type = 8192, 100000.0, 1e-5, LlamaFileType.MOSTLY_Q4_1
    vocab, plain, after = 49152, 49000, {}

    @staticmethod
    def kind(cols, large):
        return T.Q4_1

    @staticmethod
    def more(w):
        pass


class Gemma:
    arch, layers, hidden, ffn, heads, kv_heads, head = "gemma3", 18, 640, 2048, 4, 1, 256
    context, rope_base, eps, file_type = 32768, 1000000.0, 1e-6, LlamaFileType.MOSTLY_Q4_K_M
    vocab, plain = 262144, 262000
    after = {"attn_q_norm": 256, "attn_k_norm": 256, "post_attention_norm": 640, "post_ffw_norm": 640}

    @staticmethod
    def kind(cols, large):
        if cols % 256:
            return T.Q8_0 if large else T.Q5_0
        return T.Q6_K if large else T.Q4_K

    @staticmethod
    def more(w):
        w.add_sliding_window(512)


SHAPES = {"135m": Smol, "270m": Gemma}


def tensors(s, layers):
    """(name, shape, type) of every tensor, in file order; the embedding is also the head"""
    yield "token_embd.weight", (s.vocab, s.hidden), T.Q8_0
    for i in range(layers):
        p, large = f"blk.{i}.", more_bits(i, layers)
        for name, size in {"attn_norm": s.hidden, "ffn_norm": s.hidden, **s.after}.items():
            yield f"{p}{name}.weight", (size,), T.F32
        wide = s.heads * s.head
        for name, rows, cols, more in (("attn_q", wide, s.hidden, False), ("attn_k", s.kv_heads * s.head, s.hidden, False),
                                       ("attn_v", s.kv_heads * s.head, s.hidden, large), ("attn_output", s.hidden, wide, False),
                                       ("ffn_gate", s.ffn, s.hidden, False), ("ffn_up", s.ffn, s.hidden, False), ("ffn_down", s.hidden, s.ffn, large)):
            yield f"{p}{name}.weight", (rows, cols), s.kind(cols, more)
    yield "output_norm.weight", (s.hidden,), T.F32


def write(path, shape, layers, seed):
    s = SHAPES[shape]
    layers = layers or s.layers
    w = begin(path, s.arch, f"synthetic {shape} shape", s.file_type)
    w.add_block_count(layers)
    w.add_context_length(s.context)
    w.add_embedding_length(s.hidden)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head)
    w.add_value_length(s.head)
    w.add_rope_freq_base(s.rope_base)
    w.add_layer_norm_rms_eps(s.eps)
    w.add_vocab_size(s.vocab)
    s.more(w)
    put_vocabulary(w, s.plain, s.vocab, {}, s.plain, s.plain + 1)
    put_tensors(w, list(tensors(s, layers)), seed, {})


def main():
    args = arguments(__doc__, None, lambda parser: parser.add_argument("--shape", choices=SHAPES, required=True))
    write(args.out, args.shape, args.layers, args.seed)


if __name__ == "__main__":
    main()
