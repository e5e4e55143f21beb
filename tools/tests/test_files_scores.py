"""Score files: chunks of any size, from any instance on, are the rows that numpy reads."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest

import linsat
from linsat_tools import tables
from linsat_tools.scores import open_scores

Y = np.random.default_rng(0).normal(size=(23, 5))


def _write(path, kind: str) -> np.ndarray:
    """Write Y in some way; returns what must come out, as numpy reads it."""
    if kind == "npy":
        np.save(path, Y)
    elif kind == "npy float32 big-endian":
        np.save(path, Y.astype(">f4"))
        return Y.astype(np.float32)
    elif kind == "npy fortran":
        np.save(path, np.asfortranarray(Y))
    elif kind == "npz":
        np.savez(path, scores=Y, other=np.ones(3))
    elif kind == "npz compressed":
        np.savez_compressed(path, anything=Y)
    elif kind == "csv":
        pytest.importorskip("pyarrow")
        np.savetxt(path, Y, delimiter=",", fmt="%.17g")
    elif kind == "csv with names":
        pytest.importorskip("pyarrow")
        text = "\n".join([",".join("abcde"), *(",".join(map(repr, row.tolist())) for row in Y)])
        path.write_text(text.replace("\n", "\r\n\r\n"), encoding="utf-8-sig")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        wanted = np.float32 if "float32" in kind else np.float64
        table = pyarrow.table({name: Y[:, i].astype(wanted) for i, name in enumerate("abcde")})
        parquet.write_table(table, path, row_group_size=7)
        return Y.astype(wanted)
    return Y


KINDS = (
    *("npy", "npy float32 big-endian", "npy fortran", "npz", "npz compressed", "csv", "csv with names"),
    *("parquet", "parquet float32"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_are_the_rows(kind, tmp_path):
    path = tmp_path / f"scores.{kind.split()[0]}"
    expected = _write(path, kind)
    scores = open_scores(path)
    assert scores.shape == (23, 5)
    assert scores.instances == 23
    assert scores.dtype == expected.dtype
    assert scores.columns == (tuple("abcde") if "names" in kind or "parquet" in kind else None)
    for start in (0, 1, 8, 22, 23):
        for size in (1, 4, 7, 23, 100):
            chunks = list(scores.read(start, size))
            assert [len(chunk) for chunk in chunks[:-1]] == [size] * (len(chunks) - 1)
            joined = np.concatenate(chunks) if chunks else np.zeros((0, 5))
            assert np.array_equal(joined, expected[start:])
    assert scores.digest() == hashlib.sha256(path.read_bytes()).hexdigest()


def test_leading_dimensions_are_kept(tmp_path):
    np.save(tmp_path / "y.npy", Y[:20].reshape(4, 5, 5))
    scores = open_scores(tmp_path / "y.npy")
    assert (scores.shape, scores.instances) == ((4, 5, 5), 20)
    assert np.array_equal(np.concatenate(list(scores.read(3, 6))), Y[3:20])
    np.save(tmp_path / "one.npy", Y[0])
    assert open_scores(tmp_path / "one.npy").instances == 1


def _bytes_of(array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


BAD = {
    "cut.npy": (_bytes_of(Y)[:-8], "It is cut off"),
    "junk.npy": (b"\x00\xff" * 40, "not a numpy array"),
    "empty.npy": (b"", "not a numpy array"),
    "whole.npy": (_bytes_of(np.arange(6).reshape(2, 3)), "dtype int64; expected floating scores"),
    "object.npy": (_bytes_of(np.array([[None]])), "dtype object"),
    "scalar.npy": (_bytes_of(np.array(1.0)), "no dimension"),
    "nothing.npy": (_bytes_of(np.zeros((0, 3))), "at least one instance"),
    "cube.npy": (_bytes_of(np.asfortranarray(np.zeros((2, 3, 4)))), "Fortran order"),
    "junk.npz": (b"PK\x03\x04" + b"\x07" * 50, "not a complete .npz archive"),
    "empty.csv": (b"", "the file is empty"),
    "binary.csv": (b"\xff\xfe\x00\x01", "not comma-separated text"),
    "no names.csv": (b"u1,0.5,0.25\nu2,0.5,0.5\n", "line 1 holds words and the number 0.5"),
    "twice.csv": (b"a,b,a\n1,2,3\n", "two columns are named 'a'"),
    "junk.parquet": (b"PAR1 and nothing else", "not a parquet file"),
    "scores.txt": (b"1,2", "ends in '.txt'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(name, tmp_path):
    if name.endswith(("csv", "parquet")):
        pytest.importorskip("pyarrow")
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(linsat.ConstraintError, match=message) as caught:
        open_scores(tmp_path / name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_lines_are_named(tmp_path):
    pytest.importorskip("pyarrow")
    for text, message in (
        ("1,2\n3,4\n5\n", "line 3 has 1 cells; expected 2"),
        ("1,2\n\n3,oops\n", "line 3, column 2 holds 'oops'; expected a number"),
        ("1,2\n3,\n", "line 2, column 2 holds ''; expected a number"),
        ("a,b\n1,2\n1_0,2\n", "line 3, column 'a' holds '1_0'; expected a number"),
    ):
        (tmp_path / "y.csv").write_text(text)
        with pytest.raises(linsat.ConstraintError, match=message):
            list(open_scores(tmp_path / "y.csv").read(0, 10))


def test_parquet_refuses_other_columns_and_gaps(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"a": [1.0], "name": ["x"]}), tmp_path / "text.parquet")
    with pytest.raises(linsat.ConstraintError, match="column 'name' has type string.*--id"):
        open_scores(tmp_path / "text.parquet")
    parquet.write_table(pyarrow.table({"a": [1.0, None]}), tmp_path / "gap.parquet")
    with pytest.raises(linsat.ConstraintError, match="column 'a' has missing values"):
        list(open_scores(tmp_path / "gap.parquet").read(0, 10))


def test_a_missing_file_and_a_folder_are_told_apart(tmp_path):
    with pytest.raises(linsat.ConstraintError, match="does not exist"):
        open_scores(tmp_path / "y.npy")
    (tmp_path / "y.npy").mkdir()
    with pytest.raises(linsat.ConstraintError, match="is not a regular file"):
        open_scores(tmp_path / "y.npy")


def test_columns_are_chosen_by_name_and_others_passed(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "y.csv"
    path.write_text('who,b,note,a\n007,1.5,"two, lines\nof text",2.5\n8,-1,,0\n', encoding="utf-8")
    scores = open_scores(path, variables=("a", "b"))
    assert scores.columns == ("a", "b")
    assert np.concatenate(list(scores.read(0, 1))).tolist() == [[2.5, 1.5], [0.0, -1.0]]
    assert scores.table.names == ("who", "b", "note", "a")
    (passed,) = scores.table.passed((0, 2), 10)
    assert passed.column(0).to_pylist() == ["007", "8"]
    assert passed.column(1).to_pylist() == ["two, lines\nof text", ""]
    assert passed.column(0).type == arrow.string()
    unnamed = open_scores(path, ids=("note", "who"))
    assert unnamed.columns == ("b", "a")


def test_lines_longer_than_a_block_are_read(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(tables, "_BLOCK", 64)
    wide = np.random.default_rng(1).normal(size=(3, 40))
    path = tmp_path / "y.csv"
    path.write_text("\n".join(",".join(map(repr, row)) for row in wide.tolist()))
    assert np.array_equal(np.concatenate(list(open_scores(path).read(0, 2))), wide)


def test_a_csv_file_is_not_held_in_memory(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "y.csv"
    line = ",".join(["0.123456789"] * 50) + "\n"
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(130):
            file.write(line * 1000)  # 78 MB
    pool = arrow.system_memory_pool()
    before = arrow.default_memory_pool()
    arrow.set_memory_pool(pool)  # counts from zero
    try:
        scores = open_scores(path)
        assert sum(len(piece) for piece in scores.read(0, 5000)) == scores.instances == 130_000
        assert pool.max_memory() < 50 * 2**20
    finally:
        arrow.set_memory_pool(before)
