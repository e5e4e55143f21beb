"""The long runs behind docs/reliability.md: ``python -m fuzz.faults kills|soak|cost|malformed|hostile|native``.

Each prints one line per result and writes all of it, seeds and versions included, to ``fuzz/results/NAME.json``.
Exit code 0: the bar was met; 1: it was missed; 2: the command was not understood.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_GROWTH_MB = 5.0
_MALFORMED = 400


def kills(arguments: argparse.Namespace) -> bool:
    """Kill bulk projection so many times; the bar: results equal."""
    from fuzz import kills as programs

    return killed("kills", [lambda inputs: programs.bulk(inputs, 40)], arguments)


def killed(name: str, makers: list[Callable[[Path], Any]], arguments: argparse.Namespace) -> bool:
    """Kill each program ``arguments.count`` times; whether all ended as if undisturbed. The record has every kill."""
    import torch

    from fuzz import kills as programs

    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    rows: list[dict[str, Any]] = []
    enough = True
    with tempfile.TemporaryDirectory(prefix="linsat-kills-") as folder:
        inputs = Path(folder) / "inputs"
        inputs.mkdir()
        for program in [make(inputs) for make in makers]:
            trials = programs.trials(program, Path(folder) / program.name.replace(" ", "-"), arguments.count, rng)
            rows += [asdict(one) for one in trials]
            ended = [one for one in trials if one.killed]
            equal, writing = sum(one.equal for one in ended), sum(one.at_write for one in ended)
            print(f"{program.name}: {len(ended)} kills ({writing} while writing), {equal} equal", flush=True)
            enough = enough and len(ended) >= arguments.count
    met = enough and all(row["equal"] and not row["left"] for row in rows)
    record(name, arguments, met, {"trials": rows})
    return met


def soak(arguments: argparse.Namespace) -> bool:
    """Project so many instances in a separate process; the bar: memory grows by less than 5 MB."""
    from fuzz import soak as program

    found = program.soak(arguments.count)
    print(
        f"{found['projections']:,} projections in {found['seconds']:.0f} s of processor time, "
        f"resident memory {found['start_mb']:.1f} MB, then {found['growth_mb']:+.1f} MB"
    )
    record("soak", arguments, found["growth_mb"] < _GROWTH_MB, found)
    return found["growth_mb"] < _GROWTH_MB


def cost(arguments: argparse.Namespace) -> bool:
    """Measure what a million projections cost; no bar, the table of docs/scaling.md."""
    from fuzz import cost as program

    lines = program.cost(0.1, arguments.seconds)
    print("| set | variables | rows | s, forward | s, with gradients | GB read and written | MB of a batch of 4,096 |")
    print("|---|---|---|---|---|---|---|")
    for line in lines:
        print(
            f"| {line['case']} | {line['variables']} | {line['rows']} | {line['forward']:.0f} | "
            f"{line['with_gradient']:.0f} | {line['file_gb']:.2f} | {line['batch_mb']:.0f} |"
        )
    record("cost", arguments, True, {"lines": lines})
    return True


def malformed(arguments: argparse.Namespace) -> bool:
    """Run the tests that feed malformed input to every entrance; the bar: 400 inputs, every test passes."""
    tests = [f"tools/tests/{name}.py" for name in ("test_untrusted_input", "test_cli_malformed")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *tests],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
    )
    passed = sorted({line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("PASSED ")})
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    print(f"{len(passed)} malformed inputs rejected in one line, {len(failed)} not")
    met = len(passed) >= _MALFORMED and not failed and done.returncode == 0
    record("malformed", arguments, met, {"passed": passed, "failed": failed})
    return met


def hostile(arguments: argparse.Namespace) -> bool:
    """Send so many hostile requests to a running explorer; the bar: no traceback, and it goes on answering."""
    from fuzz import hostile as program
    from tests.helpers.explorer_server import running_explorer

    with running_explorer() as port:  # which ends with an error where the explorer wrote one
        replies = program.asked(port, arguments.count, arguments.seed)
        odd = [asdict(reply) for reply in replies if reply.odd]
        print(f"{len(replies)} hostile requests, {len(odd)} with an odd answer", *odd, sep="\n", flush=True)
    record("hostile", arguments, not odd, {"replies": [asdict(reply) for reply in replies]})
    return not odd


def native(arguments: argparse.Namespace) -> bool:
    """Make so many random and hostile calls of the core in C under each sanitizer; the bar: clean."""
    found: dict[str, Any] = {}
    for kind in arguments.kinds:
        words = ["scripts/sanitized.py", kind, "--in-c", "--calls", str(arguments.count), "--seed", str(arguments.seed)]
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE.parent,
            check=False,
        )  # progress goes to stderr; what is done already is kept, and the same command goes on
        *_, statuses, calls, verdict = ["", "", "", *done.stdout.strip().splitlines()]
        clean = done.returncode == 0 and calls.endswith(" 0 promises broken")
        found[kind] = {
            "clean": clean,
            "calls": calls,
            "instances": statuses,
            "seconds": round(time.monotonic() - began),
        }
        print(done.stdout[-2000:] if not clean else f"{calls} ({statuses}); {verdict}", flush=True)
    met = all(one["clean"] for one in found.values())
    record("native", arguments, met, {"sanitizers": found})
    return met


def record(name: str, arguments: argparse.Namespace, met: bool, content: dict[str, Any]) -> None:
    """Write a result with what it was made with."""
    import numpy
    import scipy
    import torch

    import linsat

    made_with = {
        "linsat": linsat.__version__,
        "python": sys.version.split()[0],
        **{module.__name__: module.__version__ for module in (torch, numpy, scipy)},
        "processors": os.cpu_count(),
    }
    program = "-m fuzz.faults" if Path(sys.argv[0]).stem == "faults" else os.path.relpath(sys.argv[0], HERE.parent)
    given = {key: value for key, value in vars(arguments).items() if key != "run"}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(
        {
            "command": " ".join(["python", program, *sys.argv[1:]]),
            "finished": time.strftime("%Y-%m-%d %H:%M"),
            "met": met,
            "arguments": given,
            "made_with": made_with,
            **content,
        },
        indent=1,
    )
    (RESULTS / f"{name}.json").write_text(text + "\n")


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.faults", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="name")
    counts = ((kills, 40), (soak, 1_000_000), (cost, None), (malformed, None), (hostile, 100), (native, 1_000_000))
    for function, count in counts:
        one = commands.add_parser(function.__name__, help=function.__doc__)
        one.set_defaults(run=function)
        if count is not None:
            one.add_argument("--count", type=int, default=count)
        one.add_argument("--seed", type=int, default=0)
        if function is native:
            one.add_argument("--kinds", nargs="+", default=["memory", "thread"], help="of memory, thread")
        if function is cost:
            one.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    arguments = parser.parse_args()
    return 0 if arguments.run(arguments) else 1


if __name__ == "__main__":
    sys.exit(main())
