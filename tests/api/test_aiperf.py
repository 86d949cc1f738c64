"""test_aiperf.py: load by NVIDIA's AIPerf, chats and raw texts, streams and whole answers: every request is answered, none with an error, and what it
counts is what the server counts.

AIPerf brings 140 packages (900 MB), so it has an environment of its own, which ./check long makes: AIPERF names its program; without it this is skipped."""
import json
import os
import subprocess

import pytest
from script_model import make
from serving import GOLDEN, Server

AIPERF = os.environ.get("AIPERF")
REQUESTS, TOKENS = 60, 24

pytestmark = pytest.mark.skipif(not AIPERF, reason="AIPERF is not set")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model with a chat template, that writes whole texts; raw prompts of other texts end at once with it."""
    return make(str(tmp_path_factory.mktemp("script")))


@pytest.mark.parametrize("kind,stream", [("chat", True), ("chat", False), ("completions", True)])
def test_every_request_is_answered(folder, tmp_path, kind, stream):
    s = Server(folder if kind == "chat" else os.path.join(GOLDEN, "llama"), "--model-id", "script")
    command = [AIPERF, "profile", "--model", "script", "--url", s.url, "--endpoint-type", kind, "--concurrency", "8", "--request-count", str(REQUESTS),
               "--tokenizer", folder, "--synthetic-input-tokens-mean", "40", "--synthetic-input-tokens-stddev", "10", "--output-tokens-mean", str(TOKENS),
               "--extra-inputs", "ignore_eos:true", "--ui", "none", "--artifact-dir", str(tmp_path), *(["--streaming"] if stream else [])]
    env = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:]
    found = [os.path.join(d, f) for d, _, files in os.walk(tmp_path) for f in files if f == "profile_export_aiperf.json"]
    assert found, done.stdout[-6000:]
    with open(found[0]) as f:
        report = json.load(f)
    errors = report.get("error_request_count") or {"avg": 0}
    assert report["request_count"]["avg"] == REQUESTS and errors["avg"] == 0 and not report.get("error_summary"), report
    s.until_idle()
    stats = s.stats()
    assert stats["requests"]["rejected"] == stats["engine"]["failed_steps"] == 0
    assert report["output_sequence_length"]["avg"] > 0
    s.stop()
