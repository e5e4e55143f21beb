"""Malformed input at every entrance: our error, naming the argument, in the library; one line and exit code 2 at the
commands. `test_cli_malformed.py` has constraint files; `python -m fuzz.faults malformed` counts them all."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("typer")

import linsat
import untrusted_calls as calls
import untrusted_files as files

CALLS = {**{f"set: {k}": v for k, v in calls.SETS.items()}, **{f"family: {k}": v for k, v in calls.FAMILIES.items()}}
CALLS |= {
    **{f"call: {k}": v for k, v in calls.CALLS.items()},
    **{f"row text: {k}": v for k, v in calls.READ_ROWS.items()},
}


@pytest.mark.parametrize("name", CALLS)
def test_the_library_names_what_is_wrong(name):
    message, call = CALLS[name]
    with pytest.raises((linsat.ConstraintError, linsat.InfeasibleError)) as caught:
        call()
    said = str(caught.value)
    assert message in said
    assert len(said) < 1000  # what came is quoted in part only
    assert str(pickle.loads(pickle.dumps(caught.value))) == said  # errors cross process boundaries


@pytest.mark.parametrize("name", files.COMMANDS)
def test_the_command_says_it_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LINSAT_DATA", raising=False)
    case = files.COMMANDS[name]
    case.write(tmp_path)
    code, out, err = files.run(case.words)
    assert code == 2, (code, out, err)
    assert "Traceback" not in out + err
    lines = [line for line in err.splitlines() if line.strip()]
    if not case.usage:  # typer frames what it finds wrong with the words themselves
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
    assert case.message in " ".join(err.split()), err


def test_there_are_enough_of_them():
    assert len(CALLS) + len(files.COMMANDS) >= 200
    assert len({(call[0], i) for i, call in enumerate(CALLS.values())}) == len(CALLS)
    assert len(set(calls.ROW_TEXTS.values())) == len(calls.ROW_TEXTS)
