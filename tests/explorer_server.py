"""A running explorer and a headless browser for the tests of the explorer and of pages."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

START = "from linsat.explorer import serve; serve(0, False, announce=lambda line: print(line, flush=True))"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1000",
)


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
        _, errors = process.communicate(timeout=30)
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


@contextlib.contextmanager
def headless_browser(profile: Path) -> Iterator[Any]:
    """Debian's chromium driven by selenium; skips the test where either is missing."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (extra dev)")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("chromium or chromedriver is not installed (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()
