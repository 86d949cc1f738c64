"""test_anthropic.py: Anthropic's API as its own client sees it; events in the order of its grammar."""
import json
import urllib.error

import pytest
from anthropic import Anthropic, BadRequestError

MESSAGES = [{"role": "user", "content": "Name three colours of the sea."}]
TOOL = {"name": "get_weather", "description": "Weather of a place", "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}}}


@pytest.fixture(scope="module")
def client(server):
    return Anthropic(base_url=server.url, api_key="none", max_retries=0)


def create(client, **kw):
    extra = {"temperature": 0, **kw.pop("extra_body", {})}
    return client.messages.create(**{"model": "small", "max_tokens": 24, "messages": MESSAGES, "extra_body": extra, **kw})


def test_message(client):
    out = create(client)
    assert out.type == "message" and out.role == "assistant" and out.id.startswith("msg_") and out.model == "small"
    assert [b.type for b in out.content] == ["text"] and out.stop_reason == "max_tokens" and out.stop_sequence is None
    assert out.usage.output_tokens == 24 and out.usage.input_tokens + out.usage.cache_read_input_tokens > 20


def test_the_same_text_as_openais_api(client, server):
    chat = server.json("/v1/chat/completions", {"messages": [{"role": "system", "content": "Be brief."}, *MESSAGES], "max_tokens": 24, "temperature": 0})
    assert create(client, system="Be brief.").content[0].text == chat["choices"][0]["message"]["content"]
    assert create(client, system=[{"type": "text", "text": "Be brief."}]).content[0].text == chat["choices"][0]["message"]["content"]


def check_grammar(events):
    """message_start, blocks one after the other, message_delta, message_stop."""
    kinds = [e["type"] for e in events if e["type"] != "ping"]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    index, open_kind = 0, None
    for e in events[1:-2]:
        if e["type"] == "content_block_start":
            assert open_kind is None and e["index"] == index
            open_kind = e["content_block"]["type"]
        elif e["type"] == "content_block_delta":
            assert e["index"] == index and e["delta"]["type"] in {"text": ["text_delta"], "thinking": ["thinking_delta", "signature_delta"],
                                                                  "tool_use": ["input_json_delta"]}[open_kind]
        elif e["type"] == "content_block_stop":
            assert e["index"] == index and open_kind
            open_kind, index = None, index + 1
        else:
            assert e["type"] == "ping"
    assert open_kind is None


def raw_events(server, body):
    import urllib.request
    request = urllib.request.Request(server.url + "/v1/messages", data=json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as reply:
        text = reply.read().decode()
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == "event: " + event["type"]
        events.append(event)
    return events


def test_stream(client, server):
    whole = create(client)
    events = raw_events(server, {"model": "small", "max_tokens": 24, "temperature": 0, "messages": MESSAGES, "stream": True})
    check_grammar(events)
    start, delta = events[0]["message"], events[-2]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["cache_read_input_tokens"] > 20
    assert delta["usage"]["output_tokens"] == 24 and delta["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    with client.messages.stream(model="small", max_tokens=24, extra_body={"temperature": 0}, messages=MESSAGES) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.usage.output_tokens == 24 and final.stop_reason == "max_tokens"


def test_stop_sequences(client):
    text = create(client).content[0].text
    stop = text[8:12]
    out = create(client, stop_sequences=[stop])
    assert out.stop_reason == "stop_sequence" and out.stop_sequence == stop and out.content[0].text == text[:text.index(stop)]
    with client.messages.stream(model="small", max_tokens=24, extra_body={"temperature": 0}, messages=MESSAGES, stop_sequences=[stop]) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "stop_sequence" and final.stop_sequence == stop and final.content[0].text == text[:text.index(stop)]


def test_end_of_turn(client):
    out = create(client, messages=[{"role": "user", "content": "Say only: yes"}], max_tokens=400)
    assert out.stop_reason == "end_turn"


def test_tools_round_trip(client):
    messages = [*MESSAGES, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Looking."},
                                                             {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"place": "Kiel"}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]},
                                             {"type": "text", "text": "So?"}]}]
    out = create(client, messages=messages, tools=[TOOL], tool_choice={"type": "auto"})
    assert out.usage.output_tokens > 0


def test_count_tokens(client):
    counted = client.messages.count_tokens(model="small", messages=MESSAGES, system="Be brief.").input_tokens
    usage = create(client, system="Be brief.", max_tokens=1).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_billing_blocks_do_not_lose_the_prefix(client):
    def ask(stamp):
        system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=1; cch={stamp};"}, {"type": "text", "text": "You help. " * 30}]
        return create(client, system=system, max_tokens=1).usage
    ask("aaaa")
    assert ask("bbbb").input_tokens == 1


BAD = [({"max_tokens": 0}, "/max_tokens"), ({"max_tokens": None}, "/max_tokens"), ({"messages": []}, "/messages"),
       ({"messages": [{"role": "system", "content": "x"}]}, "/messages/0/role"), ({"system": 5}, "/system"),
       ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "/messages/0/content/0/type"),
       ({"messages": [*MESSAGES, {"role": "assistant", "content": "The"}]}, "/messages/1"), ({"tools": [{"name": "x"}]}, "/tools/0"),
       ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "/tools/0/type"), ({"tool_choice": {"type": "any"}}, "/tool_choice"),
       ({"thinking": {"type": "maybe"}}, "/thinking"), ({"stop_sequences": [1]}, "/stop_sequences/0"), ({"temperature": "x"}, "/temperature"),
       ({"mcp_servers": []}, "/mcp_servers"), ({"output_config": {"format": {}}}, "/output_config/format"), ({"max_tokens": 9000}, "/messages")]


@pytest.mark.parametrize("fields,param", BAD, ids=[json.dumps(f)[:50] for f, _ in BAD])
def test_errors_have_its_shape(server, fields, param):
    body = {"model": "small", "max_tokens": 4, "messages": MESSAGES, **fields}
    with pytest.raises(urllib.error.HTTPError) as e:
        server.json("/v1/messages", body)
    error = json.loads(e.value.read())
    assert e.value.code == 400 and error["type"] == "error" and error["error"]["type"] == "invalid_request_error"
    assert error["error"].get("param") == param


def test_client_raises_its_own_errors(client):
    with pytest.raises(BadRequestError):
        create(client, extra_body={"temperature": -1})
