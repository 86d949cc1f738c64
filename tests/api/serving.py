"""serving.py: starts `rhapsode serve` for the tests.  RHAPSODE names the program, MODELS the folder of downloaded models."""
import json
import os
import signal
import subprocess
import time
import urllib.request

PROGRAM = os.environ["RHAPSODE"]
TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GOLDEN = os.path.join(TOP, "tests", "golden")


def small_model():
    """The default model of ./try: a real one with a chat template."""
    given = os.environ.get("API_MODEL")
    if given:
        return given
    folder = os.environ.get("MODELS", os.path.join(TOP, "build", "models"))
    out = subprocess.run([os.path.join(TOP, "scripts", "fetch_model"), "smollm2", folder], check=True, stdout=subprocess.PIPE, text=True)
    return out.stdout.strip()


def read_until(sock, what):
    out = b""
    while what not in out:
        chunk = sock.recv(100000)
        assert chunk, out
        out += chunk
    return out


class Server:
    def __init__(self, model, *args, env=None, wait=120):
        self.process = subprocess.Popen(
            [PROGRAM, "serve", model, "--port", "0", *map(str, args)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "XDG_CONFIG_HOME": "/nonexistent", "RHAPSODE_HOME": "/nonexistent", **(env or {})})
        self.addresses = []
        wanted = 1 + ("--unix" in args) - ("--host" in args and args[args.index("--host") + 1] == "")
        while len(self.addresses) < wanted:
            line = self.process.stdout.readline()
            if not line:
                raise RuntimeError(self.process.stderr.read())
            self.addresses.append(line.split()[-1])
        self.url = self.addresses[0]
        self.port = int(self.url.rsplit(":", 1)[1]) if "://" in self.url else 0
        self.pid = self.process.pid

    def get(self, path, **headers):
        with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=60) as reply:
            return reply.read().decode()

    def json(self, path, body=None, headers=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json", **(headers or {})})
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.loads(reply.read())

    def stats(self):
        return self.json("/stats")

    def until_idle(self, seconds=20):
        """All sequences are gone; fails when they are not in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            s = self.stats()["requests"]
            if s["under_way"] == s["waiting"] == s["running"] == 0:
                return
            time.sleep(0.05)
        raise AssertionError(self.stats()["requests"])

    def stop(self, status=0):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        err = self.process.stderr.read()
        self.process.stdout.close()
        self.process.stderr.close()
        assert self.process.returncode == status, (self.process.returncode, err[-2000:])
        assert "Sanitizer" not in err, err[-4000:]
        return err
