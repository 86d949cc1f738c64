"""check_isa.py BUILD: no instruction of a wider set outside the kernel files of that set.

Disassembles every object of our rooms except kernels_<level>_*.c of a level other than ref, and fails on any VEX or EVEX
mnemonic (they start with v), which would be an illegal instruction on a baseline machine.
"""
import os
import re
import subprocess
import sys


def main():
    build, bad, seen = sys.argv[1], [], 0
    for path, _, names in os.walk(os.path.join(build, "src")):
        for name in names:
            if not name.endswith(".c.o") or re.match(r"(kernels|probe)_(?!ref)\w+\.c\.o", name):
                continue
            seen += 1
            text = subprocess.run(["objdump", "-d", "--no-show-raw-insn", os.path.join(path, name)], stdout=subprocess.PIPE, text=True).stdout
            wide = re.findall(r"^\s+[0-9a-f]+:\s+(v(?!err|erw|mcall|mlaunch|mmcall)\w+)", text, re.M)
            if wide:
                bad.append(f"{name}: {len(wide)} wide instructions, first {wide[0]}")
    for line in bad:
        print(line)
    print(f"{seen - len(bad)} passed, {len(bad)} failed")
    sys.exit(1 if bad or not seen else 0)


main()
