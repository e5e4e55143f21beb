"""``make test-matrix``: the tests with the oldest supported versions, with the newest, and without any extra.

    python scripts/test_matrix.py                 all three, each in a separate environment under .matrix/
    python scripts/test_matrix.py oldest          one of oldest, newest, core
    python scripts/test_matrix.py oldest --torch torch==2.13.0        another build of torch than the oldest supported

``oldest`` and ``newest`` run the library's tests; ``core`` installs the dependencies only, projects and differentiates,
and looks at what is said where an extra is missing. Prints one line per environment with its versions.
Exit code 0: all passed; 1: something failed; 2: the command was not understood.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ["pytest>=8", "hypothesis>=6.100", "cvxpy>=1.5", "clarabel>=0.9", "LinSATNet==0.1.3"]
# The tests of the library, in an order that finds a wrong version soon; the studies are another package.
TESTS = [
    "core/test_solve.py",
    "core/test_gradients.py",
    "core/test_constraints.py",
    "core/test_families.py",
    "core/test_modelling.py",
    "core/test_kernel.py",
    "core/test_own_numbers.py",
    "verdict/test_infeasible.py",
    "doors/test_bad_calls.py",
    "core/test_decode.py",
    "core/test_sinkhorn.py",
    "core/test_marginals.py",
    "doors/test_transforms.py",
    "doors/test_concurrency.py",
]
VERSIONS = """
import sys, torch, numpy, scipy
print(sys.version.split()[0], *(f"{m.__name__} {m.__version__}" for m in (torch, numpy, scipy)))
"""


def dependencies() -> list[str]:
    """The library's requirements and torch, as pyproject.toml states them."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    lists = [re.search(rf"^{name} = \[(.*?)\]", text, re.MULTILINE | re.DOTALL) for name in ("torch", "dependencies")]
    if None in lists:
        raise ValueError("pyproject.toml lacks the extra torch or dependencies; expected a list of each.")
    return [one for part in lists if part for one in re.findall(r'"([^"]+)"', part.group(1))]


def oldest(requirement: str) -> str:
    """``numpy>=1.26`` as ``numpy==1.26.*``."""
    name, _, version = requirement.partition(">=")
    return f"{name}=={version}.*"


def requirements(kind: str, torch: str | None) -> list[str]:
    """What pip installs, torch first."""
    found = [oldest(one) if kind == "oldest" else one.partition(">=")[0] for one in dependencies()]
    return [torch if torch and one.startswith("torch") else one for one in found]


def prepare(kind: str, torch: str | None, where: Path) -> Path:
    """Make the environment if it is not there; returns its Python."""
    folder = where / kind
    python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        print(f"{kind}: setting up {folder}", flush=True)
        venv.create(folder, with_pip=True)
    needed = requirements(kind, torch)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if kind == "newest":
        pip.append("--upgrade")
    # torch comes first and alone: a requirement of another package could pull a far larger build.
    for group in (needed[:1], needed[1:] + ([] if kind == "core" else TOOLS)):
        subprocess.run([*pip, *group], check=True)
    subprocess.run([*pip, "--no-deps", "--editable", str(ROOT)], check=True)
    return python


def check(kind: str, python: Path, tests: list[str]) -> bool:
    """Run the tests of an environment."""
    versions = subprocess.run([str(python), "-c", VERSIONS], capture_output=True, text=True, check=True).stdout.strip()
    if kind == "core":
        command = [str(python), "-W", "error", str(ROOT / "scripts" / "core_only.py")]
    else:
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += [str(ROOT / "tests" / name) for name in tests]
    passed = subprocess.run(command, cwd=ROOT, check=False).returncode == 0
    print(f"{kind}: {'passed' if passed else 'FAILED'} with Python {versions}", flush=True)
    return passed


def main() -> int:
    """Read the command line; set up and test the environments."""
    kinds = ("oldest", "newest", "core")
    parser = argparse.ArgumentParser(prog="python scripts/test_matrix.py", description=__doc__)
    parser.add_argument("kinds", nargs="*", help="of oldest, newest, core; all without any")
    parser.add_argument("--torch", help="requirement of torch, in place of the oldest or newest")
    parser.add_argument("--where", type=Path, default=ROOT / ".matrix", help="folder of the environments")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="test files, in place of the library's")
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        if kind not in kinds:
            parser.error(f"{kind!r} is no environment; expected some of {', '.join(kinds)}")
    results = []
    for kind in arguments.kinds or kinds:
        try:
            python = prepare(kind, arguments.torch, arguments.where)
        except subprocess.CalledProcessError as error:
            print(f"{kind}: FAILED to install ({' '.join(map(str, error.cmd[-4:]))})", file=sys.stderr)
            results.append(False)
            continue
        results.append(check(kind, python, arguments.tests))
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
