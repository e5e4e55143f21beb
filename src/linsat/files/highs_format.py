"""LP and MPS files, read by HiGHS in a separate process; written by HiGHS."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from linsat._optional import require
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout
from linsat.errors import ConstraintError
from linsat.files.model import SECONDS_TO_READ, Model, check_variable_count, read_text
from linsat.interop.models import to_highs
from linsat.interop.two_sided import Box, TwoSided, to_constraints

_READER = Path(__file__).with_name("_highs_reader.py")


def read_highs(path: Path, box: Box | None) -> Model:
    """Read an LP or MPS file. Integrality is relaxed, the objective becomes scores; both are said in the notes.

    Cost: a second process for about half a second, at most `SECONDS_TO_READ`.
    """
    require("highspy", extra="highs", purpose="reading LP and MPS files")
    _check_text(path)
    parts = _parts(path)
    count = len(parts["cost"])
    if count == 0:
        raise ConstraintError("HiGHS finds no variable in it; expected a linear program.")
    check_variable_count(count)
    variables, names = (
        tuple(str(name) for name in own) if len(own) == number else tuple(f"{letter}{i}" for i in range(number))
        for own, number, letter in (
            (parts["variables"], count, "x"),
            (parts["names"], len(parts["row_lower"]), "row "),
        )
    )
    kind = sp.csr_array if parts["rowwise"] else sp.csc_array
    shape = (len(parts["row_lower"]), count)
    matrix = sp.csr_array(kind((parts["value"], parts["index"], parts["start"]), shape=shape))
    layout = Layout.of_names(variables)
    rows = TwoSided(matrix, parts["row_lower"], parts["row_upper"], parts["lower"], parts["upper"], names, layout)
    constraints, notes = to_constraints(rows, box)
    relaxed = _relaxed(parts["kinds"], variables)
    if relaxed:
        notes.insert(0, f"{relaxed} integer variables are relaxed: they may take any value within their bounds")
    scores = None
    if parts["cost"].any():
        scores = parts["cost"] if parts["maximise"] else -parts["cost"]
        notes.append("the objective is no constraint: it is set aside, and kept as scores")
    if parts["quadratic"]:
        notes.append("the quadratic part of the objective is ignored")
    return Model(constraints, scores, tuple(notes), relaxed > 0)


def write_highs(path: Path, constraints: Constraints) -> None:
    """Write a set as LP or MPS, by the ending of the file; spaces in names become underscores."""
    highs = require("highspy", extra="highs", purpose="writing LP and MPS files")
    if to_highs(constraints).writeModel(str(path)) == highs.HighsStatus.kError:
        raise ConstraintError(f"HiGHS cannot write {path}. Fix: save as .json or .npz.")


def _check_text(path: Path) -> None:
    """Reject what HiGHS would read without a word: a file that was cut off, NaN."""
    text = read_text(path).rstrip()
    if path.suffix.lower() == ".mps":
        end = re.search(r"^ENDATA\b", text, re.IGNORECASE | re.MULTILINE)  # what follows is no part of the model
        if end is None:
            last = text.rpartition("\n")[2].strip().lower()
            raise ConstraintError(
                f"the last line is {last[:40]!r}; expected ENDATA. Fix: write the file again, it is cut off."
            )
        nan = re.search(r"(?<![\w.])[-+]?nan(?![\w.])", text[: end.start()], re.IGNORECASE)
        if nan:  # HiGHS would leave such a coefficient out without a word
            line = text.count("\n", 0, nan.start()) + 1
            raise ConstraintError(f"line {line} holds {nan[0]!r}; expected finite numbers.")
        return
    last = text.rpartition("\n")[2].partition("\\")[0].strip().lower()
    if last.split()[-1:] != ["end"]:
        raise ConstraintError(
            f"the last line is {last[:40]!r}; expected End. Fix: complete the file, or add the line End."
        )


def _parts(path: Path) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory(prefix="linsat-") as folder:
        target = Path(folder) / "model.npz"
        command = [sys.executable, "-I", str(_READER), str(path.absolute()), str(target)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=SECONDS_TO_READ, check=False
            )
        except subprocess.TimeoutExpired:
            raise ConstraintError(
                f"HiGHS has not read it within {SECONDS_TO_READ:g} seconds. Fix: save large sets as sparse .npz."
            ) from None
        if done.returncode == 0:
            with np.load(target, allow_pickle=False) as arrays:
                return dict(arrays)
    said = [line.strip() for line in done.stdout.splitlines() if "error" in line.lower() or "invalid" in line.lower()]
    why = "; ".join(said[:2])[:300] or (f"its reader ended with code {done.returncode}" if done.returncode != 3 else "")
    raise ConstraintError(
        f"HiGHS cannot read it as {path.suffix[1:].upper()}{f' ({why})' if why else ''}. "
        f"Fix: check the file with the program that wrote it."
    )


def _relaxed(kinds: np.ndarray, variables: tuple[str, ...]) -> int:
    """How many variables are integers; other kinds of variables have no linear relaxation in their bounds."""
    for kind, variable in zip(kinds, variables, strict=False):
        if kind not in ("Continuous", "Integer", "ImplicitInteger"):
            raise ConstraintError(
                f"variable {variable!r} is of kind {kind}; expected continuous or integer variables. "
                f"Fix: write 'zero or between its bounds' with a separate 0/1 variable."
            )
    return int(np.isin(kinds, ("Integer", "ImplicitInteger")).sum())
