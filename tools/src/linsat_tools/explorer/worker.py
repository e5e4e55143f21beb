"""Solving apart from serving: a process that answers one question at a time, and is stopped when it takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from typing import Any

SECONDS_TO_START = 120.0  # importing torch and compiling the kernel for the first time
SECONDS_TO_SOLVE = 5.0
_LONGEST_LINE = 4_000_000


class Worker:
    """Talks to the process; starts it when needed, and again after it was stopped or died.

    Args:
        seconds: how long one answer may take; the process is killed then.
        command: what to start; the default is `linsat_tools.explorer.process`.
    """

    def __init__(self, *, seconds: float = SECONDS_TO_SOLVE, command: list[str] | None = None) -> None:
        self.seconds = seconds
        self.command = command or [sys.executable, "-m", "linsat_tools.explorer.process"]
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and wait until it can solve.

        Raises:
            RuntimeError: it ended, or did not say that it is ready in time.
        """
        if self._process is not None and self._process.returncode is None:
            return
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # problems are small: threads would only wait
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LONGEST_LINE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the server, which then ends this process
        )
        try:
            ready = await self._line(SECONDS_TO_START)
        except TimeoutError:
            ready = b""
        if ready.strip() != b"ready":
            await self.stop()
            raise RuntimeError("the solving process did not start. Fix: run `linsat info` to see what is missing.")

    async def warm_up(self) -> None:
        """Start ahead of the first question, which reports it if that fails."""
        async with self._lock:
            with contextlib.suppress(RuntimeError, OSError):
                await self.start()

    async def ask(self, question: bytes) -> dict[str, Any]:
        """The answer to one question (JSON without line breaks); one at a time, in the order they came."""
        async with self._lock:
            try:
                await self.start()
                return json.loads(await self._exchange(question))
            except TimeoutError:
                await self.stop()
                return {"state": "error", "message": f"stopped: solving took longer than {self.seconds:g} s."}
            except (OSError, ValueError):  # it died: a closed pipe, or an answer cut short
                await self.stop()
                return {"state": "error", "message": "the solving process ended; it is started again."}
            except BaseException:  # the question was withdrawn: its answer must not reach the next one
                await self.stop()
                raise

    async def _exchange(self, question: bytes) -> bytes:
        writer = self._process.stdin if self._process is not None else None
        if writer is None:
            raise OSError("the solving process is gone")
        writer.write(question + b"\n")
        await writer.drain()
        return await self._line(self.seconds)

    async def _line(self, seconds: float) -> bytes:
        reader = self._process.stdout if self._process is not None else None
        if reader is None:
            raise OSError("the solving process is gone")
        try:
            return await asyncio.wait_for(reader.readline(), seconds)
        except asyncio.TimeoutError:  # another class than TimeoutError before Python 3.11
            raise TimeoutError from None

    async def stop(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
