"""The tables of the K and V formats are what their scripts derive."""
import os
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def test_tables():
    made = subprocess.run([sys.executable, os.path.join(TOP, "scripts", "kv_tables.py")], stdout=subprocess.PIPE, check=True).stdout
    with open(os.path.join(TOP, "src", "tensor", "kv_tables.h"), "rb") as f:
        assert f.read() == made


def test_planes(tmp_path):
    out = tmp_path / "planes.txt"
    subprocess.run([sys.executable, os.path.join(TOP, "tests", "fixtures", "kv_fixtures.py"), out], check=True)
    with open(os.path.join(TOP, "tests", "data", "kv", "planes.txt")) as f:
        assert f.read() == out.read_text()
