"""test_openapi.py: the document served at /openapi.json says what is there, and no request made from it brings a 5xx."""
import json
import os
import random
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from serving import GOLDEN, Server

VALUES = [None, True, False, 0, 1, -1, 3, 1.5, 1e308, -1e308, 2**63, 2**64 - 1, "", "x", "\u0000", "\U0001f30a", "auto", [], [1], ["a"], [None], [[1, 2]], {}, {"a": 1},
          {"type": "text"}, {"type": "function", "function": {"name": "f"}}, [{"role": "user", "content": "hi"}], [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
          [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}], [{"type": "function_call"}]]
GOOD = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "max_tokens": 2, "max_completion_tokens": 2, "max_output_tokens": 2, "tokens": [1],
        "options": {"num_predict": 2}}


@pytest.fixture(scope="module")
def tiny():
    """What is asked without a limit goes on to the end of its context."""
    s = Server(os.path.join(GOLDEN, "llama"), "--context", "128", "--header-timeout", "2")
    yield s
    s.stop()


def test_routes_are_in_it(tiny):
    doc = tiny.json("/openapi.json")
    assert doc["openapi"].startswith("3.1")
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/responses/{id}", "/api/chat", "/health", "/metrics"):
        assert path in doc["paths"]
    assert set(doc["paths"]["/v1/responses/{id}"]) == {"get", "delete", "post"}
    fields = doc["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert fields["temperature"] == {"type": ["number", "null"], "minimum": 0, "maximum": 1000} and "functions" not in fields


def check_shape(path, body, reply):
    """The API's own shape, and a pointer to what is wrong."""
    error = reply["error"]
    if path.startswith("/api/"):
        assert set(reply) == {"error"} and error.startswith("/"), (path, body, reply)
        return
    if path.startswith("/v1/messages"):
        assert reply["type"] == "error" and {"type", "message"} <= set(error), (path, body, reply)
    else:
        assert set(reply) == {"error"} and set(error) == {"message", "type", "param", "code"}, (path, body, reply)
    assert (error.get("param") or "").startswith("/") and error["message"], (path, body, reply)


def test_no_body_brings_a_5xx(tiny):
    """Fields of each body with values of every kind: what is refused is named."""
    rng = random.Random(3)
    doc = tiny.json("/openapi.json")
    statuses = {}
    for path, methods in doc["paths"].items():
        if "post" not in methods:
            continue
        if path == "/v1/responses/{id}":  # its id is in the address
            continue
        names = list(methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]) + ["unknown"]
        for _ in range(int(os.environ.get("API_BODIES", "40"))):
            body = {k: v for k, v in GOOD.items() if k in names}
            for name in rng.sample(names, min(len(names), rng.randrange(1, 4))):
                body[name] = rng.choice(VALUES)
            if body.get("n") or body.get("max_tokens", 1) in (None, -1):
                body["max_tokens"] = 2
            body.pop("ignore_eos", None)
            request = urllib.request.Request(tiny.url + path.replace("{id}", "x"), data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=120) as reply:
                    reply.read()
                    status = reply.status
            except urllib.error.HTTPError as e:
                status = e.code
                check_shape(path, body, json.loads(e.read()))
            assert status < 500, (path, body, status)
            statuses[status] = statuses.get(status, 0) + 1
    assert statuses[200] > 20 and statuses[400] > 20, statuses
    tiny.until_idle(60)


def test_schemathesis(tiny, tmp_path):
    """Requests made from the document, good ones and bad ones, by schemathesis: none brings a 5xx, or an answer the document does not know.
    API_EXAMPLES: of each route."""
    done = subprocess.run([os.path.join(os.path.dirname(sys.executable), "schemathesis"), "run", tiny.url + "/openapi.json", "--url", tiny.url, "--checks",
                           "not_a_server_error,content_type_conformance,response_schema_conformance", "--max-examples", os.environ.get("API_EXAMPLES", "4"),
                           "--seed", "1", "--request-timeout", "60", "--phases", "examples,coverage,fuzzing", "--no-color"],
                          cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-20000:]
    tiny.until_idle(60)
