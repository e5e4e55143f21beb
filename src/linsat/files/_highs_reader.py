"""Run as a separate program: reads an LP or MPS file with HiGHS and writes its parts to an .npz file.

A separate process, because an untrusted file may crash or hang a reader written in C++; it imports nothing of
linsat, so that it starts at once. Arguments: the model, the .npz file. What HiGHS has to say goes to stdout.
"""

import contextlib
import sys

import highspy
import numpy as np

_MEMORY = 8 * 2**30


def main(model: str, target: str) -> int:
    """Exit code 0: written; 3: HiGHS does not understand the file, and says why on stdout."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system can limit memory
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    highs = highspy.Highs()
    if highs.readModel(model) == highspy.HighsStatus.kError:
        return 3
    lp = highs.getLp()
    kinds = [str(kind).rpartition(".")[2].lstrip("k") for kind in lp.integrality_]
    np.savez(
        target,
        rowwise=np.array(lp.a_matrix_.format_ == highspy.MatrixFormat.kRowwise),
        start=np.array(lp.a_matrix_.start_, dtype=np.int64),
        index=np.array(lp.a_matrix_.index_, dtype=np.int64),
        value=np.array(lp.a_matrix_.value_, dtype=np.float64),
        cost=np.array(lp.col_cost_, dtype=np.float64),
        maximise=np.array(lp.sense_ == highspy.ObjSense.kMaximize),
        quadratic=np.array(highs.getModel().hessian_.dim_ > 0),
        lower=np.array(lp.col_lower_, dtype=np.float64),
        upper=np.array(lp.col_upper_, dtype=np.float64),
        row_lower=np.array(lp.row_lower_, dtype=np.float64),
        row_upper=np.array(lp.row_upper_, dtype=np.float64),
        variables=np.array(list(lp.col_names_), dtype=np.str_),
        names=np.array(list(lp.row_names_), dtype=np.str_),
        kinds=np.array(kinds, dtype=np.str_),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
