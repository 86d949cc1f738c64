"""test_requests.py: model names, calls that are required, log-probabilities of prompts, prompts that are shortened, parts that are left away."""
import json
import math
import os
import urllib.error
import urllib.request

import pytest
from anthropic import Anthropic
from openai import BadRequestError, NotFoundError, OpenAI
from serving import GOLDEN, Server

MESSAGES = [{"role": "user", "content": "What is the weather in Kiel?"}]
TOOLS = [{"type": "function", "function": {"name": n, "description": "d", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}}
         for n in ("get_weather", "get_time", "get_weather_of_tomorrow")]
NAMES = [t["function"]["name"] for t in TOOLS]


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def refused(server, path, body):
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json(path, body)
    return e.value.code, json.loads(e.value.read())["error"]


# ---- names ----

def test_a_wrong_model_is_not_found(server, client):
    with pytest.raises(NotFoundError) as e:
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES, max_tokens=1)
    assert e.value.code == "model_not_found" and e.value.param == "/model" and "gpt-4o" in e.value.message and "small" in e.value.message
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/responses", {"input": "a"}), ("/v1/embeddings", {"input": "a"}),
                       ("/api/chat", {"messages": MESSAGES}), ("/v1/messages", {"messages": MESSAGES, "max_tokens": 1}), ("/tokenize", {"prompt": "a"})):
        assert refused(server, path, {"model": "other", **body})[0] == 404
    assert server.json("/v1/completions", {"prompt": "a", "max_tokens": 1})["model"] == "small"


def test_further_names():
    s = Server(os.path.join(GOLDEN, "llama"), "--model-id", "a", "--alias", "b/c", "--alias", "d")
    for name in ("a", "b/c", "d", "a:latest"):
        assert s.json("/v1/completions", {"model": name, "prompt": [5], "max_tokens": 1})["model"] == name
    assert refused(s, "/v1/completions", {"model": "e", "prompt": [5]})[0] == 404
    assert [m["id"] for m in s.json("/v1/models")["data"]] == ["a", "b/c", "d"] and s.json("/v1/models/d")["id"] == "d"
    s.stop()
    s = Server(os.path.join(GOLDEN, "llama"), "--any-model")
    assert s.json("/v1/completions", {"model": "gpt-4o", "prompt": [5], "max_tokens": 1})["model"] == "gpt-4o"
    s.stop()


# ---- calls ----

def call_of(client, **kw):
    out = client.chat.completions.create(**{"model": "small", "messages": MESSAGES, "tools": TOOLS, "max_tokens": 60, "seed": 1, "extra_body": {"output": "hermes"}, **kw})
    return out.choices[0], [c.function.name for c in out.choices[0].message.tool_calls or []]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("output", ["hermes", "json", "llama3", "glm4", "qwen3_coder", "mistral"])
def test_a_named_call(client, name, output):
    choice, names = call_of(client, tool_choice={"type": "function", "function": {"name": name}}, temperature=1, seed=5, extra_body={"output": output})
    assert names == [name] and not choice.message.content, choice.message


def test_a_call_whose_arguments_the_model_must_begin(client):
    """This model does not know the formats: what is promised is how the answer begins."""
    for output, begin in (("lfm2", "<|tool_call_start|>[get_time("), ("deepseek_v3.1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{")):
        choice, names = call_of(client, tool_choice={"type": "function", "function": {"name": "get_time"}}, max_tokens=150, extra_body={"output": output})
        assert names == ["get_time"] or choice.message.content.startswith(begin), choice.message


def test_a_call_of_any_tool(client):
    seen = set()
    for seed in range(12):
        choice, names = call_of(client, tool_choice="required", temperature=1.5, seed=seed)
        assert names and names[0] in NAMES, choice.message  # what comes after it is the model's
        seen.add(names[0])
    assert len(seen) > 1
    assert call_of(client, tool_choice="required", temperature=0, n=1)[1] == call_of(client, tool_choice="required", temperature=0, logprobs=True)[1]


def test_a_required_call_is_the_same_whatever_guesses(client):
    texts = []
    for more in ({}, {"propose": "none"}, {"propose": "lookup", "propose_depth": 5}, {"propose": "echo", "propose_depth": 9}):
        choice, _ = call_of(client, tool_choice="required", temperature=1, seed=3, extra_body={"output": "hermes", **more})
        texts.append([(c.function.name, c.function.arguments) for c in choice.message.tool_calls])
    assert all(t == texts[0] for t in texts)


def test_a_required_call_in_a_stream(client):
    name, args = "", ""
    for chunk in client.chat.completions.create(model="small", messages=MESSAGES, tools=TOOLS, max_tokens=60, stream=True, temperature=0,
                                                tool_choice={"type": "function", "function": {"name": "get_time"}}, extra_body={"output": "hermes"}):
        for c in chunk.choices[0].delta.tool_calls or []:
            name += c.function.name or ""
            args += c.function.arguments or ""
    assert name == "get_time" and args.startswith("{")


def test_required_calls_of_the_other_apis(server, client):
    a = Anthropic(base_url=server.url, api_key="none", max_retries=0)
    tools = [{"name": n, "input_schema": {"type": "object"}} for n in NAMES]
    for choice, allowed in (({"type": "any"}, NAMES), ({"type": "tool", "name": "get_time"}, ["get_time"])):
        out = a.messages.create(model="small", max_tokens=60, messages=MESSAGES, tools=tools, tool_choice=choice, extra_body={"output": "hermes"})
        assert out.content[0].type == "tool_use" and out.content[0].name in allowed
    flat = [{"type": "function", "name": n, "parameters": {"type": "object"}, "strict": False} for n in NAMES]
    for choice, allowed in (("required", NAMES), ({"type": "function", "name": "get_time"}, ["get_time"])):
        out = client.responses.create(model="small", max_output_tokens=60, input="Weather?", tools=flat, tool_choice=choice, extra_body={"output": "hermes"})
        assert out.output[0].type == "function_call" and out.output[0].name in allowed


def some(*names, mode="auto"):
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [{"type": "function", "function": {"name": n}} for n in names]}}


def test_only_some_tools_are_allowed(server, client):
    """The model is told of those only, so the answer is that of a request with those only; what is required is a call of one of them."""
    body = {"messages": MESSAGES, "max_tokens": 40, "temperature": 0, "output": "hermes"}
    few = server.json("/v1/chat/completions", {**body, "tools": TOOLS[1:2]})
    allowed = server.json("/v1/chat/completions", {**body, "tools": TOOLS, "tool_choice": some("get_time")})
    assert allowed["choices"][0]["message"] == few["choices"][0]["message"] and allowed["usage"]["prompt_tokens"] == few["usage"]["prompt_tokens"]
    seen = set()
    for seed in range(10):
        _, names = call_of(client, tool_choice=some("get_time", "get_weather", mode="required"), temperature=1.5, seed=seed)
        seen.add(names[0])
    assert seen == {"get_time", "get_weather"}
    flat = [{"type": "function", "name": n, "parameters": {"type": "object"}, "strict": False} for n in NAMES]
    out = client.responses.create(model="small", max_output_tokens=60, input="Weather?", tools=flat, extra_body={"output": "hermes"},
                                  tool_choice={"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_time"}]})
    assert out.output[0].name == "get_time" and len(out.tools) == 3 and out.tool_choice.type == "allowed_tools"


CHOICES = [("sometimes", "/tool_choice"), ({"type": "function", "function": {"name": "nothing"}}, "/tool_choice"), ({"type": "custom"}, "/tool_choice/type"),
           ({"type": "function", "function": {}}, "/tool_choice/function/name"), (5, "/tool_choice"), ({"type": "allowed_tools"}, "/tool_choice/mode"),
           ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "/tool_choice/allowed_tools/tools"),
           ({"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [TOOLS[0]]}}, "/tool_choice/allowed_tools/mode"),
           ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "web"}]}}, "/tool_choice/allowed_tools/tools/0"),
           ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "nothing"}}]}}, "/tool_choice")]


@pytest.mark.parametrize("choice,param", CHOICES, ids=[json.dumps(c)[:50] for c, _ in CHOICES])
def test_bad_choices_are_named(server, choice, param):
    status, error = refused(server, "/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice})
    assert status == 400 and error["param"] == param


def test_a_call_needs_tools_and_a_format(server):
    assert refused(server, "/v1/chat/completions", {"messages": MESSAGES, "tool_choice": "required"})[1]["param"] == "/tool_choice"
    status, error = refused(server, "/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required", "output": "think"})
    assert status == 400 and "think" in error["message"] and error["param"] == "/tool_choice"
    s = Server(os.path.join(GOLDEN, "llama"), "--chat-template", os.path.join(os.path.dirname(__file__), "..", "data", "plain_template.jinja"))
    status, error = refused(s, "/v1/chat/completions", {"messages": MESSAGES, "tools": TOOLS, "tool_choice": "required"})
    assert status == 400 and error["param"] == "/tool_choice" and "chat template has no tool calls" in error["message"]
    status, error = refused(s, "/v1/completions", {"prompt": ["a", ""]})
    assert status == 400 and error["param"] == "/prompt/1" and "at least one token" in error["message"]
    s.stop()


# ---- log-probabilities of prompts ----

def test_prompt_logprobs(server):
    body = {"prompt": "The sea is wide and the sea is deep.", "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    plain = server.json("/v1/completions", body)
    out = server.json("/v1/completions", {**body, "prompt_logprobs": 3})
    assert out["choices"][0]["text"] == plain["choices"][0]["text"] and "prompt_logprobs" not in plain["choices"][0]
    entries, ids = out["choices"][0]["prompt_logprobs"], out["prompt_token_ids"]
    assert len(entries) == len(ids) and entries[0] is None
    for entry, token in zip(entries[1:], ids[1:]):
        own = entry[str(token)]
        best = sorted((e for e in entry.values() if e["rank"]), key=lambda e: e["rank"])
        assert [e["rank"] for e in best] == [1, 2, 3] and best[0]["logprob"] >= best[1]["logprob"] >= best[2]["logprob"]
        assert own["logprob"] <= best[0]["logprob"] <= 0 and len(entry) in (3, 4)
    chat = server.json("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2, "prompt_logprobs": 0})
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"] and all(len(e) == 1 for e in chat["prompt_logprobs"][1:])


def test_prompt_logprobs_are_those_of_an_answer(server):
    """The log-probabilities of generated ids are the same when they stand in a prompt."""
    first = server.json("/v1/completions", {"prompt": "The sea is", "max_tokens": 12, "temperature": 0, "logprobs": 0, "return_token_ids": True})
    ids = first["prompt_token_ids"] + first["choices"][0]["token_ids"]
    entries = server.json("/v1/completions", {"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})["choices"][0]["prompt_logprobs"]
    got = [e[str(i)]["logprob"] for e, i in zip(entries[-12:], ids[-12:])]
    assert got == first["choices"][0]["logprobs"]["token_logprobs"]


def test_echo_with_logprobs(server):
    text = "The sea is"
    out = server.json("/v1/completions", {"prompt": [text, "A ship"], "echo": True, "logprobs": 2, "max_tokens": 5, "temperature": 0, "n": 2})
    assert len(out["choices"]) == 4
    lp = out["choices"][1]["logprobs"]
    assert "".join(lp["tokens"]) == out["choices"][1]["text"] and out["choices"][1]["text"].startswith(text)
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"])
    assert lp["token_logprobs"][0] is None and all(v <= 0 for v in lp["token_logprobs"][1:]) and lp["top_logprobs"][0] is None
    at = 0
    for token, offset in zip(lp["tokens"], lp["text_offset"]):
        assert offset == at
        at += len(token)
    assert refused(server, "/v1/completions", {"prompt": text, "echo": True, "logprobs": 2, "stream": True})[1]["param"] == "/logprobs"
    assert refused(server, "/v1/completions", {"prompt": text, "prompt_logprobs": 1, "stream": True})[1]["param"] == "/prompt_logprobs"
    assert refused(server, "/v1/completions", {"prompt": text, "prompt_logprobs": 21})[1]["param"] == "/prompt_logprobs"
    assert refused(server, "/v1/responses", {"input": text, "prompt_logprobs": 1})[1]["param"] == "/prompt_logprobs"
    assert refused(server, "/v1/messages", {"messages": MESSAGES, "max_tokens": 1, "prompt_logprobs": 1})[1]["param"] == "/prompt_logprobs"


# ---- prompts that are too long ----

def post(server, path, body):
    request = urllib.request.Request(server.url + path, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.loads(reply.read()), reply.headers


def test_truncation(model):
    s = Server(model, "--model-id", "small", "--context", "512")
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(40):
        turns += [{"role": "user", "content": f"Question number {i} about the sea and the ships on it?"}, {"role": "assistant", "content": f"Answer number {i}."}]
    turns.append({"role": "user", "content": "And the last one?"})
    body = {"messages": turns, "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    status, error = refused(s, "/v1/chat/completions", body)
    assert status == 400 and error["code"] == "context_length_exceeded" and "512" in error["message"]
    out, headers = post(s, "/v1/chat/completions", {**body, "truncation": "auto"})
    dropped = int(headers["X-Rhapsode-Truncated"])
    assert dropped % 2 == 0 and 0 < dropped < 80
    # the same as sending what is left, and one turn more would not have fitted
    kept = [turns[0], *turns[1 + dropped:]]
    plain, headers = post(s, "/v1/chat/completions", {**body, "messages": kept})
    assert plain["prompt_token_ids"] == out["prompt_token_ids"] and headers["X-Rhapsode-Truncated"] is None
    assert plain["choices"][0]["message"] == out["choices"][0]["message"]
    assert refused(s, "/v1/chat/completions", {**body, "messages": [turns[0], *turns[dropped - 1:]]})[0] == 400
    # a prompt that fits is left alone, and one question alone that does not is refused with numbers
    assert post(s, "/v1/chat/completions", {**body, "messages": turns[:4] + turns[-1:], "truncation": "auto"})[1]["X-Rhapsode-Truncated"] is None
    status, error = refused(s, "/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 600}], "truncation": "auto", "max_tokens": 5})
    assert status == 400 and error["code"] == "context_length_exceeded"
    client = OpenAI(base_url=s.url + "/v1", api_key="none", max_retries=0)
    assert s.json("/api/chat", {"messages": turns, "truncate": True, "stream": False, "options": {"num_predict": 5}})["eval_count"] == 5
    assert refused(s, "/api/chat", {"messages": turns, "stream": False, "options": {"num_predict": 5}})[0] == 400
    answer = client.responses.create(model="small", input=turns, truncation="auto", max_output_tokens=5)
    assert answer.truncation == "auto" and answer.usage.output_tokens == 5
    with pytest.raises(BadRequestError):
        client.responses.create(model="small", input=turns, max_output_tokens=5)
    ids, _ = post(s, "/v1/completions", {"prompt": list(range(100, 800)), "max_tokens": 10, "truncation": "auto", "return_token_ids": True})
    assert ids["prompt_token_ids"] == list(range(800 - 502, 800))
    s.stop()


# ---- what changes with every request ----

SYSTEM = "You are an agent.\nThe current date is 2026-11-30 {}.\nBe brief, be kind, and do not say more than was asked of you.\n"


def test_volatile_parts_do_not_lose_the_prefix(server):
    def cached(path, body):
        out, headers = post(server, path, body)
        usage = out["usage"]
        details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {"cached_tokens": usage.get("cache_read_input_tokens")}
        return details["cached_tokens"], headers
    for path, body in (("/v1/chat/completions", lambda t: {"messages": [{"role": "system", "content": t}, *MESSAGES], "max_tokens": 1}),
                       ("/v1/messages", lambda t: {"system": [{"type": "text", "text": t}], "messages": MESSAGES, "max_tokens": 1}),
                       ("/v1/responses", lambda t: {"instructions": t, "input": "What is the weather in Kiel?", "max_output_tokens": 1})):
        got = [cached(path, body(f"x-anthropic-billing-header: cch={i};\n" + SYSTEM.format(f"03:04:0{i}"))) for i in range(2)]
        assert got[1][0] > 30 and got[1][1]["X-Rhapsode-Left-Away"] == "billing,time", path
        assert got[1][1]["X-Rhapsode-Cache"].startswith("hit=")
        assert post(server, path, body("Be brief. It is 03:04."))[1]["X-Rhapsode-Left-Away"] is None


def test_a_new_day_loses_nothing_when_dates_go():
    s = Server(os.path.join(GOLDEN, "llama"), "--undated")
    render = lambda day: s.json("/apply-template", {"messages": [{"role": "system", "content": f"Today's date: {day}\nBe kind."}, *MESSAGES]})["prompt"]
    assert render("2026-11-30") == render("Tuesday, December 1, 2026")
    _, headers = post(s, "/v1/chat/completions", {"messages": [{"role": "system", "content": "Today's date: 2026-11-30"}, *MESSAGES], "max_tokens": 1})
    assert headers["X-Rhapsode-Left-Away"] == "date"
    s.stop()


def test_verbatim():
    s = Server(os.path.join(GOLDEN, "llama"), "--verbatim")
    render = lambda t: s.json("/apply-template", {"messages": [{"role": "system", "content": t}, *MESSAGES]})["prompt"]
    assert "x-anthropic-billing-header" in render("x-anthropic-billing-header: 1\nYou")
    s.stop()
    s = Server(os.path.join(GOLDEN, "llama"))
    assert "x-anthropic-billing-header" not in render("x-anthropic-billing-header: 1\nYou")
    s.stop()


def test_numbers_are_finite(server):
    out = server.json("/v1/completions", {"prompt": "a b c", "max_tokens": 1, "prompt_logprobs": 20})
    assert all(math.isfinite(e["logprob"]) for entry in out["choices"][0]["prompt_logprobs"][1:] for e in entry.values())
