"""structure.py: the shape of the source tree, checked by counting.

Dependencies point down only; files and functions stay under their ceilings; banned words and functions do not appear.
Exceptions are in the lists below, each with a reason.
"""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# room -> the rooms it may include (besides itself and base)
BELOW = {
    "base": set(),
    "format": set(),
    "text": {"format"},
    "grammar": set(),
    "tensor": {"format"},
    "hub": set(),
    "chat": set(),
    "kv": {"tensor", "format"},
    "backend_ref": {"tensor", "format"},
    "backend_cpu": {"tensor", "format"},
    "backend_cuda": {"tensor", "format"},
    "backend_trace": {"tensor", "format"},
    "models": {"kv", "tensor", "format"},
    "plan": {"models", "kv", "tensor", "format"},
    "engine": {"plan", "models", "kv", "tensor", "format", "grammar", "backend_ref", "backend_cpu", "backend_cuda"},
    "front": {"engine", "plan", "models", "kv", "tensor", "format", "text", "grammar", "chat", "hub", "backend_cpu", "backend_cuda"},
    "server": set(),
    "cli": {"server"},
}
# engine reaches backends in its one list only; front reaches the CPU backend's limit probes only; cli reaches the server in its one verb
ONLY_IN = {("engine", "backend_ref"): {"backends.c"}, ("engine", "backend_cpu"): {"backends.c"}, ("engine", "backend_cuda"): {"backends.c"}, ("front", "backend_cpu"): {"lib_bench.c", "lib_limits.c"}, ("front", "backend_cuda"): {"lib_limits.c"},
           ("cli", "server"): {"serve.c"}}
FILE_LINES, HEADER_LINES, FUNCTION_LINES = 1000, 250, 80
EXCEPTIONS = {
    # path (or path:function) : reason
    "src/text/unicode_tables.c": "generated table",
    "include/rhapsode.h": "the public header is one file",
    "src/backend_cpu/linear_tile.h": "the linear kernels' text, included once a level by kernels_<level>_linear.c",
}
BANNED = re.compile(r"(?<![\w.>])(strcpy|strcat|sprintf|gets|atoi|atol|atof|alloca|malloc|calloc|realloc|strtok)\s*\(")
BANNED_ALLOWED = {"src/base/mem.c"}
WORDS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|-march=native|-ffast-math")


def sources():
    for folder in ("src", "include", "tests", "bench", "examples", "scripts", "docs", "cmake"):
        for path, _, names in os.walk(os.path.join(TOP, folder)):
            for name in sorted(names):
                yield os.path.relpath(os.path.join(path, name), TOP)


def check_includes(path, text, bad):
    room = path.split("/")[1]
    if room not in BELOW:
        bad.append(f"{path}: room '{room}' is not in the list of rooms")
        return
    for m in re.finditer(r'#include "([a-z_]+)/([\w.]+)"', text):
        other = m[1]
        if other in (room, "base"):
            continue
        if other not in BELOW[room]:
            bad.append(f"{path}: '{room}' may not include '{other}/{m[2]}'")
        only = ONLY_IN.get((room, other))
        if only and os.path.basename(path) not in only:
            bad.append(f"{path}: only {sorted(only)} of '{room}' may include '{other}/{m[2]}'")
        if other.endswith("_int.h"):
            bad.append(f"{path}: private header of another room")


def check_sizes(path, lines, bad):
    ceiling = HEADER_LINES if path.endswith((".h", ".cuh")) else FILE_LINES
    if len(lines) > ceiling and path not in EXCEPTIONS:
        bad.append(f"{path}: {len(lines)} lines, at most {ceiling}")
    check_functions(path, lines, "", bad)
    if path.endswith((".cu", ".cuh")):  # functions of structs
        check_functions(path, lines, "    ", bad)


def check_functions(path, lines, indent, bad):
    """Functions that begin and end at that indent."""
    start = None
    for i, line in enumerate(lines):
        if not line.startswith(indent):
            continue
        line = line[len(indent):]
        if re.match(r"^[A-Za-z_][^;=]*\([^;]*$", line) and not line.startswith(("typedef", "#", "for ", "if ", "while ", "switch ")):
            start = i
        elif re.match(r"^(static |const |extern )*[\w ]*(struct|enum|union|\w+)[^()]*=? *\{", line) or line.startswith("#define"):
            start = None
        elif line.startswith("}"):
            if start is not None and i - start + 1 > FUNCTION_LINES:
                name = re.sub(r"__launch_bounds__\([^)]*\)", "", lines[start])
                name = re.search(r"(\w+)\s*\(", name)[1]
                if f"{path}:{name}" not in EXCEPTIONS:
                    bad.append(f"{path}:{start + 1}: function {name} has {i - start + 1} lines, at most {FUNCTION_LINES}")
            start = None


def main():
    bad, seen = [], 0
    for path in sources():
        if not path.endswith((".c", ".h", ".cu", ".cuh", ".py", ".md", ".cmake", ".txt", ".sh")) and "." in os.path.basename(path):
            continue
        with open(os.path.join(TOP, path), errors="replace") as f:
            text = f.read()
        lines = text.split("\n")
        seen += 1
        if path != "scripts/structure.py" and not path.startswith("tests/data"):
            for i, line in enumerate(lines):
                if WORDS.search(line):
                    bad.append(f"{path}:{i + 1}: {line.strip()[:100]}")
        if not path.endswith((".c", ".h", ".cu", ".cuh")):
            continue
        if path.startswith("src/"):
            check_includes(path, text, bad)
            if path not in BANNED_ALLOWED:
                for i, line in enumerate(lines):
                    if BANNED.search(line.split("//")[0]) and not line.lstrip().startswith("*"):
                        bad.append(f"{path}:{i + 1}: banned function: {line.strip()[:80]}")
        if path.startswith(("src/", "include/")):
            check_sizes(path, lines, bad)
    for line in bad:
        print(line)
    print(f"{seen - len({b.split(':')[0] for b in bad})} passed, {len({b.split(':')[0] for b in bad})} failed")
    sys.exit(1 if bad else 0)


main()
