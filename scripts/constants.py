"""Write src/linsat/native/constants.h: the constants that Python and C share, from where Python has them.

    python scripts/constants.py            writes the file
    python scripts/constants.py --check    says whether it is up to date, as a test does

Exit code 0: it is, or was written; 1: it is not.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import ModuleType

from linsat.arrays import hard_rows, newton, presolve
from linsat.arrays.interior import duality_gap, instances
from linsat.native import batch
from linsat.verdict import feasibility

HEADER = Path(__file__).parents[1] / "src" / "linsat" / "native" / "constants.h"
_SHARED: dict[ModuleType, dict[str, list[str]]] = {
    newton: {
        "double": [
            "LOOSE_RESIDUAL", "COOLING", "START_TEMPERATURE", "LEAST_DAMPING", "FIRST_DAMPING", "LARGEST_DAMPING",
            "FIRST_RIDGE", "LARGEST_RIDGE", "REFINED_RIDGE", "SHORTEN", "DECREASE", "ROUNDING", "HELD",
            "LARGEST_STRIDE", "GAP", "FINE", "SUM_ROUNDING", "SETTLED", "FAR",
        ],
        "int64_t": ["BACKTRACKS", "CERTIFICATE_EVERY", "SWEEPS", "SETTLING", "MOST_GROUPS", "STEPS_BEFORE_INTERIOR"],
    },
    presolve: {"double": ["CONTRADICTION", "VACUOUS", "FORCED", "UNNOTICED", "ROW_ROUNDING"]},
    instances: {"double": ["INTERIOR_GAP"], "int64_t": ["POLISHING_STEPS"]},
    duality_gap: {"double": ["AT_END"]},
    hard_rows: {"double": ["ROW_LOST", "RUNS_OFF"]},
    feasibility: {"double": ["HOLDS"]},
    batch: {"int64_t": ["MOST_DENSE", "LARGEST_DENSE"]},
}  # fmt: skip


def text() -> str:
    """The header as it should be."""
    values = {
        name.lower(): getattr(module, name)
        for module, kinds in _SHARED.items()
        for names in kinds.values()
        for name in names
    }
    fields = []
    for module, kinds in _SHARED.items():
        fields.append(f"    /* {module.__name__.replace('.', '/')}.py */")
        for kind, names in kinds.items():
            line = f"{kind} {', '.join(names).lower()};"
            fields.append(textwrap.fill(line, 120, initial_indent="    ", subsequent_indent="        "))
    lines = [
        "/* Written by scripts/constants.py from the files of Python named here, which explain them. */",
        "#ifndef LINSAT_CONSTANTS",
        "#define LINSAT_CONSTANTS",
        "",
        "#include <stdint.h>",
        "",
        "typedef struct {",
        *fields,
        "} Constants;",
        "",
        "static const Constants CONSTANTS = {",
        textwrap.fill(
            " ".join(f".{name}~=~{value!r}," for name, value in values.items()),  # ~: no line ends here
            120,
            initial_indent="    ",
            subsequent_indent="    ",
        ).replace("~", " "),
        "};",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    wanted = text()
    if "--check" not in sys.argv:
        HEADER.write_text(wanted)
    elif HEADER.read_text() != wanted:
        sys.exit(f"{HEADER.name} is not up to date. Fix: python scripts/constants.py")
