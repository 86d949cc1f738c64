"""check.py [long|fuzz|goldens DIR]: build and run the test steps of a tier, one after the other; the last line counts them all.

A step is a command.  Its result counts are read from its output: `N passed, N failed` lines, ctest's or pytest's summary, or
`N comparisons, N differences`; a step that prints none counts as one test by its exit status.  A failed step's output is shown.
"""
import os
import re
import subprocess
import sys
import time

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE, ASAN, TSAN, FUZZ = (os.path.join(TOP, "build", name) for name in ("release", "asan", "tsan", "fuzz"))
PYTHON = sys.executable
MODELS = os.path.join(TOP, "build", "models")


def counts(output, status):
    """(passed, failed) of a finished step."""
    found = None
    for line in output.splitlines():
        if m := re.search(r"(\d+)% tests passed, (\d+) tests? failed out of (\d+)", line):
            found = (int(m[3]) - int(m[2]), int(m[2]))
        elif m := re.search(r"^(?:\w+: )?(\d+) passed, (\d+) failed", line):
            found = (int(m[1]), int(m[2]))
        elif m := re.search(r"(\d+) (?:comparisons|cells), (\d+) (?:differences|mismatches)", line):
            found = (int(m[1]) - int(m[2]), int(m[2]))
        elif m := re.search(r"=+ (?:(\d+) failed)?,? ?(?:(\d+) passed)?.* in [\d.]+s", line):
            found = (int(m[2] or 0), int(m[1] or 0))
    if found is None:
        return (1, 0) if status == 0 else (0, 1)
    if status and not found[1]:
        return found[0], 1
    return found


class Run:
    def __init__(self):
        self.passed = self.failed = 0
        self.log = os.path.join(TOP, "build", "check.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        open(self.log, "w").close()

    def step(self, name, command, env=None):
        start = time.monotonic()
        done = subprocess.run(command, cwd=TOP, env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        passed, failed = counts(done.stdout, done.returncode)
        self.passed += passed
        self.failed += failed
        with open(self.log, "a") as log:
            log.write(f"==== {name}: {' '.join(command)}\n{done.stdout}\n")
        print(f"{'ok  ' if not failed else 'FAIL'} {name}: {passed} passed, {failed} failed ({time.monotonic() - start:.0f} s)".replace(
            f"{passed} passed, {failed} failed", f"{passed} good, {failed} bad"), flush=True)
        if failed:
            print("\n".join(done.stdout.splitlines()[-60:]), flush=True)
        return not failed

    def build(self, preset, *targets):
        configure = ["cmake", "--preset", preset, "-Wno-dev"]
        build = ["cmake", "--build", "--preset", preset, "--target", *targets]
        return self.step(f"build {preset}", ["bash", "-c", f"{' '.join(configure)} && {' '.join(build)}"])


def fetch(name):
    out = subprocess.run(["scripts/fetch_model", name, MODELS], cwd=TOP, stdout=subprocess.PIPE, text=True)
    return out.stdout.strip() if out.returncode == 0 else None


def tier_check(run, long=False):
    if not run.build("release", "all", "unit_tests"):
        return
    run.step("structure", [PYTHON, "scripts/structure.py"])
    run.step("baseline instructions", [PYTHON, "scripts/check_isa.py", RELEASE])
    run.step("unit", ["ctest", "--test-dir", RELEASE, "-j2", "--output-on-failure", "--timeout", "600"])


def main():
    run = Run()
    what = sys.argv[1] if len(sys.argv) > 1 else "check"
    if what in ("check", "long"):
        tier_check(run, what == "long")
    else:
        sys.exit("usage: ./check [long|fuzz|goldens DIR]")
    print(f"{run.passed} passed, {run.failed} failed")
    sys.exit(1 if run.failed else 0)


main()
