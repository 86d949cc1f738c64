"""hub_test.py: pull, ls, rm and add against a local server that speaks the hub's endpoints, redirects to a second host, expires
signed addresses, and drops connections in the middle of ranges.  RHAPSODE names the program."""
import hashlib
import http.server
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

PROGRAM = os.environ["RHAPSODE"]
TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LLAMA = os.path.join(TOP, "tests", "golden", "llama")
TOKEN = "hf_secret"
COMMIT = "c" * 40


def blob(seed, size):
    return random.Random(seed).randbytes(size)


FILES = {
    "org/one": {"README.md": b"hello", "tiny-q4_k_m.gguf": blob(1, 40_000_000), "tiny-q8_0.gguf": blob(2, 1_000_003), "mmproj-q4_k_m.gguf": b"x"},
    "org/split": {f"big-0000{i}-of-00003.gguf": blob(10 + i, 300_000) for i in (1, 2, 3)},
    "org/hf": {"config.json": b"{}", "model.safetensors": blob(5, 2_000_000), "tokenizer.json": b"{}", "added_tokens.json": b"", "sub/other.safetensors": b"no", "x.bin": b"no"},
    "org/none": {"README.md": b"nothing here"},
    "org/lies": {"a.gguf": blob(6, 100_000)},
    "org/evil": {"../../evil.gguf": b"x"},
}


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.rng = random.Random(7)
        self.drop = 0.0
        self.expire_after = 0
        self.throttle = 0
        self.dead = False
        self.ranges, self.leaks, self.signed = [], [], {}
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def tree(self, repo, query):
        names = sorted(FILES[repo])
        start = int(query or 0)
        entries = []
        for name in names[start : start + 2]:
            data = FILES[repo][name]
            digest = hashlib.sha256(b"lie" if repo == "org/lies" else data).hexdigest()
            entry = {"type": "file", "path": name, "size": len(data), "oid": "0" * 40}
            if name.endswith((".gguf", ".safetensors")):
                entry["lfs"] = {"oid": digest, "size": len(data), "pointerSize": 134}
            entries.append(entry)
        headers = [("X-Repo-Commit", COMMIT)]
        if start + 2 < len(names):
            headers.append(("Link", f'<{self.server.url}/api/models/{repo}/tree/main?recursive=true&cursor={start + 2}>; rel="next"'))
        self.reply(200, json.dumps(entries).encode(), headers)

    def do_GET(self):
        if m := re.match(r"/api/models/([\w-]+/[\w-]+)/tree/main\?recursive=true(?:&cursor=(\d+))?$", self.path):
            if m[1] == "org/gated" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.reply(401)
            if m[1] not in FILES:
                return self.reply(404)
            return self.tree(m[1], m[2])
        if m := re.match(rf"/([\w-]+/[\w-]+)/resolve/{COMMIT}/(.+)$", self.path):
            key = str(self.server.rng.random())
            with self.server.lock:
                self.server.signed[key] = [m[1], m[2], self.server.expire_after]
            return self.reply(302, b"", [("Location", f"http://localhost:{self.server.server_port}/cdn/{key}")])
        if m := re.match(r"/cdn/(.+)$", self.path):
            return self.cdn(m[1])
        return self.reply(404)

    def cdn(self, key):
        if "Authorization" in self.headers:
            self.server.leaks.append(self.path)
        repo, name, left = self.server.signed[key]
        if self.server.dead:
            return self.reply(500)
        if self.server.expire_after and left <= 0:
            return self.reply(403)
        self.server.signed[key][2] -= 1
        data = FILES[repo][name]
        m = re.match(r"bytes=(\d+)-(\d+)$", self.headers.get("Range", ""))
        first, last = int(m[1]), min(int(m[2]), len(data) - 1)
        part = data[first : last + 1]
        with self.server.lock:
            self.server.ranges.append((name, first, last))
            cut = len(part)
            if self.server.rng.random() < self.server.drop:
                cut = self.server.rng.randrange(len(part))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        step = 1 << 16
        for at in range(0, cut, step):
            self.wfile.write(part[at : min(at + step, cut)])
            if self.server.throttle:
                time.sleep(step / self.server.throttle)
        if cut < len(part):
            self.close_connection = True
            self.connection.close()


@pytest.fixture
def hub():
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()


@pytest.fixture
def run(hub, tmp_path):
    def go(*args, token=TOKEN, start=False):
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_TOKEN": token, "RHAPSODE_HOME": str(tmp_path / "store"), "HOME": str(tmp_path)}
        command = [PROGRAM, *args]
        if start:
            return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    return go


def listed(run):
    return {e["name"]: e for e in json.loads(run("ls", "--json").stdout)}


def test_pull_takes_the_preferred_file_and_checks_it(run, hub):
    done = run("pull", "org/one")
    assert done.returncode == 0, done.stderr
    path = done.stdout.strip()
    assert path.endswith("tiny-q4_k_m.gguf")
    assert open(path, "rb").read() == FILES["org/one"]["tiny-q4_k_m.gguf"]
    assert listed(run)["org/one"]["complete"]
    assert "its name is org/one" in done.stderr
    assert not hub.leaks, "the token went to another host"
    assert len({r[1] for r in hub.ranges}) >= 3, "expected parallel ranges"


def test_a_pull_shows_how_far_it_is_how_fast_and_how_long_yet(run, hub):
    hub.throttle = 4 << 20
    done = run("pull", "org/one")
    lines = [line for line in done.stderr.splitlines() if "[" in line]
    assert done.returncode == 0 and len(lines) >= 3, done.stderr
    for line in lines:
        assert re.fullmatch(r"tiny-q4_k_m\.gguf \[#*\.*\] +\d+% [\d.]+ k?M?B of 40\.0 MB  [\d.]+ [kM]?B/s  (\d+:\d\d left)?", line), line
    assert any(line.endswith(" left") for line in lines)


def test_pull_survives_dropped_connections(run, hub):
    hub.drop = 0.7
    done = run("pull", "org/one:Q4_K_M")
    assert done.returncode == 0, done.stderr
    assert open(done.stdout.strip(), "rb").read() == FILES["org/one"]["tiny-q4_k_m.gguf"]


def test_signed_addresses_expire(run, hub):
    hub.expire_after, hub.drop = 1, 0.5
    done = run("pull", "org/one:tiny-q8_0.gguf")
    assert done.returncode == 0, done.stderr


def test_interrupt_leaves_a_partial_that_resumes(run, hub):
    hub.throttle = 4 << 20
    process = run("pull", "org/one", start=True)
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130 and not out, (process.returncode, err)
    entry = listed(run)["org/one"]
    assert not entry["complete"]
    before = sum(last - first + 1 for _, first, last in hub.ranges)
    hub.throttle, hub.ranges = 0, []
    done = run("pull", "org/one")
    assert done.returncode == 0, done.stderr
    again = sum(last - first + 1 for _, first, last in hub.ranges)
    size = len(FILES["org/one"]["tiny-q4_k_m.gguf"])
    assert 0 < again < size - (1 << 20), f"resumed pull fetched {again} of {size} bytes again"
    assert before > 0 and open(done.stdout.strip(), "rb").read() == FILES["org/one"]["tiny-q4_k_m.gguf"]


def test_split_sets_come_whole(run):
    done = run("pull", "org/split")
    assert done.returncode == 0, done.stderr
    first = done.stdout.strip()
    assert first.endswith("big-00001-of-00003.gguf")
    for name, data in FILES["org/split"].items():
        assert open(os.path.join(os.path.dirname(first), name), "rb").read() == data


def test_safetensors_directory(run):
    done = run("pull", "org/hf")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(done.stdout.strip())) == ["added_tokens.json", "config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize(
    "spec, words",
    [
        ("org/none", "neither"),
        ("org/missing", "404"),
        ("org/gone:Q4", "404"),
        ("org/one:Q2_K", "tiny-q8_0.gguf"),
        ("org/lies", "SHA-256"),
        ("org/evil", "relative path"),
        ("noslash", "ORG/REPO"),
        ("../../x", "ORG/REPO"),
        ("org/one:../x", "ORG/REPO"),
    ],
)
def test_what_cannot_be_pulled_is_one_clear_line(run, spec, words):
    done = run("pull", spec)
    assert done.returncode in (1, 2) and not done.stdout
    lines = [line for line in done.stderr.replace("\r", "\n").splitlines() if line.startswith("rhapsode")]
    assert len(lines) == 1 and words in lines[0], done.stderr
    assert not listed(run), "what brought no byte left an entry"


def test_a_pull_that_gets_no_byte_leaves_nothing(run, hub, tmp_path):
    hub.dead = True
    done = run("pull", "org/one:tiny-q8_0.gguf")
    assert done.returncode == 1 and "500" in done.stderr, done.stderr
    assert not listed(run)
    done = run("serve", "--port", "0")
    assert done.returncode == 2 and "is empty" in done.stderr, done.stderr
    hub.dead = False
    assert run("pull", "org/one:tiny-q8_0.gguf").returncode == 0


def test_partial_pulls_are_no_models(run, hub):
    hub.throttle = 4 << 20
    process = run("pull", "org/one", start=True)
    time.sleep(2.0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert "partial" in run("ls").stdout and run("ls", "--names").stdout == ""
    done = run("run", "org/one", "hi")
    assert done.returncode == 1 and "not in the store" in done.stderr
    assert run("serve", "--port", "0").returncode == 2
    assert run("rm", "org/one").returncode == 0 and not listed(run)


def test_add_ls_rm(run, tmp_path):
    assert run("add", "tiny:llama", LLAMA).stdout == "tiny:llama\n"
    entry = listed(run)["tiny:llama"]
    assert entry["complete"] and run("ls", "--names").stdout == "tiny:llama\n"
    assert entry["bytes"] == sum(os.path.getsize(os.path.join(entry["path"], n)) for n in os.listdir(entry["path"]))
    assert run("run", "tiny:ll", "hi", "--max-tokens", "3").returncode == 0
    assert "did you mean 'tiny:llama'" in run("info", "tini:llama").stderr and "did you mean 'tiny:llama'" in run("rm", "llama").stderr
    assert run("add", "tiny:llama", LLAMA).returncode == 0 and list(listed(run)) == ["tiny:llama"]  # replaced
    assert run("add", "tiny:llama", entry["path"]).returncode == 0 and run("run", "tiny:llama", "hi", "--max-tokens", "3").returncode == 0  # by itself
    links = tmp_path / "links"
    links.mkdir()
    for name in os.listdir(entry["path"]):
        os.symlink(os.path.relpath(os.path.join(LLAMA, name), links), links / name)
    assert run("add", "linked", str(links)).returncode == 0
    shutil.rmtree(links)
    assert run("run", "linked", "hi", "--max-tokens", "3").returncode == 0 and run("rm", "linked").returncode == 0
    assert run("rm", "tiny:llama").returncode == 0
    assert run("rm", "tiny:llama").returncode == 1
    assert not listed(run)


def test_add_takes_a_file_and_checks_it(run, tmp_path):
    model = os.path.join(os.environ["MODELS"], "smollm2-135m-instruct-q4_1.gguf")
    digest = hashlib.sha256(open(model, "rb").read()).hexdigest()
    assert run("add", "mine", model, "--sha256", "0" * 64).returncode == 1 and not listed(run)
    done = run("add", "mine", model, "--sha256", digest)
    assert done.returncode == 0 and "run mine" in done.stderr and listed(run)["mine"]["bytes"] == os.path.getsize(model)
    junk = tmp_path / "m.gguf"
    for text in (b"", b"GGUF and so on", b"hello", open(model, "rb").read(1 << 20)):
        junk.write_bytes(text)
        done = run("add", "junk", str(junk))
        assert done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1 and done.stderr.count(str(junk)) == 1, done.stderr
    assert run("add", "junk", os.path.join(LLAMA, "model.safetensors")).returncode == 1
    assert run("add", "", model).returncode == 2 and run("add", "d", LLAMA, "--sha256", digest).returncode == 2
    assert list(listed(run)) == ["mine"]


def test_add_takes_a_whole_split_set(run, tmp_path):
    sys.path.insert(0, os.path.join(TOP, "tests", "fixtures"))
    import split_gguf

    model = os.path.join(os.environ["MODELS"], "smollm2-135m-instruct-q4_1.gguf")
    first = split_gguf.split(model, str(tmp_path / "part"), 3)
    done = run("add", "split", first)
    assert done.returncode == 0, done.stderr
    path = listed(run)["split"]["path"]
    assert sorted(os.listdir(os.path.dirname(path))) == [f"part-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    ask = ("--ids", "1,2,3", "--max-tokens", "8", "--json", "--temp", "0")
    a, b = (json.loads(run("generate", m, *ask).stdout) for m in ("split", model))
    assert a["ids"] == b["ids"]
    info = json.loads(run("info", first, "--json").stdout)
    assert info["file_bytes"] == sum(os.path.getsize(str(tmp_path / f"part-0000{i}-of-00003.gguf")) for i in (1, 2, 3))
    second = run("info", first.replace("00001-of", "00002-of"))
    assert second.returncode == 2 and "open the first one" in second.stderr
    os.unlink(first.replace("00001-of", "00003-of"))
    missing = run("info", first)
    assert missing.returncode == 1 and "part-00003-of-00003.gguf" in missing.stderr and missing.stderr.count("\n") == 1
