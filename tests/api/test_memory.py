"""test_memory.py: what the plan says beside what the process comes to hold, all of its state in use: within 3 % or 16 MiB, whichever is more."""
import random
import re

import pytest
from serving import Server

MIB = 1 << 20


def anonymous(pid):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"^RssAnon:\s+(\d+) kB", f.read(), re.M)[1]) << 10


def memory(server, kind):
    found = re.findall(r'^rhapsode_memory_bytes\{space="host",component="([^"]+)",kind="%s"\} (\S+)' % kind, server.get("/metrics"), re.M)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("more", [[], ["--kv", "q8"], ["draft"]], ids=["f16", "q8", "draft"])
def test_planned_is_what_is_held(model, more):
    args = ["--draft", model] if more == ["draft"] else more
    server = Server(model, "--state", "48M", *args)
    try:
        ids, peak = random.Random(1), 0
        for _ in range(24 if "q8" in args else 13):  # distinct prompts, kept until there is no room: more than fits
            prompt = [ids.randrange(100, 40000) for _ in range(220)]
            guess = {"propose": "draft", "propose_depth": 2} if "--draft" in args else {}
            server.json("/v1/completions", {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, **guess})
            peak = max(peak, anonymous(server.pid))
        planned = memory(server, "planned")
        total, most = sum(planned.values()), max(0.03 * sum(planned.values()), 16 * MIB)
        print({k: f"{v / MIB:.1f}" for k, v in planned.items()}, f"planned {total / MIB:.1f}, peak {peak / MIB:.1f} MiB")
        assert abs(peak - total) <= most, (planned, peak)
    finally:
        server.stop()
