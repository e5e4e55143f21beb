"""`linsat project` with tables, objectives, soft rows and bounds: against closed forms, and what pyarrow reads back."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("pyarrow.parquet")

import pyarrow as pa
import pyarrow.parquet as pq

from linsat import __version__
from linsat_tools.cli import main, output
from linsat_tools.cli.streaming import Job, run

SET = {"version": 1, "variables": ["a", "b"], "E": [[1, 1]], "f": 1, "names": ["whole"]}


def _command(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as stop:
        return int(stop.code)


def _project(folder: Path, scores: str, out: str, *more: str) -> int:
    paths = ("--constraints", str(folder / "set.json"), "--scores", str(folder / scores), "--out", str(folder / out))
    return _command("project", *paths, *more)


def _write(folder: Path, content: dict, scores: str, name: str = "y.csv") -> None:
    (folder / "set.json").write_text(json.dumps(content))
    (folder / name).write_text(scores, encoding="utf-8")


def _rows(path: Path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def _nearest_on_a_line(a: float, b: float) -> tuple[float, float]:
    """The nearest point of a + b = 1 in the unit box."""
    x = min(1.0, max(0.0, (1 + a - b) / 2))
    return x, 1 - x


def test_the_version(capsys):
    assert _command("--version") == 0
    assert capsys.readouterr().out == f"linsat {__version__}\n"


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_comes_back_with_x_in_place_of_scores(ending, tmp_path):
    _write(tmp_path, SET, 'who,b,note,a\n007,0.25,"x, ""y""",0.75\n8,-2,,3\n')
    assert _project(tmp_path, "y.csv", f"x.{ending}", "--objective", "euclidean") == 0
    if ending == "csv":
        names, *rows = _rows(tmp_path / "x.csv")
        found = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    else:
        found = pq.read_table(tmp_path / "x.parquet").to_pydict()
    assert list(found) == ["who", "b", "note", "a"]
    assert found["who"] == ["007", "8"]
    assert found["note"] == ['x, "y"', ""]
    expected = [_nearest_on_a_line(0.75, 0.25), _nearest_on_a_line(3, -2)]
    assert [float(value) for value in found["a"]] == pytest.approx([x for x, _ in expected], abs=1e-9)
    assert [float(value) for value in found["b"]] == pytest.approx([x for _, x in expected], abs=1e-9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set.json", f"x.{ending}", f"x.{ending}.json", "y.csv"]


def test_ids_of_a_parquet_file_keep_their_types(tmp_path):
    _write(tmp_path, SET, "")
    days = pa.array([1, 2, 3], pa.date32())
    table = pa.table(
        {"b": pa.array([0.0, 0.5, 1.0], pa.float32()), "day": days, "a": pa.array([1, 0, 1], pa.float32())}
    )
    pq.write_table(table, tmp_path / "y.parquet", row_group_size=2)
    assert _project(tmp_path, "y.parquet", "x.parquet", "--objective", "euclidean", "--chunk", "1") == 0
    found = pq.read_table(tmp_path / "x.parquet")
    assert found.schema.types == [pa.float32(), pa.date32(), pa.float32()]
    assert found.column("day").to_pylist() == days.to_pylist()
    assert found.column("a").to_pylist() == pytest.approx([1.0, 0.25, 0.5], abs=1e-6)
    assert _project(tmp_path, "y.parquet", "x.csv", "--objective", "euclidean") == 0
    assert [row[1] for row in _rows(tmp_path / "x.csv")] == ["day", "1970-01-02", "1970-01-03", "1970-01-04"]


def test_numbers_in_a_csv_file_are_exact(tmp_path):
    y = np.random.default_rng(0).normal(size=(500, 2)) * 10.0 ** np.arange(-9, 1).repeat(100).reshape(500, 2)
    _write(tmp_path, SET | {"E": [[1, 1e-6]]}, "")
    np.save(tmp_path / "y.npy", y)
    assert _project(tmp_path, "y.npy", "x.npy") == 0
    assert _project(tmp_path, "y.npy", "x.csv", "--chunk", "77") == 0
    names, *rows = _rows(tmp_path / "x.csv")
    assert names == ["a", "b"]
    assert np.array_equal(np.array(rows, dtype=float), np.load(tmp_path / "x.npy"))


def test_a_set_without_names_takes_columns_in_turn(tmp_path, capsys):
    _write(tmp_path, SET | {"variables": 2}, "id,p,q\nu,1.5,0.5\n")
    assert _project(tmp_path, "y.csv", "x.csv", "--objective", "euclidean") == 2
    assert "scores have shape (1, 3)" in (shown := capsys.readouterr().err)
    assert "--id for each column that holds no scores" in shown
    assert _project(tmp_path, "y.csv", "x.csv", "--objective", "euclidean", "--id", "id") == 0
    names, (who, *x) = _rows(tmp_path / "x.csv")
    assert (names, who) == (["id", "p", "q"], "u")
    assert [float(value) for value in x] == pytest.approx([1, 0], abs=1e-9)
    (tmp_path / "plain.csv").write_text("1.5,0.5\n")
    assert _project(tmp_path, "plain.csv", "z.csv", "--objective", "euclidean") == 0
    names, x = _rows(tmp_path / "z.csv")
    assert names == ["x[0]", "x[1]"]
    assert [float(value) for value in x] == pytest.approx([1, 0], abs=1e-9)


def test_each_objective_is_the_one_it_says(tmp_path):
    """a + b <= 1.9 does not bind: without slack entropy x is a sigmoid, with it the row pushes all the same."""
    _write(tmp_path, SET | {"A": [[1, 1]], "b": 1.9, "E": [], "f": []}, "a,b\n0.2,-0.1\n")
    found = {}
    for objective in ("entropy", "slack-free-entropy", "kl", "tsallis", "euclidean"):
        tau = [] if objective == "euclidean" else ["--tau", "0.5"]
        assert _project(tmp_path, "y.csv", f"{objective}.npy", "--objective", objective, *tau) == 0
        found[objective] = np.load(tmp_path / f"{objective}.npy")[0]
    free = [1 / (1 + math.exp(-score / 0.5)) for score in (0.2, -0.1)]
    assert found["slack-free-entropy"] == pytest.approx(free, abs=1e-9)
    assert found["kl"] == pytest.approx([1.0, math.exp(-0.1 / 0.5)], abs=1e-9)
    entmax = [min(1.0, (0.5 * score / 0.5 + 1 / 1.5) ** 2) for score in (0.2, -0.1)]
    assert found["tsallis"] == pytest.approx(entmax, abs=1e-9)
    assert found["euclidean"] == pytest.approx([0.2, 0.0], abs=1e-12)
    # The paper's slack s of the row has entropy too: x = sigmoid((y + mu) / tau), s = sigmoid of mu on its interval.
    mu = 0.5 * (np.log(found["entropy"] / (1 - found["entropy"]))) - [0.2, -0.1]
    assert mu[0] == pytest.approx(mu[1], abs=1e-8)
    assert mu[0] < -1e-3


def test_a_soft_row_is_broken_at_its_price(tmp_path, capsys):
    content = {"version": 1, "variables": ["a", "b"], "C": [[1, 1], [1, 0]], "d": [3, 2], "names": ["much", "more"]}
    _write(tmp_path, content, "a,b\n0.25,0.5\n0.95,-0.5\n")
    options = ("--objective", "euclidean", "--soften", "much=0.125")
    assert _project(tmp_path, "y.csv", "x.npy", *options) == 1
    assert "infeasible" in capsys.readouterr().err
    assert _project(tmp_path, "y.csv", "x.npy", *options, "--soften", "more=0.25") == 0
    # Neither row can hold, so each pushes with its whole price: x = clip(y + prices of the rows it is in).
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), [[0.625, 0.625], [1.0, 0.0]], atol=1e-9)


def test_bounds_of_one_variable(tmp_path, capsys):
    _write(tmp_path, SET | {"upper": None}, "a,b\n5,0\n")
    assert _project(tmp_path, "y.csv", "x.npy") == 2
    assert "--bound NAME=LOWER:UPPER" in capsys.readouterr().err
    options = ("--objective", "euclidean", "--bound", "a=-1:0.25", "--bound", "b=:9")
    assert _project(tmp_path, "y.csv", "x.npy", *options) == 0
    assert np.load(tmp_path / "x.npy")[0] == pytest.approx([0.25, 0.75], abs=1e-9)
    assert _project(tmp_path, "y.csv", "y.npy", *options[2:]) == 0
    np.save(tmp_path / "low.npy", np.array([[-8.0, 0.0]]))
    assert _project(tmp_path, "low.npy", "x.npy", *options, "--overwrite") == 0
    assert np.load(tmp_path / "x.npy")[0] == pytest.approx([-1.0, 2.0], abs=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--objective", "entropic"), "--objective is 'entropic'; expected one of entropy, slack-free-entropy, kl, "),
        (("--objective", "euclidean", "--tau", "1"), "euclidean has no temperature. Fix: leave it out"),
        (("--soften", "whole"), "--soften is 'whole'; expected NAME=PRICE"),
        (("--soften", "=3"), "--soften is '=3'; expected NAME=PRICE"),
        (("--soften", "whole=much"), "--soften whole=much: 'much' is not a number"),
        (("--soften", "whole=-1"), "--soften whole=-1: price is -1.0; expected a positive"),
        (("--soften", "whol=1"), "No row is named 'whol'. Fix: did you mean 'whole'?"),
        (("--bound", "a"), "--bound is 'a'; expected NAME=LOWER:UPPER"),
        (("--bound", "a=:"), "--bound is 'a=:'; expected NAME=LOWER:UPPER"),
        (("--bound", "a=0:one"), "--bound a=0:one: 'one' is not a number"),
        (("--bound", "a=0:inf"), "--bound a=0:inf: 'inf' is not finite"),
        (("--bound", "c=0:1"), "--bound c=0:1: No variable is named 'c'"),
        (("--bound", "a=2:1"), "--bound a=2:1: lower = 2 is above upper = 1 at a"),
        (("--id", "whom"), "y.csv: No column is named 'whom'. Fix: did you mean 'who'?"),
        (("--id", "a"), "y.csv: --id is 'a', which is a variable of the constraint file"),
    ],
)
def test_bad_options_are_one_line(options, message, tmp_path, capsys):
    _write(tmp_path, SET, "who,a,b\nu,1,2\n")
    assert _project(tmp_path, "y.csv", "x.csv", *options) == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1
    assert message in shown
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,c\n1,2\n", "No column is named 'b'"),
        ("a,a,b\n1,2,3\n", "two columns are named 'a'"),
        ("a,b\n1,2\n3\n", "line 3 has 1 cells; expected 2"),
        ("a,b,id\n1,2,u\n1,two,u\n", "line 3, column 'b' holds 'two'; expected a number"),
        ("a,b\n1,nan\n", "instance 0, variable b is nan"),
    ],
)
def test_bad_tables_are_one_line(text, message, tmp_path, capsys):
    _write(tmp_path, SET, text)
    assert _project(tmp_path, "y.csv", "x.csv") == 2
    shown = capsys.readouterr().err
    assert len(shown.splitlines()) == 1
    assert message in shown


def test_a_column_that_csv_cannot_hold_is_named_before_anything_is_solved(tmp_path, capsys):
    _write(tmp_path, SET, "")
    pq.write_table(pa.table({"a": [1.0], "b": [2.0], "tags": [["p", "q"]]}), tmp_path / "y.parquet")
    assert _project(tmp_path, "y.parquet", "x.csv") == 2
    assert "column 'tags' has type list<" in capsys.readouterr().err
    assert not (tmp_path / "x.csv.part").exists()
    assert _project(tmp_path, "y.parquet", "x.parquet") == 0
    assert pq.read_table(tmp_path / "x.parquet").column("tags").to_pylist() == [["p", "q"]]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_stopped_while_the_table_is_written_and_resumed(ending, tmp_path, monkeypatch):
    lines = "\n".join(f"u{i},{math.sin(i)},{math.cos(i)}" for i in range(40))
    _write(tmp_path, SET, "id,a,b\n" + lines)
    monkeypatch.setattr(output, "_NUMBERS_AT_ONCE", 15)  # five rows
    job = Job(tmp_path / "set.json", tmp_path / "y.csv", tmp_path / f"x.{ending}", chunk=7, resume=True)
    run(job)
    expected = job.out.read_bytes()
    ids = [row[0] for row in _rows(job.out)][1:] if ending == "csv" else pq.read_table(job.out).column(0).to_pylist()
    assert ids == [f"u{i}" for i in range(40)]
    again = Job(job.constraints, job.scores, tmp_path / f"again.{ending}", chunk=7, resume=True)
    with monkeypatch.context() as patch:
        writer, calls = output._writer, []

        def failing(file, out, schema):
            if isinstance(file, io.BytesIO):  # the trial before anything is solved
                return writer(file, out, schema)
            calls.append(1)
            raise OSError(28, "No space left on device")

        patch.setattr(output, "_writer", failing)
        with pytest.raises(OSError, match="the disk is full. 40 of 40 instances are safe"):
            run(again)
        assert calls == [1]
    assert not again.out.exists()
    assert again.part.exists()
    assert run(again).status == {"converged": 40}
    assert again.out.read_bytes() == expected
    assert not again.part.exists()
    assert list(tmp_path.glob("*.new")) == []


class _Killed(BaseException):
    """Raised by every call to the disk from some moment on, cleaning up included, as after SIGKILL."""


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_killed_at_every_call_to_the_disk_and_resumed(ending, tmp_path, monkeypatch):
    lines = "\n".join(f"u{i},{math.sin(i)},{math.cos(i)}" for i in range(20))
    _write(tmp_path, SET, "id,a,b\n" + lines)

    def job(name: str) -> Job:
        return Job(tmp_path / "set.json", tmp_path / "y.csv", tmp_path / f"{name}.{ending}", chunk=7, resume=True)

    run(job("expected"))
    expected = job("expected").out.read_bytes()
    for moment in range(100):
        count = 0

        def counted(call, moment=moment):
            def wrapper(*arguments, **options):
                nonlocal count
                if count >= moment:
                    raise _Killed
                count += 1
                return call(*arguments, **options)

            return wrapper

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", counted(os.fsync))
            patch.setattr(Path, "replace", counted(Path.replace))
            patch.setattr(Path, "unlink", counted(Path.unlink))
            try:
                run(job(f"killed{moment}"))
                break
            except _Killed:
                pass
        assert run(job(f"killed{moment}")).status == {"converged": 20}
        assert job(f"killed{moment}").out.read_bytes() == expected, moment
        left = [path.name for path in tmp_path.iterdir() if path.suffix in (".part", ".new")]
        assert left == []
    # Three chunks, each synced and recorded (synced, replaced, cleaned up); the first record; the table, likewise.
    assert moment == 3 * 4 + 3 + 4
