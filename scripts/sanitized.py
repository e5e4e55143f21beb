"""``make test-sanitized``: the kernel's tests on a kernel that checks itself.

    python scripts/sanitized.py                      both builds
    python scripts/sanitized.py thread               one of memory, thread
    python scripts/sanitized.py --in-c               only the tests in C, a minute

``memory`` is compiled with gcc's -fsanitize=address,undefined and ``thread`` with -fsanitize=thread, each beside a copy
of the package in a temporary folder, which the tests import. Both variants of the kernel are tested. Only the kernel is
instrumented, not Python and not torch: what the sanitizers say is about the kernel and the memory it was handed. The
tests in C (tests/native) come first: there everything is instrumented, and leaks are found too.
Exit code 0: nothing was found and the tests passed; 1: else; 2: the command was not understood, or there is no gcc.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import c_tests

ROOT = Path(__file__).parents[1]
KERNEL = Path("linsat/native")
FLAGS = "-O2 -g -fno-omit-frame-pointer -fno-sanitize-recover=all -std=gnu11 -fvisibility=hidden -fno-math-errno"
FLAGS += " -fno-trapping-math -Wno-psabi -fPIC -shared"
FILES = [f"tests/test_{name}.py" for name in ("kernel", "kernel_structures", "native_gradients", "concurrency")]
# Not the kernel's: time and memory of the process, which a sanitizer adds to (it keeps freed memory back for a while).
LEFT_OUT = "not first_call_of_a_fresh_process and not batch_that_does_not_fit and not memory_does_not_grow"
# Leaks are those of Python and torch, which free little at exit.
MEMORY = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
# Tests fork while worker threads sleep, and the kernel hires new ones in the child: forbidden unless told otherwise.
THREAD = {"TSAN_OPTIONS": "die_after_fork=0 ignore_noninstrumented_modules=1"}
BUILDS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    "memory": ("address,undefined", ["libasan.so", "libubsan.so"], MEMORY),
    "thread": ("thread", ["libtsan.so"], THREAD),
}


def build(sanitizers: str, folder: Path) -> None:
    """A copy of the package in ``folder`` with a kernel of this kind."""
    shutil.copytree(ROOT / "src" / "linsat", folder / "linsat", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    kernel = folder / KERNEL
    command = ["gcc", *FLAGS.split(), f"-fsanitize={sanitizers}", str(kernel / "core.c")]
    subprocess.run([*command, "-o", str(kernel / "_core.abi3.so"), "-lm", "-lpthread"], check=True)


def test_in_c(kind: str, folder: Path) -> bool:
    """Build and run the tests in C; a sanitizer that finds something ends the program with an exit code of its own."""
    flags = [flag for flag in FLAGS.split() if flag not in ("-fPIC", "-shared")]
    program = c_tests.build(folder, "gcc", *flags, f"-fsanitize={BUILDS[kind][0]}")
    env = {**os.environ, "UBSAN_OPTIONS": "print_stacktrace=1"}
    print(f"\n== {kind}, in C", flush=True)
    codes = [subprocess.run([str(program), *options], env=env, check=False).returncode for options in ([], *c_tests.VARIANTS)]
    print(f"{kind}, in C: {'FAILED' if any(codes) else 'passed'}", flush=True)
    return not any(codes)


def library(name: str) -> str:
    """Where gcc has the run-time library of a sanitizer."""
    return subprocess.run(
        ["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test(kind: str, variant: str, folder: Path, files: list[str]) -> bool:
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
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", LEFT_OUT, *files]
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
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        if kind not in BUILDS:
            parser.error(f"{kind!r} is no build; expected some of {', '.join(BUILDS)}")
    if shutil.which("gcc") is None or platform.system() != "Linux":
        parser.error("there is no gcc here, or no Linux; expected both, for -fsanitize and LD_PRELOAD")
    clean = []
    for kind in arguments.kinds or BUILDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            clean.append(test_in_c(kind, folder))
            if arguments.in_c:
                continue
            build(BUILDS[kind][0], folder)
            clean += [test(kind, variant, folder, arguments.tests) for variant in ("on", "avx2", "plain")]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
