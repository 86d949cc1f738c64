"""The program with the CUDA backend on a machine without a GPU: it starts, says why there is no GPU, and takes the CPU with the same answers.

Run by ./check with RHAPSODE_CUDA (that program), RHAPSODE (one without the backend) and CUDA_CODE (the GPUs there must be code for)."""
import json
import os
import re
import shutil
import subprocess

import pytest

PROGRAM = os.environ.get("RHAPSODE_CUDA")
PLAIN = os.environ.get("RHAPSODE")
LLAMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "llama")
pytestmark = pytest.mark.skipif(not PROGRAM, reason="the CUDA backend was not built")
HAS_DRIVER = any(os.path.exists(os.path.join(d, "libcuda.so.1")) for d in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64"))
no_driver = pytest.mark.skipif(HAS_DRIVER, reason="there is a driver")
ASK = ("generate", LLAMA, "--ids", "1,5,9,2,7", "--max-tokens", "12", "--ignore-eos", "--seed", "5", "--top-logprobs", "3", "--json")


def run(program, *args, status=0):
    done = subprocess.run([program, *args], stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
    assert done.returncode == status, done.stderr.decode()
    return done


def test_the_driver_is_no_link_time_need():
    needed = re.findall(r"NEEDED.*\[(.*)\]", subprocess.run(["readelf", "-d", PROGRAM], capture_output=True, text=True, check=True).stdout)
    assert needed and not [name for name in needed if "cuda" in name or "nvidia" in name], needed


@no_driver
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_asked_for_that_is_not_there(device):
    for verb in (ASK, ("bench", "--limits")):
        done = run(PROGRAM, *verb, "--device", device, status=1)
        text = done.stderr.decode()
        assert text.count("\n") == 1 and "cuda: no NVIDIA driver is there" in text, text
        assert done.stdout == b""


@no_driver
def test_auto_takes_the_cpu_with_the_same_answers():
    info = json.loads(run(PROGRAM, "info", LLAMA, "--device", "auto", "--json").stdout)
    assert info["device"]["backend"] == "cpu"
    answers = [json.loads(run(*args).stdout) for args in ((PROGRAM, *ASK), (PROGRAM, *ASK, "--device", "auto"), (PLAIN, *ASK))]
    for a in answers[1:]:
        assert a["ids"] == answers[0]["ids"] and a["logprobs"] == answers[0]["logprobs"]


@no_driver
def test_gpu_memory_without_a_gpu_is_refused():
    text = run(PROGRAM, *ASK, "--gpu-memory", "4G", status=2).stderr.decode()
    assert text.count("\n") == 1 and "no memory of its own" in text, text


def test_several_devices_at_once_are_refused_by_name():
    for program, names in ((PROGRAM, "cuda:0,cuda:1"), (PROGRAM, "cpu,cpu"), (PLAIN, "cpu,cpu")):
        text = run(program, *ASK, "--device", names, status=1).stderr.decode()
        assert text.count("\n") == 1 and "a group of 2 is not there yet" in text, text


def test_names_of_devices():
    assert "abacus" in run(PROGRAM, *ASK, "--device", "abacus", status=2).stderr.decode()
    assert "cuda:x" in run(PROGRAM, *ASK, "--device", "cuda:x", status=2).stderr.decode()
    assert "--gpu-layers" in run(PROGRAM, *ASK, "--gpu-layers", "some", status=2).stderr.decode()


@no_driver
def test_layers_on_a_gpu_that_is_not_there():
    assert "no memory of its own" in run(PROGRAM, *ASK, "--gpu-layers", "7", status=2).stderr.decode()
    run(PROGRAM, *ASK, "--gpu-layers", "0")


def test_there_is_code_for_every_gpu_named():
    tool = shutil.which("cuobjdump") or "/usr/local/cuda/bin/cuobjdump"
    if not os.path.exists(tool):
        pytest.skip("no cuobjdump")
    listed = subprocess.run([tool, "--list-elf", PROGRAM], capture_output=True, text=True, check=True).stdout
    for code in os.environ["CUDA_CODE"].split():
        assert f"sm_{code}.cubin" in listed, (code, listed[:500])
