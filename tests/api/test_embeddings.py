"""test_embeddings.py: vectors of texts against an independent forward in NumPy, through OpenAI's and Ollama's shapes."""
import base64
import json
import os
import shutil
import struct
import urllib.error

import numpy as np
import pytest
from ollama import Client
from openai import OpenAI
from serving import GOLDEN, Server

MODEL = os.path.join(GOLDEN, "llama")
TEXTS = [[1, 20, 33, 47, 5, 99, 120, 7], [1, 8], [250, 3, 3, 3, 90] * 30]


def weights():
    """Tensors of the checkpoint as f64: bfloat16 is the upper half of an f32."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            assert t["dtype"] == "BF16"
            from_, to = (8 + n + at for at in t["data_offsets"])
            out[name] = (np.frombuffer(data[from_:to], "<u2").astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(t["shape"])
    return out


def hidden_rows(ids):
    """The rows that a llama's head reads, in f64, from the checkpoint's own values."""
    with open(os.path.join(MODEL, "config.json")) as f:
        c = json.load(f)
    w = weights()
    heads, kv_heads, d, n = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"], len(ids)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c["rms_norm_eps"]) * w[name]
    angles = np.arange(n)[:, None] * c["rope_parameters"]["rope_theta"] ** (-np.arange(0, d, 2) / d)[None, :]
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]

    def rope(x):
        a, b = x[..., :d // 2], x[..., d // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
    x = w["model.embed_tokens.weight"][ids]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        h = norm(x, p + "input_layernorm.weight")
        q = rope((h @ w[p + "self_attn.q_proj.weight"].T).reshape(n, heads, d))
        k = rope((h @ w[p + "self_attn.k_proj.weight"].T).reshape(n, kv_heads, d)).repeat(heads // kv_heads, 1)
        v = (h @ w[p + "self_attn.v_proj.weight"].T).reshape(n, kv_heads, d).repeat(heads // kv_heads, 1)
        s = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d) + np.triu(np.full((n, n), -np.inf), 1)
        s = np.exp(s - s.max(-1, keepdims=True))
        x = x + np.einsum("hqk,khd->qhd", s / s.sum(-1, keepdims=True), v).reshape(n, -1) @ w[p + "self_attn.o_proj.weight"].T
        h = norm(x, p + "post_attention_layernorm.weight")
        g = h @ w[p + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[p + "mlp.up_proj.weight"].T)) @ w[p + "mlp.down_proj.weight"].T
    return norm(x, "model.norm.weight")


def unit(v):
    return v / np.linalg.norm(v)


def with_pooling(folder, mode, **more):
    """The model with the files that sentence-transformers writes beside one."""
    shutil.copytree(MODEL, folder)
    os.makedirs(os.path.join(folder, "1_Pooling"))
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump([{"idx": i, "name": str(i), "path": p, "type": f"sentence_transformers.models.{t}"}
                   for i, (p, t) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"), *more.get("modules", [])])], f)
    with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as f:
        json.dump({"word_embedding_dimension": 64, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False,
                   mode: True}, f)
    return folder


@pytest.fixture(scope="module")
def last():
    s = Server(MODEL, "--model-id", "e", "--kv", "f32", "--device", "ref")
    yield s
    s.stop()


@pytest.fixture(scope="module")
def mean(tmp_path_factory):
    s = Server(with_pooling(str(tmp_path_factory.mktemp("mean") / "m"), "pooling_mode_mean_tokens"), "--model-id", "e", "--kv", "f32", "--device", "ref")
    yield s
    s.stop()


def vectors(server, texts, **more):
    out = server.json("/v1/embeddings", {"model": "e", "input": texts, **more})
    assert [d["index"] for d in out["data"]] == list(range(len(out["data"]))) and out["object"] == "list"
    return np.array([d["embedding"] for d in out["data"]]), out


@pytest.mark.parametrize("which", ["last", "mean"])
def test_against_numpy(which, request):
    server = request.getfixturevalue(which)
    got, out = vectors(server, TEXTS)
    assert out["usage"] == {"prompt_tokens": sum(map(len, TEXTS)), "total_tokens": sum(map(len, TEXTS))}
    for ids, v in zip(TEXTS, got):
        rows = hidden_rows(ids)
        wanted = unit(rows.mean(0) if which == "mean" else rows[-1])
        assert np.abs(v - wanted).max() < 2e-6 and abs(np.linalg.norm(v) - 1) < 1e-6
        assert np.abs(unit(rows.mean(0)) - unit(rows[-1])).max() > 0.01  # the two are not the same


def test_one_by_one_and_together(mean):
    """The same bytes whatever came with a text, and whatever was known of it."""
    together = mean.json("/v1/embeddings", {"model": "e", "input": TEXTS * 3})["data"]
    for i, ids in enumerate(TEXTS):
        alone = mean.json("/v1/embeddings", {"model": "e", "input": ids})["data"][0]["embedding"]
        assert all(together[i + k * len(TEXTS)]["embedding"] == alone for k in range(3))


def test_base64_and_dimensions(last):
    plain, _ = vectors(last, TEXTS[0])
    coded = last.json("/v1/embeddings", {"model": "e", "input": TEXTS[0], "encoding_format": "base64"})["data"][0]["embedding"]
    assert np.array_equal(np.frombuffer(base64.b64decode(coded), "<f4"), plain[0].astype(np.float32))
    short, _ = vectors(last, TEXTS[0], dimensions=10)
    assert short.shape == (1, 10) and np.abs(short[0] - unit(plain[0][:10])).max() < 1e-6


def test_openai_client(last):
    client = OpenAI(base_url=last.url + "/v1", api_key="none", max_retries=0)
    out = client.embeddings.create(model="e", input=["a b c", "hello"])  # asks for base64 by itself
    plain, _ = vectors(last, ["a b c", "hello"])
    assert np.abs(np.array([d.embedding for d in out.data]) - plain).max() < 1e-6 and out.usage.total_tokens > 0


def test_ollama_client(last):
    out = Client(host=last.url).embed(model="e", input=["a b c", "hello"])
    plain, _ = vectors(last, ["a b c", "hello"])
    assert np.array_equal(np.array(out["embeddings"]), plain) and out["prompt_eval_count"] > 0
    one = Client(host=last.url).embed(model="e", input="hello", dimensions=7)
    assert len(one["embeddings"]) == 1 and len(one["embeddings"][0]) == 7


def test_texts_that_are_too_long(last):
    long = [5] * 600
    with pytest.raises(urllib.error.HTTPError) as e:
        last.json("/v1/embeddings", {"model": "e", "input": long})
    error = json.loads(e.value.read())["error"]
    assert error["code"] == "context_length_exceeded" and "600" in error["message"] and "512" in error["message"]
    cut, whole = last.json("/api/embed", {"model": "e", "input": "x " * 600}), vectors(last, [5] * 512)[0]
    assert cut["prompt_eval_count"] == 512
    assert np.array_equal(vectors(last, long, truncate=True)[0], whole)
    with pytest.raises(urllib.error.HTTPError):
        last.json("/api/embed", {"model": "e", "input": "x " * 600, "truncate": False})


BAD = [({}, "/input"), ({"input": []}, "/input"), ({"input": [[]]}, "/input/0"), ({"input": {"a": 1}}, "/input"), ({"input": ["a", 1]}, "/input/1"),
       ({"input": "a", "encoding_format": "hex"}, "/encoding_format"), ({"input": "a", "dimensions": 0}, "/dimensions"), ({"input": [[999999]]}, "/input/0/0")]


@pytest.mark.parametrize("fields,param", BAD, ids=[json.dumps(f)[:40] for f, _ in BAD])
def test_bad_fields_are_named(last, fields, param):
    with pytest.raises(urllib.error.HTTPError) as e:
        last.json("/v1/embeddings", {"model": "e", **fields})
    assert e.value.code == 400 and json.loads(e.value.read())["error"]["param"] == param


def test_what_cannot_be_had_is_named(last, tmp_path):
    with pytest.raises(urllib.error.HTTPError) as e:
        last.json("/v1/embeddings", {"model": "e", "input": "a", "dimensions": 65})
    assert e.value.code == 400 and "64" in json.loads(e.value.read())["error"]["message"]
    for name, folder in (("pooling_mode_cls_token", with_pooling(str(tmp_path / "a"), "pooling_mode_cls_token")),
                         ("Dense", with_pooling(str(tmp_path / "b"), "pooling_mode_mean_tokens", modules=[("3_Dense", "Dense")]))):
        s = Server(folder)
        with pytest.raises(urllib.error.HTTPError) as e:
            s.json("/v1/embeddings", {"input": "a"})
        assert e.value.code == 400 and name in json.loads(e.value.read())["error"]["message"]
        assert s.json("/v1/completions", {"prompt": "a", "max_tokens": 1})["choices"]
        s.stop()
