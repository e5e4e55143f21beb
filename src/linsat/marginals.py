"""The paper's bare algorithms: Sinkhorn for one set of marginals (Algorithm 1) and for k sets (Algorithm 2).

Scores ``S >= 0`` (m, n) become ``Gamma`` (m, n), the share of column j that goes to row i. A set of marginals
``u`` (n,), ``v`` (m,) of equal totals asks for ``sum_i Gamma_ij u_j = u_j`` and ``sum_j Gamma_ij u_j = v_i``.
Iteration t treats set ``t mod k``; k iterations are one sweep. Everything runs on logarithms in float64 with
the zero pattern carried beside them: scores of any magnitude neither overflow nor turn into false zeros.
Malformed input raises `ConstraintError` at once.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from linsat.constraints.arrays import read_numbers, to_tensor
from linsat.errors import ConstraintError, LinSATWarning

Tensor = torch.Tensor
_TOTALS_DIFFER = 1e-6  # relative; what float32 rounding explains, and no more


@dataclass(frozen=True)
class Normalized:
    """What `sinkhorn` and `multi_set_sinkhorn` return; tensors, or numpy arrays when S was one.

    The histories hold both halves of each iteration for the set ``t mod k``: ``[..., t, 0]`` of Gamma^(t),
    before the v-normalisation, and ``[..., t, 1]`` of Gamma'^(t), before the u-normalisation. They carry no
    gradient and are NaN for iterations in which an instance no longer took part because it had converged.
    """

    matrix: Any  # (..., m, n) Gamma, in the dtype and on the device of S
    l1: Any  # (..., iterations, 2) ||v^(t) - v||_1 and ||u^(t) - u||_1, float64
    kl: Any  # (..., iterations, 2) D_KL(pi_v || pi_v^(t)) and D_KL(pi_u || pi_u^(t)), float64
    iterations: Any  # (...) iterations made, int64
    converged: Any  # (...) whether every set holds at once to tol, judged before narrowing to the dtype of S


@dataclass(frozen=True)
class _Problem:
    """Validated input, flattened to B instances, in float64 on the device of S."""

    S: Tensor  # (B, m, n)
    U: Tensor  # (B, k, n)
    V: Tensor  # (B, k, m)
    batch: torch.Size
    like: Any  # S as it was handed in, for the way back

    def restore(self, flat: Tensor, *, as_scores: bool = False) -> Any:
        """From B instances to the caller's batch dimensions, library and (for the matrix) dtype."""
        result = flat.reshape((*self.batch, *flat.shape[1:]))
        if isinstance(self.like, torch.Tensor):
            return result.to(self.like.dtype) if as_scores and self.like.is_floating_point() else result
        array = result.detach().cpu().numpy()
        dtype = np.asarray(self.like).dtype
        return array.astype(dtype) if as_scores and dtype.kind == "f" else array


def sinkhorn(S: Any, u: Any, v: Any, *, max_iter: int = 1000, tol: float = 1e-6) -> Normalized:
    """Classic Sinkhorn for a single set of marginals (Algorithm 1 of the paper).

    Args:
        S: non-negative scores (..., m, n). Zeros stay zero and get no gradient; no column may be all zero.
        u: column marginal (n,) or (..., n).
        v: row marginal (m,) or (..., m), of the same total as u.
        max_iter: most iterations, each one v- and one u-normalisation.
        tol: an instance stops once its L1 error is at most this; 0 for exactly ``max_iter`` iterations.

    Returns:
        Normalized: the matrix and its error histories; ``matrix * u`` is the plan P in Cuturi's notation.
        Differentiable in S, u and v by autograd, through the iterations made.

    Warns:
        LinSATWarning: some instances (`Normalized.converged` says which) are not at ``tol`` after ``max_iter``.
    """
    return _alternate(_read_problem(S, ("u", u), ("v", v), single=True), max_iter, tol)


def multi_set_sinkhorn(S: Any, U: Any, V: Any, *, max_iter: int = 1000, tol: float = 1e-6) -> Normalized:
    """Sinkhorn for k sets of marginals (Algorithm 2 of the paper).

    Columns with ``U[eta, j] = 0`` are left alone in the step of set eta. It converges when the sets weigh the
    columns they share in the same proportions (0/1 weights do) and some matrix within the zero pattern of S
    satisfies all sets. Otherwise it may never do so; it warns, and `Normalized.converged` says false.

    Args:
        S: non-negative scores (..., m, n). Zeros stay zero and get no gradient; no column may be all zero.
        U: column marginals (k, n) or (..., k, n).
        V: row marginals (k, m) or (..., k, m); each set's total must equal that of U.
        max_iter: most iterations, each one v- and one u-normalisation of one set.
        tol: an instance stops after the first sweep that leaves the L1 error of every set at most this; 0 for exactly
            ``max_iter`` iterations.

    Returns:
        Normalized: the matrix and its error histories. Differentiable as `sinkhorn` is.

    Warns:
        LinSATWarning: as `sinkhorn` does.
    """
    return _alternate(_read_problem(S, ("U", U), ("V", V), single=False), max_iter, tol)


def iteration_bound(S: Any, U: Any, V: Any, *, l1_error: float) -> Any:
    """Iterations within which the paper promises the given L1 error (Theorem 3.2 and its corollary).

    ``T = k log(1 + 2 Delta / alpha) / delta + k`` with ``delta = l1_error^2 / (2 h^2)``: Delta is the largest
    number of non-zeros in a column of S, alpha the smallest non-zero of S over the largest entry, h the
    largest total of a set. It needs what `multi_set_sinkhorn` needs to converge, which is not checked.
    """
    problem = _read_problem(S, ("U", U), ("V", V), single=False)
    if not (math.isfinite(l1_error) and l1_error > 0):
        raise ConstraintError(f"l1_error is {l1_error}; expected a positive number. Fix: pass 1e-3, for example.")
    scores, k = problem.S.detach(), problem.U.shape[1]
    smallest = torch.where(scores > 0, scores, math.inf).amin((-2, -1))
    non_zeros = (scores > 0).sum(-2).amax(-1)
    # log(1 + 2 Delta / alpha), from log(2 Delta / alpha) because alpha may be too small to divide by.
    log_ratio = torch.log(2 * non_zeros.to(scores.dtype)) + scores.amax((-2, -1)).log() - smallest.log()
    log_term = torch.logaddexp(log_ratio, torch.zeros_like(log_ratio))
    total = problem.V.detach().sum(-1).amax(-1)
    return problem.restore(k * log_term * 2 * (total / l1_error) ** 2 + k)


# ---------------------------------------------------------------------- the algorithm


def _alternate(problem: _Problem, max_iter: int, tol: float) -> Normalized:
    """Algorithm 2; an instance that has converged leaves the batch, so no answer depends on batch mates."""
    _check_stopping(max_iter, tol)
    S, U, V = problem.S, problem.U, problem.V
    count, k = S.shape[0], U.shape[1]
    log_gamma, alive = _start(S)
    running = torch.arange(count, device=S.device)
    steps = torch.zeros(count, dtype=torch.int64, device=S.device)
    converged = torch.zeros(count, dtype=torch.bool, device=S.device)
    matrices, owners, history = [S[:0]], [running[:0]], []
    for t in range(max_iter if count else 0):
        log_gamma, alive, errors = _iterate(log_gamma, alive, U[:, t % k], V[:, t % k])
        history.append(errors.new_full((2, count, 2), math.nan).index_copy(1, running, errors))
        if (t + 1) % k and t + 1 < max_iter:
            continue
        gamma = torch.where(alive, log_gamma.exp(), 0.0)
        worst = _worst_l1(gamma.detach(), U.detach(), V.detach())
        holds = worst <= tol
        leaves = holds | (t + 1 == max_iter)
        matrices.append(gamma[leaves])
        owners.append(running[leaves])
        steps[running[leaves]] = t + 1
        converged[running[holds]] = True
        if t + 1 == max_iter and tol > 0 and not bool(holds.all()):
            _warn(count, worst[~holds], max_iter, tol)
        if not bool(leaves.any()):
            continue
        running, log_gamma, alive, U, V = (part[~leaves] for part in (running, log_gamma, alive, U, V))
        if not len(running):
            break
    matrix = torch.cat(matrices)[torch.cat(owners).argsort()]
    l1, kl = torch.stack(history, -2) if history else S.detach().new_zeros((2, count, 0, 2))
    return Normalized(
        matrix=problem.restore(matrix, as_scores=True),
        l1=problem.restore(l1),
        kl=problem.restore(kl),
        iterations=problem.restore(steps),
        converged=problem.restore(converged),
    )


def _warn(count: int, errors: Tensor, max_iter: int, tol: float) -> None:
    """Say that some instances were still on their way; ``errors``: theirs."""
    warnings.warn(
        f"{len(errors)} of {count} instances have not converged in max_iter = {max_iter} iterations: the L1 error is "
        f"{float(errors.max()):.1e} at most, above tol = {tol:g}. Fix: a larger max_iter; a higher temperature, for "
        f"less extreme scores; or linsat.project, whose rows hold to 1e-9. (tol=0 asks for max_iter iterations, and "
        f"does not warn.)",
        LinSATWarning,
        stacklevel=4,
    )


def _start(S: Tensor) -> tuple[Tensor, Tensor]:
    """log Gamma^(0), the column-normalised scores, and which entries are not zero."""
    log_scores = _safe_log(S)
    return log_scores - _log_sum(log_scores, S > 0, dim=-2)[0], S > 0


def _iterate(log_gamma: Tensor, alive: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One v- and one u-normalisation of one set, with the errors before each half: (L1 and KL, B, halves)."""
    row, col = v.unsqueeze(-1), u.unsqueeze(-2)  # (B, m, 1), (B, 1, n)
    touched = alive & (col > 0)
    log_row_sum, row_filled = _log_sum(log_gamma + _safe_log(col), touched, dim=-1)  # (B, m, 1)
    log_gamma = torch.where(touched, log_gamma + _safe_log(row) - log_row_sum, log_gamma)
    alive = alive & ~((col > 0) & (row == 0))  # v_i = 0 empties the row
    touched = alive & (col > 0)
    log_col_sum, col_filled = _log_sum(log_gamma, touched, dim=-2)  # (B, 1, n)
    log_gamma = torch.where(touched, log_gamma - log_col_sum, log_gamma)
    with torch.no_grad():
        v_now = torch.where(row_filled, log_row_sum.exp(), 0.0).squeeze(-1)
        u_now = torch.where(col_filled, log_col_sum.exp(), 0.0).squeeze(-2) * u
        errors = torch.stack([_errors(v_now, v), _errors(u_now, u)], dim=-1)
    return log_gamma, alive, errors


def _errors(now: Tensor, target: Tensor) -> Tensor:
    """(2, B): the L1 error of one marginal, and D_KL(target || now) of both divided by the target's total."""
    total = target.sum(-1)
    kl = (torch.xlogy(target, target) - torch.xlogy(target, now)).sum(-1)
    return torch.stack([(now - target).abs().sum(-1), torch.where(total > 0, kl / total, 0.0)])


def _worst_l1(gamma: Tensor, U: Tensor, V: Tensor) -> Tensor:
    """(B,) the largest L1 error of any set, all measured on the same matrix.

    Rows are enough: a column sums to 1, or to 0 if all its entries had to vanish, and rows miss that mass.
    """
    worst = torch.zeros_like(gamma[:, 0, 0])
    # Set by set, not one matrix product, whose rounding would depend on the size of the batch.
    for u, v in zip(U.unbind(1), V.unbind(1), strict=True):
        worst = worst.maximum(((gamma * u.unsqueeze(-2)).sum(-1) - v).abs().sum(-1))
    return worst


def _safe_log(values: Tensor) -> Tensor:
    """Logarithm of positive entries; 0 for the others, which are masked out, as log(0) spoils gradients."""
    return torch.where(values > 0, values, 1.0).log()


def _log_sum(values: Tensor, mask: Tensor, *, dim: int) -> tuple[Tensor, Tensor]:
    """log sum exp over the masked entries, and where there are any; 0, without NaN gradients, where not."""
    filled = mask.any(dim, keepdim=True)
    peak = torch.where(mask, values.detach(), -math.inf).amax(dim, keepdim=True)
    peak = torch.where(filled, peak, 0.0)
    terms = torch.where(mask, torch.where(mask, values - peak, 0.0).exp(), 0.0)
    return torch.where(filled, terms.sum(dim, keepdim=True), 1.0).log() + peak, filled


# ---------------------------------------------------------------------- reading the input


def _check_stopping(max_iter: int, tol: float) -> None:
    if not isinstance(max_iter, (int, np.integer)) or max_iter < 1:
        raise ConstraintError(f"max_iter is {max_iter}; expected an integer >= 1. Fix: pass 1000, for example.")
    if not (math.isfinite(tol) and tol >= 0):
        raise ConstraintError(f"tol is {tol}; expected a finite number >= 0. Fix: pass 1e-6, for example.")


def _read_problem(S: Any, u: tuple[str, Any], v: tuple[str, Any], *, single: bool) -> _Problem:
    scores = _read_array("S", S, fix="pass exp(W / tau) for real-valued scores W")
    if scores.dim() < 2 or 0 in scores.shape[-2:]:
        raise ConstraintError(f"S has shape {tuple(scores.shape)}; expected (..., m, n). Fix: pass a matrix.")
    _check_columns(scores.detach())
    m, n = scores.shape[-2:]
    U = _read_marginals(*u, length=n, letter="n", single=single).to(scores.device)
    V = _read_marginals(*v, length=m, letter="m", single=single).to(scores.device)
    if U.shape[-2] != V.shape[-2]:
        raise ConstraintError(f"U has {U.shape[-2]} sets, V has {V.shape[-2]}. Fix: one row of each per set.")
    shapes = {"S": scores.shape[:-2], u[0]: U.shape[:-2], v[0]: V.shape[:-2]}
    try:
        batch = torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ConstraintError(
            f"The batch dimensions do not fit together: {listed}. Fix: give each the same ones, or none."
        ) from None
    _check_totals(U.detach(), V.detach())
    flat = [t.expand(*batch, *t.shape[-2:]).reshape(batch.numel(), *t.shape[-2:]) for t in (scores, U, V)]
    return _Problem(flat[0], flat[1], flat[2], batch, S)


def _read_array(name: str, value: Any, *, fix: str) -> Tensor:
    tensor = to_tensor(read_numbers(name, value))
    plain = tensor.detach()
    bad = ~(torch.isfinite(plain) & (plain >= 0))
    if bool(bad.any()):
        at = _first(bad)
        raise ConstraintError(f"{name}{list(at)} is {float(plain[at])}; expected a finite number >= 0. Fix: {fix}.")
    return tensor


def _read_marginals(name: str, value: Any, *, length: int, letter: str, single: bool) -> Tensor:
    """One set (..., length) or k sets (..., k, length), always returned as (..., k, length)."""
    tensor = _read_array(name, value, fix="leave out what is not a mass")
    shape = tuple(tensor.shape)
    if len(shape) < (1 if single else 2) or shape[-1] != length or (not single and shape[-2] == 0):
        expected = f"({length},) or (..., {length})" if single else f"(k, {length}) or (..., k, {length})"
        raise ConstraintError(
            f"{name} has shape {shape}; expected {expected}, as S has {letter} = {length}. "
            f"Fix: u goes with the columns of S, v with the rows."
        )
    return tensor.unsqueeze(-2) if single else tensor


def _check_columns(scores: Tensor) -> None:
    empty = (scores == 0).all(-2)
    if bool(empty.any()):
        *instance, column = _first(empty)
        where = f"column {column} of S" + (f" in instance {instance}" if instance else "")
        raise ConstraintError(
            f"{where} is all zero; expected a positive score in every column, since zeros cannot be scaled "
            f"to sum to 1. Fix: drop the column or give it a score."
        )


def _check_totals(U: Tensor, V: Tensor) -> None:
    columns, rows = torch.broadcast_tensors(U.sum(-1), V.sum(-1))
    wrong = (columns - rows).abs() > _TOTALS_DIFFER * torch.maximum(columns, rows)
    if bool(wrong.any()):
        *instance, index = at = _first(wrong)
        where = f"set {index}" + (f" of instance {instance}" if instance else "")
        raise ConstraintError(
            f"{where}: u sums to {float(columns[at]):.10g} but v sums to {float(rows[at]):.10g}; expected "
            f"equal totals, since all mass of the columns goes to the rows. Fix: scale one of them."
        )


def _first(mask: Tensor) -> tuple[int, ...]:
    return tuple(int(i) for i in mask.nonzero()[0])
