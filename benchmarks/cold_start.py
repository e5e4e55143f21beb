"""The first forward and backward pass of a fresh process, beside the time of ``import torch`` there.

Every repetition starts two processes, one after the other, in an empty home and cache folder: the first finds nothing
compiled, the second finds what the first left. As a program this file is such a process.
"""

from __future__ import annotations

import time

_BEGIN = time.perf_counter()
import torch  # noqa: E402

_TORCH = time.perf_counter()
from linsat import constraints, project  # noqa: E402, F401 - what `import linsat` alone leaves for the first use

_LINSAT = time.perf_counter()

import argparse  # noqa: E402
import hashlib  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import statistics  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Mapping  # noqa: E402
from typing import Any  # noqa: E402

import methods  # noqa: E402
import problems  # noqa: E402

Record = dict[str, Any]
_FOLDERS = (
    "HOME",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "NUMBA_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "JAX_COMPILATION_CACHE_DIR",
)


def measure(
    problem: problems.Problem, method: methods.Method, environment: Mapping[str, str], *, times: int, timeout: float
) -> Record:
    """Medians over ``times`` repetitions; raises what a process that fails or takes too long raises."""
    seconds, same = [], []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            fresh = dict(environment) | dict.fromkeys(_FOLDERS, folder)
            pair = [_process(problem, method, fresh, timeout) for _ in range(2)]
        seconds.append(pair)
        same.append(all(each["same_bits"] and each["digest"] == pair[0]["digest"] for each in pair))

    def median(position: int, field: str) -> float:
        return statistics.median(pair[position][field] for pair in seconds)

    return {
        "status": "ok",
        "message": "",
        "repetitions": times,
        "import_torch_s": median(0, "import_torch_s"),
        "cold_s": median(0, "first_s"),
        "second_s": median(1, "first_s"),
        "same_bits": all(same),
    }


def _process(
    problem: problems.Problem, method: methods.Method, environment: Mapping[str, str], timeout: float
) -> Record:
    command = [sys.executable, __file__, "--case", problem.name, "--method", method.name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_call(problem: problems.Problem, method: methods.Method) -> Record:
    """What this process, fresh, says about itself; a peer's time holds its import, ours that of linsat."""
    warnings.simplefilter("ignore")
    y, weights = problem.scores(0), problem.weights(0)
    start = time.perf_counter()
    forward = method.prepare(problem)
    digest = _digest(forward, y, weights)
    seconds = time.perf_counter() - start
    return {
        "import_torch_s": _TORCH - _BEGIN,
        "first_s": seconds + (_LINSAT - _TORCH if method.package == "linsat" else 0.0),
        "digest": digest,
        "same_bits": digest == _digest(forward, y, weights),
    }


def _digest(forward: methods.Forward, scores: torch.Tensor, weights: torch.Tensor) -> str:
    """Of the bits of x and the gradient."""
    y = scores.detach().requires_grad_()
    x = forward(y)
    (gradient,) = torch.autograd.grad(x, y, weights.to(x.dtype))
    return hashlib.sha256(x.detach().numpy().tobytes() + gradient.numpy().tobytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", required=True)
    parser.add_argument("--method", required=True)
    given = parser.parse_args()
    print(json.dumps(first_call(problems.all_problems()[given.case], methods.all_methods()[given.method])), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
