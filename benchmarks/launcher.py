"""Starts each process that measures by a fork from one that has imported torch, which saves that time for each of them.

`Launcher` is the side of `run` and of the arena; the other is this file as a program, which forks, waits, and ends
what takes too long. It never uses torch's threads, so a fork is as good as a fresh process; linsat and the peers are
imported after it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# RAYON is Moreau's, NPROC JAX's.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "NPROC")
_POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code (negative: the signal), whether it ran out of time, its seconds of CPU."""

    code: int
    timed_out: bool
    cpu_s: float


class Launcher:
    """``with Launcher(environment, "worker") as launcher: launcher.run(arguments_of_worker, log=path, timeout=9)``."""

    def __init__(self, environment: Mapping[str, str], module: str) -> None:
        self._environment = dict(environment)
        self._module = module  # has main(arguments)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, arguments: Sequence[str], *, log: Path, timeout: float) -> Ended:
        """Run the module with these arguments to its end, its output in ``log``."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"arguments": list(arguments), "log": str(log), "timeout": timeout}) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline()
        return Ended(**json.loads(answer)) if answer else Ended(process.wait(), False, 0.0)

    def close(self) -> None:
        """End the program and what it is running."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for `run` alone
            )
        return self._process


# ------------------------------------------------------------------ the program


def _serve() -> None:
    import scipy.sparse  # noqa: F401
    import torch  # noqa: F401

    running: list[int] = []

    def stop(*_: object) -> None:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(1)

    signal.signal(signal.SIGTERM, stop)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become_worker(sys.argv[1], order)
        running.append(pid)
        ended = _wait(pid, order["timeout"])
        running.clear()
        print(json.dumps(vars(ended)), flush=True)


def _become_worker(module: str, order: dict) -> None:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for target in (1, 2):
            os.dup2(output, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        importlib.import_module(module).main(order["arguments"])
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _wait(pid: int, timeout: float) -> Ended:
    deadline, timed_out = time.monotonic() + timeout, False
    while True:
        found, status, used = os.wait4(pid, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return Ended(code, timed_out, used.ru_utime + used.ru_stime)
        if not timed_out and time.monotonic() > deadline:
            timed_out = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)  # also where it has no session yet
        time.sleep(_POLL_SECONDS)


if __name__ == "__main__":
    _serve()
