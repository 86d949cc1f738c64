#!/usr/bin/env python3
"""text_unicode_tables.py: writes src/text/unicode_tables.c.

Needs the packages unicodedata2 (exactly 16.0.0), fonttools (script property) and tokenizers.  General categories are Unicode 16, the
version of the regular expression engine inside `tokenizers` (Oniguruma 6.9.10).  The other classes belong to other parts of that
library, which carry Unicode versions of their own (the Rust standard library 17, unicode_categories 8, unicode-normalization 12 ...),
so they are asked of the library itself, one code point at a time.
"""
import os
import sys

import unicodedata2 as U
from fontTools.unicodedata import script
from tokenizers import Regex
from tokenizers import normalizers as N
from tokenizers import pre_tokenizers as P

assert U.unidata_version == "16.0.0", U.unidata_version
GC = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Cs Co Cn".split()
CPS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def split_set(pre):
    """Code points a pre-tokenizer isolates (every one stands between two letters 'a')."""
    return {ord(s) for s, _ in pre.pre_tokenize_str("a".join(map(chr, CPS))) if len(s) == 1 and s != "a"}


def dropped(norm):
    return {c for c in CPS if norm.normalize_str("a" + chr(c)) == "a"}


def word_rust():
    return {ord(s[0]) for s, _ in P.Whitespace().pre_tokenize_str(" ".join(chr(c) + "a" for c in CPS)) if len(s) == 2}


def word_onig():
    out = set()
    for s, _ in P.Split(Regex(r"\w"), "removed", invert=True).pre_tokenize_str("".join(map(chr, CPS))):
        out.update(map(ord, s))
    return out


def inert():
    """Code points with a combining class or decomposition which the library's older tables do not know."""
    out = set()
    forms = {f: getattr(N, f)() for f in ("NFD", "NFKD")}
    for c in CPS:
        ch = chr(c)
        if U.decomposition(ch) and forms["NFKD"].normalize_str(ch) == ch:
            out.add(c)
        if U.combining(ch):
            s = "a\u0345" + ch + "\u0334"
            if forms["NFD"].normalize_str(s) != U.normalize("NFD", s):
                out.add(c)
    return out


def lower():
    """Lower case letters of the library that this Python (older than utf8proc) does not have."""
    n = N.Lowercase()
    out = []
    for c in CPS:
        got = n.normalize_str(chr(c))
        if c != 0x130 and got != old_lower(c):
            assert len(got) == 1
            out.append((c, ord(got)))
    return out


def old_lower(c):
    s = chr(c).lower()
    return s if len(s) == 1 else chr(c)


def two_stage(values, name, out):
    blocks, index = {}, []
    for at in range(0, 0x110000, 256):
        index.append(blocks.setdefault(bytes(values[at:at + 256]), len(blocks)))
    assert len(blocks) < 256
    emit(out, f"const uint8_t {name}_index[4352]", index)
    emit(out, f"const uint8_t {name}_block[{len(blocks)}][256]", [v for b in blocks for v in b])
    return len(blocks)


def emit(out, decl, numbers):
    flat = decl.replace("][256]", " * 256]") if "][256]" in decl else decl
    out.append(f"{flat} = {{")
    line = ""
    for n in numbers:
        piece = f"{n},"
        if len(line) + len(piece) > 129:
            out.append(line)
            line = ""
        line += piece
    out.append(line)
    out.append("};")


def main():
    gc = [GC.index("Cs")] * 0x110000
    for c in CPS:
        gc[c] = GC.index(U.category(chr(c)))
    space = {ord(c) for c in map(chr, CPS) if c.isspace()} - {0x1C, 0x1D, 0x1E, 0x1F}
    numeric = split_set(P.Digits(individual_digits=True))
    main_bits = list(gc)
    for c in CPS:
        main_bits[c] |= 0x20 * (c in space)
        main_bits[c] |= 0x40 * (script(chr(c)) == "Hani" and GC[gc[c]] != "Cn")
        main_bits[c] |= 0x80 * (c in numeric)
    bert = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    sets = [word_rust(), split_set(P.Punctuation("isolated")), dropped(N.StripAccents()),
            dropped(N.BertNormalizer(**{**bert, "strip_accents": True})), dropped(N.BertNormalizer(**{**bert, "clean_text": True})),
            word_onig(), inert()]
    more = [0] * 0x110000
    for bit, members in enumerate(sets):
        for c in members:
            more[c] |= 1 << bit
    out = ["/* text/unicode_tables.c - made by scripts/text_unicode_tables.py; see unicode.h.  Unicode " + U.unidata_version + ". */",
           '#include "text/unicode.h"', ""]
    two_stage(main_bits, "unicode_main", out)
    two_stage(more, "unicode_more", out)
    pairs = lower()
    emit(out, f"const uint32_t unicode_lower_count = {len(pairs)};\nconst uint32_t unicode_lower[{2 * len(pairs)}]",
         [v for p in pairs for v in p])
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src", "text", "unicode_tables.c")
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n")
    print(path, [len(s) for s in sets], len(pairs), file=sys.stderr)


main()
