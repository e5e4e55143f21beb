"""Malformed files and options at the commands: each entry is what lies in the folder, what is typed, and a part of the
line that comes back. Used by `test_untrusted_input.py`; constraint files are in `test_cli_malformed.py`."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True)
class Case:
    """Files by name, words of the command line, part of the message; ``usage``: typer rejects the words itself."""

    words: str
    message: str
    files: dict[str, bytes] = field(default_factory=dict)
    usage: bool = False

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)


def run(words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command, run in this process."""
    from linsat_studies import cli as studies
    from linsat_tools import cli

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    before = sys.argv
    sys.argv = words.split()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            (cli.main if sys.argv[0] == "linsat" else studies.main)()
    except SystemExit as stop:
        code = stop.code
    finally:
        sys.argv = before
    return int(code or 0), out.getvalue(), err.getvalue()


class _Hostile:
    """A pickle that would run a command when it is read."""

    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


def _saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _json(content: Any) -> bytes:
    return json.dumps(content).encode()


SET = {"c.json": _json({"version": 1, "variables": 2, "A": [[1, 1]], "b": [1]})}
SCORES = {"y.npy": _npy(np.zeros((3, 2), dtype=np.float32))}
PROJECT = "linsat project --constraints c.json --scores y.npy --out x.npy"


def _scores(name: str, content: bytes, message: str) -> Case:
    return Case(f"linsat project --constraints c.json --scores {name} --out x.npy", message, {**SET, name: content})


PROJECTIONS: dict[str, Case] = {
    "tau 0": Case(PROJECT + " --tau 0", "--tau is 0", {**SET, **SCORES}),
    "tau nan": Case(PROJECT + " --tau nan", "--tau is nan", {**SET, **SCORES}),
    "tau in words": Case(PROJECT + " --tau warm", "tau", {**SET, **SCORES}, usage=True),
    "no chunk": Case(PROJECT + " --chunk 0", "--chunk is 0", {**SET, **SCORES}),
    "out of another kind": Case(PROJECT.replace("x.npy", "x.txt"), "ends in '.txt'", {**SET, **SCORES}),
    "resume and overwrite": Case(PROJECT + " --resume --overwrite", "both", {**SET, **SCORES}),
    "crossed box": Case(PROJECT + " --box 2 1", "box", {**SET, **SCORES}),
    "half a box": Case(PROJECT + " --box 2", "", {**SET, **SCORES}, usage=True),
    "no scores": Case(PROJECT, "does not exist", SET),
    "no constraints": Case(PROJECT, "does not exist", SCORES),
    "no option": Case("linsat project", "", usage=True),
    "unknown command": Case("linsat dance", "dance", usage=True),
    "a damaged record": Case(
        PROJECT + " --resume", "is not the record of a run", {**SET, **SCORES, "x.npy.json": b"{"}
    ),
    "a record of another kind": Case(
        PROJECT + " --resume", "is not the record", {**SET, **SCORES, "x.npy.json": b"[1]"}
    ),
    "a result that is there": Case(PROJECT, "already exists", {**SET, **SCORES, "x.npy": b""}),
    "seconds": Case("linsat check c.json --seconds -1", "--seconds is -1", SET),
    "port": Case("linsat explore --port 99999", "port", usage=True),
    "npy junk": _scores("y.npy", b"\x93NUMPY junk", "y.npy"),
    "npy empty": _scores("y.npy", b"", "y.npy"),
    "npy cut off": _scores("y.npy", _npy(np.zeros((9, 2)))[:-8], "cut off"),
    "npy of objects": _scores("y.npy", b"\x93NUMPY\x01\x00" + pickle.dumps(_Hostile()), "y.npy"),
    "npy of integers": _scores("y.npy", _npy(np.zeros((3, 2), dtype=int)), "dtype int64"),
    "npy of complex": _scores("y.npy", _npy(np.zeros((3, 2), dtype=complex)), "dtype complex128"),
    "npy of texts": _scores("y.npy", _npy(np.array([["a", "b"]])), "dtype"),
    "npy of one number": _scores("y.npy", _npy(np.float64(1)), "no dimension"),
    "npy of nobody": _scores("y.npy", _npy(np.zeros((0, 2))), "at least one instance"),
    "npy too wide": _scores("y.npy", _npy(np.zeros((3, 5))), "expected (..., 2)"),
    "npy with nan": _scores("y.npy", _npy(np.array([[0.0, 1.0], [np.nan, 0.0]])), "instance 1, variable x[0] is nan"),
    "npz of two": _scores("y.npz", _npz(a=np.zeros(2), b=np.zeros(2)), "expected one, or one named 'scores'"),
    "npz of none": _scores("y.npz", _npz(), "none"),
    "npz junk": _scores("y.npz", b"PK\x03\x04junk", "not a complete .npz archive"),
    "csv empty": _scores("y.csv", b"", "the file is empty"),
    "csv of bytes": _scores("y.csv", bytes(range(128, 256)), "is not comma-separated text"),
    "csv ragged": _scores("y.csv", b"1,2\n3\n", "line 2 has 1 cells; expected 2"),
    "csv of words": _scores("y.csv", b"1,2\n3,four\n", "line 2, column 2 holds 'four'"),
    "csv with nan": _scores("y.csv", b"1,2\n3,nan\n", "instance 1, variable x[1] is nan"),
    "csv open quote": _scores("y.csv", b'1,"2\n3,4\n', "y.csv"),
    "csv with a huge cell": _scores("y.csv", b"1," + b"2" * 200_000 + b"\n", "y.csv"),
    "parquet junk": _scores("y.parquet", b"PAR1 no PAR1", "not a parquet file"),
    "parquet empty": _scores("y.parquet", b"", "not a parquet file"),
    "scores of no kind": _scores("y.txt", b"1 2", "ends in '.txt'"),
}

SOLVE = "linsat-studies tsp solve c.csv --start A --end B"


def _cities(content: bytes, message: str, words: str = SOLVE) -> Case:
    return Case(words, message, {"c.csv": content})


CITIES: dict[str, Case] = {
    "no file": Case(SOLVE, "No such file"),
    "empty": _cities(b"", "is empty"),
    "blank": _cities(b"\n\n  \n", "is empty"),
    "bytes": _cities(bytes(range(128, 256)), "is not a text file"),
    "huge cell": _cities(b"A," + b"1" * 200_000 + b",2\nB,1,1\n", "c.csv"),
    "one column": _cities(b"A\nB\n", "expected name,x,y or x,y"),
    "four columns": _cities(b"A,1,2,3\nB,1,2,3\n", "expected name,x,y or x,y"),
    "short line": _cities(b"A,1,2\nB,1\n", "line 2 has 2 column(s)"),
    "word": _cities(b"A,1,2\nB,one,2\n", "line 2"),
    "nan": _cities(b"A,1,2\nB,nan,2\n", "line 2"),
    "infinite": _cities(b"A,1,2\nB,1e999,2\n", "line 2"),
    "twice": _cities(b"A,1,2\nA,1,3\n", "comes twice"),
    "one city": _cities(b"A,1,2\n", "expected at least 2"),
    "unknown start": _cities(b"B,1,2\nC,1,3\n", "start: no city is called 'A'"),
    "start is end": _cities(b"A,1,2\nB,1,3\n", "start", SOLVE.replace("--end B", "--end A")),
    "picture": _cities(b"A,1,2\nB,1,3\n", "expected a file that ends in .png", SOLVE + " --out tour.exe"),
    "priority of two": _cities(b"A,1,2\nB,1,3\n", "a priority city needs", SOLVE + " --priority A"),
    "within without priority": _cities(b"A,1,2\nB,1,3\n", "no priority city", SOLVE + " --within 3"),
    "network of two": _cities(b"A,1,2\nB,1,3\n", "the trained networks take 20", SOLVE + " --method network"),
    "method": _cities(b"A,1,2\nB,1,3\n", "", SOLVE + " --method magic"),
}
CITIES["method"] = Case(CITIES["method"].words, "magic", CITIES["method"].files, usage=True)

DAYS = [f"2020-01-{day:02d}" for day in range(1, 11)]
TABLE = "date,A,B\n" + "".join(f"{day},1.0,2.0\n" for day in DAYS)
TRAIN = "linsat-studies portfolio train --prices p.csv --prefer A --predictor lstm --technique layer --seeds 1 --out o"


def _prices(content: bytes | str, message: str, words: str = TRAIN, **more: bytes) -> Case:
    files = {"p.csv": content.encode() if isinstance(content, str) else content}
    return Case(words, message, files | {name.replace("_", "."): value for name, value in more.items()})


PRICES: dict[str, Case] = {
    "no file": Case(TRAIN, "is not a file"),
    "empty": _prices("", "holds no table"),
    "header only": _prices("date,A,B\n", "holds no table"),
    "bytes": _prices(bytes(range(128, 256)) * 3, "p.csv"),
    "huge cell": _prices(TABLE + "2020-01-11," + "1" * 200_000 + ",2\n", "p.csv"),
    "short line": _prices(TABLE + "2020-01-11,1.0\n", "line 12 has 2 cells"),
    "word": _prices(TABLE + "2020-01-11,1.0,two\n", "B on 2020-01-11 is 'two'"),
    "gap": _prices(TABLE + "2020-01-11,1.0,\n", "2020-01-11"),
    "zero": _prices(TABLE + "2020-01-11,1.0,0\n", "expected a positive price"),
    "negative": _prices(TABLE + "2020-01-11,-1.0,2\n", "expected a positive price"),
    "infinite": _prices(TABLE + "2020-01-11,1e999,2\n", "2020-01-11"),
    "no date": _prices(TABLE + "yesterday,1.0,2.0\n", "starts with 'yesterday'"),
    "no such day": _prices(TABLE + "2020-02-31,1.0,2.0\n", "starts with '2020-02-31'"),
    "day twice": _prices(TABLE + "2020-01-10,1.0,2.0\n", "occurs twice"),
    "backwards": _prices(TABLE + "2020-01-05,1.0,2.0\n", "comes after a later day"),
    "long gap": _prices(TABLE + "2021-01-05,1.0,2.0\n", "no prices between"),
    "asset twice": _prices(TABLE.replace("A,B", "A,A"), "A occurs twice"),
    "too short": _prices(TABLE, "too short for a training window", TRAIN + " --train 2020-01-01:2020-01-05"),
    "unknown asset": _prices(TABLE, "prefer names 'Q'", TRAIN.replace("--prefer A", "--prefer Q")),
    "period": _prices(TABLE, "expected FROM:TO", TRAIN + " --train 2020-01-01"),
    "period of words": _prices(TABLE, "expected a date", TRAIN + " --train then:now"),
    "period backwards": _prices(TABLE, "2019", TRAIN + " --train 2020-01-01:2019-01-01"),
    "share": _prices(TABLE, "", TRAIN + " --at-least 2"),
    "sectors missing": _prices(TABLE, "No such file", TRAIN + " --sectors s.csv"),
    "sectors incomplete": _prices(TABLE, "names no sector of B", TRAIN + " --sectors s.csv", s_csv=b"A,tech\n"),
    "sectors of bytes": _prices(TABLE, "s.csv", TRAIN + " --sectors s.csv", s_csv=bytes(range(128, 256))),
    "sectors huge": _prices(TABLE, "s.csv", TRAIN + " --sectors s.csv", s_csv=b"A," + b"x" * 200_000),
    "data folder": Case("linsat-studies portfolio train --data d", "holds 0 CSV files"),
}
PRICES["share"] = Case(PRICES["share"].words, "at-least", PRICES["share"].files, usage=True)

TOURS = "linsat-studies tsp train --folder o --config c.json --threads 1"
MATCH = "linsat-studies matching train --network ngm --technique layer --seeds 1 --out o --config c.json"


def _config(content: bytes | Any, message: str, words: str = TOURS) -> Case:
    return Case(words, message, {"c.json": content if isinstance(content, bytes) else _json(content)})


CONFIGS: dict[str, Case] = {
    "no file": Case(TOURS, "No such file"),
    "empty": _config(b"", "the configuration is not JSON"),
    "bytes": _config(bytes(range(128, 256)), "c.json"),
    "deep": _config(b"[" * 100_000, "the configuration is not JSON"),
    "digits": _config(b'{"batch": ' + b"9" * 5000 + b"}", "the configuration is not JSON"),
    "list": _config([1], "expected a JSON object"),
    "unknown setting": _config({"batches": 3}, "a setting is 'batches'"),
    "unknown inner setting": _config({"plan": {"minutes": 1, "speed": 2}}, "a setting is 'speed'"),
    "text for number": _config({"batch": "many"}, "batch is 'many'"),
    "truth for number": _config({"batch": True}, "batch is True"),
    "list for number": _config({"batch": [1]}, "batch is"),
    "null": _config({"batch": None}, "batch is None"),
    "fraction": _config({"batch": 1.5}, "batch is 1.5"),
    "object for number": _config({"tau": {"a": 1}}, "tau is"),
    "number for object": _config({"plan": 3}, "expected a JSON object"),
    "nan": _config(b'{"tau": NaN}', "tau"),
    "no batch": _config({"batch": 0}, "batch is 0"),
    "no task": _config({"tasks": []}, "tasks is ()"),
    "other task": _config({"tasks": ["vrp"]}, "tasks is ('vrp',)"),
    "tau 0": _config({"tau": 0.0}, "tau"),
    "minutes and steps": _config({"plan": {"minutes": 1.0, "steps": 3}}, "(minutes, steps)"),
    "rate": _config({"plan": {"steps": 1, "rate": -1.0}}, "rate is -1.0"),
    "heads": _config({"network": {"width": 10, "heads": 4}}, "width is 10"),
    "three cities": _config({"network": {"cities": 3}}, "cities is 3"),
    "portfolio technique": _config({"technique": "magic"}, "technique is 'magic'", TRAIN + " --config c.json"),
    "portfolio date": _config({"periods": {"train_from": "then"}}, "train_from is 'then'", TRAIN + " --config c.json"),
    "portfolio file and options": _prices(
        TABLE, "and so do --prefer", TRAIN + " --config c.json", c_json=b'{"rules": {"prefer": ["A"]}}'
    ),
    "portfolio asset in file": _prices(
        TABLE,
        "prefer names 'Q'",
        TRAIN.replace("--prefer A", "--config c.json"),
        c_json=b'{"rules": {"prefer": ["Q"]}}',
    ),
    "matching kind": _config({"network": {"kind": "gmn"}}, "kind is 'gmn'", MATCH),
    "matching dropout": _config({"network": {"dropout": 1.0}}, "dropout is 1.0", MATCH),
    "matching data": Case("linsat-studies matching train --data d", "annotations.json.gz"),
}
for _name in ("portfolio technique", "portfolio date"):
    CONFIGS[_name].files["p.csv"] = TABLE.encode()

SMALL = _json({"network": {"cities": 7, "width": 8, "heads": 2, "layers": 1}, "plan": {"steps": 1}, "batch": 4})
EVALUATE = "linsat-studies tsp evaluate --task se --count 2 --threads 1 --checkpoint c.pt"


def _checkpoint(content: bytes, message: str) -> Case:
    return Case(EVALUATE, message, {"c.pt": content})


FOR_TOURS = {"tasks": ["se"], "network": {}}
CHECKPOINTS: dict[str, Case] = {
    "no file": Case(EVALUATE, "is not a file"),
    "empty": _checkpoint(b"", "cannot be read as a checkpoint"),
    "junk": _checkpoint(bytes(range(256)) * 2, "cannot be read as a checkpoint"),
    "cut off": _checkpoint(_saved({"config": {}})[:-50], "cannot be read as a checkpoint"),
    "hostile pickle": _checkpoint(pickle.dumps(_Hostile()), "cannot be read as a checkpoint"),
    "hostile archive": _checkpoint(_saved({"config": _Hostile()}), "cannot be read as a checkpoint"),
    "a whole module": _checkpoint(_saved(torch.nn.Linear(2, 2)), "cannot be read as a checkpoint"),
    "a list": _checkpoint(_saved([1, 2]), "holds no 'config'"),
    "no config": _checkpoint(_saved({"weights": {}}), "holds no 'config'"),
    "config of a text": _checkpoint(_saved({"config": "x"}), "holds no 'config'"),
    "config of another study": _checkpoint(
        _saved({"config": {"run": {}}, "weights": {}}), "is not a run of this study"
    ),
    "no weights": _checkpoint(_saved({"config": FOR_TOURS}), "holds no weights"),
    "weights of numbers": _checkpoint(_saved({"config": FOR_TOURS, "weights": {"a": 1}}), "holds no weights"),
    "other weights": _checkpoint(
        _saved({"config": FOR_TOURS, "weights": {"a": torch.ones(2)}}), "do not fit this network"
    ),
    "resumed junk": Case(TOURS, "cannot be read as a checkpoint", {"c.json": SMALL, "o/last.pt": b"junk"}),
    "resumed weights": Case(TOURS, "holds no curve", {"c.json": SMALL, "o/last.pt": _saved({"config": {}})}),
    "other task": _checkpoint(_saved({"config": {"tasks": ["pri"], "network": {}}}), "was trained for ['pri']"),
    "portfolio run of another study": Case(
        TRAIN,
        "is not a run of this study",
        {"p.csv": TABLE.encode(), "o/runs/lstm_layer_0/last.pt": _saved({"config": FOR_TOURS})},
    ),
    "matching run of another study": Case(
        MATCH,
        "is not a run of this study",
        {"c.json": b"{}", "o/runs/ngm-layer-0/last.pt": _saved({"config": FOR_TOURS})},
    ),
    "initial junk": Case(TOURS + " --initial i.pt", "cannot be read", {"c.json": SMALL, "i.pt": b"junk"}),
}


def _named(**tables: dict[str, Case]) -> dict[str, Case]:
    return {f"{kind}: {name}": case for kind, table in tables.items() for name, case in table.items()}


COMMANDS: dict[str, Case] = _named(
    projection=PROJECTIONS, cities=CITIES, prices=PRICES, config=CONFIGS, checkpoint=CHECKPOINTS
)
