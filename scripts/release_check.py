"""``make release-check``: the packages as a user gets them.

    python scripts/release_check.py                       everything
    python scripts/release_check.py --torch torch==2.13.0 --where .release

Builds sdist and wheel of linsat, linsat-tools and linsat-studies and checks their metadata. Installs that of linsat
into an empty environment and there, with the sources out of reach, checks the machine, runs the first example of the
README and the core tests that the sdist brings along. Then installs the wheels of the tools and of the studies and runs
their commands. Exit code 0: all passed; 1: something failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["pytest>=8", "hypothesis>=6.100", "cvxpy>=1.5", "clarabel>=0.9", "LinSATNet==0.1.3"]
TESTS = [f"core/test_{name}.py" for name in ("solve", "constraints", "objectives_euclidean", "kernel")]
# Bytes; 663,000 at present: 239,000 core (three instruction sets), 394,000 Python, 30,000 all else; 400,000 is the aim.
LARGEST_WHEEL = 670_000
INSTALLED = """
import sys, linsat
from linsat.native.binding import unavailable
assert linsat.__file__.startswith(sys.prefix), f"{linsat.__file__} is not the installed package"
assert unavailable() is None, f"the wheel has no kernel: {unavailable()}"
"""


def environment(folder: Path) -> Path:
    """An empty environment; returns its Python."""
    venv.create(folder, with_pip=True, clear=True)
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def run(*command: object, cwd: Path = ROOT) -> None:
    """Run a command without this shell's paths to Python code."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    print("$", *command, flush=True)
    subprocess.run(list(map(str, command)), cwd=cwd, env=variables, check=True)


def pip(python: Path, *packages: object) -> None:
    """Install packages."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)


def build(python: Path, package: Path, dist: Path) -> tuple[Path, Path]:
    """The sdist of a package, and the wheel that is built from it."""
    shutil.rmtree(dist, ignore_errors=True)
    run(python, "-m", "build", "--outdir", dist, package)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    run(python, "-m", "twine", "check", "--strict", sdist, wheel)
    return sdist, wheel


def check_content(wheel: Path) -> None:
    """The library alone: no studies, no weights, below `LARGEST_WHEEL`."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    strange = [name for name in names if not name.startswith("linsat/") and ".dist-info/" not in name]
    strange += [name for name in names if name.endswith((".pt", ".npz", ".npy"))]
    if strange:
        raise ValueError(f"{wheel.name} holds {strange[0]}; expected the library alone. Fix: [tool.setuptools].")
    if wheel.stat().st_size > LARGEST_WHEEL:
        raise ValueError(f"{wheel.name} has {wheel.stat().st_size} bytes; expected at most {LARGEST_WHEEL}.")


def unpacked(sdist: Path, where: Path) -> Path:
    """The sdist without its sources, so that only the installed package can be imported."""
    shutil.rmtree(where, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(where)  # our own archive
    (folder,) = where.iterdir()
    shutil.rmtree(folder / "src")
    return folder


def first_example(readme: Path) -> str:
    """The first block of Python code of a document."""
    found = re.search(r"^```python\n(.*?)^```", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{readme} has no block of Python code; expected an example.")
    return found[1]


def check(where: Path, torch: str) -> None:
    """Build, install and test."""
    where.mkdir(parents=True, exist_ok=True)
    tools = environment(where / "build")
    pip(tools, "build", "twine")
    sdist, wheel = build(tools, ROOT, where / "dist")
    check_content(wheel)
    folder = unpacked(sdist, where / "sdist")
    python = environment(where / "installed")
    # torch comes first and alone: a requirement of another package could pull a far larger build.
    pip(python, torch)
    pip(python, wheel)
    run(python, "-W", "error", "-c", INSTALLED, cwd=where)
    run(python, "-W", "error", "-m", "linsat", "check", cwd=where)
    run(python, "-W", "error", "-c", first_example(folder / "README.md"), cwd=where)
    pip(python, *TOOLS)
    run(python, "-m", "pytest", "-p", "no:cacheprovider", *(f"tests/{name}" for name in TESTS), cwd=folder)
    command = python.with_name("linsat")
    for other, asked in (("tools", [command, "warmup"]), ("studies", [python.with_name("linsat-studies"), "--help"])):
        if (ROOT / other / "pyproject.toml").is_file():  # an sdist of linsat does not bring them along
            _, more = build(tools, ROOT / other, where / f"dist-{other}")
            pip(python, more)
            run(*asked, cwd=where)


def main() -> int:
    """Read the command line and check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", default="torch", help="requirement of torch")
    parser.add_argument("--where", type=Path, default=ROOT / ".release", help="folder of the packages and environments")
    arguments = parser.parse_args()
    try:
        check(arguments.where.resolve(), arguments.torch)
    except subprocess.CalledProcessError as error:
        print(f"release-check: FAILED at {' '.join(error.cmd[:6])}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"release-check: FAILED: {error}", file=sys.stderr)
        return 1
    print("release-check: passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
