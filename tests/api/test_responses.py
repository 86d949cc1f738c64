"""test_responses.py: OpenAI's Responses API as its own client sees it: items, every event in order, earlier answers."""
import json
import urllib.error

import pytest
from openai import NotFoundError, OpenAI

INPUT = "Name three colours of the sea."
TOOL = {"type": "function", "name": "get_weather", "description": "Weather", "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        "strict": False}


@pytest.fixture(scope="module")
def client(server):
    return OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def create(client, **kw):
    return client.responses.create(**{"model": "small", "input": INPUT, "max_output_tokens": 24, "temperature": 0, **kw})


def test_response(client, server):
    out = create(client)
    chat = server.json("/v1/chat/completions", {"messages": [{"role": "user", "content": INPUT}], "max_tokens": 24, "temperature": 0})
    assert out.object == "response" and out.id.startswith("resp_") and out.status == "incomplete"
    assert out.incomplete_details.reason == "max_output_tokens"
    assert out.output_text == chat["choices"][0]["message"]["content"]
    assert [i.type for i in out.output] == ["message"] and out.output[0].role == "assistant"
    assert out.usage.output_tokens == 24 and out.usage.input_tokens == chat["usage"]["prompt_tokens"]
    assert out.usage.total_tokens == out.usage.input_tokens + 24
    done = create(client, input="Say only: yes", max_output_tokens=400)
    assert done.status == "completed" and done.incomplete_details is None and done.output[0].status == "completed"


def test_stream_grammar(client):
    whole = create(client, input="Say only: yes", max_output_tokens=300)
    events = list(create(client, input="Say only: yes", max_output_tokens=300, stream=True))
    assert [e.sequence_number for e in events] == list(range(len(events)))
    kinds = [e.type for e in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-4:] == ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    final = events[-1].response
    assert text == events[-4].text == events[-3].part.text == final.output_text == whole.output_text
    assert events[2].item.id == events[4].item_id == events[-2].item.id == final.output[0].id
    assert events[2].item.content == [] and events[0].response.status == "in_progress" and final.usage.output_tokens > 0
    with client.responses.stream(model="small", input="Say only: yes", max_output_tokens=300, temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text == text


def test_input_items_and_instructions(client, server):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}]
    chat = server.json("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0})
    out = create(client, instructions="Be brief.", max_output_tokens=12, input=[
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]}, {"role": "user", "content": "d"}])
    assert out.output_text == chat["choices"][0]["message"]["content"] and out.instructions == "Be brief."


def test_tools_round_trip(client):
    out = create(client, tools=[TOOL], input=[
        {"role": "user", "content": "Weather in Kiel?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{\"place\": \"Kiel\"}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"}])
    assert out.output_text and out.tools[0].name == "get_weather"


def test_earlier_answers(client, server):
    first = create(client, input="My name is Ada.", max_output_tokens=10)
    second = create(client, input="What is my name?", previous_response_id=first.id, max_output_tokens=10)
    messages = [{"role": "user", "content": "My name is Ada."}, {"role": "assistant", "content": first.output_text}, {"role": "user", "content": "What is my name?"}]
    chat = server.json("/v1/chat/completions", {"messages": messages, "max_tokens": 10, "temperature": 0})
    assert second.output_text == chat["choices"][0]["message"]["content"] and second.previous_response_id == first.id
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens
    again = client.responses.retrieve(second.id)
    assert again.output_text == second.output_text and again.usage == second.usage
    client.responses.delete(second.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(second.id)
    with pytest.raises(NotFoundError):
        create(client, previous_response_id="resp_none")
    kept_not = create(client, store=False, max_output_tokens=2)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(kept_not.id)


def test_cancel(client):
    stream = create(client, max_output_tokens=7000, stream=True, extra_body={"ignore_eos": True})
    name = next(iter(stream)).response.id
    assert client.responses.retrieve(name).status == "in_progress"
    client.responses.cancel(name)
    events = list(stream)
    assert events[-1].type == "response.incomplete" and events[-1].response.status == "cancelled"


def test_logprobs(client):
    out = create(client, include=["message.output_text.logprobs"], top_logprobs=2, max_output_tokens=6)
    entries = out.output[0].content[0].logprobs
    assert len(entries) == 6 and all(len(e.top_logprobs) == 2 for e in entries)


BAD = [({"input": []}, "/input"), ({"input": None}, "/input"), ({"input": [{"type": "image_generation_call"}]}, "/input/0/type"),
       ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "/input/0/content/0/type"), ({"tools": [{"type": "web_search"}]}, "/tools/0/type"),
       ({"tools": [{**TOOL, "strict": True}]}, "/tools/0/strict"), ({"tools": [{**TOOL, "parameters": 5}]}, "/tools/0/parameters"), ({"text": {"format": {"type": "json_schema"}}}, "/text/format"),
       ({"background": True}, "/background"), ({"conversation": "x"}, "/conversation"), ({"max_output_tokens": 0}, "/max_output_tokens"),
       ({"reasoning": {"effort": "vast"}}, "/reasoning/effort"), ({"tool_choice": "required"}, "/tool_choice")]


@pytest.mark.parametrize("fields,param", BAD, ids=[json.dumps(f)[:50] for f, _ in BAD])
def test_bad_fields_are_named(server, fields, param):
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json("/v1/responses", {"model": "small", "input": INPUT, "max_output_tokens": 1, **fields})
    assert e.value.code == 400 and json.loads(e.value.read())["error"]["param"] == param
