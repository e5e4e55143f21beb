"""`linsat project`: any file, any chunk, killed at any moment: the same x, bit for bit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("typer")

import linsat
from linsat_tools.cli import main, streaming
from linsat_tools.cli.streaming import Job, run

RNG = np.random.default_rng(0)
COSTS = np.array([3.0, 1.0, 4.0, 1.0, 5.0])
Y = RNG.normal(size=(37, 5))


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path, Path]:
    (linsat.constraints.top_k(5, 2) & linsat.constraints.budget(COSTS, at_most=6.0)).save(tmp_path / "set.json")
    np.save(tmp_path / "y.npy", Y)
    return tmp_path / "set.json", tmp_path / "y.npy", tmp_path / "x.npy"


def _project(files, *more: str) -> int:
    constraints, scores, out = map(str, files)
    try:
        return main(["project", "--constraints", constraints, "--scores", scores, "--out", out, *more])
    except SystemExit as stop:
        return int(stop.code)


def test_the_file_holds_the_projection(files, capsys):
    assert _project(files, "--tau", "0.2", "--chunk", "10") == 0
    x = np.load(files[2])
    expected = linsat.project(
        Y, linsat.constraints.top_k(5, 2) & linsat.constraints.budget(COSTS, at_most=6.0), tau=0.2
    )
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-12)
    assert np.abs(x.sum(1) - 2).max() < 1e-8
    assert (x @ COSTS).max() < 6 + 1e-8
    shown = capsys.readouterr().out
    assert "37 instances" in shown
    assert "37 converged" in shown
    assert "worst violation" in shown


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_every_format_of_scores_gives_the_same(ending, files, capsys):
    other = files[1].with_suffix(f".{ending}")
    if ending == "npz":
        np.savez(other, scores=Y)
    elif ending == "csv":
        np.savetxt(other, Y, delimiter=",", fmt="%.17g")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({f"x{i}": Y[:, i] for i in range(5)}), other)
    assert _project(files) == 0
    assert _project((files[0], other, files[2].with_name("other.npy"))) == 0
    assert files[2].with_name("other.npy").read_bytes() == files[2].read_bytes()


def test_shape_and_dtype_are_kept(files):
    np.save(files[1], Y[:36].reshape(4, 9, 5).astype(np.float32))
    assert _project(files, "--chunk", "7") == 0
    x = np.load(files[2])
    assert (x.shape, x.dtype) == ((4, 9, 5), np.float32)
    assert np.abs(x.sum(-1) - 2).max() < 1e-5


def test_right_sides_of_instances_go_with_their_chunk(files):
    limits = RNG.uniform(3.0, 6.0, (37, 1))
    linsat.constraints.budget(COSTS, at_most=6.0).with_rhs(b=limits).save(files[0])
    assert _project((files[0], files[1], files[2]), "--chunk", "5") == 0
    x = np.load(files[2])
    excess = x @ COSTS - limits[:, 0]
    assert excess.max() < 1e-8
    scores = np.full((37, 5), 50.0)  # wants everything, so that every instance uses its own limit up
    np.save(files[1], scores)
    assert _project(files, "--chunk", "5", "--overwrite") == 0
    np.testing.assert_allclose(np.load(files[2]) @ COSTS, limits[:, 0], atol=0.05)


def test_instances_that_cannot_hold_give_exit_code_1(files, capsys):
    limits = np.where(np.arange(37) % 9 == 4, -1.0, 5.0)[:, None]
    linsat.constraints.budget(COSTS, at_most=6.0).with_rhs(b=limits).save(files[0])
    assert _project(files, "--chunk", "10", "--json") == 1
    summary = json.loads(capsys.readouterr().out)
    assert summary["status"] == {"converged": 33, "infeasible": 4}
    assert summary["instances"] == 37


def test_rows_that_conflict_give_exit_code_1_and_no_file(files, capsys):
    linsat.Constraints(A=COSTS[None], b=-1.0).save(files[0])
    assert _project(files) == 1
    assert "infeasible: The row cannot hold" in capsys.readouterr().err
    assert not files[2].exists()


def _stop_after(monkeypatch, chunks: int, error: BaseException) -> None:
    solve, calls = streaming.solve, []

    def stopping(*arguments, **options):
        calls.append(1)
        if len(calls) > chunks:
            raise error
        return solve(*arguments, **options)

    monkeypatch.setattr(streaming, "solve", stopping)


def test_interrupted_and_resumed(files, monkeypatch, capsys):
    assert _project(files, "--chunk", "4") == 0
    expected = files[2].read_bytes()
    other = (files[0], files[1], files[2].with_name("again.npy"))
    with monkeypatch.context() as patch:
        _stop_after(patch, 3, KeyboardInterrupt())
        assert _project(other, "--chunk", "4") == 130
    capsys.readouterr()
    assert not other[2].exists()
    assert _project(other, "--chunk", "4") == 2  # neither --resume nor --overwrite
    assert "holds 12 of 37 instances of a run that was stopped" in capsys.readouterr().err
    for option, value in (("--tau", "0.3"), ("--chunk", "5")):
        assert _project(other, *(["--chunk", "4"] if option == "--tau" else []), option, value, "--resume") == 2
        assert f"another value of '{option[2:]}'" in capsys.readouterr().err
    np.save(files[1], Y + 1e-12)
    assert _project(other, "--chunk", "4", "--resume") == 2
    assert "another value of 'scores'" in capsys.readouterr().err
    np.save(files[1], Y)
    assert _project(other, "--chunk", "4", "--resume") == 0
    assert other[2].read_bytes() == expected
    assert "37 converged" in capsys.readouterr().out
    assert _project(other, "--chunk", "4", "--resume") == 0  # nothing left to do
    assert _project(other, "--chunk", "4") == 2
    assert "already exists" in capsys.readouterr().err
    linsat.constraints.top_k(5, 2).save(files[0])
    assert _project(other, "--chunk", "4", "--resume") == 2
    assert "another value of 'constraints'" in capsys.readouterr().err


def test_a_full_disk_is_one_line_and_nothing_is_lost(files, monkeypatch, capsys):
    assert _project(files, "--chunk", "4") == 0
    expected = files[2].read_bytes()
    other = (files[0], files[1], files[2].with_name("again.npy"))
    with monkeypatch.context() as patch:
        sync, calls = os.fsync, []

        def full(number: int) -> None:
            calls.append(number)
            if len(calls) == 6:
                raise OSError(28, "No space left on device")
            sync(number)

        patch.setattr(os, "fsync", full)
        assert _project(other, "--chunk", "4") == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1
    assert "the disk is full. 8 of 37 instances are safe" in shown
    assert "--resume" in shown
    assert _project(other, "--chunk", "4", "--resume") == 0
    assert other[2].read_bytes() == expected


KILLS = """
import os, signal, sys, warnings
from pathlib import Path
from linsat_tools.cli.streaming import Job, run

folder, made = Path(sys.argv[1]), 0
def job(name): return Job(folder / "set.json", folder / "y.npy", folder / name, chunk=9, resume=True)
run(job("expected.npy"))
expected = (folder / "expected.npy").read_bytes()

def dies_at(moment):
    \"\"\"A child that kills itself instead of making its n-th call to the disk, and what it wrote until then.\"\"\"
    count = [0]
    def counted(call):
        def wrapper(*arguments, **options):
            if count[0] == moment: os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1
            return call(*arguments, **options)
        return wrapper
    os.fsync, Path.replace, Path.unlink = counted(os.fsync), counted(Path.replace), counted(Path.unlink)
    run(job(f"killed{moment}.npy"))
    os._exit(0)

for moment in range(1000):
    child = os.fork()
    if child == 0:
        dies_at(moment)
    _, code = os.waitpid(child, 0)
    if os.WIFEXITED(code):
        assert os.WEXITSTATUS(code) == 0
        break
    assert os.WTERMSIG(code) == signal.SIGKILL
    record = run(job(f"killed{moment}.npy"))
    assert record.status == {"converged": 37}, record
    assert (folder / f"killed{moment}.npy").read_bytes() == expected, moment
    made += 1
print(made, "kills")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_every_call_to_the_disk_and_resumed(files):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KILLS, str(files[0].parent)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Five chunks, each synced, recorded (synced, replaced, cleaned up), and the first record and the last renaming.
    assert int(done.stdout.split()[0]) >= 20


def test_a_chunk_that_was_half_written_is_written_again(files):
    job = Job(*files, chunk=9, resume=True)
    run(job)
    expected = files[2].read_bytes()
    record = json.loads(job.record.read_text())
    files[2].unlink()
    job.part.write_bytes(expected[: 128 + 9 * 5 * 8] + b"half of the next chunk")
    job.record.write_text(json.dumps(record | {"done": 9, "status": {"converged": 9}}))
    assert run(job).status == {"converged": 37}
    assert files[2].read_bytes() == expected
    job.part.write_bytes(expected[:100])
    job.record.write_text(json.dumps(record | {"done": 9}))
    with pytest.raises(linsat.ConstraintError, match="is shorter than"):
        run(job)
    job.record.write_text('{"made_from": {}, "insta')
    with pytest.raises(linsat.ConstraintError, match="is not the record of a run"):
        run(job)


def test_two_runs_into_one_file_are_refused(files):
    fcntl = pytest.importorskip("fcntl")
    job = Job(*files)
    with open(job.part, "wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(linsat.ConstraintError, match="is being written by another run"):
            run(job)


MEMORY = """
import resource, sys
import numpy as np
from pathlib import Path
from linsat_tools.cli.streaming import Job, run
folder = Path(sys.argv[1])
y = np.lib.format.open_memmap(folder / "small.npy", mode="w+", dtype=np.float32, shape=(100, 2000))
y = np.lib.format.open_memmap(folder / "large.npy", mode="w+", dtype=np.float32, shape=(12500, 2000))
del y
run(Job(folder / "wide.npz", folder / "small.npy", folder / "a.npy", chunk=50))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(Job(folder / "wide.npz", folder / "large.npy", folder / "b.npy", chunk=50))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_memory_does_not_grow_with_the_file(tmp_path):
    pytest.importorskip("resource")
    linsat.constraints.simplex(2000).save(tmp_path / "wide.npz")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 25  # MB, for files of 100 MB in and out


def test_bad_options_and_scores_are_one_line(files, capsys):
    for options, message in (
        (["--tau", "0"], "--tau is 0.0; expected a positive"),
        (["--tau", "nan"], "--tau is nan; expected a positive"),
        (["--chunk", "0"], "--chunk is 0; expected at least one"),
        (["--resume", "--overwrite"], "both given"),
        (["--box", "1", "0"], "box is (1.0, 0.0)"),
    ):
        assert _project(files, *options) == 2
        shown = capsys.readouterr().err
        assert len(shown.splitlines()) == 1
        assert message in shown
    assert _project((files[0], files[1], files[2].with_suffix(".txt"))) == 2
    assert "expected a name that ends in one of .npy, .csv, .parquet" in capsys.readouterr().err
    np.save(files[1], Y[:, :4])
    assert _project(files) == 2
    assert "expected (..., 5): one entry per variable" in capsys.readouterr().err
    spoiled = Y.copy()
    spoiled[31, 2] = np.nan
    np.save(files[1], spoiled)
    assert _project(files, "--chunk", "10") == 2
    assert "instance 31, variable x[2] is nan" in capsys.readouterr().err


def test_the_command_line_takes_shaped_scores(tmp_path, capsys):
    works = linsat.Variable(["Ann", "Bob"], ["Mon", "Tue", "Wed"], name="works")
    cons = linsat.subject_to((works.sum(axis=0) == 1).named("staffed"))
    y = np.random.default_rng(0).normal(size=(50, 2, 3))
    cons.save(tmp_path / "c.json")
    np.save(tmp_path / "y.npy", y)
    words = ["--constraints", "c.json", "--scores", "y.npy", "--out", "x.npy", "--chunk", "7"]
    main(["project", *(str(tmp_path / word) if "." in word else word for word in words)])
    x = np.load(tmp_path / "x.npy")
    np.testing.assert_allclose(x, linsat.project(y, cons), atol=1e-12)
    y[3, 1, 2] = np.nan
    np.save(tmp_path / "y.npy", y)
    with pytest.raises(SystemExit):
        main(["project", *(str(tmp_path / word) if "." in word else word for word in words), "--overwrite"])
    assert "instance 3, variable works[Bob, Wed] is nan" in " ".join(capsys.readouterr().err.split())


def test_the_command_line_takes_each_chunk_with_its_own(tmp_path, capsys):
    A = 1 + torch.rand(7, 1, 3, dtype=torch.float64)
    linsat.Constraints(A=A, b=1.0).save(tmp_path / "set.npz")
    np.save(tmp_path / "y.npy", np.full((7, 3), 50.0))  # wants everything: each instance uses its own row up
    names = {"constraints": "set.npz", "scores": "y.npy", "out": "x.npy"}
    arguments = [part for name, file in names.items() for part in (f"--{name}", str(tmp_path / file))]
    assert main(["project", *arguments, "--chunk", "3", "--tau", "0.01"]) == 0
    np.testing.assert_allclose((A[:, 0].numpy() * np.load(tmp_path / "x.npy")).sum(-1), 1.0, atol=1e-3)
    linsat.Constraints(C=[[[1.0, 1.0]], [[0.25, 0.5]]], d=1.0).save(tmp_path / "set.npz")
    with pytest.raises(SystemExit, match="1"):
        main(["check", str(tmp_path / "set.npz")])
    shown = capsys.readouterr().out
    assert "for instance 1" in shown
    assert "C[0]: 0.25 x[0] + 0.5 x[1] >= 1" in shown
