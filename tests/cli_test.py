"""cli_test.py: what each verb promises, on the small golden models, and what it says to bad input.  RHAPSODE names the program, RELEASE
its build folder."""
import base64
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

PROGRAM = os.environ["RHAPSODE"]
RELEASE = os.environ.get("RELEASE", os.path.dirname(PROGRAM))
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GOLDEN = os.path.join(TOP, "tests", "golden")
LLAMA = os.path.join(GOLDEN, "llama")
CONFIG = json.load(open(os.path.join(LLAMA, "config.json")))
CONTEXT, VOCAB = CONFIG["max_position_embeddings"], CONFIG["vocab_size"]
REF = json.load(open(os.path.join(LLAMA, "golden.json")))
IDS = ",".join(map(str, REF["prompt"]))


def run(*args, status=0, stdin=b"", env=None):
    done = subprocess.run([PROGRAM, *map(str, args)], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                          env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent", "RHAPSODE_HOME": "/nonexistent", **(env or {})})
    assert done.returncode == status, (args, done.returncode, done.stderr.decode(errors="replace"))
    return done


def run_json(*args, **kw):
    return json.loads(run(*args, "--json", **kw).stdout)


def one_line(done, *words):
    text = done.stderr.decode()
    assert text.count("\n") == 1 and text.endswith("\n"), text
    assert done.stdout == b""
    for word in words:
        assert str(word) in text, (word, text)


# ---- generate ----

def generate(*args, model=LLAMA, **kw):
    return run_json("generate", model, *args, **kw)


def test_generate_fields():
    out = generate("--ids", IDS, "--max-tokens", 12, "--ignore-eos", "--top-logprobs", 3, "--kv", "f32")
    assert out["ids"] == REF["greedy"][:12]
    assert out["finish_reason"] == "length"
    assert out["usage"] == {"prompt_tokens": len(REF["prompt"]), "cached_tokens": 0, "completion_tokens": 12}
    for key in ("load_ms", "prefill_ms", "decode_ms", "prefill_tokens_per_s", "decode_tokens_per_s"):
        assert out["timings"][key] > 0
    assert isinstance(out["seed"], int)
    assert out["sampling"]["temperature"] == 0
    assert len(out["logprobs"]) == 12
    for entry, token in zip(out["logprobs"], out["ids"]):
        assert entry["id"] == token == entry["top"][0]["id"] and len(entry["top"]) == 3
        assert entry["logprob"] == entry["top"][0]["logprob"]
        assert [t["logprob"] for t in entry["top"]] == sorted((t["logprob"] for t in entry["top"]), reverse=True)
    text = run("detokenize", LLAMA, "--ids", ",".join(map(str, out["ids"]))).stdout
    got = base64.b64decode(out["text_bytes"]) if "text_bytes" in out else out["text"].encode()
    assert got.decode(errors="replace") in text.decode(errors="replace")


def test_text_that_is_not_utf8_has_its_bytes_beside_it():
    """text_bytes is there exactly when the answer's bytes are no whole UTF-8, and is these bytes; the streamed text is the readable form."""
    for prompt in (IDS, "1,2,3"):
        for stop in ([], ["--stop", "\x17"]):
            args = ("--ids", prompt, "--max-tokens", 12, "--ignore-eos", "--temp", 0, *stop)
            out = generate(*args)
            raw = run("detokenize", LLAMA, "--ids", ",".join(map(str, out["ids"]))).stdout
            if stop:
                raw = raw.split(b"\x17")[0]
            assert out["text"] == raw.decode(errors="replace")
            assert out.get("text_bytes") == (None if raw == out["text"].encode() else base64.b64encode(raw).decode())
            assert run("generate", LLAMA, *args).stdout == out["text"].encode()
    assert "text_bytes" in out  # the model's letters are bytes, and no whole characters
    assert "text_bytes" not in generate("--ids", "1", "--max-tokens", 4, "--ignore-eos", "--logit-bias", "77=100")


def test_generate_without_logprobs_has_none():
    out = generate("--ids", "1,2,3", "--max-tokens", 2)
    assert "logprobs" not in out


def test_generate_logprobs_change_nothing():
    args = ["--ids", IDS, "--max-tokens", 20, "--temp", 0.9, "--seed", 5, "--ignore-eos"]
    assert generate(*args)["ids"] == generate(*args, "--logprobs")["ids"] == generate(*args, "--top-logprobs", 128)["ids"]


def test_generate_text_streams():
    text = run("generate", LLAMA, "--prompt", "hello", "--max-tokens", 8, "--temp", 0, "--ignore-eos").stdout
    out = generate("--prompt", "hello", "--max-tokens", 8, "--temp", 0, "--ignore-eos")
    assert text == out["text"].encode()
    ids = json.loads(run("tokenize", LLAMA, "--json", stdin=b"hello").stdout)
    assert generate("--ids", ",".join(map(str, ids)), "--max-tokens", 8, "--temp", 0, "--ignore-eos")["ids"] == out["ids"]


@pytest.mark.parametrize("extra", [["--rows", 3], ["--rows", 7, "--threads", 1], ["--cpu-isa", "ref"], ["--no-pin"]])
def test_one_answer(extra):
    args = ["--ids", IDS, "--max-tokens", 24, "--temp", 0.8, "--top-p", 0.9, "--seed", 11, "--ignore-eos", "--top-logprobs", 2,
            "--repetition-penalty", 1.1]
    plain, other = generate(*args), generate(*args, *extra)
    assert plain["ids"] == other["ids"] and plain["logprobs"] == other["logprobs"] and plain["text"] == other["text"]


def test_seeds():
    args = ["--ids", IDS, "--max-tokens", 20, "--temp", 1.5, "--ignore-eos"]
    a, b = generate(*args), generate(*args)
    assert a["seed"] != b["seed"]
    assert generate(*args, "--seed", a["seed"])["ids"] == a["ids"]
    assert a["ids"] != b["ids"]
    big = generate(*args, "--seed", 2**64 - 1)
    assert big["seed"] == 2**64 - 1


def test_choices():
    args = ["--ids", IDS, "--max-tokens", 16, "--temp", 1, "--seed", 3, "--ignore-eos"]
    out = generate(*args, "--choices", 3)
    assert len(out["choices"]) == 3
    assert out["ids"] == out["choices"][0]["ids"] == generate(*args)["ids"]
    assert len({tuple(c["ids"]) for c in out["choices"]}) == 3


def test_stop_id_and_string():
    args = ["--ids", IDS, "--max-tokens", 30, "--ignore-eos", "--kv", "f32"]
    plain = generate(*args)
    at = next(i for i in range(2, 30) if plain["ids"][i] not in plain["ids"][:i])
    out = generate(*args, "--stop-id", plain["ids"][at])
    assert out["ids"] == plain["ids"][:at] and out["finish_reason"] == "stop" and out["usage"]["completion_tokens"] == at + 1
    text = plain["text"]
    middle = next(i for i in range(6, len(text) - 3) if text.find(text[i:i + 3]) == i and "\ufffd" not in text[:i + 3])
    out = generate(*args, "--stop", "\x01never", "--stop", text[middle:middle + 3])
    assert out["text"] == text[:middle] and out["finish_reason"] == "stop"
    assert out["ids"] == plain["ids"][:len(out["ids"])]
    streamed = run("generate", LLAMA, *args, "--stop", text[middle:middle + 3]).stdout
    assert streamed == text[:middle].encode()


def test_bias_and_min_tokens():
    args = ["--ids", IDS, "--max-tokens", 4, "--ignore-eos"]
    assert generate(*args, "--logit-bias", "77=100")["ids"] == [77] * 4
    first = generate(*args)["ids"][0]
    assert generate(*args, "--logit-bias", f"{first}=-inf")["ids"][0] != first
    out = generate("--ids", IDS, "--max-tokens", 6, "--logit-bias", "2=100")
    assert out["finish_reason"] == "stop" and out["ids"] == [] and out["usage"]["completion_tokens"] == 1
    out = generate("--ids", IDS, "--max-tokens", 6, "--logit-bias", "2=100", "--min-tokens", 3)
    assert len(out["ids"]) == 3 and 2 not in out["ids"] and out["finish_reason"] == "stop"


def test_limits_name_both_numbers():
    done = run("generate", LLAMA, "--ids", IDS, "--max-tokens", 3000, "--json", status=1)
    one_line(done, len(REF["prompt"]), 3000, CONTEXT)
    out = generate("--ids", IDS, "--max-tokens", -1, "--context", len(REF["prompt"]) + 9, "--ignore-eos")
    assert out["finish_reason"] == "length" and len(out["ids"]) == 9
    one_line(run("generate", LLAMA, "--ids", IDS, "--context", len(REF["prompt"]), status=1), len(REF["prompt"]))
    one_line(run("generate", LLAMA, "--ids", f"1,{VOCAB}", status=2), VOCAB)


def test_chat(tmp_path):
    messages = tmp_path / "m.json"
    messages.write_text(json.dumps([{"role": "user", "content": "hi <|end|> there"}]))
    text = run("render", LLAMA, "--messages", messages).stdout.decode()
    assert text == "<bos><|user|>hi <|end|> there<|end|><|assistant|>"
    out = generate("--chat", messages, "--max-tokens", 5, "--ignore-eos")
    special = json.loads(run("tokenize", LLAMA, "--json", "--no-bos", stdin=b"<|end|>").stdout)
    plain = json.loads(run("tokenize", LLAMA, "--json", "--no-bos", "--no-parse-special", stdin=b"<|end|>").stdout)
    assert len(special) == 1 and len(plain) > 1
    whole = json.loads(run("tokenize", LLAMA, "--json", "--no-bos", stdin=text.encode()).stdout)
    # the user's "<|end|>" stays text
    assert out["usage"]["prompt_tokens"] == len(whole) - len(special) + len(plain)
    marked = json.loads(run("render", LLAMA, "--messages", messages, "--boundaries").stdout)
    assert marked["text"] == text and all(0 < b <= len(text) for b in marked["boundaries"])
    assert not run("render", LLAMA, "--messages", messages, "--no-generation-prompt").stdout.endswith(b"<|assistant|>")


def test_output_formats(tmp_path):
    messages, template = tmp_path / "m.json", tmp_path / "t.jinja"
    messages.write_text('[{"role": "user", "content": "hi"}]')
    template.write_text("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}")
    args = ("--chat", messages, "--chat-template", template, "--max-tokens", 12, "--temp", 0, "--ignore-eos")
    plain, auto, named = generate(*args), generate(*args, "--output", "auto"), generate(*args, "--output", "hermes")
    assert "reasoning" not in plain and plain["text"]
    for out in (auto, named):  # the prompt opened the block: all is reasoning
        assert out["text"] == "" and out["reasoning"] == plain["text"] and out["tool_calls"] == [] and out["ids"] == plain["ids"]
        assert out["usage"]["reasoning_tokens"] == out["usage"]["completion_tokens"]
    one_line(run("generate", LLAMA, *args, "--output", "nope", status=2), "nope")


def test_template_override(tmp_path):
    template, messages = tmp_path / "t.jinja", tmp_path / "m.json"
    template.write_text("{% for m in messages %}[{{ m.content }}|{{ word }}|{{ tools|length if tools else 0 }}]{% endfor %}")
    messages.write_text(json.dumps({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}))
    assert run("render", LLAMA, "--messages", messages, "--chat-template", template, "--set", 'word="b"').stdout == b"[a|b|1]"
    template.write_text("{{ raise_exception('no such luck') }}")
    one_line(run("render", LLAMA, "--messages", messages, "--chat-template", template, status=1), "no such luck")
    template.write_text("{% if %}")
    one_line(run("render", LLAMA, "--messages", messages, "--chat-template", template, status=1), "template")


def test_template_builds_special_tokens_around_a_role(tmp_path):
    """The prompt of a chat has as many ids as the reference tokenizer finds in the rendered text, and a user's own markers stay text."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(os.path.join(LLAMA, "tokenizer.json"))
    template, messages = tmp_path / "t.jinja", tmp_path / "m.json"
    template.write_text("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}")
    for content, stays_text in (("hello there", False), ("a<|end|>b", True)):
        messages.write_text(json.dumps([{"role": "user", "content": content}]))
        text = run("render", LLAMA, "--messages", messages, "--chat-template", template).stdout.decode()
        out = generate("--chat", messages, "--chat-template", template, "--max-tokens", 1, "--ignore-eos")
        expected = len(tokenizer.encode(text, add_special_tokens=False).ids)
        assert (out["usage"]["prompt_tokens"] > expected) == stays_text
        assert out["usage"]["prompt_tokens"] == expected or stays_text


def handles_interrupts(pid):
    """Whether the process has set a handler for SIGINT by now."""
    with open(f"/proc/{pid}/status") as f:
        caught = int(re.search(r"SigCgt:\s*(\w+)", f.read())[1], 16)
    return bool(caught >> (signal.SIGINT - 1) & 1)


def test_interrupt():
    model = os.path.join(os.environ["MODELS"], "smollm2-135m-instruct-q4_1.gguf")
    process = subprocess.Popen([PROGRAM, "generate", model, "--ids", "2,5,6", "--max-tokens", "-1", "--ignore-eos", "--json", "--backend", "ref"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not handles_interrupts(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    out = json.loads(text)
    assert out["finish_reason"] == "cancelled" and len(out["ids"]) == out["usage"]["completion_tokens"]


# ---- score ----

def test_score_ids():
    out = run_json("score", LLAMA, "--ids", IDS, "--top", 8, "--logits", "last", "--kv", "f32")
    n = len(REF["prompt"])
    assert out["ids"] == REF["prompt"] and len(out["logprob_of_next"]) == n - 1 and len(out["top"]) == n
    assert max(abs(a - b) for a, b in zip(out["logprob_of_next"], REF["logprob_of_next"])) < 1e-4
    assert max(abs(a - b) for a, b in zip(out["last_logits"], REF["last_logits"])) < 1e-4
    assert [[t["id"] for t in row] for row in out["top"]] == REF["top_ids"]
    assert math.isclose(out["perplexity"], math.exp(-sum(out["logprob_of_next"]) / (n - 1)), rel_tol=1e-6)
    small = run_json("score", LLAMA, "--ids", IDS, "--kv", "f32", "--rows", 5, "--logits", "last")
    assert small["logprob_of_next"] == out["logprob_of_next"] and small["last_logits"] == out["last_logits"]


def test_score_one_id():
    out = run_json("score", LLAMA, "--ids", 5)
    assert out["logprob_of_next"] == [] and out["perplexity"] is None
    assert b"nothing to score" in run("score", LLAMA, "--ids", 5).stdout


def test_score_top_without_json():
    out = run_json("score", LLAMA, "--ids", "1,2,3", "--top", 2)
    lines = run("score", LLAMA, "--ids", "1,2,3", "--top", 2).stdout.decode(errors="replace").splitlines()
    places = [line.split() for line in lines[5:]]
    assert [p[0] for p in places] == ["1", "2", "3", "next:"]
    for at in (1, 2):
        assert float(places[at][1]) == pytest.approx(out["logprob_of_next"][at - 1], abs=1e-4)
        for top in out["top"][at - 1]:
            assert f" {top['id']} " in lines[5 + at] and f"{top['logprob']:.4f}" in lines[5 + at]


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_score_file(tmp_path, model):
    path = os.path.join(GOLDEN, model)
    text = b"The sea is wide and the sky is blue. " * 12
    file = tmp_path / "text"
    file.write_bytes(text)
    ids = json.loads(run("tokenize", path, "--json", "--no-bos", stdin=text).stdout)
    info = run_json("info", path)
    out = run_json("score", path, "--file", file, "--window", 64)
    bos = info["tokenizer"]["bos"] if info["tokenizer"]["add_bos"] else None
    assert sum(w["ids"] for w in out["windows"]) == len(out["ids"])
    assert len(out["logprob_of_next"]) == sum(w["ids"] - 1 for w in out["windows"])
    fed, at = [], 0
    for w in out["windows"]:
        part = out["ids"][at:at + w["ids"]]
        assert w["ids"] <= 64
        if bos is not None:
            assert part[0] == bos
            part = part[1:]
        elif at:
            assert part[0] == fed[-1]
            part = part[1:]
        fed += part
        at += w["ids"]
    assert fed == ids  # every token of the text, once
    one = run_json("score", path, "--file", file)
    assert len(one["windows"]) == 1 and one["perplexity"] != out["perplexity"]


# ---- text ----

@pytest.mark.parametrize("text", ["", "hello world", "  two  spaces ", "émoji 😀 and \t tabs\n\n", "\x00\x01"])
def test_round_trip(text):
    ids = json.loads(run("tokenize", LLAMA, "--json", "--no-bos", "--no-parse-special", stdin=text.encode()).stdout)
    assert run("detokenize", LLAMA, "--ids", json.dumps(ids)).stdout == text.encode()
    assert ids or text == ""


def test_detokenize_reads_standard_input():
    text = "two words, \u00e9".encode()
    for ids in (run("tokenize", LLAMA, "--no-bos", stdin=text).stdout, run("tokenize", LLAMA, "--no-bos", "--json", stdin=text).stdout):
        assert run("detokenize", LLAMA, stdin=ids).stdout == run("detokenize", LLAMA, stdin=ids.replace(b",", b" \n")).stdout == text
    assert run("detokenize", LLAMA, stdin=b"").stdout == run("detokenize", LLAMA, stdin=b"[]\n").stdout == b""
    one_line(run("detokenize", LLAMA, stdin=b"1,x", status=2), "standard input", "'x'")


def test_tokenize_plain_output():
    a = run("tokenize", LLAMA, stdin=b"hello").stdout.decode().strip()
    b = json.loads(run("tokenize", LLAMA, "--json", stdin=b"hello").stdout)
    assert a == ",".join(map(str, b))


# ---- info and bench ----

def test_info():
    out = run_json("info", LLAMA, "--context", 256)
    assert out["architecture"] == "llama" and out["layers"] == CONFIG["num_hidden_layers"] and out["vocab"] == VOCAB
    assert out["context_train"] == CONTEXT and out["state"]["context"] == 256
    assert sum(t["tensors"] for t in out["types"]) > 0 and sum(t["bytes"] for t in out["types"]) == out["tensor_bytes"]
    assert out["file_bytes"] == os.path.getsize(os.path.join(LLAMA, "model.safetensors"))
    assert {row["component"] for row in out["memory"]} >= {"weights", "state", "step buffers"}
    assert out["state"]["budget_bytes"] >= out["state"]["context_bytes"] > 0
    assert out["machine"]["runs"] is True and out["identity"].startswith("model=")
    half = run_json("info", LLAMA, "--context", 512)
    assert half["state"]["context_bytes"] <= out["state"]["context_bytes"]
    assert b"llama" in run("info", LLAMA).stdout


def test_kv_formats(tmp_path):
    config = tmp_path / "kv_config.json"
    config.write_text('[{"layer": 1, "format": "f16:bf16"}, {"layer": 0, "bits": 8, "group_size": 32}]')
    small, mixed = run_json("info", LLAMA, "--kv", "bf16"), run_json("info", LLAMA, "--kv", "bf16", "--kv-config", config)
    assert mixed["state"]["format"] == "bf16:bf16,0=a8g32:a8g32,1=f16:bf16"
    assert small["identity"] != mixed["identity"] and "kv=bf16:bf16,0=a8g32:a8g32,1=f16:bf16 " in mixed["identity"]
    assert 0 < mixed["state"]["bytes_per_position"] < small["state"]["bytes_per_position"]
    for text, word in [
        ("{}", "list"), ('[{"layer": 0}]', "one of format and bits"), ('[{"layer": 0, "bits": 5}]', "a5g64"), ('[{"bits": 4}]', "no layer"),
        ('[{"layer": 99, "format": "q8"}]', "layer 99"), ('[{"layer": 0, "format": "v4"}]', "'v4'"), ('[{"layer": 0, "size": 1}]', "size"),
        ('[{"layer": 0, "format": "q8"}, {"layer": 0, "format": "f16"}]', "twice"), ("[", "kv config"), ('[{"layer": 0, "bits": 4, "format": "q8"}]', "one of"),
    ]:
        config.write_text(text)
        done = run("info", LLAMA, "--kv-config", config, status=1)
        assert done.returncode != 0 and word in done.stderr.decode(), (text, done.stderr)
    config.write_text('[{"layer": 0, "format": "q8"}]')  # a layer that could not have it is no layer that silently has not
    assert "layer 0 is recurrent" in run("info", os.path.join(os.path.dirname(LLAMA), "lfm2"), "--kv-config", config, status=1).stderr.decode()
    for name in ("k8v5", "v4", "q8:k8v4", "a8g16"):
        for verb in (("info", LLAMA), ("generate", LLAMA, "--prompt", "x")):
            assert name in run(*verb, "--kv", name, status=2).stderr.decode()
        assert name in run("kvcheck", LLAMA, "--formats", "q8," + name, status=2).stderr.decode()


def test_a_draft_of_other_tokens_is_refused(tmp_path):
    ask = ("generate", LLAMA, "--ids", IDS, "--max-tokens", 12, "--ignore-eos", "--temperature", 0, "--json")
    plain = json.loads(run(*ask).stdout)
    guessed = json.loads(run(*ask, "--draft", LLAMA, "--propose", "draft", "--propose-depth", 3).stdout)
    assert guessed["ids"] == plain["ids"] and guessed["speculation"]["accepted"] == guessed["speculation"]["drafted"] > 0
    other = tmp_path / "other"
    shutil.copytree(LLAMA, other)
    data = json.loads((other / "tokenizer.json").read_text())
    vocab = data["model"]["vocab"]
    a, b = list(vocab)[-2:]
    vocab[a], vocab[b] = vocab[b], vocab[a]
    (other / "tokenizer.json").write_text(json.dumps(data))
    one_line(run(*ask, "--draft", other, status=1), "draft", f"token {vocab[b]} is")
    data["model"]["merges"] = data["model"]["merges"][:-2]  # two tokens less
    del vocab[a], vocab[b]
    (other / "tokenizer.json").write_text(json.dumps(data))
    one_line(run(*ask, "--draft", other, status=1), "its tokenizer has", f"the model's {VOCAB}")


def test_kv_start():
    ask = ("generate", LLAMA, "--ids", IDS, "--max-tokens", 12, "--ignore-eos", "--temperature", 0, "--top-logprobs", 2, "--json")
    plain, small = (json.loads(run(*ask, "--kv", kv).stdout) for kv in ("f16", "q8"))
    for start in (1, 4, 9, 500):  # in the prompt, in the answer, never: f16 that is encoded as f16 is what it was
        same = json.loads(run(*ask, "--kv-start", start).stdout)
        assert same["ids"] == plain["ids"] and same["logprobs"] == plain["logprobs"]
    never = json.loads(run(*ask, "--kv", "q8", "--kv-start", 500).stdout)
    assert never["logprobs"] == plain["logprobs"] != small["logprobs"]
    some = json.loads(run(*ask, "--kv", "q8", "--kv-start", 8).stdout)
    assert some["logprobs"] not in (plain["logprobs"], small["logprobs"])
    info = run_json("info", LLAMA, "--kv", "q8", "--kv-start", 8)
    assert info["state"]["kv_start"] == 8 and " kv_start=8 " in info["identity"]
    scores = [run_json("score", LLAMA, "--ids", IDS, "--kv", "q8", "--kv-start", 3, "--rows", rows) for rows in (2, 512)]
    assert scores[0] == scores[1]


def test_kvcheck(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and nobody minds. " * 40)
    out = run_json("kvcheck", LLAMA, "--store", tmp_path, "--file", text, "--tokens", 256, "--formats", "f16,q8,tq3")
    assert [e["format"] for e in out["formats"]] == ["f16:f16", "q8:q8", "tq3:tq3"] and out["tokens"] == 256
    f16, q8, tq3 = out["formats"]
    assert f16["kl_mean"] < q8["kl_mean"] < tq3["kl_mean"] and f16["mse_k"] < q8["mse_k"] < tq3["mse_k"]
    assert out["reference"]["bytes_per_position"] == 2 * f16["bytes_per_position"]
    (kept,) = (tmp_path / "kvcheck").iterdir()
    data = json.loads(kept.read_text())
    assert data["formats"] == out["formats"]
    run_json("kvcheck", LLAMA, "--store", tmp_path, "--file", text, "--tokens", 256, "--formats", "q4h")
    data = json.loads(kept.read_text())
    assert sorted(e["format"] for e in data["formats"]) == ["f16:f16", "q4h:q4h", "q8:q8", "tq3:tq3"]  # figures are merged
    for entry in data["formats"]:
        entry["top1"], entry["kl_mean"] = (0.5, 1.5) if entry["format"] == "q4h:q4h" else (1, 0)
    kept.write_text(json.dumps(data))
    generate = ("generate", LLAMA, "--ids", "1,2,3", "--max-tokens", 2, "--store", tmp_path, "--kv")
    done = run(*generate, "q4h", status=1)
    assert done.returncode != 0 and "0.500" in done.stderr.decode() and "1.5" in done.stderr.decode()
    run(*generate, "q4h", "--kv-force")
    run(*generate, "q8")


def kvcheck_kept(tmp_path, *args):
    """Figures of a short check in a store of the test's own: the program's output, and the file that keeps them."""
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog, and nobody minds. " * 40)
    store = tmp_path / "store"
    done = run("kvcheck", LLAMA, "--store", store, "--file", text, "--tokens", 256, *args)
    (kept,) = (store / "kvcheck").iterdir()
    return done, kept


def test_kvcheck_prints_what_it_keeps(tmp_path):
    done, kept = kvcheck_kept(tmp_path, "--formats", "f16,k8v4,tq3")
    data = json.loads(kept.read_text())
    first, head, reference, *rows = done.stdout.decode().splitlines()
    assert first == f"256 tokens, {data['needles']} needles; against f32 state"
    assert re.split(r"\s{2,}", head) == ["format", "bytes/pos", "mse K", "mse V", "mean KL", "p99 KL", "top-1", "needles", "tokens/s"]
    assert reference.split()[:2] == ["f32:f32", f"{data['reference']['bytes_per_position']:g}"] and len(reference.split()) == 4
    assert [row.split()[0] for row in rows] == [e["format"] for e in data["formats"]] == ["f16:f16", "k8v4", "tq3:tq3"]
    for row, e in zip(rows, data["formats"]):
        wanted = [e[key] for key in ("bytes_per_position", "mse_k", "mse_v", "kl_mean", "kl_p99", "top1", "needles", "tokens_per_s")]
        assert [float(word) for word in row.split()[1:]] == pytest.approx(wanted, rel=6e-3, abs=6e-5)
        assert e["kl_mean"] > 0 and e["kl_p99"] > 0 and 0 <= e["top1"] <= 1 and e["tokens_per_s"] > 0


def test_kept_figures_judge_a_format(tmp_path):
    _, kept = kvcheck_kept(tmp_path, "--formats", "q8,k8v4")
    data = json.loads(kept.read_text())
    bare = ("generate", "--ids", "1,2,3", "--max-tokens", 2, "--verbose", "--store", tmp_path / "store", "--kv")

    def opened(kv, *args, model=LLAMA, status=0):
        return run(bare[0], model, *bare[1:], kv, *args, status=status).stderr.decode()

    for top1, kl, good in [(0.8, 0.3, True), (0.799, 0, False), (1, 0.301, False), (1, 0, True)]:
        for entry in data["formats"]:
            entry["top1"], entry["kl_mean"] = (top1, kl) if entry["format"] == "k8v4" else (1, 0)
        kept.write_text(json.dumps(data))
        said = opened("k8v4", status=0 if good else 1)
        assert ("collapses" in said and f"{top1:.3f}" in said and f"{kl:.3g}" in said) != good, said
        assert "collapse" not in opened("q8") and "not measured" not in opened("q8")
        forced = opened("k8v4", "--kv-force")
        assert ("forced" in forced and f"{top1:.3f}" in forced and f"{kl:.3g}" in forced) != good, forced
    for entry in data["formats"]:
        entry["top1"] = 0.5
    kept.write_text(json.dumps(data))
    assert "a8g32:a8g32 costs this model is not measured" in opened("a8g32")  # nobody asked: a notice
    assert "measured" not in opened("f16")
    layers = tmp_path / "layers.json"
    layers.write_text('[{"layer": 1, "format": "tq3"}]')
    assert "layer by layer" in opened("f16", "--kv-config", layers)
    other = tmp_path / "other"  # as large, and another model
    shutil.copytree(LLAMA, other)
    with open(other / "model.safetensors", "r+b") as f:
        f.seek(-1, os.SEEK_END)
        last = f.read(1)[0]
        f.seek(-1, os.SEEK_END)
        f.write(bytes([last ^ 0x80]))
    assert "not measured" in opened("q8", model=other)
    opened("q8", status=1)


def test_identity():
    same = [run_json("info", LLAMA, *args)["identity"] for args in ([], ["--threads", 1], ["--cpu-isa", "ref"])]
    assert len(set(same)) == 1
    other = [run_json("info", LLAMA, *args)["identity"] for args in (["--kv", "q8"], ["--context", 100], ["--backend", "ref"])]
    assert len(set(other + same)) == 4


def test_bench():
    out = run_json("bench", LLAMA, "-p", 32, "-n", 8, "-r", 2, "-t", 1, "--device", "cpu")
    assert out["threads"] == 1 and out["prefill"]["tokens"] == 32 and len(out["decode"]["runs"]) == 2
    assert out["sanity"]["equal"] is True and len(out["sanity"]["ids"]) > 0
    for part, limits in (("prefill", ["percent_of_int8_limit", "percent_of_f32_limit"]), ("decode", ["percent_of_read_limit"])):
        for key in ("median_tokens_per_s", "best_tokens_per_s", "spread_percent", *limits):
            assert out[part][key] >= 0, (part, key)
    assert set(out["limits"]) == {"read_gb_per_s", "int8_gop_per_s", "f32_gop_per_s"} and 0 <= out["steal_percent"] <= 100
    assert all(row["best"] >= row["median"] > 0 for row in out["limits"].values())
    out = run_json("bench", LLAMA, "-p", 0, "-n", 4, "-r", 1, "--depth", 50, "--sequences", 3)
    assert "prefill" not in out and out["decode"]["median_tokens_per_s"] > 0 and out["depth"] == 50


def test_bench_limits():
    out = run_json("bench", "--limits", "--device", "cpu", "-t", 2)
    assert out["backend"] == "cpu" and out["threads"] == 2 and out["memory_total_bytes"] > 0
    assert set(out["limits"]) == {"read_gb_per_s", "int8_gop_per_s", "f32_gop_per_s"}
    assert all(0 < row["median"] <= row["best"] for row in out["limits"].values()), out
    assert b"read_gb_per_s" in run("bench", "--limits", "--device", "cpu").stdout
    one_line(run("bench", "--limits", "--device", "ref", status=1), "rhapsode bench", "no probes")


# ---- bad input ----

USAGE = [
    [], ["nonsense"], ["generate"], ["generate", LLAMA], ["generate", LLAMA, "--nope"], ["generate", LLAMA, "--ids", "1", "--prompt", "x"],
    ["generate", LLAMA, "--ids", "1,x"], ["generate", LLAMA, "--ids", ""], ["generate", LLAMA, "--ids", "-1"], ["generate", LLAMA, "--ids", "99999999999"],
    ["generate", LLAMA, "--prompt", "x", "--temp", "hot"], ["generate", LLAMA, "--prompt", "x", "--temp", "-1"],
    ["generate", LLAMA, "--prompt", "x", "--temp", "nan"], ["generate", LLAMA, "--prompt", "x", "--top-k", "1.5"],
    ["generate", LLAMA, "--prompt", "x", "--max-tokens", "1e3"], ["generate", LLAMA, "--prompt", "x", "--max-tokens", "0"], ["generate", LLAMA, "--prompt", "x", "--seed", "-1"],
    ["generate", LLAMA, "--prompt", "x", "--top-logprobs", "129"], ["generate", LLAMA, "--prompt", "x", "--logit-bias", "5"],
    ["generate", LLAMA, "--prompt", "x", "--stop-id", "x"], ["generate", LLAMA, "--prompt"], ["generate", LLAMA, "extra", "--prompt", "x"],
    ["generate", LLAMA, "--prompt", "x", "--threads", "0"], ["generate", LLAMA, "--prompt", "x", "--ignore-eos=yes"],
    ["generate", LLAMA, "--prompt", "x", "-z"], ["generate", LLAMA, "--prompt", "x", "--state", "lots"],
    ["score", LLAMA], ["score", LLAMA, "--ids", "1", "--file", "x"], ["score", LLAMA, "--ids", "1,2", "--logits", "all"],
    ["generate", LLAMA, "--prompt", "x", "--kv", "q7"], ["generate", LLAMA, "--prompt", "x", "--kv", "f16:"],
    ["generate", LLAMA, "--prompt", "x", "--logprobs"], ["generate", LLAMA, "--prompt", "x", "--set", "a=1"], ["generate", LLAMA, "--ids", "1", "--tools", "x"],
    ["score", LLAMA, "--ids", "1,2", "--logits", "last"], ["run", LLAMA, "--choices", "2", "x"],
    ["detokenize", LLAMA, "--ids", ""], ["detokenize", LLAMA, "--ids", "1,,2"], ["help", "nonsense"], ["help", "run", "everything"], ["render", LLAMA], ["info"], ["bench", LLAMA, "-r", "0"], ["completion", "tcsh"],
    ["bench"], ["bench", LLAMA, "--limits"],
]


@pytest.mark.parametrize("args", USAGE, ids=lambda a: " ".join(os.path.basename(x) for x in a)[:60])
def test_usage(args):
    one_line(run(*args, status=2), "rhapsode")


# wrong by what they say to the model or this build: usage, too
WRONG = [
    ["generate", LLAMA, "--prompt", "x", "--backend", "abacus"], ["generate", LLAMA, "--prompt", "x", "--cpu-isa", "sse9"], ["generate", LLAMA, "--prompt", "x", "--sampler-order", "top_k"],
    ["generate", LLAMA, "--prompt", "x", "--sampler-order", "top_k,top_k,top_p,min_p,xtc,typical_p"],
    ["generate", LLAMA, "--prompt", "x", "--logit-bias", f"{VOCAB}=1"], ["generate", LLAMA, "--prompt", "x", "--stop", ""],
    ["generate", LLAMA, "--prompt", "x", "--output", "nope"], ["detokenize", LLAMA, "--ids", str(VOCAB)], ["bench", LLAMA, "-p", "0", "-n", "0"],
    ["pull", "foo"], ["score", LLAMA, "--file", "/dev/null"],
]


@pytest.mark.parametrize("args", WRONG, ids=lambda a: " ".join(os.path.basename(x) for x in a)[:60])
def test_wrong(args):
    one_line(run(*args, status=2), "rhapsode " + args[0])


FAILURES = [
    ["generate", "/no/such/model.gguf", "--prompt", "x"], ["info", "/no/such"], ["generate", LLAMA, "--chat", "/no/such.json"],
    ["generate", LLAMA, "--prompt", "x", "--chat-template", "/no/such"],
    ["generate", LLAMA, *sum((["--stop", str(i)] for i in range(17)), []), "--prompt", "x"], ["score", LLAMA, "--file", "/no/such"],
    ["bench", LLAMA, "-p", "3000"], ["render", LLAMA, "--messages", "/no/such"],
    ["generate", "/dev/null", "--prompt", "x"], ["info", GOLDEN], ["add", "x", "/etc/passwd"], ["rm", "nothing"],
]


@pytest.mark.parametrize("args", FAILURES, ids=lambda a: " ".join(os.path.basename(x) for x in a)[:60])
def test_failure(args):
    one_line(run(*args, status=1), "rhapsode " + args[0])


def test_bad_files(tmp_path):
    bad = tmp_path / "bad"
    for text in (b"", b"{", b"[1]", b"{}", b"\xff", b"[" * 100000):
        bad.write_bytes(text)
        one_line(run("generate", LLAMA, "--chat", bad, "--max-tokens", 1, status=1), bad)
    garbage = tmp_path / "x.gguf"
    garbage.write_bytes(b"GGUF" + b"\xff" * 100)
    one_line(run("info", garbage, status=1), "x.gguf")
    copy = tmp_path / "copy"
    shutil.copytree(LLAMA, copy)
    (copy / "tokenizer.json").unlink()
    one_line(run("generate", copy, "--ids", "1", status=1), "tokenizer.json")
    for text in ("{", '{"model": {"type": "WordPiece"}}'):
        (copy / "tokenizer.json").write_text(text)
        one_line(run("tokenize", copy, status=1), f"{copy}: tokenizer.json")
    shutil.copy(os.path.join(LLAMA, "tokenizer.json"), copy)
    weights = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(weights[:-100])
    one_line(run("info", copy, status=1))


BAD_CONFIGS = [
    ("intermediate_size", 256, "gate_proj': expected shape [256, 64], file has [128, 64]"), ("num_hidden_layers", 4, "'model.layers.3.input_layernorm.weight' is missing"),
    ("max_position_embeddings", -1, "'max_position_embeddings': expected a whole number from 0 to 4294967295, got -1"), ("num_attention_heads", 3, "3 heads"),
    ("num_hidden_layers", 2.5, "expected a whole number from 0 to 4294967295, got 2.5"), ("rope_theta", "x", "expected a number, got string"), ("hidden_size", 0, "hidden size"),
    ("vocab_size", 400, "expected shape [400, 64], file has [384, 64]"), ("head_dim", 33, "expected an even number"), ("model_type", "llama9", "'llama9' is not supported"),
    ("quantization_config", {"quant_method": "fp8"}, "'fp8' is not supported"), ("quantization_config", {"quant_method": "gptq"}, "'gptq' is not supported"),
    ("quantization_config", {"quant_method": "awq"}, "'awq' is not supported"), ("quantization", {"bits": 4, "group_size": 16, "mode": "nvfp4"}, "'nvfp4' is not supported")]


@pytest.mark.parametrize("key,value,words", BAD_CONFIGS, ids=lambda v: str(v)[:40])
def test_a_config_that_disagrees_or_asks_for_more_says_where(tmp_path, key, value, words):
    copy = tmp_path / "copy"
    shutil.copytree(LLAMA, copy)
    (copy / "config.json").unlink()
    (copy / "config.json").write_text(json.dumps({**CONFIG, key: value}))
    done = run("generate", copy, "--ids", "1", status=1)
    one_line(done, words, copy)
    assert done.stderr.decode().count(str(copy)) == 1, done.stderr


def test_a_file_cut_short_while_it_is_read(tmp_path):
    """Weights of 1.6 GB that are a hole in the file: reading them for the identity takes long enough to cut them short."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(LLAMA, name), tmp_path)
    ffn = 1 << 22
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 1, "intermediate_size": ffn}))
    with open(os.path.join(LLAMA, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    made, at = {}, 0
    for name, t in head.items():
        if name != "__metadata__" and (".layers." not in name or ".layers.0." in name):
            shape = [ffn if n == CONFIG["intermediate_size"] else n for n in t["shape"]]
            made[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * math.prod(shape)]}
            at = made[name]["data_offsets"][1]
    text = json.dumps(made).encode()
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(weights, 8 + len(text) + at)
    p = subprocess.Popen([PROGRAM, "info", str(tmp_path), "--config", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while p.poll() is None and str(weights) not in open(f"/proc/{p.pid}/maps").read():
        pass
    os.truncate(weights, 1 << 16)
    out, err = p.communicate(timeout=60)
    assert (p.returncode, out, err.count(b"\n")) == (1, b"", 1), (p.returncode, err)
    assert b"cut short" in err or b"model.safetensors" in err  # the second: cut before the sizes were checked


BAD_MESSAGES = [
    ([1], "messages[0]: expected an object"), ([{"content": "x"}], "messages[0].role"), ([{"role": "usr", "content": "x"}], "'usr'"),
    ([{"role": "user", "content": "x"}, {"role": "user"}], "messages[1].content"), ([{"role": "user", "content": 5}], "messages[0].content"),
    ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"), ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}], "messages[0].content[1].type"), ([], "at least one message"),
    ({"a": 1}, "messages"), ([{"role": "assistant", "content": None}], "messages[0].content"),
]


@pytest.mark.parametrize("messages,words", BAD_MESSAGES, ids=lambda m: json.dumps(m)[:50])
def test_bad_messages_say_which_and_what(tmp_path, messages, words):
    file = tmp_path / "m.json"
    file.write_text(json.dumps(messages))
    one_line(run("generate", LLAMA, "--chat", file, status=1), file, words)


def test_messages_without_content_that_have_something_else(tmp_path):
    file = tmp_path / "m.json"
    file.write_text(json.dumps([{"role": "user", "content": [{"type": "text", "text": "hi"}]},
                                {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
                                {"role": "tool", "content": {"degrees": 3}}]))
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages|length }}")
    assert run("render", LLAMA, "--messages", file, "--chat-template", template).stdout == b"3"
    assert len(generate("--chat", file, "--chat-template", template, "--max-tokens", 1, "--ignore-eos")["ids"]) == 1


@pytest.mark.parametrize("args,words", [
    (["rum"], "'run'"), (["genrate"], "'generate'"), (["generate", LLAMA, "--promt", "x"], "'--prompt'"), (["run", LLAMA, "--prompt", "x"], "generate has it"),
    (["run", LLAMA, "--teperature=1", "x"], "'--temperature'"), (["help", "scoer"], "'score'")])
def test_slips_are_told(args, words):
    one_line(run(*args, status=2), words)


def test_names_that_are_no_model_say_what_to_give(tmp_path):
    one_line(run("info", os.path.join(LLAMA, "model.safetensors"), status=1), f"give its folder, {LLAMA}")
    one_line(run("info", os.path.join(LLAMA, "tokenizer.json"), status=1), f"give its folder, {LLAMA}")
    alone = tmp_path / "x.safetensors"
    shutil.copy(os.path.join(LLAMA, "model.safetensors"), alone)
    one_line(run("info", alone, status=1), "config.json")
    one_line(run("info", tmp_path, status=1), "config.json", "beside the .safetensors")
    for name in ("b-00002-of-00002.gguf", "b-00001-of-00002.gguf", "c.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    one_line(run("info", tmp_path, status=1), "2 .gguf models", "b-00001-of-00002.gguf")
    text = run("info", tmp_path / "c.gguf", status=1).stderr.decode()
    assert text.count(str(tmp_path)) == 1, text
    one_line(run("info", tmp_path / "d.gguf", status=1), f"did you mean '{tmp_path}/c.gguf'?")
    one_line(run("info", "someone/something", status=1), "rhapsode pull someone/something")


def test_a_build_without_cuda_says_so():
    if b" cuda" in run("--version").stdout.splitlines()[1]:
        pytest.skip("this build has CUDA")
    one_line(run("generate", LLAMA, "--prompt", "x", "--device", "cuda:1", status=1), "cuda:1", "CPUs only", "--preset cuda")
    for verb in ("run", "serve"):
        text = run("help", verb, "all").stdout
        assert b"cuda" not in text and b"gpu" not in text.lower() and b"cpu, ref" in text


# ---- the program ----

def test_help_and_version():
    name, backends, here = run("--version").stdout.decode().splitlines()
    assert name.startswith("rhapsode ") and backends.split()[:3] == ["backends", "cpu", "ref"] and "level" in here
    assert run("help").stdout == run("--help").stdout == run("-h").stdout
    text = run("--help").stdout.decode()
    for verb in ("generate", "score", "tokenize", "detokenize", "render", "info", "bench"):
        assert f"  {verb} " in text
        assert f"usage: rhapsode {verb}" in run(verb, "--help").stdout.decode()
        assert run(verb, "--help").stdout == run("help", verb).stdout
    short, whole = run("help", "generate").stdout.decode(), run("help", "generate", "all").stdout.decode()
    assert "--temp" in short and "--xtc" not in short and "help generate all" in short and short.count("\n") < 60
    assert "--xtc" in whole and "help generate all" not in whole
    for word in ("mse", "KL", "tokens", "needles"):
        assert word in run("help", "kvcheck").stdout.decode()


def test_the_manual_and_the_readme_name_every_verb():
    verbs = re.findall(r"^  (\w+) ", run("help").stdout.decode(), re.M)
    assert len(verbs) >= 16
    manual, readme = (open(os.path.join(TOP, path)).read() for path in ("docs/rhapsode.1.scd", "README.md"))
    for verb in verbs:
        assert re.search(rf"^.*\*{verb}\*", manual, re.M), verb
        assert verb == "completion" or re.search(rf"`(rhapsode )?{verb}\b", readme), verb


def test_config_file(tmp_path):
    config = tmp_path / "config"
    config.write_text("# mine\n\ntemperature = 0.25\nstop = zzz\nthreads = 1\n")
    args = ["--ids", "1,2", "--max-tokens", 1]
    assert generate(*args, "--config", config)["sampling"]["temperature"] == 0.25
    assert generate(*args, "--config", config, "--temp", 0.5)["sampling"]["temperature"] == 0.5
    (tmp_path / "rhapsode").mkdir()
    shutil.copy(config, tmp_path / "rhapsode" / "config")
    assert generate(*args, env={"XDG_CONFIG_HOME": str(tmp_path)})["sampling"]["temperature"] == 0.25
    for line in ("nonsense = 1", "temperature = warm", "just text", "prompt = x"):
        config.write_text(f"\n{line}\n")
        one_line(run("generate", LLAMA, *args, "--config", config, status=2), "config:2")
    one_line(run("generate", LLAMA, *args, "--config", "/no/such", status=2), "/no/such")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    script = run("completion", shell).stdout
    assert b"max-tokens" in script and b"generate" in script
    assert b"ls --names" in script
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_bytes(script)
        subprocess.run([shell, "-n", path], check=True)


def test_completion_offers_names_of_the_store(tmp_path):
    env = {**os.environ, "RHAPSODE_HOME": str(tmp_path / "store")}
    for name in ("mine:tiny", "mine:other", "third"):
        run("add", name, LLAMA, env=env)

    def offered(line):
        words = line.split(" ")
        script = (f"source <({PROGRAM} completion bash); COMP_LINE='{line}' COMP_POINT={len(line)}; COMP_WORDS=({PROGRAM} {' '.join(words[1:])}); "
                  f"COMP_CWORD={len(words) - 1}; _rhapsode; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        return subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True).stdout.split()

    assert offered("rhapsode run thi") == ["third"]
    assert sorted(offered("rhapsode info mine")) == ["mine:other", "mine:tiny"]
    assert sorted(offered("rhapsode rm mine:")) == ["other", "tiny"]  # bash breaks words at colons
    assert "--temperature" in offered("rhapsode run x --temp") and "score" in offered("rhapsode help sc")
    assert offered("rhapsode gen") == ["generate"]
    if shutil.which("fish"):
        script = "rhapsode completion fish | source; complete -C 'rhapsode run mi'; complete -C 'rhapsode run thi'"
        path = f"{os.path.dirname(PROGRAM)}:{env['PATH']}"
        out = subprocess.run(["fish", "-c", script], env={**env, "PATH": path}, cwd=tmp_path, stdout=subprocess.PIPE, check=True, text=True).stdout.split()
        assert {"mine:tiny", "mine:other", "third"} <= set(out)


def test_full_disk():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([PROGRAM, "tokenize", LLAMA], input=b"hello", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and b"standard output" in done.stderr


# ---- the library ----

def test_what_try_builds_can_be_installed():
    """It builds the default target, which holds all that installing takes."""
    with open(os.path.join(TOP, "try"), encoding="utf-8") as f:
        builds = [line for line in f if line.startswith("cmake --build")]
    assert len(builds) == 1 and "--target" not in builds[0], builds
    inputs = subprocess.run(["ninja", "-C", RELEASE, "-t", "query", "all"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert {"librhapsode.a", "librhapsode.so", "completions", "manual", "src/cli/all"} <= set(inputs), inputs


def test_example_with_installed_library(tmp_path):
    if not os.path.exists(os.path.join(RELEASE, "librhapsode.a")):
        pytest.skip("the library is not built")
    prefix = tmp_path / "prefix"
    subprocess.run(["cmake", "--install", RELEASE, "--prefix", prefix], check=True, stdout=subprocess.DEVNULL)
    pc = next(prefix.rglob("rhapsode.pc"))
    lib = pc.parent.parent
    assert (lib / "librhapsode.a").exists() and (prefix / "bin" / "rhapsode").exists()

    def flags(*more):
        return subprocess.run(["pkg-config", "--cflags", "--libs", *more, "rhapsode"], check=True, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, "PKG_CONFIG_PATH": str(pc.parent)}).stdout.split()

    assert f"-I{prefix}/include" in [os.path.normpath(f) for f in flags()]
    source = os.path.join(TOP, "examples", "hello.c")
    shared, static = tmp_path / "hello", tmp_path / "hello_static"
    subprocess.run(["cc", source, *flags(), "-o", shared], check=True)
    subprocess.run(["cc", source, *[str(lib / "librhapsode.a") if f == "-lrhapsode" else f for f in flags("--static")], "-o", static], check=True)
    for program in (shared, static):
        done = subprocess.run([program, LLAMA, "hello"], stdout=subprocess.PIPE, check=True, env={**os.environ, "LD_LIBRARY_PATH": str(lib)})
        assert b"tokens/s]" in done.stdout
    names = subprocess.run(["nm", "-D", "--defined-only", lib / "librhapsode.so"], stdout=subprocess.PIPE, text=True).stdout.split()[2::3]
    assert names and all(n.startswith("rh_") for n in names)
