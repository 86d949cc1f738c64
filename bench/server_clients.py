#!/usr/bin/env python3
"""server_clients.py: requests and tokens per second of servers that speak OpenAI's API, at 1, 8 and 32 clients.

    bench/server_clients.py MODEL.gguf [--seconds 20] [--tokens 32] [--clients 1,8,32] [--peer PYTHON] [--threads N]

Starts `rhapsode serve` and, with --peer, llama-cpp-python's server of that interpreter (pip install 'llama-cpp-python[server]'), one at a time, on the
same file.  Each client keeps one connection and sends one request after the other (raw completions, temperature 0); prompts differ.
"""
import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WORDS = "sea ship wind sail harbour light night storm wave shore rope deck mast anchor gull tide".split()


def prompt(i):
    return "Write about " + ", ".join(WORDS[(i * 7 + k * 3 + i // 16) % 16] for k in range(20)) + f" in chapter {i}."


async def ask(reader, writer, i, tokens):
    body = json.dumps({"model": "m", "prompt": prompt(i), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b" 200 " in head.split(b"\r\n")[0], head
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    return json.loads(await reader.readexactly(length))["usage"]["completion_tokens"]


async def load(port, clients, seconds, tokens):
    numbers, done = iter(range(10 ** 9)), []
    begin = time.monotonic()

    async def client():
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        while time.monotonic() - begin < seconds:
            n = await ask(reader, writer, next(numbers), tokens)
            done.append(n)
        writer.close()
    await asyncio.gather(*(client() for _ in range(clients)))
    took = time.monotonic() - begin
    return len(done) / took, sum(done) / took


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait(port, process):
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=5).read()
            return
        except OSError:
            assert process.poll() is None, "the server ended"
            time.sleep(0.1)
    sys.exit("the server did not start")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--seconds", type=float, default=20)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--clients", default="1,8,32")
    p.add_argument("--peer")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--program", default=os.path.join(TOP, "build", "release", "rhapsode"))
    a = p.parse_args()
    port = free_port()
    servers = {"rhapsode": [a.program, "serve", a.model, "--port", str(port), "--any-model", "-t", str(a.threads)]}
    if a.peer:
        servers["llama-cpp-python"] = [a.peer, "-m", "llama_cpp.server", "--model", a.model, "--port", str(port), "--n_threads", str(a.threads),
                                       "--n_ctx", "2048", "--model_alias", "m"]
    for name, command in servers.items():
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait(port, process)
            asyncio.run(load(port, 1, 1, a.tokens))
            for clients in map(int, a.clients.split(",")):
                requests, tokens = asyncio.run(load(port, clients, a.seconds, a.tokens))
                print(f"{name}: {clients} clients: {requests:.2f} requests/s, {tokens:.1f} tokens/s", flush=True)
        finally:
            process.terminate()
            process.wait()


main()
