"""test_hostile.py: requests that are legal and large, or that end oddly: what they are told, and what they leave to others."""
import json
import os
import threading
import time
import urllib.error

import pytest
from script_model import make
from serving import GOLDEN, Server

LLAMA = os.path.join(GOLDEN, "llama")
USER = [{"role": "user", "content": "Weather in Kiel?"}]
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("get_weather", "get_time")]


@pytest.fixture(scope="module")
def small():
    s = Server(LLAMA, "--model-id", "e", "--rows", "8")
    yield s
    s.stop()


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    s = Server(make(str(tmp_path_factory.mktemp("script"))), "--model-id", "script")
    yield s
    s.stop()


def refused(server, path, body):
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json(path, body)
    return e.value.code, json.loads(e.value.read())["error"]


def test_all_prompts_are_counted_whichever_starts_first(small):
    """The first text is the longest to prepare, so the others may be done before it begins."""
    for k in range(8):
        texts = ["x " * 240 + str(k), *[[5, 6, 7 + k]] * 5]
        first = small.json("/v1/embeddings", {"input": texts[0]})["usage"]["prompt_tokens"]
        assert small.json("/v1/embeddings", {"input": texts})["usage"]["prompt_tokens"] == first + 15


def test_one_call_each_of_several_answers(scripted):
    """An answer that has its call does not cut the others short."""
    body = {"messages": USER, "tools": TOOLS, "parallel_tool_calls": False, "chat_template_kwargs": {"script": 0}}
    one = scripted.json("/v1/chat/completions", body)
    out = scripted.json("/v1/chat/completions", {**body, "n": 4})
    assert [c["finish_reason"] for c in out["choices"]] == ["tool_calls"] * 4
    assert [len(c["message"]["tool_calls"]) for c in out["choices"]] == [1] * 4
    assert out["usage"]["completion_tokens"] == 4 * one["usage"]["completion_tokens"]


def test_a_text_costs_a_place_in_the_queue():
    s = Server(LLAMA, "--rows", "1", "-t", "1")
    body = {"input": [[3 + i % 200, *range(3, 203)] for i in range(2048)]}
    threads = [threading.Thread(target=lambda: begin(s, body), daemon=True) for _ in range(2)]
    for t in threads:
        t.start()
    while s.stats()["requests"]["under_way"] < 2:
        time.sleep(0.01)
    status, error = refused(s, "/v1/embeddings", {"input": ["a", "b"]})
    assert status == 429 and error["code"] == "queue_full"
    s.process.kill()
    s.process.wait()


def begin(server, body):
    try:
        server.json("/v1/embeddings", body)
    except OSError:
        pass


def test_scores_of_prompts_have_a_bound(small):
    """One answer is written at once: what takes long is refused before it is computed."""
    body = {"prompt": [[3 + (i * 7 + k) % 200 for i in range(500)] for k in range(16)], "max_tokens": 1, "prompt_logprobs": 20}
    status, error = refused(small, "/v1/completions", {**body, "n": 16})
    assert status == 400 and "1048576" in error["message"]
    assert len(small.json("/v1/completions", {**body, "prompt": body["prompt"][:2]})["choices"][1]["prompt_logprobs"]) == 500


def test_a_shortened_prompt_is_not_echoed(small):
    """Its log-probabilities were of another text than the one that was repeated."""
    status, error = refused(small, "/v1/completions", {"prompt": [[5] * 600], "truncation": "auto", "echo": True, "logprobs": 1, "max_tokens": 1})
    assert status == 400 and error["param"] == "/echo"
