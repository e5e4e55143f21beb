"""Compile the Triton kernels for three GPUs, without any, and record what the code needs.

    python benchmarks/gpu_codegen.py              # everything, into docs/assets/gpu/codegen.json (ten minutes)
    python benchmarks/gpu_codegen.py --smoke      # one small kernel for each target, to stdout

Registers, shared memory and spills are read from the compiled code: by cuobjdump and ptxas, which come with triton,
for NVIDIA, and from the metadata of the assembly for AMD. Nothing is run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from linsat.triton.backend import compiler_options
from linsat.triton.forward import forward
from linsat.triton.layout import KNOWN

OUTPUT = Path(__file__).parent.parent / "docs" / "assets" / "gpu" / "codegen.json"
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
_NUMBERS = {kind.__name__: number for kind, number in KNOWN.items()}
OBJECTIVES = {
    "paper": {"OBJECTIVE": _NUMBERS["Entropy"], "SLACKED": True, "WEIGHTED": False},
    "entropy": {"OBJECTIVE": _NUMBERS["Entropy"], "SLACKED": False, "WEIGHTED": False},
    "euclidean": {"OBJECTIVE": _NUMBERS["Euclidean"], "SLACKED": False, "WEIGHTED": False},
    "weighted": {"OBJECTIVE": _NUMBERS["Euclidean"], "SLACKED": False, "WEIGHTED": True},
    "kl": {"OBJECTIVE": _NUMBERS["KL"], "SLACKED": False, "WEIGHTED": False},
}
# (rows that do not lead, rows that do) -> positions of all rows, tile (one of those of this size), block and blocks, as
# `layout.py` chooses them.
SIZES = {
    (0, 16): {"POSITIONS": 16, "TS": 16, "TM": 8, "BLOCK": 0, "BLOCKS": 0},
    (16, 16): {"POSITIONS": 32, "TS": 8, "TM": 8, "BLOCK": 16, "BLOCKS": 1},
    (32, 32): {"POSITIONS": 64, "TS": 8, "TM": 8, "BLOCK": 32, "BLOCKS": 1},
    (64, 64): {"POSITIONS": 128, "TS": 4, "TM": 8, "BLOCK": 32, "BLOCKS": 2},
    (64, 4096): {"POSITIONS": 8192, "TS": 1, "TM": 32, "BLOCK": 32, "BLOCKS": 2},
    (256, 256): {"POSITIONS": 512, "TS": 1, "TM": 16, "BLOCK": 32, "BLOCKS": 8},
}
_POINTERS = {
    "temperatures": "fp64", "settings": "fp64", "start": "fp64", "mu": "fp64",
    "variable_of": "i32", "row_of": "i32", "group_of": "i32", "codes": "i64", "taken": "i64",
}  # fmt: skip
_REAL = ("scores", "coefficients", "rows", "variables", "work", "x")


@dataclass(frozen=True)
class Case:
    """The kernel, compiled for one objective and class of sizes."""

    objective: str
    others: int
    leading: int
    dtype: str = "fp64"

    def constants(self) -> dict[str, Any]:
        found = OBJECTIVES[self.objective] | SIZES[self.others, self.leading]
        found["DTYPE"] = tl.float64 if self.dtype == "fp64" else tl.float32
        return found | {"HAS_START": False, "COARSE": self.dtype == "fp32"}

    def options(self, target: str) -> dict[str, Any]:
        size = SIZES[self.others, self.leading]
        return compiler_options(size["BLOCK"] * size["BLOCKS"], size["POSITIONS"], nvidia=target.startswith("sm"))


SMOKE = (Case("euclidean", 0, 16),)


def every_case() -> Iterator[Case]:
    """All objectives at 32 rows, the paper's at other sizes, and float32 steps."""
    for size in SIZES:
        for objective in OBJECTIVES if size[0] == 32 else ("paper",):
            yield Case(objective, *size)
    yield Case("paper", 32, 32, "fp32")


def compiled(case: Case, target: str) -> Any:
    """The kernel, compiled for a target that need not be there."""
    constants = case.constants()
    kinds = {name: "*" + kind for name, kind in _POINTERS.items()} | dict.fromkeys(_REAL, "*" + case.dtype)
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in forward.arg_names}
    source = ASTSource(forward, signature=signature, constexprs=constants)
    return triton.compile(source, target=TARGETS[target], options=case.options(target))


def usage(code: Any) -> dict[str, int]:
    """Registers of a thread, bytes of shared memory of a program, and bytes that a thread spills."""
    found = _amd(code.asm["amdgcn"]) if "amdgcn" in code.asm else _nvidia(code)
    return found | {"shared_bytes": code.metadata.shared, "warps": code.metadata.num_warps}


def _nvidia(code: Any) -> dict[str, int]:
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code.asm["cubin"])
        file.flush()
        command = [tools / "cuobjdump", "-res-usage", file.name]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", shown)}
    # What is spilled lies on the stack, but not everything there is.
    spilled = _spilled(code.asm["ptx"]) if numbers["STACK"] + numbers["LOCAL"] else 0
    return {"registers": numbers["REG"], "spill_bytes": spilled, "scalar_spills": 0}


def _spilled(assembly: str) -> int:
    """Bytes that a thread stores and loads again for want of registers, as ptxas counts them."""
    target = re.search(r"\.target (\w+)", assembly)
    assert target is not None
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(assembly)
        file.flush()
        tool = get_ptxas(int(re.sub(r"\D", "", target.group(1)))).path
        command = [tool, "--verbose", f"--gpu-name={target.group(1)}", file.name, "--output-file", os.devnull]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", shown)
    assert found is not None, f"ptxas did not say what it spilled: {shown}"
    return max(int(found.group(1)), int(found.group(2)))


def _amd(assembly: str) -> dict[str, int]:
    def number(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        assert found is not None, f"the assembly does not say its {name}"
        return int(found.group(1))

    # A scalar register that does not fit goes to a lane of a vector register, not to memory.
    spilled = max(4 * number("vgpr_spill_count"), number("private_segment_fixed_size"))
    return {
        "registers": number("vgpr_count"),
        "spill_bytes": spilled,
        "scalar_spills": number("sgpr_spill_count"),
    }


def record(case: Case, target: str) -> dict[str, Any]:
    began = time.process_time()
    code = compiled(case, target)
    binary = code.asm["hsaco" if target.startswith("gfx") else "cubin"]
    return asdict(case) | {"target": target, "binary_bytes": len(binary), **usage(code)} | {
        "cpu_seconds": round(time.process_time() - began, 1)
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="one small kernel for each target, to stdout only")
    smoke = parser.parse_args().smoke
    cases = SMOKE if smoke else tuple(every_case())
    found = []
    for case in cases:
        for target in TARGETS:
            found.append(record(case, target))
            print(json.dumps(found[-1]), flush=True)
    if not smoke:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        OUTPUT.write_text(json.dumps({"triton": triton.__version__, "kernels": found}, indent=1) + "\n")
    spilled = [f for f in found if f["spill_bytes"] and f["others"] <= 32]
    return 1 if spilled else 0


if __name__ == "__main__":
    sys.exit(main())
