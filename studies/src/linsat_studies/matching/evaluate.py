"""Matchings of a method on a list of pairs: how many are right, whether the rows hold, and the time of each part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import process_time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linsat_studies.matching.batches import Batch
from linsat_studies.progress import Progress

Score = Callable[[Batch], Any]  # network: scores (B, n1, n2), of edges too where the technique reads them
Relax = Callable[[Any, Batch], Tensor]  # technique: scores to a soft matching (B, n1, n2)
Decode = Callable[[Tensor, Batch], Tensor]  # soft matching to matches (B, n1, n2), bool
PARTS = ("network", "layer", "decoder")


@dataclass(frozen=True)
class Method:
    """From a batch to matches, in the three steps that are timed."""

    score: Score
    relax: Relax
    decode: Decode


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method did on a list of pairs.

    Args:
        classes: of each pair.
        phi: (pairs,) true number of matches.
        predicted: (pairs,) number of predicted matches.
        hits: (pairs,) how many of these are true.
        violation: worst failure of the box, a row or a column of any soft matching.
        excess: worst sum of a soft matching above the phi it was given; where it was given none, a large one.
        seconds: processor time of `PARTS`, in total; other work on the machine does not count.
        valid: (pairs,) whether the matches are a matching of at most as many pairs as the method was told.
    """

    classes: tuple[str, ...]
    phi: np.ndarray
    predicted: np.ndarray
    hits: np.ndarray
    violation: float
    excess: float
    seconds: dict[str, float]
    valid: np.ndarray

    def summary(self) -> dict[str, Any]:
        """What the JSON file of a result holds: F1, precision and recall are means over classes of means over pairs."""
        precision, recall, f1 = figures(self.hits, self.predicted, self.phi)
        return {
            "pairs": len(self.classes),
            "f1": over_classes(f1, self.classes),
            "precision": over_classes(precision, self.classes),
            "recall": over_classes(recall, self.classes),
            "by_class": by_class(f1, self.classes),
            "matches": float(self.predicted.mean()),
            "phi": float(self.phi.mean()),
            "violation": self.violation,
            "excess": self.excess,
            "seconds": self.seconds,
        }


def figures(hits: np.ndarray, predicted: np.ndarray, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Precision, recall and F1 of each pair; 0 where nothing was predicted (or nothing could be found).

    F1 = 2 P R / (P + R) with P = hits / predicted and R = hits / phi, which is 2 hits / (predicted + phi).
    """
    precision = hits / np.maximum(predicted, 1)
    recall = hits / np.maximum(phi, 1)
    return precision, recall, 2 * hits / np.maximum(predicted + phi, 1)


def by_class(values: np.ndarray, classes: Sequence[str]) -> dict[str, float]:
    """Mean over the pairs of each class, by name."""
    labels = np.array(classes)
    return {str(name): float(values[labels == name].mean()) for name in np.unique(labels)}


def over_classes(values: np.ndarray, classes: Sequence[str]) -> float:
    """Mean over classes of the means over their pairs, so that classes with more pairs do not count more."""
    return float(np.mean(list(by_class(values, classes).values()))) if len(values) else float("nan")


def violations(soft: Tensor, phi: Tensor) -> tuple[float, float]:
    """Worst failure in a batch of (box [0, 1], rows and columns <= 1; total <= phi); 0 where all hold.

    Args:
        soft: (B, n1, n2), zero at padded nodes.
        phi: (B,).
    """
    x = soft.double()
    worst = [x.sum(2) - 1, x.sum(1) - 1, x - 1, -x]
    total = x.sum((1, 2)) - phi.to(x)
    return max(0.0, *(float(one.max()) for one in worst)), max(0.0, float(total.max()))


def is_matching(matches: Tensor, phi: Tensor) -> Tensor:
    """(B,) whether no node is matched twice and at most phi pairs are."""
    count = matches.long()
    rows, columns = count.sum(2).amax(1) <= 1, count.sum(1).amax(1) <= 1
    return rows & columns & (count.sum((1, 2)) <= phi.to(count))


@torch.no_grad()
def evaluate_method(
    method: Method, batches: Iterable[Batch], classes: Sequence[str], *, progress: Progress | None = None
) -> Outcome:
    """Run a method on batches, whose pairs in order have these classes.

    Args:
        method: network, technique and decoder.
        batches: in order.
        classes: one for each pair.
        progress: called as ``progress(done, count)``.
    """
    parts: dict[str, list[Tensor]] = {"phi": [], "predicted": [], "hits": [], "valid": []}
    seconds = dict.fromkeys(PARTS, 0.0)
    violation = excess = 0.0
    done = 0
    for batch in batches:
        if done == 0:  # compiled kernels and caches are warm before the clock runs
            method.decode(method.relax(method.score(batch), batch), batch)
        start = process_time()
        scores = method.score(batch)
        scored = process_time()
        soft = method.relax(scores, batch)
        relaxed = process_time()
        matches = method.decode(soft, batch)
        end = process_time()
        for name, spent in zip(PARTS, (scored - start, relaxed - scored, end - relaxed)):
            seconds[name] += spent
        worst = violations(soft, batch.phi)
        violation, excess = max(violation, worst[0]), max(excess, worst[1])
        truth = batch.truth > 0.5  # not batch.phi, which may be an estimate
        parts["phi"].append(truth.sum((1, 2)))
        parts["predicted"].append(matches.sum((1, 2)))
        parts["hits"].append((matches & truth).sum((1, 2)))
        parts["valid"].append(is_matching(matches, batch.phi))
        done += len(matches)
        if progress is not None:
            progress(done, len(classes))
    if done != len(classes):
        raise ValueError(f"batches hold {done} pairs and classes names {len(classes)}; expected as many of each.")
    arrays = {name: torch.cat(tensors).cpu().numpy() for name, tensors in parts.items()}
    return Outcome(tuple(classes), violation=violation, excess=excess, seconds=seconds, **arrays)
