#!/usr/bin/env python3
"""Prints src/tensor/kv_tables.h: the code books and signs of the K and V formats.

    scripts/kv_tables.py > src/tensor/kv_tables.h

A code book of b bits is the Lloyd-Max quantiser of N(0,1): levels are the means of their cells, cell borders the midpoints of the
levels.  It is scaled so that its largest level is 127 and rounded to integers; `unit` is that factor: what a deviation of 1 is in
codes.  Borders in the table are the midpoints of the rounded levels.
Signs are the bits of SHA-256("rhapsode kv signs 0"), then of "... 1", each digest read as a little-endian integer; 1 is minus.
"""
import hashlib
import math


def density(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def below(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def lloyd_max(bits):
    """Positive levels, ascending."""
    half = 1 << (bits - 1)
    levels = [3.0 * (i + 0.5) / half for i in range(half)]
    for _ in range(20000):
        borders = [0.0] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [math.inf]
        new = []
        for a, b in zip(borders, borders[1:]):
            upper = density(b) if b < math.inf else 0.0
            mass = (below(b) if b < math.inf else 1.0) - below(a)
            new.append((density(a) - upper) / mass)
        done = max(abs(x - y) for x, y in zip(levels, new)) < 1e-14
        levels = new
        if done:
            break
    return levels


def numbers(values, per_line):
    lines = [", ".join(values[i : i + per_line]) for i in range(0, len(values), per_line)]
    return "{" + ",\n    ".join(lines) + "}"


def book(bits):
    levels = lloyd_max(bits)
    unit = 127 / levels[-1]
    positive = [round(x * unit) for x in levels]
    whole = [-x for x in reversed(positive)] + positive
    borders = [(a + b) / 2 for a, b in zip(whole, whole[1:])]
    print(f"/* levels {', '.join(f'{x:.6f}' for x in levels)} */")
    print(f"KV_TABLE int8_t book{bits}[16] = {numbers([str(x) for x in (whole * 2)[:16]], 16)};")
    print(f"KV_TABLE float book{bits}_borders[{len(borders)}] = {numbers([f'{x:.1f}f' for x in borders], 15)};")
    print(f"KV_TABLE float book{bits}_unit = {unit:.9g}f;\n")


def signs():
    bits = b"".join(hashlib.sha256(f"rhapsode kv signs {i}".encode()).digest() for i in range(3))
    words = [int.from_bytes(bits[i : i + 4], "little") for i in range(0, len(bits), 4)]
    print("/* element e is negated when bit e % 32 of word e / 32 is set */")
    print(f"KV_TABLE uint32_t sign_bits[{len(words)}] = {numbers([f'0x{w:08x}u' for w in words], 8)};\n")


def main():
    print("/* tensor/kv_tables.h - code books and signs of the K and V formats; made by scripts/kv_tables.py.  Included by kv_codec.c and by backends whose device has memory of its own. */")
    print("#ifndef RH_TENSOR_KV_TABLES_H\n#define RH_TENSOR_KV_TABLES_H\n\n#include <stdint.h>\n\n/* storage of the tables; a backend that keeps them elsewhere says where */\n#ifndef KV_TABLE\n#define KV_TABLE static const\n#endif\n")
    book(4)
    book(3)
    signs()
    print("#endif")


main()
