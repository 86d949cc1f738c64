"""test_ollama.py: Ollama's API as its own client sees it."""
import hashlib
import json
import os
import subprocess
import urllib.error

import pytest
from ollama import Client, ResponseError
from serving import PROGRAM, Server

MESSAGES = [{"role": "user", "content": "Name three colours of the sea."}]
OPTIONS = {"temperature": 0, "num_predict": 16}


@pytest.fixture(scope="module")
def client(server):
    return Client(host=server.url)


def test_chat(client, server):
    out = client.chat(model="small", messages=MESSAGES, options=OPTIONS)
    chat = server.json("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 16, "temperature": 0})
    assert out.message.content == chat["choices"][0]["message"]["content"]
    assert out.done and out.done_reason == "length" and out.eval_count == 16 and out.prompt_eval_count == chat["usage"]["prompt_tokens"]
    parts = list(client.chat(model="small", messages=MESSAGES, options=OPTIONS, stream=True))
    assert "".join(p.message.content for p in parts) == out.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]


def test_generate(client, server):
    out = client.generate(model="small", prompt="Name three colours of the sea.", options=OPTIONS)
    chat = server.json("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 16, "temperature": 0})
    assert out.response == chat["choices"][0]["message"]["content"]
    raw = client.generate(model="small", prompt="The sea is", raw=True, options=OPTIONS)
    assert raw.response == server.json("/v1/completions", {"prompt": "The sea is", "max_tokens": 16, "temperature": 0})["choices"][0]["text"]
    parts = list(client.generate(model="small", prompt="The sea is", raw=True, options={**OPTIONS, "stop": ["zzz"]}, stream=True))
    assert "".join(p.response for p in parts) == raw.response


def test_lists(client):
    assert [m.model for m in client.list().models] == ["small"]
    assert client.show("small").details.family == "llama"
    assert client.ps().models[0].model == "small"


def test_the_files_size_and_digest(client, model, tmp_path):
    """As the store's record has it; a file that was never in the store has no digest here, and none is made up."""
    plain = client.list().models[0]
    assert plain.size == os.path.getsize(model) and not plain.digest
    digest = hashlib.sha256(open(model, "rb").read()).hexdigest()
    subprocess.run([PROGRAM, "add", "kept", model, "--store", tmp_path], check=True, env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent"})
    s = Server("kept", "--store", tmp_path)
    kept = Client(host=s.url).list().models[0]
    assert kept.digest == digest and kept.size == plain.size
    assert s.json("/api/show", {"model": "kept"})["digest"] == digest
    s.stop()


def test_errors(client, server):
    with pytest.raises(ResponseError):
        client.chat(model="small", messages=[{"role": "user", "content": "x"}], format={"type": "object"})
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json("/api/chat", {"messages": MESSAGES, "options": {"temperature": "x"}})
    assert e.value.code == 400 and "/options/temperature" in json.loads(e.value.read())["error"]
