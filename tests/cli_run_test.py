"""cli_run_test.py: `run`, answering once from a prompt and a pipe, and as a chat on a terminal.  RHAPSODE names the program."""
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time

import pytest

from cli_test import LLAMA, PROGRAM, one_line, run

ONCE = ("run", LLAMA, "--max-tokens", "8", "--temp", "0", "--ignore-eos", "--config", "")


def test_piped_text_comes_before_the_prompt(tmp_path):
    def answer(*args, stdin=b""):
        return run(*ONCE, *args, stdin=stdin)

    joined = answer("what is it?", stdin=b"some text\n")
    assert joined.stdout == answer("some text\n\nwhat is it?").stdout == answer(stdin=b"some text\n\nwhat is it?").stdout
    assert b"10 bytes of standard input" in joined.stderr and joined.stdout != answer("what is it?").stdout
    assert answer("what is it?", stdin=b" \n").stderr == answer("what is it?").stderr == b""
    assert answer("-", stdin=b"hi").stdout == answer("hi").stdout
    file = tmp_path / "f"
    file.write_bytes(b"some text")
    env = {**os.environ, "RHAPSODE_HOME": "/nonexistent"}
    with open(file, "rb") as f:
        done = subprocess.run([PROGRAM, *ONCE, "what is it?"], stdin=f, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert done.stdout == joined.stdout
    with open(os.devnull, "rb") as f:
        done = subprocess.run([PROGRAM, *ONCE, "what is it?"], stdin=f, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    assert done.stdout == answer("what is it?").stdout and not done.stderr


@pytest.mark.parametrize("piped", [False, True])
def test_a_standard_input_that_never_ends(piped):
    """An open pipe that nobody writes to is left alone, and said; --piped waits for the writer."""
    plain, joined = run(*ONCE, "hi").stdout, run(*ONCE, "late\n\nhi").stdout
    p = subprocess.Popen([PROGRAM, *ONCE, "hi", *(["--piped"] if piped else [])], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         env={**os.environ, "RHAPSODE_HOME": "/nonexistent"})
    if piped:
        time.sleep(2.5)
        assert p.poll() is None
        out, err = p.communicate(b"late", timeout=60)
        assert (p.returncode, out) == (0, joined) and b"bytes" in err
    else:
        assert p.wait(timeout=60) == 0
        assert p.stdout.read() == plain and b"--piped" in p.stderr.read()
        p.stdin.close()


def test_run_of_a_model_without_template(tmp_path):
    shutil.copytree(LLAMA, tmp_path / "base")
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (tmp_path / "base" / name).exists():
            (tmp_path / "base" / name).unlink()
    one_line(run("run", tmp_path / "base", "hi", status=1), "no chat template", "generate MODEL --prompt")


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, home, *args, model=LLAMA, lang="C.UTF-8"):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(PROGRAM, [PROGRAM, "run", model, "--ignore-eos", *(args or ("--max-tokens", "4"))],
                      {"HOME": str(home), "TERM": "xterm", "PATH": os.environ["PATH"], **({"LANG": lang} if lang else {})})
        self.text, self.status = b"", None

    def until(self, words, seconds=30):
        end = time.monotonic() + seconds
        while words not in self.text and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.fd, 65536)
                except OSError:
                    break
        assert words in self.text, self.text
        seen, self.text = self.text[:self.text.index(words) + len(words)], self.text[self.text.index(words) + len(words):]
        return seen

    def type(self, text):
        os.write(self.fd, text.encode())

    def ended(self, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.drain()
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
            self.drain()
        raise AssertionError("it goes on")

    def drain(self):
        while select.select([self.fd], [], [], 0.1)[0]:
            try:
                self.text += os.read(self.fd, 65536)
            except OSError:
                return

    def __enter__(self):
        self.until(b"> ")
        time.sleep(0.5)  # a key typed before the terminal is in the editor's mode is the terminal's
        return self

    def __exit__(self, *_):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


def test_a_chat_past_the_context_goes_on_and_says_so(tmp_path):
    with Terminal(tmp_path, "--max-tokens", "8", "--context", "60") as t:
        for _ in range(8):
            t.type("Rivers and mountains.\r")
            time.sleep(0.4)
        t.until(b"oldest messages were left out")
        t.type("/params max-tokens 0\r")
        t.until(b"max-tokens: expected at least 1")
        t.type("x" * 300 + "\r")
        t.until(b"but the context holds 60")
        t.type("/bye\r")
        assert t.ended() == 0


def test_ctrl_c_stops_the_answer_and_keeps_it(tmp_path):
    saved = tmp_path / "s.json"
    model = os.path.join(os.environ["MODELS"], "smollm2-135m-instruct-q4_1.gguf")
    with Terminal(tmp_path, "--max-tokens", "4000", "--device", "ref", "--temp", "0", "--verbose", model=model) as t:
        t.type("Tell a very long story.\r")
        t.until(b"story.\r\n")
        for _ in range(3):
            t.until(b" ", 60)  # words of it
        t.type("\x03")
        first = int(re.search(rb"\[prompt (\d+) tokens", t.until(b"| cancelled |"))[1])
        t.until(b"> ")
        t.type("half a li\x03")  # at the prompt it clears the line
        t.until(b"> ")
        t.type(f"/save {saved}\r")
        t.until(b"2 messages saved")
        user, kept = json.loads(saved.read_text())
        assert user["content"] == "Tell a very long story." and 0 < len(kept["content"]) < 4000
        t.type("\x1b[A\x1b[A\r")  # the line before /save, from the history
        t.until(b"Tell a very long story.")
        t.until(b" ", 60)
        t.type("\x03")
        kept = int(re.search(rb" (\d+) from kept state", t.until(b"| cancelled |"))[1])
        assert kept > first, "what was computed of the answer is not used again"
        t.type("\x04")
        assert t.ended() == 0
    assert b"Tell\\040a\\040very" in (tmp_path / ".local/share/rhapsode/history").read_bytes()


@pytest.mark.parametrize("lang", ["C.UTF-8", None])
def test_typed_characters_past_ascii_reach_the_model(tmp_path, lang):
    saved = tmp_path / "s.json"
    with Terminal(tmp_path, lang=lang) as t:
        for text in ("Gr\u00fc\u00dfe \u65e5\u672c\r", f"/save {saved}\r"):
            t.type(text)
            time.sleep(1)
        t.until(b"2 messages saved")
    assert json.loads(saved.read_text())[0]["content"] == "Gr\u00fc\u00dfe \u65e5\u672c"


@pytest.mark.parametrize("leave", ["/bye\r", "/exit\r", "/quit\r", "\x04"])
def test_leaving_a_chat(tmp_path, leave):
    with Terminal(tmp_path) as t:
        t.type(leave)
        assert t.ended() == 0
        assert t.text.replace(b"\x1b[?2004l", b"").endswith(b"\r\n"), t.text


def test_a_chat_in_the_terminal(tmp_path):
    saved = tmp_path / "s.json"
    with Terminal(tmp_path) as t:
        t.type("/sav x\r")
        shown = t.until(b"/quit")
        assert b"unknown command /sav (did you mean /save?)" in shown and b"/load" in shown
        t.type("/params temprature 1\r")
        t.until(b"did you mean 'temperature'?")
        t.type("/params temperature 0\r")
        t.until(b"temperature 0 ")
        t.type("/system Be brief.\r")
        t.until(b"system message set")
        t.type("\x1b[200~line one\rline two\x1b[201~\r")  # a paste
        t.until(b"[paste 1: 2 lines]")
        time.sleep(1)
        t.type('"""\rthree\rfour\r"""\r')
        time.sleep(1)
        t.type("five \\\rsix\r")
        time.sleep(1)
        t.type(f"/save {saved}\r")
        t.until(b"7 messages saved")
        messages = json.loads(saved.read_text())
        assert [m["role"] for m in messages] == ["system"] + ["user", "assistant"] * 3
        assert [m["content"] for m in messages if m["role"] != "assistant"] == ["Be brief.", "line one\nline two", "\nthree\nfour\n", "five \nsix"]
        t.type("/clear\r")
        t.until(b"cleared")
        t.type(f"/load {saved}\r")
        t.until(b"7 messages loaded")
        t.type("/load /no/such\r")
        t.until(b"/no/such: cannot open")
        t.type(f"/save {saved}2\r")
        t.until(b"7 messages saved")
    assert json.loads(open(f"{saved}2").read()) == messages
