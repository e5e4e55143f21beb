"""Compiled code of the studies on disk: unwritable folders, full disks and damaged files cost time, never a result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest

from linsat_studies import compiled

# A module of its own, so that its code is compiled in a folder of its own; and a program that uses it.
MODULE = """
from linsat_studies.compiled import compiled
@compiled(nogil=True)
def total(values):
    result = 0.0
    for i in range(values.size):
        result += values[i] * (i + 1)
    return result
"""
PROGRAM = """
import sys, numpy, warnings
import sums
print(sums.total(numpy.arange(5.0)), sum(sums.total.stats.cache_hits.values()))
"""


@pytest.fixture
def sums(tmp_path, monkeypatch):
    """A folder with the module; numba keeps compiled code in ``cache`` beside it."""
    (tmp_path / "sums.py").write_text(MODULE)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("sums", None)


def _python(script: str, folder: Path, before: str = "", **more: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}
    return subprocess.run([sys.executable, "-c", before + script], env=env, capture_output=True, text=True, timeout=300)


def _compiled(folder: Path, before: str = "") -> tuple[float, int]:
    """Run the program; its result and whether the code came from the disk (1) or was compiled (0)."""
    done = _python(PROGRAM, folder, before)
    assert done.returncode == 0, done.stderr
    number, hits = done.stdout.split()
    return float(number), int(hits)


EXPECTED = float(sum(i * (i + 1) for i in range(5)))


def _kept(folder: Path) -> Path:
    (path,) = folder.rglob("*.kept")
    return path


def test_damaged_files_are_compiled_anew_and_replaced(sums):
    from sums import total  # in this process: what damage does to a file is seen by loading it again

    assert total(np.arange(5.0)) == EXPECTED
    path = _kept(sums)
    good = path.read_bytes()
    damages = {
        "empty": b"",
        "cut off": good[: len(good) // 2],
        "one bit": good[:-100] + bytes([good[-100] ^ 1]) + good[-99:],
        "other content": b"x" * len(good),
        "longer": good + b"\0",
    }
    files = total._cache._cache_file
    (key,) = [total._cache._index_key(signature, total.targetctx.codegen()) for signature in total.signatures]
    assert files.load(key) is not None
    for name, content in damages.items():
        path.write_bytes(content)
        assert files.load(key) is None, name
    assert _compiled(sums) == (EXPECTED, 0)  # compiled, and the damaged file replaced
    assert _compiled(sums) == (EXPECTED, 1)


def test_half_written_files_of_a_killed_process_do_no_harm(sums):
    kill = (
        "import os, pathlib, signal\n"
        "pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"  # killed as the file is complete
    )
    assert _python(PROGRAM, sums, kill).returncode == -9
    assert list(sums.rglob("*.kept")) == []
    assert _compiled(sums) == (EXPECTED, 0)
    assert _compiled(sums) == (EXPECTED, 1)


def test_a_full_disk_costs_only_time(sums):
    full = (
        "import resource, signal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
    )
    after = "from linsat_studies import compiled; print(compiled._told)\n"
    done = _python(PROGRAM + after, sums, full)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{EXPECTED} 0")
    assert "File too large" in done.stdout
    assert list(sums.rglob("*.kept")) + list(sums.rglob("*.part")) == []


# As root every folder can be written: numba is told of folders that do not exist and cannot be made.
NOWHERE = (
    "import numba.core.caching as caching\n"
    "def nowhere(self): raise PermissionError(13, 'Permission denied')\n"
    "caching._CacheLocator.ensure_cache_path = nowhere\n"
)


def test_no_folder_that_can_be_written(sums):
    assert _compiled(sums, NOWHERE) == (EXPECTED, 0)


def test_the_compiled_code_of_the_studies_needs_no_folder_either(sums):
    program = (
        "import numpy\nfrom linsat_studies.tsp.distances import path_length\n"
        "print(path_length(numpy.array([[0.0, 5, 9], [5, 0, 1], [9, 1, 0]]), numpy.array([0, 1, 2])))\n"
    )
    done = _python(program, sums, NOWHERE)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 6.0


def test_what_is_not_kept_is_told_once(monkeypatch):
    monkeypatch.setattr(compiled, "_told", [])
    with pytest.warns(UserWarning, match="every process compiles it anew.*Fix: .*NUMBA_CACHE_DIR"):
        compiled.not_kept("no folder for it can be written")
    compiled.not_kept("no folder for it can be written")  # warnings are errors here
