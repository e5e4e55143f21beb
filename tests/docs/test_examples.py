"""The examples of how the layer goes into training code run and do what they claim."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"


def _main(name: str):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]


def test_the_plain_loop_learns_within_the_budget(capsys):
    before, after, excess = _main("training_loop")(steps=100)
    assert after > before + 0.1
    assert after > 0.9
    assert excess < 1e-5
    assert "share of the best value" in capsys.readouterr().out


# torch.compile itself looks at the gradient of the scores where its graph ends, and warns itself for it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_code_gives_the_same(capsys):
    assert _main("compiled")(backend="aot_eager") < 1e-5  # all of torch.compile but the C++ compiler
    torch.compiler.reset()


def test_lightning(capsys):
    pytest.importorskip("lightning")
    assert _main("with_lightning")(epochs=3) > 0.3  # by chance 1 of 120


def test_hugging_face(capsys):
    pytest.importorskip("transformers")
    assert _main("with_huggingface")() == 0.0
