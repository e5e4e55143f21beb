"""Trained weights in files: written so that a kill cannot damage them, read without running code from them."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linsat_studies.files import write_text, write_whole

PREVIOUS = "previous.pt"  # beside a run's last checkpoint: the one before, should the last be damaged


class CheckpointError(ValueError):
    """A checkpoint file is missing, damaged or of another kind."""


def write_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write tensors, numbers, strings, lists and dictionaries; the file is replaced in one step."""
    content = io.BytesIO()  # torch's own writer does not tell a full disk from other errors
    torch.save(state, content)
    write_whole(Path(path), lambda file: file.write(content.getbuffer()))


def curve_text(curve: list[dict[str, Any]]) -> str:
    """A learning curve as JSON lines."""
    return "".join(json.dumps(line) + "\n" for line in curve)


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """What `write_checkpoint` wrote. Only plain data is read: a file cannot make this run code.

    Raises:
        CheckpointError: no such file, or not one of ours.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"{path} is not a file; expected a checkpoint. Fix: train one, or correct the path.")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} cannot be read as a checkpoint ({type(error).__name__}); it is damaged, or none. {_way_out(path)}"
        ) from error
    if not isinstance(state, dict) or not isinstance(state.get("config"), dict):
        raise CheckpointError(f"{path} holds no 'config'; expected a checkpoint written by this study's training.")
    return state


def read_run(path: str | Path, *expected: str) -> dict[str, Any]:
    """Like `read_checkpoint`, for a study whose runs have these entries in their 'config'."""
    saved = read_checkpoint(path)
    missing = [name for name in expected if name not in saved["config"]]
    if missing:
        raise CheckpointError(
            f"{path} is not a run of this study: its 'config' has no {missing[0]!r}. Fix: another folder or file."
        )
    return saved


def _way_out(path: str | Path) -> str:
    before = Path(path).with_name(PREVIOUS)
    if before.is_file() and before != Path(path):
        return f"Fix: put {before} in its place; the run goes on from there."
    return "Fix: another path, or remove it and train anew."


def weights_of(saved: dict[str, Any], path: str | Path) -> dict[str, torch.Tensor]:
    """The weights in a training checkpoint (the averaged ones) or in an exported file."""
    weights = saved.get("averaged", saved.get("weights"))
    if not isinstance(weights, dict) or not all(isinstance(t, torch.Tensor) for t in weights.values()):
        raise CheckpointError(f"{path} holds no weights; expected a checkpoint written by this study's training.")
    return weights


def export(checkpoint: str | Path, path: str | Path, *, earlier: str | Path | None = None) -> None:
    """Write the averaged weights of a training checkpoint in float16, with their configuration: what is shipped.

    Args:
        checkpoint: written by a training run.
        path: of the new file. Beside it, with the ending ``.jsonl``, goes the learning curve.
        earlier: checkpoint of the run whose weights that run started from: its curve comes first, and steps and seconds
            count on from it.
    """
    saved = read_checkpoint(checkpoint)
    before = [] if earlier is None else read_checkpoint(earlier)["curve"]
    steps, seconds = (before[-1]["step"], before[-1]["seconds"]) if before else (0, 0.0)
    after = [
        {**line, "step": steps + line["step"], "seconds": round(seconds + line["seconds"], 1)}
        for line in saved["curve"]
    ]
    curve = before + after
    half = {name: t.half() if t.is_floating_point() else t for name, t in saved["averaged"].items()}
    write_checkpoint(path, {"config": saved["config"], "weights": half, "curve": curve})
    write_text(Path(path).with_suffix(".jsonl"), curve_text(curve))


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Put the weights of a training checkpoint (the averaged ones) or of an exported file into ``network``."""
    saved = read_checkpoint(path)
    weights = weights_of(saved, path)
    try:
        network.load_state_dict({name: t.float() if t.is_floating_point() else t for name, t in weights.items()})
    except RuntimeError as error:
        raise CheckpointError(f"the weights in {path} do not fit this network: {error}") from error
