"""Training: one loop for every network of the studies.

What is trained is a `Learner`. The loop gives it a cosine schedule, a running mean of the weights, a progress bar with
the time left, a learning curve, checkpoints that a kill cannot damage, and data parallel training: started by
``torchrun --nproc_per_node=2`` every process computes the loss of its `share` of each batch and the gradients are
averaged over gloo, so that two processes make the same run as one.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, distributed, nn

from linsat_studies.checkpoints import PREVIOUS, CheckpointError, curve_text, read_checkpoint, write_checkpoint
from linsat_studies.files import write_text
from linsat_studies.settings import Plan

LAST = "last.pt"
CURVE = "curve.jsonl"
# A step that seems to take longer was interrupted (a stopped process, a sleeping laptop): that time is not training.
_LONGEST_STEP = 5.0
_NEEDED = {"module", "mean", "optimiser", "step", "seconds", "curve", "rng", "learner"}


class Learner(Protocol):
    """What `fit` trains. Four optional methods are used where they exist.

    - ``groups() -> list[dict]``: parameter groups of the optimiser that hold all trained parameters of ``module``;
      ``share`` in a group is its share of the plan's learning rate.
    - ``schedule(progress)``: called before every loss with the share of the run that is done, 0 to 1.
    - ``by_task() -> dict[str, float]``: validation lengths by task, for the learning curve; called instead of
      ``validate``, whose value it replaces by its mean.
    - ``state_dict()`` and ``load_state_dict(state)``: what a resumed run needs beyond the weights of ``module`` (a
      baseline network, say); tensors, numbers, strings, lists and dictionaries only.
    """

    @property
    def module(self) -> nn.Module:
        """Whose parameters are trained."""
        ...

    def loss(self, step: int) -> Tensor:
        """The loss at this step, a scalar; the mean over this process's `share` of the batch.

        Whatever is random must depend on the step and a seed alone, so that a resumed run is the same run.
        """
        ...

    def validate(self) -> float:
        """A number for the learning curve, smaller is better. The module holds the averaged weights meanwhile."""
        ...


def processes() -> tuple[int, int]:
    """(number of this process, number of processes) of a run: (0, 1) unless started by torchrun."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def share(count: int) -> slice:
    """This process's part of ``count`` instances that all processes drew alike; ``count`` must divide evenly."""
    rank, world = processes()
    if count % world:
        raise ValueError(f"{count} instances cannot be shared by {world} processes. Fix: a batch divisible by {world}.")
    return slice(rank * count // world, (rank + 1) * count // world)


def fit(learner: Learner, plan: Plan, folder: str | Path, *, config: dict[str, Any] | None = None) -> Path:
    """Train until the plan is fulfilled; continues where the checkpoint in ``folder`` stopped, if there is one.

    Args:
        learner: what to train.
        plan: budget and optimiser. A finished run is extended by calling again with a larger budget.
        folder: gets ``last.pt`` (everything needed to resume), ``previous.pt`` (the one before it, should the disk
            damage the last) and ``curve.jsonl`` (one line per validation: step, seconds, loss, validation).
        config: kept in the checkpoint, so that it says what was trained.

    Returns:
        The path of the checkpoint. Files are replaced in one step, so a kill leaves the previous one.

    Raises:
        CheckpointError: the checkpoint in the folder is damaged, or of another network.
        OSError: the disk is full, or another process of the run has ended (ConnectionError); the run continues from
            its last checkpoint when called again.
    """
    with process_group():
        return _Run(learner, plan, Path(folder), config or {}).train()


class _Run:
    def __init__(self, learner: Learner, plan: Plan, folder: Path, config: dict[str, Any]) -> None:
        self.learner, self.plan, self.folder, self.config = learner, plan, folder, config
        self.rank, self.world = processes()
        self.parameters = [p for p in learner.module.parameters() if p.requires_grad]
        groups = learner.groups() if hasattr(learner, "groups") else self.parameters
        self.optimiser = torch.optim.AdamW(
            groups, lr=plan.rate, betas=(0.9, 0.98), weight_decay=plan.decay, foreach=True
        )
        self.step, self.seconds = 0, 0.0
        self.curve: list[dict[str, Any]] = []
        self.losses = torch.zeros(2)  # their sum and number since the last validation
        torch.manual_seed(plan.seed)
        path = folder / LAST
        if self.rank == 0:
            for half_written in folder.glob("*.part"):  # by a process that was killed meanwhile
                half_written.unlink(missing_ok=True)
        if path.exists():
            self._resume(path)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self._agree()
            self.mean = [p.detach().clone() for p in self.parameters]

    def _resume(self, path: Path) -> None:
        saved = read_checkpoint(path)
        missing = _NEEDED - saved.keys()
        if missing:
            raise CheckpointError(
                f"{path} holds no {', '.join(sorted(missing))}; expected a checkpoint that training can continue. "
                "Fix: another folder; weights alone are given to --initial, where a study has it."
            )
        try:
            self.learner.module.load_state_dict(saved["module"])
        except RuntimeError as error:
            raise CheckpointError(
                f"the run in {path.parent} trains another network. Fix: another folder, or that run's settings."
            ) from error
        self.mean = saved["mean"]
        self.optimiser.load_state_dict(saved["optimiser"])
        self.step, self.seconds, self.curve = saved["step"], saved["seconds"], saved["curve"]
        torch.set_rng_state(saved["rng"])
        if hasattr(self.learner, "load_state_dict"):
            self.learner.load_state_dict(saved["learner"])
        if self.rank == 0:
            write_text(path.parent / CURVE, curve_text(self.curve))  # the kill may have come between the two files

    def _agree(self) -> None:
        """All processes start from the weights of the first."""
        if self.world > 1:
            with _peers():
                for tensor in self.learner.module.state_dict().values():
                    distributed.broadcast(tensor, 0)

    def progress(self) -> float:
        """Share of the budget that is used up; the clock of the first process counts for all."""
        if self.plan.steps is not None:
            return self.step / self.plan.steps
        used = torch.tensor(self.seconds, dtype=torch.float64)
        if self.world > 1:
            with _peers():
                distributed.broadcast(used, 0)
        assert self.plan.minutes is not None
        return float(used) / (60 * self.plan.minutes)

    def train(self) -> Path:
        with _bar(self.rank == 0) as show:
            progress = self.progress()
            while progress < 1:
                began = time.perf_counter()
                self._advance(progress)
                self.seconds += min(time.perf_counter() - began, _LONGEST_STEP)
                progress = self.progress()
                if self.step % self.plan.every == 0 or progress >= 1:
                    self._report()
                show(progress, self.seconds, self.curve, float(self.losses[0] / self.losses[1].clamp_min(1)))
        return self.folder / LAST

    def _advance(self, progress: float) -> None:
        if hasattr(self.learner, "schedule"):
            self.learner.schedule(progress)
        rate = self.plan.rate * learning_rate(self.step, progress, self.plan.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("share", 1.0)
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.learner.loss(self.step)
        loss.backward()
        self._average_gradients(loss.detach())
        nn.utils.clip_grad_norm_(self.parameters, self.plan.clip)
        self.optimiser.step()
        # Early on the mean must forget the first weights quickly, or it would lag behind for thousands of steps.
        keep = min(self.plan.average, (self.step + 1) / (self.step + 10))
        torch._foreach_lerp_(self.mean, [p.detach() for p in self.parameters], 1 - keep)
        self.step += 1

    def _average_gradients(self, loss: Tensor) -> None:
        if self.world > 1:
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
            flat = torch.cat([g.flatten() for g in gradients] + [loss.reshape(1)])
            with _peers():
                distributed.all_reduce(flat)
            flat /= self.world
            for parameter, part in zip(self.parameters, flat.split([g.numel() for g in gradients] + [1])):
                parameter.grad = part.view_as(parameter)
            loss = flat[-1]
        self.losses += torch.tensor([float(loss), 1.0])

    def _report(self) -> None:
        """Validate the averaged weights; write the curve and the checkpoint. The first process does, others go on."""
        if self.rank == 0:
            line: dict[str, Any] = {"step": self.step, "seconds": round(self.seconds, 1)}
            line["loss"] = float(self.losses[0] / self.losses[1])
            with self._averaged_weights(), torch.no_grad():
                if hasattr(self.learner, "by_task"):
                    lengths = self.learner.by_task()
                    line |= {"validation": sum(lengths.values()) / len(lengths), **lengths}
                else:
                    line["validation"] = self.learner.validate()
            self.curve.append(line)
            self._write()
        self.losses.zero_()

    def _write(self) -> None:
        with self._averaged_weights():
            shipped = {name: tensor.detach().clone() for name, tensor in self.learner.module.state_dict().items()}
        state = {
            "config": self.config,
            "module": self.learner.module.state_dict(),
            "averaged": shipped,
            "mean": self.mean,
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
            "curve": self.curve,
            "rng": torch.get_rng_state(),
            "learner": self.learner.state_dict() if hasattr(self.learner, "state_dict") else {},
        }
        _keep_previous(self.folder)
        write_checkpoint(self.folder / LAST, state)
        write_text(self.folder / CURVE, curve_text(self.curve))

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        trained = [p.detach().clone() for p in self.parameters]
        training = self.learner.module.training
        self._put(self.mean)
        self.learner.module.eval()
        try:
            yield
        finally:
            self._put(trained)
            self.learner.module.train(training)

    def _put(self, values: list[Tensor]) -> None:
        with torch.no_grad():
            for parameter, value in zip(self.parameters, values):
                parameter.copy_(value)


def _keep_previous(folder: Path) -> None:
    """Give the last checkpoint a second name, under which it stays when the next one takes its place."""
    last, linked = folder / LAST, folder / f"{PREVIOUS}.{os.getpid()}.part"
    if last.exists():
        with contextlib.suppress(OSError):  # a file system without links keeps one checkpoint
            linked.unlink(missing_ok=True)
            os.link(last, linked)
            linked.replace(folder / PREVIOUS)
            linked.unlink(missing_ok=True)  # renaming does nothing where both names mean the same file already


def learning_rate(step: int, progress: float, warmup: int) -> float:
    """Share of the highest learning rate: a linear rise over ``warmup`` steps, then a cosine down to 1 %."""
    cosine = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
    return cosine * min(1.0, (step + 1) / max(warmup, 1))


@contextmanager
def process_group() -> Iterator[None]:
    """Joins the processes that torchrun started, and leaves them at the end; nothing otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) <= 1 or distributed.is_initialized():
        yield
        return
    # Before there is a group: the module has it in default arguments of its functions, and where it is first imported
    # later (torch._dynamo does so) the group lives on, with threads that end the process with SIGABRT now and then.
    importlib.import_module("torch.distributed.nn.functional")
    distributed.init_process_group("gloo")
    try:
        yield
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


@contextmanager
def _peers() -> Iterator[None]:
    """Where processes wait for each other: say so if one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        raise ConnectionError(
            f"another process of this run has ended ({str(error).partition(chr(10))[0][:200]}). "
            "Fix: start all of them again; the run continues from its last checkpoint."
        ) from error


@contextmanager
def _bar(shown: bool) -> Iterator[Any]:
    """A progress bar with loss, validation and time left, as a function of (progress, seconds, curve, loss)."""
    if not shown:
        yield lambda *_: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (TextColumn("training"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[text]}"))
    with Progress(*columns) as bar:
        task = bar.add_task("training", total=1.0, text="")

        def show(progress: float, seconds: float, curve: list[dict[str, Any]], loss: float) -> None:
            left = seconds * (1 - progress) / progress if progress > 0 else 0.0
            text = f"{int(left // 60)}:{int(left % 60):02d} left"
            if loss:
                text += f", loss {loss:.3f}"
            if curve:
                text += f", validation {curve[-1]['validation']:.4f}"
            bar.update(task, completed=min(progress, 1.0), text=text)

        yield show


def keep_freed_memory() -> None:
    """Let the C library reuse large blocks instead of returning them to the system after every operation.

    With glibc's defaults a third of the time of a training step goes into getting the same pages back. Elsewhere
    nothing happens.
    """
    mmap_threshold, trim_threshold, block, never = -3, -1, 32 << 20, (1 << 31) - 1
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):
            library.mallopt(mmap_threshold, block)
            library.mallopt(trim_threshold, never)
