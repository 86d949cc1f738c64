"""readme_test.py: README's tables say what the sources and the reference models say."""
import os
import re

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with open(os.path.join(TOP, path)) as f:
        return f.read()


def table(marker):
    """Rows of the table after <!-- marker: ... -->, without its head."""
    text = read("README.md").split(f"<!-- {marker}:", 1)[1]
    rows = re.findall(r"^\|(.+)\|$", text.split("\n\n")[0], re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


def test_architectures_are_those_of_the_list():
    names = re.findall(r"X\((\w+)\)", re.search(r"#define ARCH_LIST\(X\)((?:.*\\\n)*.*)", read("src/models/arch.h"))[1])
    assert [row[0] for row in table("architectures")] == names


def test_every_reference_model_is_named_once():
    named = [name for row in table("architectures") for name in row[1].split(", ") if name]
    assert sorted(named) == sorted(n for n in os.listdir(os.path.join(TOP, "tests", "golden")) if os.path.exists(os.path.join(TOP, "tests", "golden", n, "golden.json")))


def test_packed_types_are_those_of_the_packer():
    packed = re.findall(r"\[DTYPE_(\w+)\] = \{true", read("src/backend_cpu/pack_ggml.c"))
    assert table("weight types")[0][0].split() == packed + ["MLX"]


def test_types_held_in_f16_are_those_of_the_code():
    body = re.search(r"static bool exact_in_f16.*?\n\}", read("src/backend_cpu/cpu_weight.c"), re.S)[0]
    assert table("weight types")[1][0].split() == re.findall(r"DTYPE_(\w+)", body)


def test_documents_exist():
    for path in re.findall(r"\]\((\w[\w/.]+)\)", read("README.md")):
        assert os.path.exists(os.path.join(TOP, path)), path
