#!/usr/bin/env python3
"""text_parts.py --tool TEXT_TOOL [--lines N] [--scalars]

Every part of tokenizer.json by itself: small tokenizers, each with one normaliser, pre-tokenizer, decoder, post-processor, kind of added
token or model option, compared with the `tokenizers` library on corpus lines (see text_oracle.py).  --scalars adds texts that hold every
Unicode scalar in several surroundings, for the parts whose tables matter.
"""
import argparse
import base64
import json
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import text_corpus  # noqa: E402
from text_oracle import Ours, show  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: E402

DATA = text_corpus.SENTENCES
CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
REGEXES = {
    "cl100k": CL100K, "o200k": O200K,
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "possessive": r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    "exaone": r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
    "line end": r"\s+$", "word": r"\w+|[^\w\s]+", "not word": r"\W+", "digits": r"\d{2,4}", "not digits": r"\D+", "han": r"\p{Han}+|[^\p{Han}]+",
    "marks": r"\P{L}\p{M}+|\p{^L}", "groups": r"(?:ab|a(?:b|c)d?)+|(a|b)?c|[^abc]+", "border": r"\b\w+\b|\B.", "lazy": r"a+?b|.*?[,;]|\p{Ll}{2,}?",
    "behind": r"(?<=[a-z])[A-Z]|(?<!\d)\d{3}", "ahead": r"\d{1,3}(?=(?:\d{3})*\b)|\p{L}+(?=\s)", "anchors": r"^\s+|\A\w|\w\Z", "hex": r"\h+|\H",
    "empty": r"x*", "fold": r"(?i:k|kelvin|say?)|(?i)abc", "dot": r"..|.", "classes": r"[\p{Lu}\d_\-\]\[^]+|[^\S\n]+|[]a]",
    "capital": r"(?:\p{Lu}\p{Ll}*)+|[\p{Ll}\p{M}]+", "kimi": r"[\p{Han}]+|[\p{L}&&[^\p{Han}]]+",
    "look": r"a(?=b)|a(?!b)|(?=[A-Z])\w", "alternatives": r"|".join(f"w{i}" for i in range(40)),
}


def base(text, vocab_size=600, special=("<pad>", "<bos>", "<eos>")):
    """A byte-level BPE trained on the samples."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.train_from_iterator(text, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
                                                      initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return json.loads(tok.to_str())


def chars(**options):
    """A character BPE with byte fallback: merges of frequent pairs, '▁' for spaces."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=options.get("fuse_unk", True)))
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    extra = [f"<0x{b:02X}>" for b in range(256)] if options.get("byte_fallback") else []
    tok.train_from_iterator(DATA, trainers.BpeTrainer(vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>"] + extra, show_progress=False,
                                                      limit_alphabet=options.get("alphabet", 300)))
    spec = json.loads(tok.to_str())
    spec["pre_tokenizer"] = None
    spec["model"].update({k: v for k, v in options.items() if k != "alphabet"})
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["content"].startswith("<0x")]
    spec["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return spec


def unigram(byte_fallback=False, **_):
    tok = Tokenizer(models.Unigram())
    tok.pre_tokenizer = pre_tokenizers.Metaspace()
    tok.train_from_iterator(DATA * 3, trainers.UnigramTrainer(vocab_size=700, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    spec = json.loads(tok.to_str())
    if byte_fallback:
        spec["model"]["byte_fallback"] = True
        spec["model"]["vocab"] += [[f"<0x{b:02X}>", -50.0] for b in range(256)]
    return spec


def charsmap():
    """A darts-clone double array with a few rules, and its texts."""
    rules = {"ﬁ": "fi", "Ａ": "A", "\u3000": " ", "é": "e\u0301", "\u00ad": "", "e\u0301": "é", "½": "1/2", "\t": " ", "ｶﾞ": "ガ", "👍": "up"}
    strings, offsets = b"", {}
    for k, v in rules.items():
        offsets[k.encode()] = len(strings)
        strings += v.encode() + b"\0"
    units = [0] * 65536
    used = {0}
    keys = sorted(offsets)

    def place(node, prefix, keys):
        labels = sorted({k[len(prefix)] if len(k) > len(prefix) else 0 for k in keys})
        base_at = next(b for b in range(256, 65536, 256) if all((b ^ c) not in used for c in labels) and ((node ^ b) < 1 << 21))
        for c in labels:
            used.add(base_at ^ c)
        units[node] |= (node ^ base_at) << 10
        for c in labels:
            child = base_at ^ c
            sub = [k for k in keys if (k[len(prefix)] if len(k) > len(prefix) else 0) == c]
            if c == 0:
                units[child] = offsets[sub[0]] | 1 << 31
                units[node] |= 1 << 8
            else:
                units[child] = c
                place(child, prefix + bytes([c]), sub)

    place(0, b"", keys)
    top = max(used) + 256
    blob = struct.pack("<I", top * 4) + struct.pack(f"<{top}I", *units[:top]) + strings
    return base64.b64encode(blob).decode()


def cases():
    """(name, tokenizer.json as an object)"""
    plain = base(DATA)
    spm = chars(byte_fallback=True)

    def put(spec, **parts):
        return {**spec, **parts}

    def seq(key, *items):
        return {"type": "Sequence", key: list(items)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt"):
        yield "normalizer " + kind, put(plain, normalizer={"type": kind})
    yield "normalizer Strip", put(plain, normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    yield "normalizer left", put(plain, normalizer={"type": "Strip", "strip_left": True, "strip_right": False})
    yield "normalizer NFD accents lower", put(plain, normalizer=seq("normalizers", {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}))
    yield "normalizer Prepend", put(plain, normalizer=seq("normalizers", {"type": "Prepend", "prepend": "▁x"}, {"type": "Replace", "pattern": {"String": "  "}, "content": ""}))
    yield "normalizer regex", put(plain, normalizer={"type": "Replace", "pattern": {"Regex": " {2,}|\\d"}, "content": "#"})
    yield "normalizer Precompiled", put(plain, normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap()})
    for clean, chinese, strip, lower in ((1, 1, None, 1), (1, 0, True, 0), (0, 1, False, 1)):
        yield f"normalizer Bert {clean}{chinese}{strip}{lower}", put(plain, normalizer={
            "type": "BertNormalizer", "clean_text": bool(clean), "handle_chinese_chars": bool(chinese), "strip_accents": strip, "lowercase": bool(lower)})
    nobyte = put(plain, normalizer={"type": "ByteLevel"}, pre_tokenizer=None)
    yield "normalizer ByteLevel", nobyte
    for name, rx in REGEXES.items():
        yield "regex " + name, put(plain, pre_tokenizer=seq("pretokenizers", {"type": "Split", "pattern": {"Regex": rx}, "behavior": "Isolated", "invert": False}, byte_level))
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern in ({"String": "a"}, {"Regex": "[\\s.]|st"}):
                yield f"split {behavior} {invert} {pattern}", put(plain, pre_tokenizer=seq(
                    "pretokenizers", {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}, byte_level))
        yield "punctuation " + behavior, put(plain, pre_tokenizer=seq("pretokenizers", {"type": "Punctuation", "behavior": behavior}, byte_level))
    for prefix in (False, True):
        for rx in (False, True):
            yield f"ByteLevel {prefix} {rx}", put(plain, pre_tokenizer={"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": rx})
    for one in ({"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False}, {"type": "Whitespace"},
                {"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "CharDelimiterSplit", "delimiter": "é"},
                {"type": "FixedLength", "length": 3}):
        pre = dict(one)
        if pre["type"] == "CharDelimiterSplit":
            pre["type"] = "Delimiter"
            continue  # the library itself cannot read its own spelling of this one
        yield f"pre {pre}", put(plain, pre_tokenizer=seq("pretokenizers", pre, byte_level))
        yield f"pre {pre} after bytes", put(plain, pre_tokenizer=seq("pretokenizers", byte_level, pre))
    for scheme in ("always", "first", "never"):
        for split in (True, False):
            meta = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
            yield f"Metaspace {scheme} {split}", put(spm, normalizer=None, pre_tokenizer=meta, decoder=meta)
            yield f"Metaspace {scheme} {split} after words", put(spm, normalizer={"type": "Strip", "strip_left": True, "strip_right": False},
                                                                 pre_tokenizer=seq("pretokenizers", {"type": "WhitespaceSplit"}, meta), decoder=meta)
            yield f"Metaspace {scheme} {split} replaced", put(spm, normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
                                                              pre_tokenizer=meta, decoder=meta)
    for options in ({"byte_fallback": True}, {"byte_fallback": False}, {"byte_fallback": False, "fuse_unk": False}, {"byte_fallback": True, "alphabet": 60},
                    {"byte_fallback": False, "unk_token": None}):
        yield f"chars {options}", chars(**options)
    holes = chars(byte_fallback=True, alphabet=60)
    for b in range(0xC0, 0xE0, 3):
        holes["model"]["vocab"].pop(f"<0x{b:02X}>")
    yield "chars with missing bytes", holes
    yield "ignore_merges", put(plain, model={**plain["model"], "ignore_merges": True})
    affix = json.loads(json.dumps(spm))
    affix["model"]["end_of_word_suffix"] = "</w>"
    affix["model"]["vocab"].update({c + "</w>": 5000 + i for i, c in enumerate("abcdefgéß.▁")})
    affix["model"]["merges"] += [["a", "b</w>"]] if "ab</w>" in affix["model"]["vocab"] else []
    affix["pre_tokenizer"] = {"type": "Whitespace"}
    yield "suffix", affix
    prefix = json.loads(json.dumps(spm))
    prefix["model"]["continuing_subword_prefix"] = "##"
    vocab = prefix["model"]["vocab"]
    for i, c in enumerate("abcdefghijklmnopqrstuvwxyz,.é"):
        vocab["##" + c] = 5000 + i
    for i, (a, b) in enumerate((("t", "##h"), ("##e", "##r"), ("th", "##er"))):
        vocab.setdefault(a + b[2:], 6000 + i)
    prefix["model"]["merges"] = [["t", "##h"], ["##e", "##r"], ["th", "##er"]]
    prefix["pre_tokenizer"] = {"type": "Whitespace"}
    yield "prefix", prefix
    for bf in (False, True):
        yield f"unigram {bf}", unigram(bf)
    yield "unigram whole", put(unigram(True), pre_tokenizer=None)
    n = max(plain["model"]["vocab"].values()) + 1
    for flags in ({}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True}, {"normalized": True},
                  {"normalized": True, "lstrip": True, "single_word": True}, {"special": True}, {"special": True, "normalized": True, "rstrip": True}):
        words = ["<x>", "<x><y>", "the", "over the", " ", "  ", "é", "E", "中", "\n\n", "<x", "the lazy"]
        tokens = [{"id": n + i, "content": w, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False, **flags}
                  for i, w in enumerate(w for w in words if w not in plain["model"]["vocab"])]
        for k, t in enumerate(tokens):
            t["special"] = t["special"] and k % 2 == 0
        kept = [t for t in tokens if t["content"] not in plain["model"]["vocab"]]
        yield f"added {flags}", put(plain, added_tokens=plain["added_tokens"] + kept)
        lower = {"type": "Lowercase"}
        seen = set()
        distinct = [t for t in kept if not (t["normalized"] and (t["content"].lower() in seen or seen.add(t["content"].lower())))]
        for i, t in enumerate(distinct):
            t["id"] = n + i
        yield f"added {flags} lower", put(plain, added_tokens=plain["added_tokens"] + distinct, normalizer=lower)
    single = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<eos>", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": single, "pair": single + [{"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in (("<bos>", 1), ("<eos>", 2))}}
    yield "template", put(plain, post_processor=template)
    yield "template in sequence", put(plain, post_processor=seq("processors", byte_level, template))
    yield "roberta", put(plain, post_processor={"type": "RobertaProcessing", "sep": ["<eos>", 2], "cls": ["<bos>", 1], "trim_offsets": True, "add_prefix_space": False})
    fallback = [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    yield "decoder strip", put(spm, decoder=seq("decoders", *fallback, {"type": "Strip", "content": " ", "start": 1, "stop": 0}))
    yield "decoder strip 3", put(spm, decoder=seq("decoders", *fallback, {"type": "Strip", "content": " ", "start": 3, "stop": 0}))
    yield "decoder tokens", put(spm, decoder=seq("decoders", {"type": "Replace", "pattern": {"Regex": "[aeo▁]"}, "content": "_"}, {"type": "Strip", "content": "_", "start": 1, "stop": 0}))
    yield "decoder none", put(spm, decoder=None)
    yield "decoder late replace", put(spm, decoder=seq("decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}))


def scalar_lines():
    """Every scalar between letters, and beside spaces, digits, quotes, marks and itself; 128 to a text."""
    cps = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for at in range(0, len(cps), 128):
        part = [chr(c) for c in cps[at:at + 128]]
        for form in ("a{0}b", " {0}1{0}{0}\n'{0}\u0301"):
            yield "".join(form.format(c) for c in part).encode()


TABLES = ("normalizer NF", "normalizer Low", "normalizer StripAcc", "normalizer Bert 11", "normalizer Bert 10", "regex cl100k", "regex o200k", "regex gpt2",
          "regex word", "regex han", "regex border", "pre {'type': 'Digits', 'individual_digits': True}", "pre {'type': 'Whitespace'}", "punctuation Iso")


def compare(name, spec, lines, extra, path, tool, limit):
    """`extra` lines are only encoded."""
    text = json.dumps(spec, ensure_ascii=False)
    try:
        tok = Tokenizer.from_str(text)
    except BaseException as e:  # noqa: BLE001 - the library panics on some files
        print(f"  {name}: the library refuses it: {str(e)[:150]}")
        return 0, 0
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    ours, wrong, done = Ours(tool, path), 0, 0
    fallback = "ByteFallback" in json.dumps(spec["decoder"])
    for turn, mode in enumerate((b"p", b"e", b"t") + (b"p",) * (len(extra) > 0)):
        part = lines[turn::3] if turn < 3 else extra
        tok.encode_special_tokens = mode == b"t"
        theirs = [e.ids for e in tok.encode_batch_fast([d.decode("utf-8", "replace") for d in part], add_special_tokens=mode == b"e")]
        try:
            mine = ours.ask(mode, part)
            packed = [] if turn == 3 else [struct.pack(f"<{len(i)}I", *i) for i in theirs]
            got = [d.decode("utf-8", "replace") for d in ours.ask(b"d", packed)]
            wrong += sum(a != b.decode("utf-8") for a, b in zip(got, ours.ask(b"s", packed)))  # one id at a time: the same text
        except SystemExit as e:
            print(f"  {name}: {e}", flush=True)
            return 0, 1
        for line, a, b in zip(part, mine, theirs):
            wrong += a != b
            if a != b and wrong <= limit:
                show(name, mode.decode(), line, a, b, tok)
        want = tok.decode_batch(theirs, skip_special_tokens=False) if got else []
        for line, a, b in zip(part, got, want):
            bad = a != b and not (fallback and a.replace("\ufffd", "") == b.replace("\ufffd", ""))
            wrong += bad
            if bad and wrong <= limit:
                show(name, "d", line, a, b, tok)
        done += len(part) + len(got)
    ours.close()
    return done, wrong


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tool", required=True)
    ap.add_argument("--lines", type=int, default=300)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--show", type=int, default=2)
    ap.add_argument("--scalars", action="store_true")
    ap.add_argument("--only", default="")
    ap.add_argument("--cache", default=os.path.join(os.path.dirname(HERE), "build", "text_oracle"))
    args = ap.parse_args()
    os.makedirs(args.cache, exist_ok=True)
    path = os.path.join(args.cache, f"part.{os.getpid()}.json")
    done = wrong = count = 0
    everything = list(scalar_lines()) if args.scalars else []
    words = ["<x>", "<x><y>", "<bos>", "<eos>", "<pad>", "the lazy", "over the", "<x", "</s>", "</w>", "##er", "ab", "  ", "THE", "E"]
    for i, (name, spec) in enumerate(cases()):
        if args.only not in name:
            continue
        lines = list(text_corpus.lines(args.seed * 1000 + i, args.lines, words))
        extra = everything if name.startswith(TABLES) else []
        n, w = compare(name, spec, lines, extra, path, args.tool, args.show)
        done, wrong, count = done + n, wrong + w, count + 1
        if w:
            print(f"{name}: {w} of {n}", flush=True)
    if os.path.exists(path):
        os.remove(path)
    print(f"{count} parts: {done} comparisons, {wrong} differences".replace(f"{count} parts: ", ""))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
