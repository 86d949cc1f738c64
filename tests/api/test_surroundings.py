"""test_surroundings.py: what stands around the server: logs, traces, systemd, its configuration file, keys beside each other; and fields that reach the
template or the queue rather than the sampler."""
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest
from serving import GOLDEN, Server, read_until

LLAMA = os.path.join(GOLDEN, "llama")
TEMPLATE = "effort={{ reasoning_effort | default('-') }} thinking={{ enable_thinking | default(true) }} {% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("template") / "t.jinja"
    path.write_text(TEMPLATE)
    s = Server(LLAMA, "--model-id", "e", "--chat-template", path)
    yield s
    s.stop()


def ids(seed, n):
    return [3 + (seed * 7919 + i * 31) % 200 for i in range(n)]


# ---- fields ----

def test_effort_reaches_the_template(plain):
    for effort, want in (("low", "effort=low thinking=True"), ("high", "effort=high thinking=True"), ("none", "effort=- thinking=False")):
        ask = {"messages": [{"role": "user", "content": "x"}], "reasoning_effort": effort}
        assert plain.json("/apply-template", ask)["prompt"].startswith(want), effort
    count = {e: plain.json("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "reasoning_effort": e})["usage"]["prompt_tokens"]
             for e in ("low", "minimal")}
    assert count["low"] != count["minimal"]
    out = plain.json("/v1/responses", {"input": "x", "max_output_tokens": 1, "reasoning": {"effort": "minimal"}})
    assert out["usage"]["input_tokens"] == count["minimal"] and out["reasoning"]["effort"] == "minimal"
    a = plain.json("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "output_config": {"effort": "low"}})
    assert a["usage"]["input_tokens"] + a["usage"]["cache_read_input_tokens"] == count["low"]


def test_salts_and_sessions(plain):
    """What one salt's prompts leave is not found under another; a session is taken from the body or the header, and changes no text."""
    def ask(headers=None, **body):
        return plain.json("/v1/completions", {"prompt": ids(1, 150), "max_tokens": 4, "temperature": 0, "return_token_ids": True, **body}, headers)
    hits = [ask(cache_salt=salt)["usage"]["prompt_tokens_details"]["cached_tokens"] for salt in ("a", "a", "b", "b")]
    assert hits == [0, 149, 0, 149]
    texts = [ask()["choices"], ask(session_id="s")["choices"], ask({"x-session-affinity": "s"})["choices"], ask(priority=-5)["choices"]]
    assert all(t == texts[0] for t in texts)


def test_frequency_penalty_and_kept_formats(plain):
    body = {"prompt": ids(2, 20), "max_tokens": 60, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    base = plain.json("/v1/completions", body)["choices"][0]["token_ids"]
    other = plain.json("/v1/completions", {**body, "frequency_penalty": 2})["choices"][0]["token_ids"]
    assert len(set(other)) > len(set(base)) and len(base) == len(other) == 60
    assert plain.json("/v1/completions", {**body, "kv": "f16", "propose": "lookup", "propose_depth": 4})["choices"][0]["token_ids"] == base


def test_stop_ids_and_limits_by_both_names(plain):
    body = {"prompt": ids(3, 12), "max_tokens": 30, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    out = plain.json("/v1/completions", body)["choices"][0]["token_ids"]
    stop = out[9]
    cut = plain.json("/v1/completions", {**body, "stop_token_ids": [stop]})["choices"][0]
    assert cut["finish_reason"] == "stop" and cut["token_ids"] == out[:out.index(stop)]
    chat = {"messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    for name in ("max_tokens", "max_completion_tokens"):
        assert plain.json("/v1/chat/completions", {**chat, name: 7})["usage"]["completion_tokens"] == 7
    n = plain.json("/v1/completions", {**body, "min_tokens": 5, "stop_token_ids": [out[0]]})["choices"][0]["token_ids"]
    assert len(n) >= 5


# ---- keys ----

def test_keys_share_places_evenly(tmp_path):
    """One key's queue does not stand before another key's request: there are two places or so, and nine requests of one key wait for them."""
    (tmp_path / "keys").write_text("many secret-m\nfew secret-f\n")
    s = Server(LLAMA, "--api-key-file", tmp_path / "keys", "--state", "4M", "--rows", "8", "-t", "1")
    ended = []

    def ask(key, k):
        s.json("/v1/completions", {"prompt": ids(k, 300), "max_tokens": 200, "ignore_eos": True}, {"Authorization": f"Bearer {key}"})
        ended.append(key)
    threads = [threading.Thread(target=ask, args=("secret-m", k)) for k in range(9)]
    for t in threads:
        t.start()
    time.sleep(0.03)  # less than they take
    threads.append(threading.Thread(target=ask, args=("secret-f", 20)))
    threads[-1].start()
    for t in threads:
        t.join()
    assert ended.index("secret-f") < 7, ended
    s.stop()


# ---- queues and slow peers ----

def begin(s, body):
    c = socket.create_connection(("127.0.0.1", s.port), timeout=60)
    data = json.dumps(body).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return c


def test_a_full_queue_says_when_to_come_again():
    s = Server(LLAMA, "--queue", "1", "--rows", "1", "-t", "1", "--heartbeat", "1")
    first = begin(s, {"prompt": ids(4, 400), "max_tokens": 100, "ignore_eos": True, "stream": True, "n": 8})
    while s.stats()["requests"]["under_way"] == 0:
        time.sleep(0.005)
    with pytest.raises(urllib.error.HTTPError) as e:
        s.json("/v1/completions", {"prompt": [5], "max_tokens": 1})
    assert e.value.code == 429 and int(e.value.headers["Retry-After"]) >= 1 and json.loads(e.value.read())["error"]["code"] == "queue_full"
    assert s.stats()["requests"]["rejected"] == 1
    read_until(first, b"[DONE]")
    first.close()
    assert s.json("/v1/completions", {"prompt": [5], "max_tokens": 1})["usage"]["completion_tokens"] == 1
    s.stop()


def test_a_peer_that_takes_nothing_is_cut_off():
    """Of a stream and of a whole answer in pieces alike; what it held is free again."""
    s = Server(LLAMA, "--write-timeout", "2")
    c = []
    for body in ({"prompt": ids(5, 8), "max_tokens": 500, "ignore_eos": True, "logprobs": 128, "n": 16, "stream": True},
                 {"prompt": [ids(k, 450) for k in range(40)], "max_tokens": 1, "prompt_logprobs": 20}):
        c.append(begin(s, body))
        c[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    end = time.monotonic() + 60
    while s.stats()["connections"]["open"] > 1 or s.stats()["requests"]["under_way"]:
        assert time.monotonic() < end, s.stats()
        time.sleep(0.2)
    for peer in c:
        peer.close()
    s.stop()


# ---- logs, traces, systemd, configuration ----

def test_logs_and_traces(tmp_path):
    s = Server(LLAMA, "--log-requests", "--trace", tmp_path / "trace.json")
    request = urllib.request.Request(s.url + "/v1/completions", data=json.dumps({"prompt": "secret words", "max_tokens": 5, "ignore_eos": True}).encode())
    with urllib.request.urlopen(request, timeout=60) as reply:
        name = reply.headers["X-Request-Id"]
    lines = [json.loads(line) for line in s.stop().splitlines() if line.startswith("{")]
    answers, generations = ([x for x in lines if x["event"] == e] for e in ("answer", "generation"))
    assert [(a["method"], a["path"], a["status"]) for a in answers] == [("POST", "/v1/completions", 200)]
    assert len(generations) == 1 and generations[0]["id"] == name and generations[0]["completion_tokens"] == 5 and generations[0]["finish"] == "length"
    assert generations[0]["total_ms"] >= generations[0]["first_ms"] > 0 and "secret" not in json.dumps(lines)
    text = (tmp_path / "trace.json").read_text().strip().rstrip(",")
    spans = json.loads(text + ("" if text.endswith("]") else "]"))
    assert {x["name"] for x in spans} == {"request", "prepare", "queue", "prefill", "decode"} and all(x["args"]["id"] == name for x in spans)
    whole = next(x for x in spans if x["name"] == "request")
    assert all(whole["ts"] - 1 <= x["ts"] and x["ts"] + x["dur"] <= whole["ts"] + whole["dur"] + 1000 for x in spans)


def test_prompts_are_logged_when_asked(tmp_path):
    s = Server(LLAMA, "--log-requests", "--log-prompts")
    s.json("/v1/completions", {"prompt": ["secret words", "and more"], "max_tokens": 1})
    s.json("/v1/embeddings", {"input": [5, 6, 7]})
    s.json("/api/generate", {"prompt": "raw text", "raw": True, "stream": False, "options": {"num_predict": 1}})
    lines = [json.loads(line) for line in s.stop().splitlines() if line.startswith("{")]
    assert [x["prompt"] for x in lines if x["event"] == "generation"] == ["secret words\nand more", "5 6 7", "raw text"]


def test_systemd_is_told(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(20)
        s = Server(LLAMA, env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        assert told.recv(100) == b"READY=1"
        assert told.recv(100) == b"WATCHDOG=1"
        s.stop()
        said = b""
        while b"STOPPING=1" not in said:
            said = told.recv(100)
    unit = open(os.path.join(os.path.dirname(GOLDEN), "..", "packaging", "rhapsode.service")).read()
    for line in ("Type=notify", "NoNewPrivileges", "ProtectSystem=strict", "WatchdogSec"):
        assert line in unit, line


def test_configuration_by_file(tmp_path):
    config = tmp_path / "c"
    config.write_text("model-id = filed\nstrict = true\nalias = other\n")
    s = Server(LLAMA, "--config", config)
    assert [m["id"] for m in s.json("/v1/models")["data"]] == ["filed", "other"]
    with pytest.raises(urllib.error.HTTPError):
        s.json("/v1/completions", {"prompt": "a", "max_tokens": 1, "nonsense": 1})
    s.stop()
    assert Server(LLAMA, "--config", config, "--model-id", "told").stop() is not None
