"""One unit in a process of its own, on one core, as `launcher` starts it; its result, or why there is none, as JSON."""

from __future__ import annotations

import argparse
import json
import os
import traceback
from collections.abc import Sequence
from pathlib import Path

from arena import plan


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="unit")
    parser.add_argument("unit")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args(arguments)
    if hasattr(os, "sched_setaffinity"):  # whatever starts threads by the number of cores finds one
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    try:
        result = plan.units(options.quick)[options.unit]()
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}".split("\n")[0][:300]}
    options.result.write_text(json.dumps(result), encoding="utf-8")
