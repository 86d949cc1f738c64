"""test_load.py: many streams at once, some stalled, some leaving: every whole stream has the text it has alone."""
import asyncio
import json
import os
import random
import resource
import time

from serving import GOLDEN, Server

STREAMS = int(os.environ.get("LOAD_STREAMS", "200"))
SECONDS = float(os.environ.get("LOAD_SECONDS", "25"))
PROMPTS = 24


def body(i):
    return {"prompt": f"Item {i % PROMPTS}: the", "max_tokens": 40 + 5 * (i % PROMPTS), "temperature": 0.9, "seed": i % PROMPTS, "stream": True, "ignore_eos": True}


async def one(port, i, mode, rng):
    """Text of a stream; None when it was left or is not to be judged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        data = json.dumps(body(i)).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        text, ended = "", False
        leave_at = rng.randrange(0, 10) if mode == "leave" else -1
        if leave_at == 0:
            return None
        status = await reader.readline()
        assert status == b"HTTP/1.1 200 OK\r\n", status
        events = 0
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                continue
            events += 1
            if line == b"data: [DONE]\n":
                ended = True
                continue
            assert not ended
            text += json.loads(line[6:])["choices"][0]["text"]
            if events == leave_at:
                return None
            if mode == "stall" and events == 3:
                await asyncio.sleep(rng.random() * 2)
        assert ended
        return text
    finally:
        writer.close()


async def load(port, solo, seconds, enough=0):
    """For so long, or longer until `enough` streams were read to their ends and one was left (a sanitizer's build on a busy machine)."""
    rng = random.Random(1)
    end = time.monotonic() + seconds
    done = left = 0

    async def client(k):
        nonlocal done, left
        i = k
        while (now := time.monotonic()) < end or (done < enough or left < min(enough, 1)) and now < end + 240:
            roll = rng.random()
            text = await one(port, i, "stall" if roll < 0.05 else "leave" if roll < 0.15 else "plain", rng)
            if text is None:
                left += 1
            else:
                assert text == solo[i % PROMPTS], (i, text, solo[i % PROMPTS])
                done += 1
            i += 7
    await asyncio.gather(*(client(k) for k in range(STREAMS)))
    return done, left


def rss(pid):
    with open(f"/proc/{pid}/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))


def sanitized(pid):
    with open(f"/proc/{pid}/maps") as f:
        return any("libasan" in line or "libtsan" in line for line in f)


def test_streams_are_what_they_are_alone():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # the server raises its own
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, STREAMS + 200)), hard))
    s = Server(os.path.join(GOLDEN, "llama"), "--queue", "4096")
    solo = [asyncio.run(one(s.port, i, "plain", random.Random(0))) for i in range(PROMPTS)]
    assert len(set(solo)) == PROMPTS
    asyncio.run(load(s.port, solo, 2))
    s.until_idle(30)
    before, fds, threads = rss(s.pid), len(os.listdir(f"/proc/{s.pid}/fd")), len(os.listdir(f"/proc/{s.pid}/task"))
    done, left = asyncio.run(load(s.port, solo, SECONDS, 21))
    s.until_idle(30)
    time.sleep(0.5)
    assert done > 20 and left > 0
    assert len(os.listdir(f"/proc/{s.pid}/fd")) <= fds + 1
    assert len(os.listdir(f"/proc/{s.pid}/task")) == threads
    assert sanitized(s.pid) or rss(s.pid) < before + 48 * 1024, (before, rss(s.pid))
    print(f"{done} streams checked, {left} left")
    s.stop()
