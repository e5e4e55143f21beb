"""A running explorer and a headless browser for the tests of the explorer and of pages."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

START = "from linsat_tools.explorer import serve; serve(0, False, announce=lambda line: print(line, flush=True))"


@contextlib.contextmanager
def running_explorer() -> Iterator[int]:
    """The port of an explorer in a separate process, which is interrupted (Ctrl-C) in the end and must end well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default"}
    process = subprocess.Popen(
        [sys.executable, "-c", START], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        assert found, line + process.stderr.read()
        yield int(found.group(1))
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert (process.returncode, errors) == (0, "")
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


def request(port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Any:
    """One request as it is written, Host included: (status, headers, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()
