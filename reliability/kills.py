"""Programs killed with SIGKILL at random moments and started again: the end must be that of an undisturbed run.

Every program runs in a separate process, forked from this one so that a start costs no imports; the kill is the
system's, without a chance to tidy up. Half of the kills come at a random moment of the run, the other half at the first
moment after a random one at which a file is being written.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import linsat
from linsat.files import save
from linsat_studies.checkpoints import read_checkpoint
from linsat_studies.matching.config import MatchingConfig
from linsat_studies.matching.config import NetworkConfig as MatchingNetwork
from linsat_studies.portfolio.config import NetworkConfig as PortfolioNetwork
from linsat_studies.portfolio.config import Periods, PortfolioConfig, Rules
from linsat_studies.settings import Plan, to_json
from linsat_studies.tsp.config import NetworkConfig as TourNetwork
from linsat_studies.tsp.config import TourConfig

HALF_WRITTEN = ("*.[0-9]*.part", "*.new")  # what the writers call a file before it is moved into place


@dataclass(frozen=True)
class Program:
    """A command whose result is compared.

    Args:
        command: ``linsat`` or ``linsat-studies``, with its arguments; run again unchanged after a kill.
        result: a folder's result, equal for equal runs.
    """

    name: str
    command: Callable[[Path], list[str]]
    result: Callable[[Path], Any]


@dataclass(frozen=True)
class Trial:
    """One run that was killed once, or could not be because it had ended."""

    program: str
    seconds: float  # after the start
    at_write: bool
    killed: bool
    equal: bool
    left: tuple[str, ...]  # half-written files in the end
    said: str  # by the second start, where it failed


def training_result(folder: Path) -> dict[str, Any]:
    """Everything in the checkpoint and the curve but the time it took."""
    (path,) = folder.rglob("last.pt")
    saved = read_checkpoint(path)
    curve = [json.loads(line) for line in path.with_name("curve.jsonl").read_text().splitlines()]
    for line in (*curve, *saved["curve"]):
        line.pop("seconds")
    return {**{name: value for name, value in saved.items() if name != "seconds"}, "file": curve}


def equal(one: Any, other: Any) -> bool:
    """Whether two results are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def routing(inputs: Path, steps: int) -> Program:
    """Training of the routing study."""
    network = TourNetwork(cities=7, width=16, layers=2, heads=2, hidden=16)
    plan = Plan(steps=steps, every=3, warmup=2, rate=3e-3, average=0.9)
    config = TourConfig(network=network, plan=plan, batch=8, validation=8, beam=4)
    (inputs / "tsp.json").write_text(to_json(config))
    words = ["linsat-studies", "tsp", "train", "--config", str(inputs / "tsp.json"), "--threads", "1", "--folder"]
    return Program("tsp train", lambda folder: [*words, str(folder)], training_result)


def portfolio(inputs: Path, steps: int) -> Program:
    """Training of the portfolio study, with random numbers in every step (dropout)."""
    days = np.arange(np.datetime64("2020-01-01"), np.datetime64("2021-01-01"))
    dates = days[np.is_busday(days)]
    values = 40 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, size=(len(dates), 5)), axis=0))
    lines = [f"{day}," + ",".join(repr(float(value)) for value in row) for day, row in zip(dates, values, strict=True)]
    (inputs / "prices.csv").write_text("\n".join(["date,A,B,C,D,E", *lines]) + "\n")
    config = PortfolioConfig(
        network=PortfolioNetwork("lstm", hidden=8, dropout=0.2),
        periods=Periods("2020-01-01", "2020-09-30", "2020-10-10", "2020-12-31", past=20, future=10),
        rules=Rules(("A", "B"), 0.5),
        plan=Plan(steps=steps, every=3, warmup=2, rate=1e-2, average=0.5),
        batch=8,
    )
    (inputs / "portfolio.json").write_text(to_json(config))
    words = ["linsat-studies", "portfolio", "train", "--predictor", "lstm", "--technique", "layer", "--seeds", "1"]
    words += ["--prices", str(inputs / "prices.csv")]
    words += ["--config", str(inputs / "portfolio.json"), "--out"]
    return Program("portfolio train", lambda folder: [*words, str(folder)], training_result)


def matching(inputs: Path, steps: int) -> Program:
    """Training of the matching study on synthetic point sets."""
    network = MatchingNetwork(kind="ngm", width=8, channels=4, layers=1, rounds=1, dropout=0.2)
    plan = Plan(steps=steps, every=3, warmup=1, rate=5e-3, average=0.5)
    config = MatchingConfig(technique="layer", network=network, plan=plan, batch=4, validated=1)
    (inputs / "matching.json").write_text(to_json(config))
    words = ["linsat-studies", "matching", "train", "--network", "ngm", "--technique", "layer", "--seeds", "1"]
    words += ["--config", str(inputs / "matching.json"), "--out"]
    return Program("matching train", lambda folder: [*words, str(folder)], training_result)


def bulk(inputs: Path, chunks: int) -> Program:
    """Projection of a file."""
    save(linsat.constraints.doubly_stochastic(4), inputs / "set.json")
    np.save(inputs / "scores.npy", np.random.default_rng(0).normal(size=(8 * chunks, 16)).astype(np.float32))
    words = ["linsat", "project", "--constraints", str(inputs / "set.json"), "--scores", str(inputs / "scores.npy")]
    words += ["--chunk", "8", "--resume", "--out"]

    def result(folder: Path) -> Any:
        record = json.loads((folder / "x.npy.json").read_text())
        return (folder / "x.npy").read_bytes(), record

    return Program("linsat project", lambda folder: [*words, str(folder / "x.npy")], result)


def start(program: Program, folder: Path, log: Path, *, limits: Callable[[], None] = lambda: None) -> int:
    """Start the program in a forked process; returns its id. ``limits()`` is called there first."""
    folder.mkdir(parents=True, exist_ok=True)
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with open(log, "w") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        limits()
        code = _run(program.command(folder))
    except BaseException:  # nothing may return into the parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(words: list[str]) -> int:
    from linsat import cli
    from linsat_studies import cli as studies

    # The parent's consoles may write to streams that a test runner has taken away.
    sys.stdout, sys.stderr = io.TextIOWrapper(io.FileIO(1, "w")), io.TextIOWrapper(io.FileIO(2, "w"))
    sys.argv = words
    try:
        (cli.main if words[0] == "linsat" else studies.main)()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def wait(child: int, *, kill_at: float | None = None, writing_in: Path | None = None) -> int | None:
    """The exit code; None where the process was killed at that time (of ``time.monotonic``) or the next write after."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if kill_at is not None and time.monotonic() >= kill_at and (writing_in is None or half_written(writing_in)):
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)


def half_written(folder: Path) -> list[Path]:
    """Files that are being written, or were when their process was killed."""
    return [path for pattern in HALF_WRITTEN for path in folder.rglob(pattern)]


@functools.cache
def warm() -> None:
    """Load here what every started program needs, so that its kills come while it works."""
    import linsat.cli.project
    import linsat_studies.matching.train
    import linsat_studies.portfolio.train
    import linsat_studies.tsp.train  # noqa: F401

    for dtype in (torch.float32, torch.float64):
        linsat.project(torch.zeros(2, 3, dtype=dtype).requires_grad_(), linsat.constraints.simplex(3)).sum().backward()


def undisturbed(program: Program, folder: Path) -> tuple[Any, float]:
    """(result, seconds) of a run that nothing happens to."""
    warm()
    log = folder.with_suffix(".log")
    began = time.monotonic()
    code = wait(start(program, folder, log))
    if code != 0:
        raise RuntimeError(f"{program.name} ended with code {code}: {log.read_text()[-2000:]}")
    return program.result(folder), time.monotonic() - began


def trial(program: Program, folder: Path, expected: Any, seconds: float, rng: random.Random) -> tuple[Trial, float]:
    """Kill one run once, within ``seconds`` of its start; start it again, compare its end with the expected one.

    Returns the trial and how long the first start took, killed or not.
    """
    log = folder.with_suffix(".log")
    at_write, after = rng.random() < 0.5, rng.uniform(0.0, seconds)
    began = time.monotonic()
    code = wait(start(program, folder, log), kill_at=began + after, writing_in=folder if at_write else None)
    took = time.monotonic() - began
    killed = code is None
    if killed:
        code = wait(start(program, folder, log))
    same = code == 0 and equal(program.result(folder), expected)
    left = tuple(path.name for path in half_written(folder))
    said = "" if code == 0 else log.read_text()[-500:]
    return Trial(program.name, round(after, 3), at_write, killed, same, left, said), took


def trials(program: Program, folder: Path, count: int, rng: random.Random) -> list[Trial]:
    """Runs of the program, each in a separate folder, until ``count`` of them were killed; 6 times as many at most.

    A run that ends before its kill shows how long one takes now, on a machine whose load changes.
    """
    undisturbed(program, folder / "warm")  # compiles what is not yet compiled
    expected, seconds = undisturbed(program, folder / "whole")
    found: list[Trial] = []
    while sum(one.killed for one in found) < count and len(found) < 6 * count:
        one, took = trial(program, folder / str(len(found)), expected, seconds, rng)
        found.append(one)
        if not one.killed:
            seconds = took
    return found
