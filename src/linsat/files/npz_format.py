"""Constraint files as numpy archives: the arguments of `Constraints` by name, matrices dense or in CSR parts."""

from __future__ import annotations

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat.constraints.arrays import as_array
from linsat.constraints.coefficients import read_matrix
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.layout import Layout
from linsat.constraints.numbers import present
from linsat.errors import ConstraintError
from linsat.files.model import (
    MATRICES,
    MOST_ARRAY_BYTES,
    Model,
    check_size,
    check_variable_count,
    described,
    read_described,
    read_terms,
    with_prices,
)

_PARTS = ("data", "indices", "indptr", "shape")
_PLAIN = (*MATRICES, *MATRICES.values(), "lower", "upper", "names", "variables", "layout", "price")
_MAXIMA = ("t", "pieces", "maxima", "bases")  # of formulas, with T


def read_npz(path: Path) -> Model:
    """Read an .npz constraint file; nothing is unpickled, and no array is larger than the file says and the limit."""
    check_size(path, MOST_ARRAY_BYTES)
    arrays = _arrays(path)
    known = {*_PLAIN, *_MAXIMA, "T", *(f"{matrix}_{part}" for matrix in (*MATRICES, "T") for part in _PARTS)}
    for key in arrays:
        if key not in known:
            raise ConstraintError(
                f"unknown array {key!r}; expected some of {', '.join(_PLAIN)}, or A_data, A_indices, A_indptr, A_shape."
            )
    arguments: dict[str, Any] = {key: arrays[key] for key in ("lower", "upper") if key in arrays}
    for matrix, side in MATRICES.items():
        read = _matrix(matrix, arrays)
        if read is not None:
            arguments[matrix] = read
        if side in arrays:
            arguments[side] = arrays[side]
    names, variables, objects = (_texts(key, arrays.get(key)) for key in ("names", "variables", "layout"))
    if variables is not None and objects is not None:
        raise ConstraintError("the file has both variables and layout; expected one of them.")
    layout = None if variables is None else Layout.of_names(variables)
    if objects is not None:
        layout = read_described([_parsed(text) for text in objects])
    if arrays.keys() & {*_MAXIMA, "T", "T_data"}:
        arguments["terms"] = _maxima(arrays, arguments)
    constraints = Constraints(**arguments, names=names, variables=layout)
    if "price" in arrays:
        constraints = with_prices(constraints, arrays["price"])
    if constraints.num_variables is None:
        raise ConstraintError(
            "the file has neither rows nor a bound per variable, so nothing says how many variables there are. "
            "Fix: give lower or upper one entry per variable."
        )
    return Model(constraints)


def _maxima(arrays: dict[str, np.ndarray], arguments: dict[str, Any]) -> Any:
    """The maxima in the rows of a set."""
    T, bases = _matrix("T", arrays), _texts("bases", arrays.get("bases"))
    missing = [key for key in ("t", "pieces", "maxima") if key not in arrays]
    if T is None or bases is None or missing:
        raise ConstraintError(f"the maxima of formulas are not whole; expected T, {', '.join(_MAXIMA)}.")
    pieces, maxima = (np.asarray(arrays[key], dtype=np.float64) for key in ("pieces", "maxima"))
    return read_terms(T, arrays["t"], bases, pieces, maxima, arguments)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ConstraintError(f"layout holds {text[:40]!r}; expected one JSON object per variable.") from None


def write_npz(path: Path, constraints: Constraints) -> None:
    """Write a set as .npz, rows that were stated by their non-zeros in CSR parts, data (batch..., non-zeros)."""
    numbers = present(constraints)
    arrays: dict[str, np.ndarray] = {
        "lower": numbers.lower,
        "upper": numbers.upper,
        "names": np.array(constraints.names, dtype=np.str_),
    }
    layout = constraints._layout
    if layout is not None and not layout.variables[0].name:
        arrays["variables"] = np.array(layout.entries(), dtype=np.str_)
    elif layout is not None:
        arrays["layout"] = np.array([json.dumps(variable) for variable in described(layout)], dtype=np.str_)
    if numbers.price is not None:
        arrays["price"] = numbers.price
    arrays |= {name: as_array(side) for name, side in constraints._sides().items()}
    terms = constraints._terms
    if terms is not None:
        arrays["t"], arrays["bases"] = as_array(terms.sides()), np.array(terms.names, dtype=np.str_)
        arrays["pieces"] = np.stack([terms.base, terms.sign, terms.of], -1)
        arrays["maxima"] = np.stack([terms.row, terms.weight], -1)
    blocks = dict(constraints._matrices) | ({} if terms is None else {"T": terms.matrix})
    for block, matrix in blocks.items():
        if matrix.sparse:
            starts = np.cumsum(np.bincount(matrix.row + 1, minlength=matrix.shape[0] + 1))
            pieces = (as_array(matrix.values()), matrix.col, starts, np.array(matrix.shape))
            arrays |= {f"{block}_{name}": piece for name, piece in zip(_PARTS, pieces, strict=True)}
        else:
            arrays[block] = as_array(matrix.stated())
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, Fortran order and dtype of an .npy stream, which is left at the first number.

    Raises:
        ConstraintError: it is not an array, or one of Python objects.
    """
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except (ValueError, EOFError, OSError, SyntaxError, TypeError, OverflowError) as error:
        text = str(error).partition("\n")[0]
        raise ConstraintError(f"not a numpy array ({text}). Fix: write it with numpy.save or numpy.savez.") from None
    if dtype.hasobject or dtype.kind not in "fiubU":
        raise ConstraintError(f"dtype {dtype}; expected numbers. Fix: convert the array before saving it.")
    if any(length < 0 for length in shape):
        raise ConstraintError(f"shape {shape}; expected lengths of at least 0.")
    return shape, fortran, dtype


def open_archive(path: Path) -> zipfile.ZipFile:
    """The archive behind an .npz file."""
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        raise ConstraintError(
            f"not a complete .npz archive ({error}). Fix: write it again with numpy.savez or Constraints.save."
        ) from None


def _arrays(path: Path) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    with open_archive(path) as archive:
        total = sum(info.file_size for info in archive.infolist())
        if total > MOST_ARRAY_BYTES:
            raise ConstraintError(f"the arrays unpack to {total:,} bytes; expected at most {MOST_ARRAY_BYTES:,}.")
        for info in archive.infolist():
            key = info.filename.removesuffix(".npy")
            try:
                with archive.open(info) as file:
                    shape, fortran, dtype = array_header(file)
                    # Python integers: an untrusted shape may overflow every other kind.
                    size = int(dtype.itemsize)
                    for length in shape:
                        size *= length
                    if size > info.file_size:
                        raise ConstraintError(f"shape {shape} needs {size:,} bytes, more than the file has.")
                    flat = np.frombuffer(file.read(size), dtype=dtype)
                    arrays[key] = flat.reshape(shape, order="F" if fortran else "C")
            except ConstraintError as error:
                raise ConstraintError(f"array {key!r}: {error}") from None
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
                raise ConstraintError(f"array {key!r} is damaged ({error}). Fix: write the file again.") from None
    return arrays


def _matrix(name: str, arrays: dict[str, np.ndarray]) -> Any:
    parts = {part: arrays[f"{name}_{part}"] for part in _PARTS if f"{name}_{part}" in arrays}
    if not parts:
        return arrays.get(name)
    if name in arrays or len(parts) < len(_PARTS):
        raise ConstraintError(
            f"{name} is there as {', '.join(sorted({name} & set(arrays)) + [f'{name}_{p}' for p in parts])}; expected "
            f"{name} alone, or all of {', '.join(f'{name}_{part}' for part in _PARTS)}."
        )
    shape, indices, indptr = parts["shape"], parts["indices"], parts["indptr"]
    whole = all(part.dtype.kind in "iu" and part.ndim == 1 for part in (shape, indices, indptr))
    data = parts["data"]
    if not whole or len(shape) != 2 or data.ndim < 1 or data.dtype.kind not in "fiub":
        raise ConstraintError(
            f"the parts of {name} are not those of a CSR matrix; expected numbers {name}_data and whole numbers "
            f"{name}_indices, {name}_indptr, and {name}_shape = (rows, variables)."
        )
    rows, variables = (int(length) for length in shape)
    check_variable_count(variables)
    if len(indptr) != rows + 1 or indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise ConstraintError(f"{name}_indptr does not cut {len(indices)} coefficients into {rows} rows.")
    count = data.shape[-1]
    if len(indices) != count or (len(indices) and not 0 <= indices.min() <= indices.max() < variables):
        raise ConstraintError(
            f"{name}_indices does not give each of {count} coefficients a variable from 0 to {variables - 1}."
        )
    pattern = (indices.astype(np.int64), indptr.astype(np.int64))
    if data.ndim == 1:
        return sp.csr_array((data, *pattern), shape=(rows, variables))
    # Each instance has its own values at the same places.
    places = sp.csr_array((np.ones(count), *pattern), shape=(rows, variables))
    if not places.has_canonical_format:
        raise ConstraintError(f"{name}_indices must ascend in each row, where {name}_data differs per instance.")
    return read_matrix(name, places).with_stated(data)


def _texts(key: str, array: np.ndarray | None) -> list[str] | None:
    if array is None:
        return None
    if array.dtype.kind != "U" or array.ndim != 1:
        raise ConstraintError(
            f"{key} has dtype {array.dtype} and shape {array.shape}; expected a vector of texts. "
            f"Fix: np.array([...], dtype=str)."
        )
    return [str(text) for text in array]
