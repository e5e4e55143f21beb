"""Programs killed with SIGKILL at random moments and started again: the end must be that of an undisturbed run.

Every program runs in a separate process, forked from this one so that a start costs no imports; the kill is the
system's, without a chance to tidy up. Half of the kills come at a random moment of the run, the other half at the first
moment after a random one at which a file is being written.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
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

HALF_WRITTEN = ("*.[0-9]*.part", "*.new")  # what the writers call a file before it is moved into place


@dataclass(frozen=True)
class Program:
    """A command whose result is compared.

    Args:
        command: the name and arguments of a command; run again unchanged after a kill.
        result: a folder's result, equal for equal runs.
        modules: loaded before it is started, so that kills come while it works; the ``main`` of the first is called.
    """

    name: str
    command: Callable[[Path], list[str]]
    result: Callable[[Path], Any]
    modules: tuple[str, ...]


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


def equal(one: Any, other: Any) -> bool:
    """Whether two results are the same to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def bulk(inputs: Path, chunks: int) -> Program:
    """Projection of a file."""
    linsat.constraints.doubly_stochastic(4).save(inputs / "set.json")
    np.save(inputs / "scores.npy", np.random.default_rng(0).normal(size=(8 * chunks, 16)).astype(np.float32))
    words = ["linsat", "project", "--constraints", str(inputs / "set.json"), "--scores", str(inputs / "scores.npy")]
    words += ["--chunk", "8", "--resume", "--out"]

    def result(folder: Path) -> Any:
        record = json.loads((folder / "x.npy.json").read_text())
        return (folder / "x.npy").read_bytes(), record

    modules = ("linsat_tools.cli", "linsat_tools.cli.project")
    return Program("linsat project", lambda folder: [*words, str(folder / "x.npy")], result, modules)


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
        code = _run(program, program.command(folder))
    except BaseException:  # nothing may return into the parent's code
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(program: Program, words: list[str]) -> int:
    # The parent's consoles may write to streams that a test runner has taken away.
    sys.stdout, sys.stderr = io.TextIOWrapper(io.FileIO(1, "w")), io.TextIOWrapper(io.FileIO(2, "w"))
    sys.argv = words
    try:
        importlib.import_module(program.modules[0]).main()
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
def warm(modules: tuple[str, ...]) -> None:
    """Load here what a started program needs, so that its kills come while it works."""
    for name in modules:
        importlib.import_module(name)
    for dtype in (torch.float32, torch.float64):
        linsat.project(torch.zeros(2, 3, dtype=dtype).requires_grad_(), linsat.constraints.simplex(3)).sum().backward()


def undisturbed(program: Program, folder: Path) -> tuple[Any, float]:
    """(result, seconds) of a run that nothing happens to."""
    warm(program.modules)
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
