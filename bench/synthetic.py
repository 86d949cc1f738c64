"""What the scripts that write synthetic GGUF files share: drawn weights, a vocabulary that means nothing, the file's frame.

Blocks are drawn, not quantised: every bit of the quants is random, the scales are small and finite, and the weights have mean 0 and standard
deviation 1 / sqrt(row length) (BF16, of two exponents only: up to 1.21 times that).  The same arguments give the same bytes.
Needs numpy and gguf (PyPI).
"""

import argparse
import math
import zlib

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, TokenType

N_BYTES = 256
BLOCK_BYTES = {T.Q4_K: (256, 144), T.Q4_1: (32, 20), T.Q5_0: (32, 22), T.Q6_K: (256, 210), T.Q8_0: (32, 34), T.BF16: (1, 2)}  # weights, bytes of a block


# --- weights: each draws n blocks, uint8 [n, bytes of a block], of weights with the given standard deviation ---------


def f16_scales(rng, n, d):
    """n scales in d * [0.75, 1.25) as f16: uint8 [n, 2]"""
    return (d * rng.uniform(0.75, 1.25, n)).astype("<f2").view(np.uint8).reshape(n, 2)


def draw_q4_k(rng, n, std):
    """w = d * sc * q - dmin * m with q in 0..15; m = sc and dmin = 7.5 d centre it."""
    block = rng.integers(0, 256, (n, 144), np.uint8)
    sc = rng.integers(8, 32, (n, 8), np.uint8)
    d = f16_scales(rng, n, std / (math.sqrt((16**2 - 1) / 12) * math.sqrt((sc.astype(float) ** 2).mean())))
    block[:, 0:2] = d
    block[:, 2:4] = (d.view("<f2") * np.float16(7.5)).astype("<f2").view(np.uint8)
    low, high = sc[:, :4], sc[:, 4:]  # 6 bits each: the first four whole, the last four as 4 low and 2 high bits
    block[:, 4:8] = block[:, 8:12] = low | (high >> 4) << 6
    block[:, 12:16] = (high & 15) | (high & 15) << 4
    return block


def draw_q4_1(rng, n, std):
    """w = d * q + m with q in 0..15; m = -7.5 d centres it."""
    block = rng.integers(0, 256, (n, 20), np.uint8)
    block[:, 0:2] = d = f16_scales(rng, n, std / math.sqrt((16**2 - 1) / 12))
    block[:, 2:4] = (d.view("<f2") * np.float16(-7.5)).astype("<f2").view(np.uint8)
    return block


def draw_q6_k(rng, n, std):
    """w = d * sc * (q - 32) with q in 0..63: mean -0.5 d sc, so half of the (signed) scales are negative."""
    block = rng.integers(0, 256, (n, 210), np.uint8)
    sc = rng.integers(16, 64, (n, 16), np.int8)
    d = std / (math.sqrt((64**2 - 1) / 12) * math.sqrt((sc.astype(float) ** 2).mean()))
    sc[:, ::2] *= -1
    block[:, 192:208] = sc.view(np.uint8)
    block[:, 208:210] = f16_scales(rng, n, d)
    return block


def draw_q5_0(rng, n, std):
    """w = d * (q - 16) with q in 0..31: mean -0.5 d, so half of the blocks are negative."""
    block = rng.integers(0, 256, (n, 22), np.uint8)
    block[:, 0:2] = f16_scales(rng, n, std / math.sqrt((32**2 - 1) / 12))
    block[::2, 1] ^= 0x80
    return block


def draw_q8_0(rng, n, std):
    """w = d * q with q in -127..127"""
    block = np.empty((n, 34), np.uint8)
    block[:, 0:2] = f16_scales(rng, n, std / math.sqrt((255**2 - 1) / 12))
    block[:, 2:] = rng.integers(-127, 128, (n, 32), np.int8).view(np.uint8)
    return block


def draw_bf16(rng, n, std):
    """Random sign and mantissa; the exponent is one of two: uniform in +-[2^(e-1), 2^e) or +-[2^e, 2^(e+1))."""
    e = round(math.log2(std / math.sqrt((7 / 3) * (1 + 1 / 4) / 2)))
    bits = rng.integers(0, 1 << 16, n, np.uint16)
    exponent = ((bits >> 8 & 1) + (127 + e - 1)).astype(np.uint16)
    return ((bits & 0x807F) | exponent << 7).astype("<u2").view(np.uint8).reshape(n, 2)


DRAW = {T.Q4_1: draw_q4_1, T.Q4_K: draw_q4_k, T.Q5_0: draw_q5_0, T.Q6_K: draw_q6_k, T.Q8_0: draw_q8_0, T.BF16: draw_bf16}


def draw_matrix(rng, rows, cols, kind):
    """One weight matrix as bytes, uint8 [rows, bytes of a row], drawn a few rows at a time."""
    weights, size = BLOCK_BYTES[kind]
    per_row = cols // weights
    out = np.empty((rows, per_row * size), np.uint8)
    step = max(1, (1 << 22) // (per_row * size))
    for at in range(0, rows, step):
        n = min(step, rows - at)
        out[at : at + n] = DRAW[kind](rng, n * per_row, 1 / math.sqrt(cols)).reshape(n, -1)
    return out


def norm(rng, size):
    return rng.uniform(0.9, 1.1, size).astype(np.float32)


# --- the file --------------------------------------------------------------------------------------------------------


def more_bits(i, n):
    """llama.cpp's use_more_bits: which layers of a K_M mix get the larger type"""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def vocabulary(plain, total, special):
    """tokens, types, merges: 256 bytes, then pairs and longer, then control tokens; `special` names some of these by id"""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2's letters for the 256 bytes
    others = [b for b in range(N_BYTES) if b not in printable]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(len(others))]
    tokens, merges = list(letters), []
    for i in range(plain - N_BYTES):
        left, right = tokens[i // N_BYTES], letters[i % N_BYTES]
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    tokens += [special.get(i, f"<|reserved_special_token_{i - plain}|>") for i in range(plain, total)]
    types = [int(TokenType.NORMAL)] * plain + [int(TokenType.CONTROL)] * (total - plain)
    return tokens, types, merges


def begin(path, arch, name, file_type):
    w = GGUFWriter(path, arch)
    w.add_type("model")
    w.add_name(name)
    w.add_file_type(file_type)
    w.add_quantization_version(2)
    return w


def put_vocabulary(w, plain, total, special, bos, eos):
    tokens, types, merges = vocabulary(plain, total, special)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types(types)
    w.add_token_merges(merges)
    w.add_bos_token_id(bos)
    w.add_eos_token_id(eos)


def put_tensors(w, listed, seed, given):
    """Everything of the file but its metadata; vectors in `given` are as they are there, all else is drawn."""
    for name, shape, t in listed:
        if t is T.F32:
            w.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
        else:
            weights, size = BLOCK_BYTES[t]
            row = (*shape[:-1], shape[-1] // weights * size)
            w.add_tensor_info(name, row, np.dtype(np.uint8), math.prod(row), raw_dtype=t)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for name, shape, t in listed:
        rng = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
        if name in given:
            data = given[name]
        elif t is T.F32:
            data = norm(rng, math.prod(shape)).reshape(shape) / (math.sqrt(shape[-1]) if len(shape) > 1 else 1)
        else:
            data = draw_matrix(rng, math.prod(shape[:-1]), shape[-1], t)
        w.write_tensor_data(data)
    w.close()


def arguments(doc, layers, more=lambda parser: None):
    """OUT, --layers, --seed, and what `more` adds in front."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    more(parser)
    parser.add_argument("out")
    parser.add_argument("--layers", type=int, default=layers)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.layers is not None and args.layers < 1:
        parser.error("--layers: at least 1")
    return args
