"""test_http.py: HTTP by raw sockets: what is malformed, too long, too slow or half there is answered by 4xx or by closing, never by a crash;
who leaves is cancelled."""
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time

import pytest
from serving import GOLDEN, Server, read_until

LLAMA = os.path.join(GOLDEN, "llama")


def connect(server):
    s = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def read_all(s):
    out = b""
    try:
        while chunk := s.recv(65536):
            out += chunk
    except ConnectionResetError:
        pass
    return out


def exchange(server, data, pieces=None):
    """Sends bytes (in pieces of so many), reads to the end of the connection."""
    with connect(server) as s:
        try:
            if pieces:
                for i in range(0, len(data), pieces):
                    s.sendall(data[i:i + pieces])
            else:
                s.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(s)


def status(reply):
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/1.1 ") else 0


HOST = b"Host: 127.0.0.1\r\n"
MALFORMED = [
    (b"GARBAGE\r\n\r\n", {400, 405}), (b"GET /health\r\n\r\n", {400, 505}), (b"GET  /health HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    (b"GET /health HTTP/1.1\r\n\r\n", {400}), (b"GET /health HTTP/1.1\r\n" + HOST + HOST + b"\r\n", {400}),
    (b"GET /health HTTP/2.0\r\n" + HOST + b"\r\n", {400, 505}), (b"GET /health HTTP/1.2\r\n" + HOST + b"\r\n", {400, 505}),
    (b"GET /health HTTP/1.1\n" + HOST + b"\r\n", {400}), (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\n\r\n", {400}),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n", {400}), (b"GET /health HTTP/1.1\r\n" + HOST + b": x\r\n\r\n", {400}),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n", {400}), (b"GET /health HTTP/1.1\r\n" + HOST + b"X\x00: a\r\n\r\n", {400}),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n", {400}), (b"GET health HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
    (b"GET http://127.0.0.1/health HTTP/1.1\r\n" + HOST + b"\r\n", {400}), (b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 405}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2, 3\r\n\r\n{}", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n{}", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: +2\r\n\r\n{}", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n{}", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", {400, 501}),
    (b"POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}x\r\n0\r\n\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", {400}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", {415}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Expect: miracles\r\nContent-Length: 2\r\n\r\n{}", {417}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Length: 2000000\r\n\r\n", {413}),
    (b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n" + b"100000\r\n" + b"x" * 0x100000 + b"\r\n1\r\nx\r\n0\r\n\r\n", {413}),
    (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {414}),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 40000 + b"\r\n\r\n", {431}),
    (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\r\n" * 200 + b"\r\n", {431}),
    (b"\r\n" * 20, {400}), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", set()),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 405, 505}), (b"\x00" * 100, {400}), (b"\xff" * 100, {400}),
]


@pytest.mark.parametrize("data,allowed", MALFORMED, ids=[repr(d[:60]) for d, _ in MALFORMED])
def test_malformed(server, data, allowed):
    for pieces in (None, 1) if len(data) < 300 else (None, 7000):
        if not allowed:
            continue
        reply = exchange(server, data, pieces)
        assert status(reply) in allowed, reply[:200]
        body = reply.split(b"\r\n\r\n", 1)[1]
        assert json.loads(body)["error"]["message"]
    assert server.json("/health")["status"] == "ok"


def request(path, body=None, extra=b"", version=b"1.1"):
    method = b"GET" if body is None else b"POST"
    data = b"" if body is None else json.dumps(body).encode()
    length = b"" if body is None else b"Content-Length: %d\r\n" % len(data)
    return method + b" " + path.encode() + b" HTTP/" + version + b"\r\n" + HOST + length + extra + b"\r\n" + data


CLOSE = b"Connection: close\r\n"


def test_pipelined_requests_are_answered_in_order(server):
    data = b"".join(request("/tokenize", {"prompt": "a b" * n}) for n in range(1, 30)) + request("/health", extra=CLOSE)
    for pieces in (None, 100):
        reply = exchange(server, data, pieces)
        assert reply.count(b"HTTP/1.1 200 OK") == 30
        counts = [json.loads(part.split(b"\r\n\r\n", 1)[1])["count"] for part in reply.split(b"HTTP/1.1 ")[1:30]]
        assert counts == sorted(counts) and len(set(counts)) == 29


def test_chunked_bodies_and_trailers(server):
    body = json.dumps({"prompt": "hello there"}).encode()
    for size in (1, 3, 1000):
        chunks = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[i:i + size]), body[i:i + size]) for i in range(0, len(body), size))
        head = b"POST /tokenize HTTP/1.1\r\n" + HOST + CLOSE + b"Transfer-Encoding: chunked\r\n\r\n"
        for pieces in (None, 1):
            reply = exchange(server, head + chunks + b"0\r\nX-Trailer: 1\r\n\r\n", pieces)
            assert status(reply) == 200, reply


def test_expect_continue(server):
    with connect(server) as s:
        body = b'{"prompt":"x"}'
        s.sendall(b"POST /tokenize HTTP/1.1\r\n" + HOST + CLOSE + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert s.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(body)
        assert status(read_all(s)) == 200


def test_http_10_and_keep_alive(server):
    reply = exchange(server, b"GET /health HTTP/1.0\r\n\r\n")
    assert status(reply) == 200 and b"Connection: close" in reply
    reply = exchange(server, b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /health HTTP/1.0\r\n\r\n")
    assert reply.count(b"HTTP/1.1 200") == 2
    body = {"prompt": "a", "max_tokens": 3, "stream": True}
    reply = exchange(server, request("/v1/completions", body, version=b"1.0"))
    assert b"chunked" not in reply and reply.endswith(b"data: [DONE]\n\n")


def test_head_and_options(server):
    reply = exchange(server, b"HEAD /health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
    assert status(reply) == 200 and reply.endswith(b"\r\n\r\n") and b"Content-Length: 15" in reply
    assert status(exchange(server, b"OPTIONS /v1/models HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")) == 204
    assert status(exchange(server, b"DELETE /health HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")) == 405
    assert status(exchange(server, b"GET /nothing HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")) == 404


@pytest.mark.parametrize("host,good", [("127.0.0.1", True), ("localhost:99", True), ("[::1]:80", True), ("evil.example", False),
                                       ("127.0.0.1.evil.example", False), ("x127.0.0.1", False), ("[", False), ("[1", False), ("", False), ("169.254.169.254", False)])
def test_host(server, host, good):
    reply = exchange(server, b"GET /health HTTP/1.1\r\nHost: " + host.encode() + b"\r\n" + CLOSE + b"\r\n")
    assert status(reply) == (200 if good else 421)


def test_origin(server):
    def ask(origin):
        return exchange(server, request("/v1/models", extra=b"Origin: " + origin + b"\r\n" + CLOSE))
    assert status(ask(b"https://evil.example")) == 403
    assert status(ask(b"null")) == 403
    assert status(ask(b"http://127.0.0.1")) == 200 and b"Access-Control" not in ask(b"http://127.0.0.1")


def test_the_address_itself_says_what_this_is(server):
    page = server.json("/")
    assert page["name"] == "rhapsode" and page["model"] == "small" and "POST /v1/chat/completions" in page["endpoints"]
    assert status(exchange(server, b"HEAD / HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")) == 200
    for path, shape in (("/api/nothing", str), ("/nothing", dict)):
        reply = exchange(server, b"GET " + path.encode() + b" HTTP/1.1\r\n" + HOST + CLOSE + b"\r\n")
        assert status(reply) == 404 and isinstance(json.loads(reply.split(b"\r\n\r\n", 1)[1])["error"], shape)


def test_slow_heads_and_idle_connections_are_cut(server):
    with connect(server) as slow, connect(server) as idle:
        start = time.monotonic()
        slow.sendall(b"GET /health HTTP/1.1\r\n")
        for i in range(3):
            time.sleep(0.4)
            slow.sendall(b"X-%d: 1\r\n" % i)
        assert status(read_all(slow)) == 408 and 1.5 < time.monotonic() - start < 6
        assert read_all(idle) == b"" and 4 < time.monotonic() - start < 10


def stream_request(n=100000, **more):
    body = {"prompt": "Once upon a time", "max_tokens": n, "stream": True, "ignore_eos": True, "temperature": 0, **more}
    return request("/v1/completions", {k: v for k, v in body.items() if v is not None})


def test_a_reader_that_stops_holds_nobody_up(server):
    stalled = connect(server)
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.sendall(stream_request(7000, logprobs=50))
    time.sleep(0.5)
    out = server.json("/v1/completions", {"prompt": "Hello", "max_tokens": 20, "temperature": 0})
    assert out["usage"]["completion_tokens"] == 20
    stalled.close()
    server.until_idle(20)


def test_cancel_by_id(server):
    with connect(server) as s:
        s.sendall(stream_request(8000))
        got = read_until(s, b'"id":"')
        name = got.split(b'"id":"')[1].split(b'"')[0].decode()
        assert server.json("/v1/cancel", {"id": name}) == {"id": name, "cancelled": True}
        got += read_until(s, b"[DONE]")
        assert got.count(b'"finish_reason":"cancelled"') == 1 and got.count(b"[DONE]") == 1
    server.until_idle(20)
    assert b" 404 " in exchange(server, request("/v1/cancel", {"id": name}, extra=CLOSE))


def test_deep_json_and_bad_json(server):
    for body in (b"[" * 100000, b"{", b"", b"[]", b'{"prompt":"x"}x', b'{"prompt":"\xff"}', b'{"a":1e999}', b"null", b'"x"', b"\xef\xbb\xbf{}"):
        data = b"POST /v1/completions HTTP/1.1\r\n" + HOST + CLOSE + b"Content-Length: %d\r\n\r\n" % len(body) + body
        assert status(exchange(server, data)) == 400


def test_keep_alive_comments_while_a_prompt_is_read(server):
    with connect(server) as s:
        s.sendall(stream_request(2, prompt="word " * 1500))
        got = read_until(s, b"[DONE]")
        assert status(got) == 200 and b": keep-alive\n\n" in got and got.count(b'"finish_reason":"length"') == 1
        s.sendall(stream_request(2, prompt="words " * 1500, return_progress=True))
        steps = re.findall(rb": progress (\d+)/(\d+)\n\n", read_until(s, b"[DONE]"))
        assert steps and all(0 <= int(done) <= int(total) and int(total) > 1500 for done, total in steps)


# ---- servers of their own ----

def test_connection_limit():
    s = Server(LLAMA, "--connections-max", "3")
    open_ones = [connect(s) for _ in range(3)]
    time.sleep(0.2)
    reply = exchange(s, request("/health", extra=CLOSE))
    assert status(reply) == 429 and b"\r\nRetry-After: 1\r\n" in reply
    for c in open_ones:
        c.close()
    time.sleep(0.2)
    assert status(exchange(s, request("/health", extra=CLOSE))) == 200
    s.stop()


def test_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# keys\nalice secret-a\nbob secret-b\nroot secret-r admin\n")
    s = Server(LLAMA, "--api-key-file", file)

    def ask(path, *headers):
        return status(exchange(s, request(path, extra=b"".join(h + b"\r\n" for h in headers) + CLOSE)))
    assert ask("/health") == 200 and ask("/v1/models") == 401 and ask("/metrics") == 401
    assert ask("/v1/models", b"Authorization: Bearer secret-a") == 200
    assert ask("/v1/models", b"x-api-key: secret-b") == 200
    for wrong in (b"secret-", b"secret-aa", b"SECRET-A", b"", b"secret-c"):
        assert ask("/v1/models", b"Authorization: Bearer " + wrong) == 401
    assert ask("/metrics", b"Authorization: Bearer secret-a") == 403
    assert ask("/metrics", b"Authorization: Bearer secret-r") == 200
    # what one key's prompt left is not found by another's
    body = {"prompt": [5] * 200, "max_tokens": 2}
    hits = []
    for key in ("secret-a", "secret-a", "secret-b"):
        hits.append(s.json("/v1/completions", body, {"Authorization": "Bearer " + key})["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert hits == [0, 199, 0]
    s.stop()


def test_no_bind_beyond_loopback_without_a_key():
    with pytest.raises(RuntimeError, match="refusing to listen"):
        Server(LLAMA, "--host", "0.0.0.0")
    Server(LLAMA, "--host", "0.0.0.0", "--no-key").stop()


def test_cors():
    s = Server(LLAMA, "--allow-origin", "https://app.example")
    reply = exchange(s, b"OPTIONS /v1/models HTTP/1.1\r\n" + HOST + CLOSE + b"Origin: https://app.example\r\n\r\n")
    assert status(reply) == 204 and b"Access-Control-Allow-Origin: https://app.example\r\n" in reply and b"Access-Control-Allow-Methods" in reply
    reply = exchange(s, request("/v1/models", extra=CLOSE + b"Origin: https://app.example\r\n"))
    assert status(reply) == 200 and b"Access-Control-Allow-Origin: https://app.example\r\n" in reply
    assert status(exchange(s, request("/v1/models", extra=CLOSE + b"Origin: https://other.example\r\n"))) == 403
    s.stop()


def test_strict():
    s = Server(LLAMA, "--strict")
    assert status(exchange(s, request("/v1/completions", {"prompt": "x", "max_tokens": 1, "nonsense": 1}, extra=CLOSE))) == 400
    assert status(exchange(s, request("/v1/completions", {"prompt": "x", "max_tokens": 1}, extra=CLOSE))) == 200
    s.stop()


def test_unix_socket(tmp_path):
    path = str(tmp_path / "sock")
    s = Server(LLAMA, "--host", "", "--unix", path)
    with socket.socket(socket.AF_UNIX) as c:
        c.connect(path)
        c.sendall(request("/health", extra=CLOSE))
        assert status(read_all(c)) == 200
    assert os.stat(path).st_mode & 0o777 == 0o600
    s.stop()
    assert not os.path.exists(path)


def test_tls(tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, stderr=subprocess.DEVNULL)
    s = Server(LLAMA, "--tls-cert", cert, "--tls-key", key)
    context = ssl.create_default_context(cafile=cert)
    assert s.url.startswith("https://")
    for body in ({"prompt": [5, 6], "max_tokens": 200, "ignore_eos": True}, {"prompt": [5] * 20, "max_tokens": 100, "stream": True, "ignore_eos": True}):
        with context.wrap_socket(connect(s), server_hostname="127.0.0.1") as c:
            data = request("/v1/completions", body, extra=CLOSE)
            for i in range(0, len(data), 50):
                c.sendall(data[i:i + 50])
            reply = read_all(c)
            assert status(reply) == 200 and (b"[DONE]" in reply or b'"completion_tokens":200' in reply)
    for garbage in (b"GET /health HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 1000, b""):
        assert status(exchange(s, garbage)) == 0 if garbage else True
    s.stop()


def test_sigterm_drains(model):
    s = Server(model)
    c = connect(s)
    c.sendall(stream_request(30, max_tokens=60))
    got = read_until(c, b"data: ")
    thread = threading.Thread(target=s.stop)
    thread.start()
    time.sleep(0.3)
    with pytest.raises(OSError):
        connect(s)
    got += read_all(c)
    assert got.count(b"[DONE]") == 1 and got.count(b'"finish_reason":"length"') == 1
    thread.join()


def test_second_signal_ends_at_once(model):
    import signal
    s = Server(model)
    c = connect(s)
    c.sendall(stream_request(8000))
    read_until(c, b"data: ")
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    start = time.monotonic()
    s.stop()
    assert time.monotonic() - start < 5
