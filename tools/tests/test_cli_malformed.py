"""`linsat check` on files that are broken in every way we could think of: one line, exit code 2, no traceback."""

from __future__ import annotations

import io
import json
import struct
import zipfile

import numpy as np
import pytest

pytest.importorskip("typer")

from linsat_tools.cli import main

GOOD = {"version": 1, "variables": 2, "A": [[1, 2]], "b": [3]}
LP = "Minimize\n obj: x + y\nSubject To\n c: x + y <= 2\nBounds\n x <= 1\n y <= 1\nEnd\n"
MPS = "NAME t\nROWS\n N obj\n L c\nCOLUMNS\n x obj 1 c 1\nRHS\n RHS c 2\nBOUNDS\n UP BND x 1\nENDATA\n"


def _json(**changes) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def _npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _npz_with(member: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return file.getvalue()


def _npy_header(shape: str, descr: str = "<f8") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


CSR = {"A_data": [1.0], "A_indices": [0], "A_indptr": [0, 1], "A_shape": [1, 2], "b": [1.0]}

# file name -> (content, part of the message)
BROKEN = {
    # JSON
    "empty.json": (b"", "the file is empty"),
    "blank.json": (b"   \n", "line 2, column 1: Expecting value"),
    "truncated.json": (_json()[:-9], "line 1, column"),
    "junk.json": (bytes(range(128, 256)) * 4, "byte 0 is 0x80, which is not UTF-8"),
    "control.json": (b"\x00\x01\x02\x03", "line 1, column 1"),
    "list.json": (b"[1, 2, 3]", "the file holds a list of 3; expected an object"),
    "number.json": (b"7", "the file holds 7; expected an object"),
    "deep.json": (b"[" * 200_000, "nested too deeply"),
    "deep_side.json": (_json(b=[[[[[[[[3]]]]]]]]), "nested more than"),
    "no_version.json": (b'{"variables": 2}', "version is missing"),
    "version.json": (_json(version=99), "version is 99; expected 1"),
    "unknown.json": (_json(a=[[1, 2]]), "unknown key 'a'"),
    "twice.json": (b'{"version": 1, "version": 1, "variables": 2}', "key 'version' occurs twice"),
    "no_variables.json": (b'{"version": 1, "A": [[1]], "b": 1}', "variables is missing"),
    "huge.json": (_json(variables=10**12), "variables is 1000000000000; expected between 1 and"),
    "negative.json": (_json(variables=-1), "variables is -1"),
    "same_names.json": (_json(variables=["x", "x"]), "variables names 'x' twice"),
    "nan.json": (b'{"version": 1, "variables": 1, "A": [[NaN]], "b": 1}', "the file holds NaN"),
    "infinite.json": (b'{"version": 1, "variables": 1, "A": [[1e999]], "b": 1}', "A[0, 0] is inf"),
    "big_number.json": (_json(b=[10**400]), "b[0] is too large for a float"),
    "digits.json": (b'{"version": 1, "variables": ' + b"9" * 5000 + b"}", "a number cannot be read"),
    "text.json": (_json(A=[["one", 2]]), "A[0][0] is the text 'one'; expected a number"),
    "true.json": (_json(A=[[True, 2]]), "A[0][0] is true; expected a number"),
    "null.json": (_json(A=None), "A is missing or null; expected a list of rows"),
    "short_row.json": (_json(A=[[1, 2], [1]], b=[1, 1]), "A[1] has 1 numbers; expected 2"),
    "flat.json": (_json(A=[1, 2]), "A[0] is 1; expected a list of 2 numbers or an object"),
    "matrix.json": (_json(A="x + y"), "A is the text 'x + y'; expected a list of rows"),
    "unknown-variable.json": (_json(A=[{"7": 1}]), "A[0] names variable '7'; expected one of 0, 1"),
    "sides.json": (_json(b=[1, 2, 3]), "b has shape (3,) but A has 1 row"),
    "ragged.json": (_json(b=[[1], [1, 2]]), "b is a ragged list"),
    "no_side.json": (b'{"version": 1, "variables": 2, "A": [[1, 2]]}', "A was given without b"),
    "names.json": (_json(names=["a", "b"]), "names has length 2, and the set 1 row"),
    "names_type.json": (_json(names="abc"), "names is the text 'abc'"),
    "crossed.json": (_json(lower=2), "lower[0] = 2.0 is above upper[0] = 1.0"),
    "bounds.json": (_json(upper=[1, 1, 1]), "disagree on the number of variables"),
    "no_coefficient.json": (_json(A=[{}], b=[-1]), "A[0] has no non-zero coefficient"),
    # numpy archives
    "empty.npz": (b"", "the file is empty"),
    "junk.npz": (b"\x93junk" * 100, "not a complete .npz archive"),
    "truncated.npz": (_npz(A=[[1.0]], b=[1.0])[:-40], "not a complete .npz archive"),
    "no_array.npz": (_npz_with("A.npy", b"hello"), "array 'A': not a numpy array"),
    "objects.npz": (_npz_with("A.npy", _npy_header("(1,)", "|O") + b"x" * 8), "array 'A': dtype object"),
    "lying.npz": (_npz_with("A.npy", _npy_header("(1000000000000000, 8)")), "more than the file has"),
    "unknown.npz": (_npz(Q=[[1.0]]), "unknown array 'Q'"),
    "texts.npz": (_npz(A=[["a"]], b=[1.0]), "A has dtype <U1"),
    "nan.npz": (_npz(A=[[np.nan, 1]], b=[1.0]), "A[0, 0] is nan"),
    "complex.npz": (_npz(A=[[1j]], b=[1.0]), "array 'A': dtype complex128"),
    "vector.npz": (_npz(A=[1.0, 2.0], b=[1.0]), "A has shape (2,); expected a matrix"),
    "nothing.npz": (_npz(lower=0.0), "nothing says how many variables"),
    "parts.npz": (_npz(**{k: v for k, v in CSR.items() if k != "A_indptr"}), "expected A alone, or all of"),
    "indices.npz": (_npz(**{**CSR, "A_indices": [5]}), "A_indices does not give each of 1 coefficients"),
    "indptr.npz": (_npz(**{**CSR, "A_indptr": [0, 9]}), "A_indptr does not cut 1 coefficients into 1 rows"),
    "names.npz": (_npz(A=[[1.0]], b=[1.0], names=[1]), "names has dtype int64"),
    # LP and MPS
    "empty.lp": (b"", "the file is empty"),
    "truncated.lp": (LP[:60].encode(), "expected End"),
    "junk.lp": (bytes(range(256)), "which is not UTF-8"),
    "nonsense.lp": (b"Minimize\n obj: x + + <= y\nSubject To\nEnd\n", "HiGHS cannot read it as LP"),
    "no_model.lp": (b"this is not a model\nEnd\n", "HiGHS finds no variable in it"),
    "crossed.lp": (LP.replace("x <= 1", "x <= -1").encode(), "variable 'x' lies between 0 and -1"),
    "truncated.mps": (MPS[:-8].encode(), "expected ENDATA"),
    "nonsense.mps": (b"ROWS\n Z what\nENDATA\n", "HiGHS"),
    "nan.mps": (MPS.replace("c 1\n", "c nan\n").encode(), "line 6 holds 'nan'"),
    # not constraint files at all
    "model.txt": (b"x <= 1", "ends in '.txt'"),
    "model": (b"x <= 1", "ends in ''"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_line_and_exit_code_2(name, tmp_path, capsys):
    if name.endswith((".lp", ".mps")):
        pytest.importorskip("highspy")
    content, message = BROKEN[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SystemExit) as caught:
        main(["check", str(path)])
    shown = capsys.readouterr()
    assert caught.value.code == 2
    assert shown.out == ""
    assert len(shown.err.splitlines()) == 1, shown.err
    assert shown.err.startswith(f"error: {path}: ")
    assert message in shown.err


@pytest.mark.parametrize("name", ["there_is_none.json", "folder.npz"])
def test_what_is_no_file_is_told(name, tmp_path, capsys):
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / name)])
    assert caught.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_archive_that_unpacks_to_too_much_is_not_unpacked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("linsat.files.npz_format.MOST_ARRAY_BYTES", 2**20)
    (tmp_path / "bomb.npz").write_bytes(_npz_with("A.npy", _npy_header("(131072,)") + b"\0" * 2**20))
    assert (tmp_path / "bomb.npz").stat().st_size < 5000
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / "bomb.npz")])
    assert caught.value.code == 2
    assert "bytes; expected at most 1,048,576" in capsys.readouterr().err


READERS = {
    "hangs": ("import time; time.sleep(60)", "HiGHS has not read it within 0.5 seconds"),
    "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "its reader ended with code -9"),
}


@pytest.mark.parametrize("name", ["model.lp", "model.mps"])
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_that_hangs_or_crashes_is_reported(reader, name, tmp_path, capsys, monkeypatch):
    pytest.importorskip("highspy")
    import linsat.files.highs_format as highs_format

    code, message = READERS[reader]
    (tmp_path / "reader.py").write_text(code)
    monkeypatch.setattr(highs_format, "_READER", tmp_path / "reader.py")
    if reader == "hangs":
        monkeypatch.setattr(highs_format, "SECONDS_TO_READ", 0.5)
    (tmp_path / name).write_text(LP if name.endswith(".lp") else MPS)
    with pytest.raises(SystemExit) as caught:
        main(["check", str(tmp_path / name)])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
