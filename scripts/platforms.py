"""``make test-platforms``: the C core on other platforms, its answers beside those of this machine.

    python scripts/platforms.py                      every platform that can be built and run here
    python scripts/platforms.py aarch64 Windows      some, by name; one that cannot be run is a failure then

The C tests (tests/native) are built by a cross compiler, without warnings, and run by an emulator. Then a fixed list of
problems is solved there and here: statuses are the same, and numbers of solved instances agree to 1e-12, relative to
those above one. Prints one line per platform at the end, and what to install for those left out.
Exit code 0: all passed; 1: something failed; 2: the command was not understood, or there is no compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import c_tests

CLOSE = 1e-12
SOLVED = "0"
# gcc's vectors on the stack of Windows: see platform.h.
UNALIGNED = ("-DLINSAT_UNALIGNED_MOVES", "-Wa,-muse-unaligned-vector-move")
ARM = "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
WINDOWS = "apt-get install gcc-mingw-w64-x86-64 wine wine64"


@dataclass(frozen=True)
class Platform:
    """How to build for it, and how to run what was built."""

    compiler: str
    flags: tuple[str, ...] = ()
    runner: str | None = None
    suffix: str = ""
    libraries: list[str] | None = None
    install: str = ""
    options: list[str] = field(default_factory=list)  # of the program

    def missing(self) -> list[str]:
        """Programs that it needs and that are not here."""
        return [name for name in (self.compiler, self.runner) if name is not None and shutil.which(name) is None]


PLATFORMS = {
    "without AVX-512": Platform("gcc", ("-O3",), options=["--avx2"], install="apt-get install gcc"),
    "without AVX2": Platform("gcc", ("-O3",), options=["--plain"], install="apt-get install gcc"),
    "clang": Platform("clang", ("-O3",), install="apt-get install clang"),
    "aarch64": Platform(
        "aarch64-linux-gnu-gcc", ("-O3", "-static"), "qemu-aarch64", install=ARM, options=["--no-fork"]
    ),
    "Windows": Platform(
        "x86_64-w64-mingw32-gcc", ("-O3", "-static", *UNALIGNED), "wine", ".exe", libraries=[], install=WINDOWS
    ),
    "Windows without AVX2": Platform(
        "x86_64-w64-mingw32-gcc", ("-O3", "-static"), "wine", ".exe", libraries=[], install=WINDOWS
    ),
}


def environment() -> dict[str, str]:
    """Wine keeps its files with what is built here, and says nothing about itself."""
    wine = c_tests.ROOT / "build" / "wine"
    wine.mkdir(parents=True, exist_ok=True)
    return {"WINEPREFIX": str(wine), "WINEDEBUG": "-all", **os.environ}


def compare(here: str, there: str) -> Iterator[str]:
    """What differs between two lists of answers, line by line."""
    ours, theirs = here.splitlines(), there.splitlines()
    if not ours or len(ours) != len(theirs):
        yield f"{len(theirs)} answers, expected {len(ours)}"
        return
    for our, their in zip(ours, theirs, strict=True):
        name, _, numbers = our.rpartition(": ")
        other_name, _, other_numbers = their.rpartition(": ")
        status, *values = numbers.split()
        other_status, *other_values = other_numbers.split()
        if name != other_name or status != other_status or len(values) != len(other_values):
            yield f"{other_name} has status {other_status}, expected {name} with {status}"
        elif status == SOLVED:
            pairs = [(float(a), float(b)) for a, b in zip(values, other_values, strict=True)]
            far = max(abs(a - b) / max(1.0, abs(a)) for a, b in pairs)
            if not far <= CLOSE:
                yield f"{name} differs by {far:.1e}"


def run(platform: Platform, folder: Path, reference: str) -> str:
    """Build, test and compare; what to say about it, which begins with "passed" or "FAILED"."""
    flags = (*platform.flags, "-Werror")
    program = c_tests.build(folder, platform.compiler, *flags, suffix=platform.suffix, libraries=platform.libraries)
    command = [*([platform.runner] if platform.runner else []), str(program)]
    env = environment()
    tests = subprocess.run([*command, *platform.options], env=env, capture_output=True, text=True, check=False)
    last = tests.stdout.strip().splitlines()[-1:] or [f"it ended with {tests.returncode}"]
    if tests.returncode:
        return f"FAILED: {last[0]}\n{tests.stdout}{tests.stderr}"
    answers = subprocess.run(
        [*command, "--answers", *platform.options], env=env, capture_output=True, text=True, check=True
    )
    differences = list(compare(reference, answers.stdout))
    if differences:
        return "FAILED: {}, but answers differ from those here:\n    {}".format(last[0], "\n    ".join(differences))
    return f"passed: {last[0]}; {len(reference.splitlines())} answers agree"


def main() -> int:
    """Read the command line; build, run and compare."""
    parser = argparse.ArgumentParser(prog="python scripts/platforms.py", description=__doc__)
    parser.add_argument("platforms", nargs="*", help=f"of {', '.join(PLATFORMS)}; all without any")
    chosen = parser.parse_args().platforms
    for name in chosen:
        if name not in PLATFORMS:
            parser.error(f"{name!r} is no platform; expected some of {', '.join(PLATFORMS)}")
    own = c_tests.compiler()
    if own is None:
        parser.error("there is no C compiler here to compare with; expected gcc or clang")
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        here = c_tests.build(Path(folder), own, "-O3", suffix="_here")
        reference = subprocess.run([str(here), "--answers"], capture_output=True, text=True, check=True).stdout
        for name in chosen or PLATFORMS:
            missing = PLATFORMS[name].missing()
            if missing:
                said = f"{' and '.join(missing)} not installed ({PLATFORMS[name].install})"
                results[name] = f"FAILED: {said}" if chosen else f"left out: {said}"
                continue
            try:
                results[name] = run(PLATFORMS[name], Path(folder), reference)
            except subprocess.CalledProcessError as error:
                results[name] = f"FAILED: {error.cmd[0]} ended with {error.returncode}"
    for name, result in results.items():
        print(f"{name}: {result}")
    return int(any(result.startswith("FAILED") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
