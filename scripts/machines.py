"""``make test-machines``: the tests that depend on arithmetic, as other processors compute.

    python scripts/machines.py                       every setting
    python scripts/machines.py "kernel off"          one, or some, by name
    python scripts/machines.py --tests tests studies/tests       all tests, in place of those below

A setting is a few environment variables: which instructions torch (ATEN_CPU_CAPABILITY), MKL (MKL_ENABLE_INSTRUCTIONS)
and the kernel (LINSAT_KERNEL) use, and how many threads the tests set (LINSAT_TEST_THREADS). Settings that the
processor cannot run are left out, and said so. Prints one line per setting at the end.
Exit code 0: all passed; 1: something failed; 2: the command was not understood.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
SETTINGS: dict[str, dict[str, str]] = {
    "as it is": {},
    "kernel AVX2": {"LINSAT_KERNEL": "avx2"},
    "kernel plain": {"LINSAT_KERNEL": "plain"},
    "kernel off": {"LINSAT_KERNEL": "off"},
    "torch default": {"ATEN_CPU_CAPABILITY": "default"},
    "torch AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "torch AVX512": {"ATEN_CPU_CAPABILITY": "avx512"},
    "MKL SSE4.2": {"MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "MKL AVX2": {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "4 threads": {"LINSAT_TEST_THREADS": "4"},
}
# None of these is inherited from the caller.
VARIABLES = sorted({name for setting in SETTINGS.values() for name in setting})
TESTS = ["tests/core", "tests/scale", "tests/verdict", "tools/tests/test_cli_project.py"]
DOORS = ("bad_calls", "concurrency", "forward_mode", "graphs", "layers_cases", "transforms")
TESTS += [f"tests/doors/test_{name}.py" for name in DOORS]
TESTS += ["studies/tests/test_training.py", "studies/tests/tsp/test_tsp_model.py"]
LEVELS = ["default", "avx2", "avx512"]  # of torch, each with the instructions of those before it


def environment(setting: dict[str, str]) -> dict[str, str]:
    """The caller's environment with this setting and no other."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES} | setting


def run(setting: dict[str, str], tests: list[str], *options: str) -> subprocess.CompletedProcess:
    """pytest on these files in a separate process; output as the caller's."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *tests]
    return subprocess.run(command, cwd=ROOT, env=environment(setting), check=False)


def capability() -> str:
    """What torch finds here: one of LEVELS."""
    script = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment({}), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def possible(setting: dict[str, str], found: str) -> bool:
    """Whether the processor has the instructions; torch does not check what it is told to use."""
    wanted = setting.get("ATEN_CPU_CAPABILITY", "default")
    if found not in LEVELS:  # another family of processors
        return wanted == "default" and "MKL_ENABLE_INSTRUCTIONS" not in setting
    return LEVELS.index(wanted) <= LEVELS.index(found)


def main() -> int:
    """Read the command line; run the tests under each setting."""
    parser = argparse.ArgumentParser(prog="python scripts/machines.py", description=__doc__)
    parser.add_argument("settings", nargs="*", help=f"of {', '.join(SETTINGS)}; all without any")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders, in place of those of this script")
    arguments = parser.parse_args()
    for name in arguments.settings:
        if name not in SETTINGS:
            parser.error(f"{name!r} is no setting; expected some of {', '.join(SETTINGS)}")
    found, lines, failed = capability(), [], False
    parallel = ("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal")
    for name in arguments.settings or SETTINGS:
        setting = SETTINGS[name]
        said = f"{name:14} {' '.join(f'{key}={value}' for key, value in setting.items()):32}"
        if not possible(setting, found):
            lines.append(f"{said} left out: this processor has {found} only")
            continue
        print(f"\n== {name}", flush=True)
        begin = time.monotonic()
        passed = run(setting, arguments.tests, *parallel).returncode == 0
        failed = failed or not passed
        lines.append(f"{said} {'passed' if passed else 'FAILED'} in {time.monotonic() - begin:.0f} s")
    print("\n" + "\n".join(lines))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
