"""test_openai.py: OpenAI's API as its own client, and others that speak it, see it."""
import json
import math
import urllib.error

import pytest
from openai import APIError, BadRequestError, NotFoundError, OpenAI

MESSAGES = [{"role": "user", "content": "Name three colours of the sea."}]


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def chat(client, **kw):
    return client.chat.completions.create(**{"model": "small", "messages": MESSAGES, "max_tokens": 24, "temperature": 0, **kw})


def streamed(stream):
    """(text, finish reasons, usage, chunks) with the order of chunks checked."""
    chunks = list(stream)
    text, finish, usage = {}, {}, None
    assert len({c.id for c in chunks}) == 1
    for c in chunks:
        if c.usage:
            usage = c.usage
            assert c.choices == [] and c is chunks[-1]
        for choice in c.choices:
            assert choice.index not in finish, "text after the finish reason"
            if hasattr(choice, "delta"):
                if choice.index not in text:
                    assert choice.delta.role == "assistant"
                text[choice.index] = text.get(choice.index, "") + (choice.delta.content or "")
            else:
                text[choice.index] = text.get(choice.index, "") + choice.text
            if choice.finish_reason:
                finish[choice.index] = choice.finish_reason
    return text, finish, usage, chunks


def test_models(client):
    assert [m.id for m in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "rhapsode"
    with pytest.raises(NotFoundError):
        client.models.retrieve("other/model")


def test_chat_and_stream_are_equal(client):
    whole = chat(client)
    text, finish, usage, _ = streamed(chat(client, stream=True, stream_options={"include_usage": True}))
    assert text[0] == whole.choices[0].message.content and len(text[0]) > 10
    assert finish[0] == whole.choices[0].finish_reason == "length"
    assert usage.completion_tokens == whole.usage.completion_tokens == 24
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + 24
    assert whole.choices[0].message.role == "assistant" and whole.object == "chat.completion"


def test_no_usage_unless_asked(client):
    _, _, usage, chunks = streamed(chat(client, stream=True))
    assert usage is None and all(c.usage is None for c in chunks)


def test_choices_and_seeds(client):
    kw = {"n": 3, "temperature": 1.2, "seed": 11}
    whole = chat(client, **kw)
    assert [c.index for c in whole.choices] == [0, 1, 2]
    texts = [c.message.content for c in whole.choices]
    assert len(set(texts)) == 3
    text, finish, usage, _ = streamed(chat(client, stream=True, stream_options={"include_usage": True}, **kw))
    assert [text[i] for i in range(3)] == texts and set(finish) == {0, 1, 2}
    assert usage.completion_tokens == whole.usage.completion_tokens == 72


def test_stop_strings(client):
    whole = chat(client).choices[0].message.content
    stop = whole[8:13]
    out = chat(client, stop=[stop, "zzzz"])
    assert out.choices[0].message.content == whole[:whole.index(stop)] and out.choices[0].finish_reason == "stop"
    text, finish, _, _ = streamed(chat(client, stop=stop, stream=True))
    assert text[0] == whole[:whole.index(stop)] and finish[0] == "stop"


def test_end_of_text(client):
    out = chat(client, messages=[{"role": "user", "content": "Say only: yes"}], max_tokens=400)
    assert out.choices[0].finish_reason == "stop" and "<|" not in out.choices[0].message.content


def check_logprobs(entries, tops):
    for e in entries:
        assert bytes(e.bytes).decode(errors="replace") == e.token and len(e.top_logprobs) == tops
        assert e.logprob <= 0
        if tops:
            assert e.top_logprobs[0].token == e.token and math.isclose(e.top_logprobs[0].logprob, e.logprob)


def test_chat_logprobs(client):
    out = chat(client, logprobs=True, top_logprobs=4)
    content = out.choices[0].logprobs.content
    assert len(content) == 24
    check_logprobs(content, 4)
    assert b"".join(bytes(e.bytes) for e in content).decode(errors="replace") == out.choices[0].message.content
    got = [e for c in chat(client, logprobs=True, top_logprobs=4, stream=True) for ch in c.choices if ch.logprobs for e in ch.logprobs.content]
    assert [(e.token, e.logprob) for e in got] == [(e.token, e.logprob) for e in content]
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []
    assert chat(client).choices[0].logprobs is None


def test_completions(client):
    kw = {"model": "small", "max_tokens": 12, "temperature": 0}
    one = client.completions.create(prompt="The sea is", **kw)
    assert one.object == "text_completion" and one.usage.completion_tokens == 12
    many = client.completions.create(prompt=["The sea is", "A ship"], n=2, echo=True, **kw)
    assert [c.index for c in many.choices] == [0, 1, 2, 3]
    assert many.choices[0].text == many.choices[1].text == "The sea is" + one.choices[0].text
    assert many.choices[2].text.startswith("A ship")
    text, finish, _, _ = streamed(client.completions.create(prompt=["The sea is", "A ship"], n=2, echo=True, stream=True, **kw))
    assert [text[i] for i in range(4)] == [c.text for c in many.choices] and len(finish) == 4


def test_completion_ids(client, server):
    kw = {"model": "small", "max_tokens": 8, "temperature": 0}
    ids = server.json("/tokenize", {"prompt": "The sea is"})["tokens"]
    text = client.completions.create(prompt="The sea is", **kw).choices[0].text
    assert client.completions.create(prompt=ids, **kw).choices[0].text == text
    assert client.completions.create(prompt=[ids, ids], **kw).choices[1].text == text
    out = client.completions.create(prompt=ids, logprobs=3, extra_body={"return_token_ids": True}, **kw)
    lp = out.choices[0].logprobs
    assert len(lp.tokens) == len(lp.token_logprobs) == len(lp.top_logprobs) == len(lp.text_offset) == 8
    assert "".join(lp.tokens) == text and lp.text_offset[0] == 0 and all(len(t) == 3 for t in lp.top_logprobs)
    assert out.choices[0].token_ids and server.json("/detokenize", {"tokens": out.choices[0].token_ids})["prompt"] == text
    assert out.prompt_token_ids == ids


def test_sampling_fields_change_the_text(client):
    base = chat(client, temperature=1, seed=3).choices[0].message.content
    assert chat(client, temperature=1, seed=3).choices[0].message.content == base
    for kw in ({"seed": 4}, {"temperature": 3}, {"presence_penalty": 2}, {"extra_body": {"top_k": 1}}, {"top_p": 0.01},
               {"extra_body": {"min_p": 0.9}}, {"extra_body": {"repetition_penalty": 5}}, {"extra_body": {"typical_p": 0.05}}):
        assert chat(client, **{"temperature": 1, "seed": 3, **kw}).choices[0].message.content != base, kw


def test_logit_bias(client, server):
    first = chat(client, extra_body={"return_token_ids": True}).choices[0].token_ids[0]
    out = chat(client, logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    assert first not in out.choices[0].token_ids
    out = chat(client, logit_bias={"100": 100}, max_tokens=4, extra_body={"return_token_ids": True})
    assert out.choices[0].token_ids == [100] * 4


def test_min_tokens_and_ignore_eos(client):
    kw = {"messages": [{"role": "user", "content": "Say only: yes"}], "max_tokens": 200}
    short = chat(client, **kw).usage.completion_tokens
    assert short < 200
    assert chat(client, extra_body={"min_tokens": 150}, **kw).usage.completion_tokens >= 150
    assert chat(client, extra_body={"ignore_eos": True}, **kw).usage.completion_tokens == 200


BAD = [
    ({"temperature": -1}, "/temperature"), ({"temperature": "hot"}, "/temperature"), ({"top_p": 1.5}, "/top_p"), ({"n": 0}, "/n"),
    ({"max_tokens": 0}, "/max_tokens"), ({"max_tokens": 2.5}, "/max_tokens"), ({"messages": []}, "/messages"), ({"messages": "hi"}, "/messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "/messages/0/role"), ({"messages": [{"role": "user"}]}, "/messages/0/content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "/messages/0/content/0/type"),
    ({"messages": [{"role": "user", "content": 5}]}, "/messages/0/content"), ({"messages": [5]}, "/messages/0"),
    ({"stop": [""]}, "/stop"), ({"stop": [1]}, "/stop/0"), ({"stop": ["x"] * 17}, "/stop"), ({"logit_bias": {"x": 1}}, "/logit_bias/x"),
    ({"logit_bias": {"5": 101}}, "/logit_bias/5"), ({"logit_bias": {"99999999": 1}}, "/logit_bias/99999999"), ({"seed": "a"}, "/seed"),
    ({"top_logprobs": 5}, "/top_logprobs"), ({"response_format": {"type": "json_object"}}, "/response_format"), ({"stream": "yes"}, "/stream"),
    ({"tools": [{"type": "web"}]}, "/tools/0/type"), ({"tools": [{"type": "function", "function": {}}]}, "/tools/0/function/name"),
    ({"tool_choice": "required"}, "/tool_choice"), ({"functions": []}, "/functions"), ({"audio": {}}, "/audio"),
    ({"modalities": ["audio"]}, "/modalities"), ({"reasoning_effort": "some"}, "/reasoning_effort"), ({"kv": "f32:f33"}, "/kv"),
    ({"presence_penalty": 3}, "/presence_penalty"), ({"stop_token_ids": [1, -1]}, "/stop_token_ids/1"), ({"propose": "oracle"}, "/propose"),
    ({"stream_options": 1}, "/stream_options"), ({"truncation": "head"}, "/truncation"), ({"chat_template_kwargs": []}, "/chat_template_kwargs"),
    ({"prompt_logprobs": 21}, "/prompt_logprobs"), ({"cache_salt": "x" * 200}, "/cache_salt"), ({"messages": [{"role": "assistant", "content": "x",
     "tool_calls": [{"id": "a", "type": "function", "function": {}}]}]}, "/messages/0/tool_calls/0"),
]


@pytest.mark.parametrize("fields,param", BAD, ids=[json.dumps(f)[:60] for f, _ in BAD])
def test_bad_fields_are_named(server, fields, param):
    body = {"model": "small", "messages": MESSAGES, "max_tokens": 1, **fields}
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json("/v1/chat/completions", body)
    error = json.loads(e.value.read())["error"]
    assert e.value.code == 400 and error["type"] == "invalid_request_error" and set(error) == {"message", "type", "param", "code"}
    assert (error["param"] or "") == param and error["message"]
    for stream in (True, False):
        with pytest.raises(urllib.error.HTTPError):
            server.json("/v1/chat/completions", {**body, "stream": stream} if "stream" not in fields else body)


def test_client_raises_its_own_errors(client):
    with pytest.raises(BadRequestError) as e:
        chat(client, temperature=-1)
    assert e.value.param == "/temperature"
    with pytest.raises(APIError):
        list(chat(client, max_tokens=100000, stream=True))


def test_context_overflow_names_both_numbers(client):
    for kw in ({"max_tokens": 8192}, {"messages": [{"role": "user", "content": "word " * 9000}]}):
        for stream in (False, True):
            with pytest.raises(BadRequestError) as e:
                chat(client, stream=stream, **kw)
            assert e.value.code == "context_length_exceeded" and "8192" in e.value.message


def test_unknown_fields_are_named_in_a_header(client):
    raw = client.chat.completions.with_raw_response.create(model="small", messages=MESSAGES, max_tokens=1, extra_body={"foo": 1, "bär\r\n": 2})
    assert raw.headers["X-Rhapsode-Ignored"].split(",")[0] == "foo"
    assert raw.headers["X-Rhapsode-Cache"].startswith("hit=") and raw.headers["X-Request-Id"].startswith("chatcmpl-")
    raw = client.chat.completions.with_raw_response.create(model="small", messages=MESSAGES, max_tokens=1, user="me", store=False, metadata={"a": "b"})
    assert "X-Rhapsode-Ignored" not in raw.headers


def test_messages_of_every_kind(client):
    out = chat(client, max_tokens=4, messages=[
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"}, {"role": "user", "content": "And?"}])
    assert out.usage.completion_tokens <= 4


def test_special_tokens_in_a_users_text_stay_text(server):
    plain = server.json("/tokenize", {"messages": [{"role": "user", "content": "xx"}]})["count"]
    sly = server.json("/tokenize", {"messages": [{"role": "user", "content": "x<|im_end|>x"}]})
    assert sly["count"] > plain + 3


def test_text_routes(server):
    out = server.json("/tokenize", {"prompt": "hello wörld", "return_token_strs": True})
    assert "".join(out["token_strs"]).encode() and out["count"] == len(out["tokens"]) and out["max_model_len"] == 8192
    assert server.json("/detokenize", {"tokens": out["tokens"]})["prompt"] == "hello wörld"
    assert "<|im_start|>user\nhi<|im_end|>" in server.json("/apply-template", {"messages": [{"role": "user", "content": "hi"}]})["prompt"]
    assert server.json("/tokenize", {"content": "hi"})["tokens"] == server.json("/tokenize", {"prompt": "hi"})["tokens"]


def test_metrics_and_stats(server):
    text = server.get("/metrics")
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for name in ("rhapsode_time_to_first_token_seconds_bucket", "vllm:num_requests_running", "vllm:prompt_tokens_total", "rhapsode_state_bytes",
                 "rhapsode_cache_lookups_total", "vllm:e2e_request_latency_seconds_count"):
        assert name in names
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rsplit(" ", 1)[1]) >= 0
    stats = server.stats()
    assert stats["model"]["architecture"] == "llama" and stats["engine"]["steps"] > 0
    assert server.json("/ready")["status"] == "ready"


# ---- other clients ----

def test_litellm(server):
    import os
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask the network for prices
    import litellm
    out = litellm.completion(model="openai/small", api_base=server.url + "/v1", api_key="none", messages=MESSAGES, max_tokens=8, temperature=0)
    assert out.choices[0].message.content
    parts = litellm.completion(model="openai/small", api_base=server.url + "/v1", api_key="none", messages=MESSAGES, max_tokens=8, temperature=0, stream=True)
    assert "".join(p.choices[0].delta.content or "" for p in parts) == out.choices[0].message.content


def test_langchain(server):
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="small", base_url=server.url + "/v1", api_key="none", max_tokens=8, temperature=0)
    whole = model.invoke("Name three colours of the sea.")
    assert whole.content and whole.usage_metadata["output_tokens"] == 8
    assert "".join(c.content for c in model.stream("Name three colours of the sea.")) == whole.content


def test_curl(server):
    import subprocess
    out = subprocess.run(["curl", "-sS", "-N", server.url + "/v1/chat/completions", "-d", json.dumps(
        {"messages": MESSAGES, "max_tokens": 3, "stream": True})], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert out.endswith("data: [DONE]\n\n")
