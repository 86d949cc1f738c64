"""test_tools.py: reasoning and tool calls through every API, on a model that writes given texts."""
import json

import pytest
from anthropic import Anthropic
from ollama import Client
from openai import OpenAI
from script_model import SCRIPTS, make
from serving import Server

USER = [{"role": "user", "content": "Weather in Kiel?"}]
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": name, "description": "d", "parameters": SCHEMA}} for name in ("get_weather", "get_time")]
REASONING, TEXT = "The user asks for weather.", "Let me look it up."
CALLS = [("get_weather", {"place": "Kiel", "days": 3}), ("get_time", {})]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    s = Server(make(str(tmp_path_factory.mktemp("script"))), "--model-id", "script")
    yield s
    s.stop()


def script(k):
    return {"chat_template_kwargs": {"script": k}}


@pytest.fixture(scope="module")
def client(scripted):
    return OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0)


def chat(client, k, **kw):
    return client.chat.completions.create(**{"model": "script", "messages": USER, "tools": TOOLS, "extra_body": script(k), **kw})


def test_the_model_writes_its_scripts(scripted):
    for k, text in enumerate(SCRIPTS):
        out = scripted.json("/v1/completions", {"prompt": f"<|script{k}|>", "max_tokens": 300})
        assert out["choices"][0]["text"] == text and out["choices"][0]["finish_reason"] == "stop"


def test_chat(client):
    out = chat(client, 0).choices[0]
    assert out.finish_reason == "tool_calls" and out.message.content.strip() == TEXT and out.message.reasoning_content == REASONING
    assert [(c.function.name, json.loads(c.function.arguments)) for c in out.message.tool_calls] == CALLS
    assert len({c.id for c in out.message.tool_calls}) == 2 and all(c.type == "function" and c.id for c in out.message.tool_calls)


def test_chat_stream(client):
    text, reasoning, calls, finish, usage, pieces = "", "", {}, [], None, 0
    for chunk in chat(client, 0, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for c in chunk.choices:
            text += c.delta.content or ""
            reasoning += getattr(c.delta, "reasoning_content", None) or ""
            for t in c.delta.tool_calls or []:
                if t.id:
                    assert t.index == len(calls) and t.type == "function"
                    calls[t.index] = [t.function.name, ""]
                calls[t.index][1] += t.function.arguments or ""
                pieces += 1
            if c.finish_reason:
                finish.append(c.finish_reason)
    assert text.strip() == TEXT and reasoning == REASONING and finish == ["tool_calls"] and pieces > 6
    assert [(name, json.loads(args)) for name, args in calls.values()] == CALLS
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


def test_one_call_when_more_are_not_wanted(client):
    out = chat(client, 0, parallel_tool_calls=False).choices[0]
    assert out.finish_reason == "tool_calls" and [c.function.name for c in out.message.tool_calls] == ["get_weather"]


def test_what_is_no_call_is_text(client):
    out = chat(client, 1).choices[0]
    assert out.message.content == SCRIPTS[1] and not out.message.tool_calls and out.finish_reason == "stop"
    out = client.chat.completions.create(model="script", messages=USER, extra_body=script(0)).choices[0]
    assert "<tool_call>" in out.message.content and not out.message.tool_calls
    out = chat(client, 0, tool_choice="none").choices[0]
    assert "<tool_call>" in out.message.content and not out.message.tool_calls
    out = chat(client, 3).choices[0]
    assert out.message.content == SCRIPTS[3]


def test_calls_of_tools_that_are_not_allowed_are_text(client):
    """The model writes two calls, whatever it is told."""
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    out = chat(client, 0, tool_choice=some).choices[0]
    assert [c.function.name for c in out.message.tool_calls] == ["get_time"] and '"get_weather"' in out.message.content


def test_a_call_that_breaks_off(client):
    out = chat(client, 2).choices[0]
    assert out.finish_reason in ("tool_calls", "stop")
    whole = (out.message.content or "") + "".join(c.function.arguments for c in out.message.tool_calls or [])
    assert "Ki" in whole


def test_round_trip(client):
    first = chat(client, 0).choices[0].message
    messages = [*USER, first.model_dump(exclude_none=True), *[{"role": "tool", "tool_call_id": c.id, "content": "rain"} for c in first.tool_calls]]
    out = chat(client, 3, messages=messages).choices[0]
    assert out.message.content == SCRIPTS[3]


def anthropic_tools():
    return [{"name": t["function"]["name"], "description": "d", "input_schema": SCHEMA} for t in TOOLS]


def test_anthropic(scripted):
    client = Anthropic(base_url=scripted.url, api_key="none", max_retries=0)
    kw = {"model": "script", "max_tokens": 300, "messages": USER, "tools": anthropic_tools(), "extra_body": script(0)}
    whole = client.messages.create(**kw)
    with client.messages.stream(**kw) as stream:
        kinds = [e.type for e in stream]
        final = stream.get_final_message()
    for out in (whole, final):
        assert [b.type for b in out.content] == ["thinking", "text", "tool_use", "tool_use"] and out.stop_reason == "tool_use"
        assert out.content[0].thinking == REASONING and out.content[1].text.strip() == TEXT
        assert [(b.name, b.input) for b in out.content[2:]] == CALLS
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and kinds.count("content_block_start") == 4
    messages = [*USER, {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in whole.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "rain"} for b in whole.content[2:]]}]
    again = client.messages.create(**{**kw, "messages": messages, "extra_body": script(3)})
    assert again.content[0].text == SCRIPTS[3] and again.stop_reason == "end_turn"


def test_blocks_come_in_the_order_in_which_they_were_written(scripted):
    client = Anthropic(base_url=scripted.url, api_key="none", max_retries=0)
    kw = {"model": "script", "max_tokens": 300, "messages": USER, "tools": anthropic_tools(), "extra_body": script(4)}
    with client.messages.stream(**kw) as stream:
        final = stream.get_final_message()
    for out in (client.messages.create(**kw), final):
        assert [b.type for b in out.content] == ["tool_use", "text", "tool_use"], out.content
        assert [(b.name, b.input) for b in out.content[::2]] == CALLS and out.content[1].text.strip() == "And then"


def test_responses(client):
    tools = [{"type": "function", "name": t["function"]["name"], "parameters": SCHEMA, "strict": False} for t in TOOLS]
    kw = {"model": "script", "input": "Weather?", "tools": tools, "extra_body": script(0)}
    whole = client.responses.create(**kw)
    events = list(client.responses.create(**kw, stream=True))
    for out in (whole, events[-1].response):
        assert [i.type for i in out.output] == ["reasoning", "message", "function_call", "function_call"] and out.status == "completed"
        assert out.output[0].content[0].text == REASONING and out.output_text.strip() == TEXT
        assert [(i.name, json.loads(i.arguments)) for i in out.output[2:]] == CALLS
    assert [e.sequence_number for e in events] == list(range(len(events)))
    added = [e for e in events if e.type == "response.output_item.added"]
    assert [e.output_index for e in added] == [0, 1, 2, 3] and added[2].item.arguments == ""
    args = "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta" and e.output_index == 2)
    assert json.loads(args) == CALLS[0][1]
    after = client.responses.create(model="script", previous_response_id=whole.id, extra_body=script(3), input=[
        {"type": "function_call_output", "call_id": i.call_id, "output": "rain"} for i in whole.output[2:]])
    assert after.output_text == SCRIPTS[3]


def test_ollama(scripted):
    client = Client(host=scripted.url)
    out = scripted.json("/api/chat", {"model": "script", "messages": USER, "tools": TOOLS, "stream": False, **script(0)})
    assert out["message"]["thinking"] == REASONING and [(c["function"]["name"], c["function"]["arguments"]) for c in out["message"]["tool_calls"]] == CALLS
    parts = list(client.chat(model="script", messages=USER, tools=TOOLS, stream=True))
    assert "".join(p.message.content or "" for p in parts) == SCRIPTS[3]


def test_langchain(scripted):
    from langchain_openai import ChatOpenAI
    model = ChatOpenAI(model="script", base_url=scripted.url + "/v1", api_key="none", extra_body=script(0)).bind_tools(TOOLS)
    assert [(c["name"], c["args"]) for c in model.invoke("Weather?").tool_calls] == CALLS
    total = None
    for chunk in model.stream("Weather?"):
        total = chunk if total is None else total + chunk
    assert [(c["name"], c["args"]) for c in total.tool_calls] == CALLS
