"""``make test-sanitized``: the kernel's tests on a kernel that checks itself.

    python scripts/sanitized.py                      both builds
    python scripts/sanitized.py thread               one of memory, thread
    python scripts/sanitized.py --in-c               only the tests in C, a minute
    python scripts/sanitized.py --in-c --calls 1000000 --seed 7     goes on where it was interrupted

``memory`` is compiled with gcc's -fsanitize=address,undefined and ``thread`` with -fsanitize=thread, each beside a copy
of the package in a temporary folder, which the tests import. Both variants of the kernel are tested. Only the kernel is
instrumented, not Python and not torch: what the sanitizers say is about the kernel and the memory it was handed. The
tests in C (tests/native) come first: there everything is instrumented, and leaks are found too.

The thread sanitizer of gcc 12 and before ends every child of a process with threads that starts another. Where
gcc does that, clang builds the tests in C, one of which is such a child; Python, into which clang's sanitizer cannot be
loaded, is tested without those that fork, and says so.
Exit code 0: nothing was found and the tests passed; 1: else; 2: the command was not understood, or no compiler will do.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import c_tests

ROOT = Path(__file__).parents[1]
KERNEL = Path("linsat/native")
FLAGS = "-O2 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -std=gnu11 -fvisibility=hidden -fno-math-errno"
FLAGS += " -fno-trapping-math -Wno-psabi -fPIC -shared"
FILES = [f"tests/core/test_{name}.py" for name in ("kernel", "kernel_structures", "native_gradients")]
FILES += ["tests/doors/test_concurrency.py"]
# Not the kernel's: time and memory of the process, which a sanitizer adds to (it keeps freed memory back for a while).
LEFT_OUT = "not first_call_of_a_fresh_process and not batch_that_does_not_fit and not memory_does_not_grow"
# Leaks are those of Python and torch, which free little at exit.
MEMORY = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
# Tests fork while worker threads sleep, and the kernel hires new ones in the child: forbidden unless told otherwise.
THREAD = {"TSAN_OPTIONS": "die_after_fork=0 ignore_noninstrumented_modules=1"}
FORKS = " and not fork and not data_loader"
# A thread sleeps, the process forks, and the child starts a thread.
PROBE = """
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
static void *asleep(void *none) { pause(); return none; }
static void *awake(void *none) { return none; }
int main(void) {
    pthread_t thread;
    int status = 1;
    if (pthread_create(&thread, NULL, asleep, NULL)) return 1;
    const pid_t child = fork();
    if (!child) _exit(pthread_create(&thread, NULL, awake, NULL) || pthread_join(thread, NULL));
    return waitpid(child, &status, 0) != child || status;
}
"""
_AT_ONCE, _LINE_EVERY = 5_000, 10.0  # calls, and seconds between two lines of progress
BUILDS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "memory": ("address,undefined", ["libasan.so", "libubsan.so"], MEMORY),
    "thread": ("thread", ["libtsan.so"], THREAD),
}


def lets_children_start_threads(compiler: str, kind: str) -> bool:
    """Whether the sanitizer of a compiler is there, and can run what the tests do."""
    if shutil.which(compiler) is None:
        return False
    with tempfile.TemporaryDirectory() as name:
        source, program = Path(name, "probe.c"), Path(name, "probe")
        source.write_text(PROBE)
        command = [compiler, f"-fsanitize={BUILDS[kind][0]}", str(source), "-o", str(program), "-lpthread"]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        env = {**os.environ, **BUILDS[kind][2]}
        return subprocess.run([program], env=env, capture_output=True, check=False).returncode == 0


def build(sanitizers: str, folder: Path) -> None:
    """A copy of the package in ``folder`` with a kernel of this kind."""
    shutil.copytree(ROOT / "src" / "linsat", folder / "linsat", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    kernel = folder / KERNEL
    command = ["gcc", *FLAGS.split(), f"-fsanitize={sanitizers}", str(kernel / "core.c")]
    subprocess.run([*command, "-o", str(kernel / "_core.abi3.so"), "-lm", "-lpthread"], check=True)


def test_in_c(compiler: str, kind: str, folder: Path, calls: int, seed: int) -> bool:
    """Build and run the tests in C; a sanitizer that finds something ends the program with another exit code."""
    flags = [flag for flag in FLAGS.split() if flag not in ("-fPIC", "-shared")]
    program = c_tests.build(folder, compiler, *flags, f"-fsanitize={BUILDS[kind][0]}")
    env = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1", **THREAD}
    print(f"\n== {kind}, in C, {compiler}", flush=True)
    codes = [
        subprocess.run([str(program), *options], env=env, check=False).returncode for options in ([], *c_tests.VARIANTS)
    ]
    codes.append(fuzz(program, env, calls, f"{kind}-{seed}-{calls}", seed))
    print(f"{kind}, in C: {'FAILED' if any(codes) else 'passed'}", flush=True)
    return not any(codes)


def fuzz(program: Path, env: dict[str, str], calls: int, name: str, seed: int) -> int:
    """So many random and hostile calls, some at a time; what is done is kept in out/native/ for the same sources."""
    kept, digest = ROOT / "out" / "native" / f"{name}.json", hashlib.sha256()
    for path in sorted([*c_tests.CORE.glob("*.[ch]"), *c_tests.FOLDER.glob("*.[ch]")]):
        digest.update(path.read_bytes())
    done, broken, statuses, of = 0, 0, Counter[str](), digest.hexdigest()
    if kept.exists() and (state := json.loads(kept.read_text()))["sources"] == of:
        done, broken, statuses = state["done"], state["broken"], Counter(state["statuses"])
        print(f"going on after {done:,} calls", file=sys.stderr)
    began, first, said = time.monotonic(), done, 0.0
    while done < calls:
        count = min(_AT_ONCE, calls - done)
        command = [str(program), "--fuzz", str(count), str(seed), str(done)]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        lines = ran.stdout.strip().splitlines()
        if ran.returncode not in (0, 1) or len(lines) < 2:
            print(ran.stdout[-2000:], ran.stderr[-8000:], f"of {' '.join(command[1:])}", sep="\n", flush=True)
            return ran.returncode or 1
        print(*lines[:-2], sep="\n", end="\n" if lines[:-2] else "", flush=True)
        statuses.update({status: int(n) for status, _, n in (part.rpartition(" ") for part in lines[-2].split(", "))})
        done, broken = done + count, broken + int(lines[-1].split()[2])
        kept.parent.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        part.write_text(json.dumps({"sources": of, "done": done, "broken": broken, "statuses": statuses}))
        part.replace(kept)
        now = time.monotonic()
        if now - said > _LINE_EVERY:
            said, left = now, (now - began) / (done - first) * (calls - done)
            print(
                f"{done / calls:4.0%}  {done:,} calls, {broken} promises broken, {left / 60:.0f} min left",
                file=sys.stderr,
            )
    print(", ".join(f"{status} {n}" for status, n in statuses.items()))
    print(f"{done} calls, {broken} promises broken", flush=True)
    kept.unlink(missing_ok=True)
    return broken > 0


def library(name: str) -> str:
    """Where gcc has the run-time library of a sanitizer."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test(kind: str, variant: str, folder: Path, files: list[str], left_out: str) -> bool:
    """Run the tests; whether they passed and the sanitizer, which writes files, had nothing to say."""
    _, preloaded, options = BUILDS[kind]
    reports = folder / "reports" / variant
    reports.mkdir(parents=True)
    path = os.pathsep.join([str(folder), str(ROOT / "studies" / "src")])
    env = {
        **os.environ,
        "PYTHONPATH": path,
        "LD_PRELOAD": " ".join(map(library, preloaded)),
        "LINSAT_KERNEL": variant,
        "LINSAT_TEST_THREADS": "4" if kind == "thread" else "1",
        **{name: f"{value} log_path={reports / 'report'}" for name, value in options.items()},
    }
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", left_out, *files]
    used = "import linsat, linsat.native.binding as n; print(linsat.__file__, n.load().instructions)"
    found = subprocess.run([sys.executable, "-c", used], env=env, capture_output=True, text=True, check=True).stdout
    if not found.startswith(str(folder)):
        raise RuntimeError(f"the tests would import {found}; expected the copy in {folder}.")
    print(f"\n== {kind}, {found.split()[-1]}", flush=True)
    passed = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode == 0
    said = [path.read_text(errors="replace") for path in sorted(reports.iterdir())]
    print("\n".join(said))
    print(f"{kind}, LINSAT_KERNEL={variant}: tests {'passed' if passed else 'FAILED'}, {len(said)} reports", flush=True)
    return passed and not said


def main() -> int:
    """Read the command line; build and test."""
    parser = argparse.ArgumentParser(prog="python scripts/sanitized.py", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="of memory, thread; both without any")
    parser.add_argument("--tests", nargs="+", default=FILES, help="test files, in place of the kernel's")
    parser.add_argument("--in-c", action="store_true", help="only the tests in C")
    parser.add_argument("--calls", type=int, default=20_000, help="random and hostile calls in C (default 20000)")
    parser.add_argument("--seed", type=int, default=1, help="of the calls in C (default 1)")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        if kind not in BUILDS:
            parser.error(f"{kind!r} is no build; expected some of {', '.join(BUILDS)}")
    if shutil.which("gcc") is None or platform.system() != "Linux":
        parser.error("there is no gcc here, or no Linux; expected both, for -fsanitize and LD_PRELOAD")
    clean = []
    for kind in arguments.kinds or BUILDS:
        able = [compiler for compiler in ("gcc", "clang") if lets_children_start_threads(compiler, kind)]
        if not able:
            parser.error(f"gcc's {kind} sanitizer does not let a child start threads. Fix: apt-get install clang")
        left_out = LEFT_OUT if able[0] == "gcc" else LEFT_OUT + FORKS
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            clean.append(test_in_c(able[0], kind, folder, arguments.calls, arguments.seed))
            if arguments.in_c:
                continue
            if left_out != LEFT_OUT:
                print(f"\n{kind}, in Python: without tests that fork, which gcc's sanitizer here ends", flush=True)
            build(BUILDS[kind][0], folder)
            clean += [test(kind, variant, folder, arguments.tests, left_out) for variant in ("on", "avx2", "plain")]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
