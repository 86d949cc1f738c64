"""readme_test.py: README's tables say what the sources and the reference models say.

`python tests/readme_test.py write` puts the table of architectures in, made of the list and the reference models."""
import json
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read(path):
    with open(os.path.join(TOP, path)) as f:
        return f.read()


def table(marker):
    """Rows of the table after <!-- marker: ... -->, without its head."""
    text = read("README.md").split(f"<!-- {marker}:", 1)[1]
    rows = re.findall(r"^\|(.+)\|$", text.split("\n\n")[0], re.M)
    return [[cell.strip() for cell in row.split("|")] for row in rows[2:]]


GOLDEN = os.path.join(TOP, "tests", "golden")


def goldens():
    return sorted(n for n in os.listdir(GOLDEN) if os.path.exists(os.path.join(GOLDEN, n, "golden.json")))


def architectures():
    return re.findall(r"X\((\w+)\)", re.search(r"#define ARCH_LIST\(X\)((?:.*\\\n)*.*)", read("src/models/arch.h"))[1])


def made_table():
    """One row an architecture of the list, with the reference models whose model_type its file names."""
    of_type = {}
    for arch in architectures():
        types = re.search(r"model_types\[\] = \{([^}]*)\}", read(f"src/models/{arch}.c"))[1]
        of_type |= {t: arch for t in re.findall(r'"(\w+)"', types)}
    rows = {arch: [] for arch in architectures()}
    for name in goldens():
        rows[of_type[json.loads(read(f"tests/golden/{name}/config.json"))["model_type"]]].append(name)
    return [[arch, ", ".join(names)] for arch, names in rows.items()]


def test_the_table_of_architectures_is_the_one_made():
    assert table("architectures") == made_table()


def test_every_architecture_has_a_reference_model_and_an_op_listing():
    traces = {n[:-4] for n in os.listdir(os.path.join(GOLDEN, "trace"))}
    for arch, names in made_table():
        assert names and traces & set(names.split(", ")), arch


def test_reference_models_are_small():
    sizes = {n: sum(os.lstat(os.path.join(GOLDEN, n, f)).st_size for f in os.listdir(os.path.join(GOLDEN, n))) for n in goldens()}
    assert {n: s for n, s in sizes.items() if s > 500 << 10} == {}
    assert sum(sizes.values()) <= 12 << 20


def test_packed_types_are_those_of_the_packer():
    packed = re.findall(r"\[DTYPE_(\w+)\] = \{true", read("src/backend_cpu/pack_ggml.c"))
    assert table("weight types")[0][0].split() == packed + ["MLX"]


def test_types_held_in_f16_are_those_of_the_code():
    body = re.search(r"static bool exact_in_f16.*?\n\}", read("src/backend_cpu/cpu_weight.c"), re.S)[0]
    assert table("weight types")[1][0].split() == re.findall(r"DTYPE_(\w+)", body)


def test_the_reading_order_of_the_rooms_is_that_of_what_they_use():
    below = eval(re.search(r"^BELOW = (\{.*?^\})", read("scripts/structure.py"), re.M | re.S)[1])
    rooms = re.findall(r"^\| `src/(\w+)` \|", read("ARCHITECTURE.md"), re.M)
    assert sorted(rooms) == sorted(below) == sorted(os.listdir(os.path.join(TOP, "src")))
    assert rooms[0] == "base"
    for i, room in enumerate(rooms):
        assert below[room] <= set(rooms[:i]), (room, below[room] - set(rooms[:i]))


def test_documents_exist():
    for path in re.findall(r"\]\((\w[\w/.]+)\)", read("README.md")):
        assert os.path.exists(os.path.join(TOP, path)), path


def write():
    text = read("README.md")
    head, rest = text.split("<!-- architectures:", 1)
    lines = rest.split("\n\n", 1)
    top = lines[0].split("\n")[:3]
    body = [f"| {arch} | {names} |" for arch, names in made_table()]
    with open(os.path.join(TOP, "README.md"), "w") as f:
        f.write(head + "<!-- architectures:" + "\n".join(top + body) + "\n\n" + lines[1])


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    write()
