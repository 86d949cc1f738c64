#!/usr/bin/env python3
"""Write the code books of the IQ block types as C, from the `gguf` package (pip install gguf).

usage: format_iq_tables.py > src/format/dtype_iq_tables.c

Each book is a list of rows of 8 (or 4) small values.  A row is kept packed as the package packs it: one 16-bit word with
2 bits (or 4) an element, element 0 lowest; the values the codes stand for are in dtype_iq.c and are checked here."""

import numpy as np
from gguf import quants

BOOKS = (  # C name, class, the value of each code, bits a code takes in the word
    ("iq2xxs", quants.IQ2_XXS, (0x08, 0x19, 0x2B), 2),
    ("iq2xs", quants.IQ2_XS, (0x08, 0x19, 0x2B), 2),
    ("iq2s", quants.IQ2_S, (0x08, 0x19, 0x2B), 2),
    ("iq3xxs", quants.IQ3_XXS, (0x04, 0x0C, 0x14, 0x1C, 0x24, 0x2C, 0x34, 0x3E), 4),
    ("iq3s", quants.IQ3_S, (0x01, 0x03, 0x05, 0x07, 0x09, 0x0B, 0x0D, 0x0F), 4),
    ("iq1s", quants.IQ1_S, (-1, 0, 1), 2),
)


def words(cls, values, bits):
    cls.init_grid()
    rows = cls.grid.reshape(cls.grid_shape)
    code = {v: i for i, v in enumerate(values)}
    out = [sum(code[int(v)] << (bits * j) for j, v in enumerate(row)) for row in rows]
    packed = np.frombuffer(bytes.fromhex(cls.grid_hex.decode()), dtype="<u2")
    assert out == packed.tolist() and max(out) < 65536
    return out


def main():
    print("/* format/dtype_iq_tables.c - code books of the IQ types; written by scripts/format_iq_tables.py, not by hand. */")
    print('#include "format/dtype_int.h"')
    for name, cls, values, bits in BOOKS:
        w = words(cls, values, bits)
        print(f"\n/* {len(w)} rows of {cls.grid_shape[1]}, {bits} bits an element */")
        print(f"const uint16_t dtype_{name}_book[{len(w)}] = {{")
        for i in range(0, len(w), 18):
            print("    " + " ".join(f"{v}," for v in w[i : i + 18]))
        print("};")


main()
