"""The tests of the C core in C (tests/native): built and run here, or wherever else a compiler builds for.

    python scripts/c_tests.py                        with the first of gcc, clang, cc, on this machine

``scripts/sanitized.py``, ``scripts/platforms.py`` and ``tests/native/test_native.py`` build them with other options.
Exit code 0: all passed; 1: something failed; 2: there is no compiler.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
CORE = ROOT / "src" / "linsat" / "native"
FOLDER = ROOT / "tests" / "native"
SOURCES = [FOLDER / name for name in ("test_core.c", "call.c", "fuzz_core.c")]
FLAGS = ["-O1", "-std=gnu11", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"]
FLAGS += ["-Werror=switch"]  # a case that an objective lacks: objective.h
VARIANTS = [["--avx2"], ["--plain"]]  # of the core, besides the one with all instructions of the processor
LIBRARIES = ["-lm", "-lpthread"]


def compiler() -> str | None:
    """A C compiler for this machine that knows vectors as gcc does."""
    return next((name for name in ("gcc", "clang", "cc") if shutil.which(name)), None)


def build(folder: Path, with_compiler: str, *flags: str, suffix: str = "", libraries: list[str] | None = None) -> Path:
    """The program, compiled into ``folder``; later flags win."""
    program = folder / f"test_core{suffix}"
    command = [with_compiler, *FLAGS, *flags, f"-I{CORE}", *map(str, SOURCES), "-o", str(program)]
    subprocess.run([*command, *(LIBRARIES if libraries is None else libraries)], check=True)
    return program


def main() -> int:
    """Build and run."""
    chosen = compiler()
    if chosen is None:
        print("there is no C compiler here; expected gcc or clang", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name), chosen)
        narrow = build(Path(name), chosen, "-DLINSAT_NARROW", suffix="_narrow")  # as on other processors
        runs = [[str(program)], *([str(program), *options] for options in VARIANTS), [str(narrow)]]
        return max(subprocess.run(run, check=False).returncode for run in runs)


if __name__ == "__main__":
    sys.exit(main())
