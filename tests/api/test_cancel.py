"""test_cancel.py: a client that leaves is cancelled within one step, whatever state its sequences are in; told by the engine's own counters.

/stats says how many sequences ended because their request was cancelled, and the most steps of the engine that ended between the one and the other.
No time is measured: the loops below only wait for a state to be there.
"""
import json
import os
import random
import socket
import time

import pytest
from serving import GOLDEN, Server

LLAMA = os.path.join(GOLDEN, "llama")


def engine(server):
    s = server.stats()
    return {**s["engine"], **s["requests"]}


def until(server, holds):
    end = time.monotonic() + 120
    while not holds(s := engine(server)):
        assert time.monotonic() < end, s
        time.sleep(0.002)
    return s


def begin(server, **body):
    c = socket.create_connection(("127.0.0.1", server.port))
    data = json.dumps({"max_tokens": 400, "ignore_eos": True, "temperature": 0, **body}).encode()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
    return c


def ids(seed, n):
    rng = random.Random(seed)
    return [rng.randrange(3, 300) for _ in range(n)]


@pytest.fixture(scope="module")
def one_place():
    """The state budget holds one long sequence: a second one waits."""
    s = Server(LLAMA, "--state", "2M", "--queue", "300", "--rows", "4", "-t", "1")
    yield s
    s.stop()


def left(server, before, count):
    after = until(server, lambda s: s["cancelled"] >= before["cancelled"] + count and s["under_way"] == 0)
    assert after["cancelled"] == before["cancelled"] + count
    assert after["cancel_steps_max"] <= 1, after


STATES = {
    "decode, a stream": ({"stream": True}, lambda s, b: s["running"] > s["prefilling"]),
    "decode, a whole answer": ({}, lambda s, b: s["running"] > s["prefilling"]),
    "rounds of guesses": ({"stream": True, "propose": "lookup", "propose_depth": 9, "prompt": [7, 8] * 20}, lambda s, b: s["steps"] > b["steps"] + 20),
    "prefill": ({"prompt": ids(1, 500), "max_tokens": 5}, lambda s, b: s["prefilling"] == 1 and s["steps"] > b["steps"] + 2),
}


@pytest.mark.parametrize("name", STATES)
def test_who_leaves_is_cancelled_within_a_step(one_place, name):
    body, holds = STATES[name]
    for i in range(5):
        before = engine(one_place)
        c = begin(one_place, **{"prompt": ids(100 + i, 8), **body, "cache_salt": f"{name}{i}"})
        until(one_place, lambda s: holds(s, before))
        if i % 2:
            c.shutdown(socket.SHUT_WR)  # the sending half is enough
        else:
            c.close()
        left(one_place, before, 1)
        c.close()


def test_who_leaves_the_queue_is_cancelled_within_a_step(one_place):
    before = engine(one_place)
    first = [begin(one_place, prompt=ids(k, 400), max_tokens=100, cache_salt=str(k)) for k in range(6)]
    until(one_place, lambda s: s["waiting"] > 0 and s["waiting"] + s["running"] == 6)  # none of them is still cut into tokens
    for c in reversed(first):
        c.close()
    left(one_place, before, 6)


def test_all_choices_are_cancelled(one_place):
    before = engine(one_place)
    c = begin(one_place, prompt=ids(5, 30), n=4, stream=True, max_tokens=100)
    until(one_place, lambda s: s["running"] > 0)
    c.close()
    left(one_place, before, 4)


def test_who_leaves_at_once_is_cancelled(one_place):
    """While the prompt is cut into tokens, or before; an answer may be complete before the closed socket is seen."""
    for i in range(20):
        begin(one_place, prompt="word " * 200 + str(i), max_tokens=200).close()
    after = until(one_place, lambda s: s["under_way"] == 0 and s["waiting"] + s["running"] == 0)
    assert after["cancel_steps_max"] <= 1, after


def test_by_id_and_at_random(one_place):
    rng = random.Random(2)
    open_ones = []
    for i in range(60):
        open_ones.append(begin(one_place, prompt=ids(i, rng.randrange(1, 300)), max_tokens=rng.randrange(1, 60), stream=rng.random() < 0.7,
                               n=rng.randrange(1, 3), propose=rng.choice(["none", "auto", "lookup"])))
        if len(open_ones) > 8:
            open_ones.pop(rng.randrange(len(open_ones))).close()
    for c in open_ones:
        c.close()
    after = until(one_place, lambda s: s["under_way"] == 0 and s["waiting"] + s["running"] == 0)
    assert after["cancel_steps_max"] <= 1, after
    assert one_place.stats()["state"]["live_bytes"] == 0
