r"""Adaptive primal-dual accelerated gradient descent on the dual of the entropic program, in PyTorch.

Written from the description in GLinSAT (Zeng et al., NeurIPS 2024, arXiv 2409.17500), which applies the
method of Dvurechensky, Gasnikov and Kroshnin (ICML 2018): no factorisation, only products with G and G'.

The dual of the program in `equalities` is smooth and convex, with the rows' residual as its gradient:

    x(mu) = sigmoid((y + G'mu) / tau),   z(mu) = sigmoid(mu / tau)
    F(mu) = tau sum_j softplus((y + G'mu)_j / tau) + tau sum_i s_i softplus(mu_i / tau) - <q, mu>
    F'(mu) = G x + s z - q

One iteration with curvature estimate M, where alpha solves M alpha^2 = beta + alpha, beta sums the alphas and
t = alpha / beta:

    lambda = t zeta + (1 - t) eta;   zeta <- zeta - alpha F'(lambda);   eta <- t zeta + (1 - t) eta

accepted when F(eta) <= F(lambda) - |F'(lambda)|^2 / (2 M), else M doubles; two acceptances in a row halve it.
The gradient is implicit, F'(mu) = 0 differentiated, with conjugate gradients for the linear system.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import softplus

from equalities import Equalities

Tensor = torch.Tensor
_COMPACT_EVERY = 20  # iterations between two removals of finished instances from the batch


@dataclass(frozen=True)
class Options:
    """``tol``: largest residual of a normalised row; ``cg_tol``: relative, of the backward linear system."""

    tol: float = 1e-5
    max_iterations: int = 20_000
    cg_tol: float = 1e-8


class Apdagd:
    """The layer for one set of rows and one temperature; call it with scores (batch, l)."""

    def __init__(self, equalities: Equalities, tau: float, options: Options | None = None) -> None:
        self.G = torch.from_numpy(equalities.G.toarray())  # (k, l) float64
        self.s, self.q = torch.from_numpy(equalities.s), torch.from_numpy(equalities.q)
        self.tau, self.options = tau, options or Options()

    def __call__(self, y: Tensor) -> Tensor:
        return _Implicit.apply(y, self)

    def shares(self, y: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """x (batch, l) and z (batch, k) at duals mu."""
        return torch.sigmoid((y + mu @ self.G) / self.tau), torch.sigmoid(mu / self.tau)

    def evaluate(self, y: Tensor, mu: Tensor) -> tuple[Tensor, Tensor]:
        """F (batch, 1) and its gradient (batch, k)."""
        logits, slack = (y + mu @ self.G) / self.tau, mu / self.tau
        smooth = softplus(logits).sum(-1) + (self.s * softplus(slack)).sum(-1)
        value = self.tau * smooth - mu @ self.q
        gradient = torch.sigmoid(logits) @ self.G.T + self.s * torch.sigmoid(slack) - self.q
        return value[:, None], gradient

    @torch.no_grad()
    def duals(self, y: Tensor) -> Tensor:
        """mu (batch, k) to the tolerance, or as far as the iterations go."""
        found = y.new_zeros(y.shape[0], len(self.q))
        run = _Run(self, y)
        for iteration in range(1, self.options.max_iterations + 1):
            run.iterate()
            if iteration % _COMPACT_EVERY == 0 or iteration == self.options.max_iterations or run.all_done():
                run.retire(found)
                if not len(run.index):
                    return found
        run.retire(found, everything=True)
        return found


class _Run:
    """The accelerated iteration on the instances that are not done."""

    def __init__(self, layer: Apdagd, y: Tensor) -> None:
        self.layer, self.y = layer, y
        self.index = torch.arange(y.shape[0])
        self.eta = y.new_zeros(y.shape[0], len(layer.q))
        self.zeta = self.eta.clone()
        self.beta = y.new_zeros(y.shape[0], 1)
        self.M = y.new_ones(y.shape[0], 1)
        self.accepted = y.new_zeros(y.shape[0], 1)  # in a row
        self.error = y.new_full((y.shape[0],), float("inf"))

    def iterate(self) -> None:
        """One accepted step for every instance, raising M where the quadratic bound fails."""
        waiting = torch.ones_like(self.M, dtype=torch.bool)
        eta, zeta, beta = self.eta, self.zeta, self.beta
        self.M = torch.where(self.accepted >= 2, self.M / 2, self.M)
        self.accepted = torch.where(self.accepted >= 2, 0.0, self.accepted)
        while bool(waiting.any()):
            alpha = (1 + torch.sqrt(1 + 4 * self.M * self.beta)) / (2 * self.M)
            t = alpha / (self.beta + alpha)
            query = t * self.zeta + (1 - t) * self.eta
            value, gradient = self.layer.evaluate(self.y, query)
            zeta_new = self.zeta - alpha * gradient
            eta_new = t * zeta_new + (1 - t) * self.eta
            value_new, gradient_new = self.layer.evaluate(self.y, eta_new)
            bound = value - gradient.square().sum(-1, keepdim=True) / (2 * self.M)
            # Close to the optimum rounding hides the decrease, hence the small allowance.
            good = waiting & (value_new <= bound + 1e-13 * (1 + value.abs()))
            eta, zeta = torch.where(good, eta_new, eta), torch.where(good, zeta_new, zeta)
            beta = torch.where(good, self.beta + alpha, beta)
            self.error = torch.where(good[:, 0], gradient_new.abs().amax(-1), self.error)
            waiting = waiting & ~good
            self.M = torch.where(waiting, 2 * self.M, self.M)
            self.accepted = torch.where(waiting, -1.0, self.accepted)
        self.eta, self.zeta, self.beta = eta, zeta, beta
        self.accepted = self.accepted + 1

    def all_done(self) -> bool:
        return bool((self.error <= self.layer.options.tol).all())

    def retire(self, found: Tensor, *, everything: bool = False) -> None:
        """Write the finished duals into ``found`` and go on with the rest."""
        done = self.error <= self.layer.options.tol
        done = torch.ones_like(done) if everything else done
        found[self.index[done]] = self.eta[done]
        for name in ("y", "index", "eta", "zeta", "beta", "M", "accepted", "error"):
            setattr(self, name, getattr(self, name)[~done])


class _Implicit(torch.autograd.Function):
    """dL/dy = D (g - G'v) with H v = G D g, H = G D G' + diag(s z (1-z) / tau), D = diag(x (1-x) / tau)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, layer: Apdagd) -> Tensor:
        scores = y.to(torch.float64)
        x, z = layer.shares(scores, layer.duals(scores))
        ctx.layer, ctx.dtype = layer, y.dtype
        ctx.save_for_backward(x, z)
        return x.to(y.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        layer, (x, z) = ctx.layer, ctx.saved_tensors
        D, own = x * (1 - x) / layer.tau, layer.s * z * (1 - z) / layer.tau
        g = grads[0].to(x.dtype)

        def hessian(v: Tensor) -> Tensor:
            return (D * (v @ layer.G)) @ layer.G.T + own * v

        v = conjugate_gradients(hessian, (D * g) @ layer.G.T, layer.options.cg_tol)
        return (D * (g - v @ layer.G)).to(ctx.dtype), None


def conjugate_gradients(apply: Callable[[Tensor], Tensor], rhs: Tensor, tol: float) -> Tensor:
    """Solve a batch of symmetric positive semi-definite systems (consistent ones) from zero."""
    v, residual = torch.zeros_like(rhs), rhs
    direction, energy = residual, residual.square().sum(-1, keepdim=True)
    goal = tol**2 * energy
    for _ in range(4 * rhs.shape[-1]):
        if bool((energy <= goal).all()):
            break
        image = apply(direction)
        curvature = (direction * image).sum(-1, keepdim=True)
        step = torch.where(curvature > 0, energy / curvature.clamp_min(1e-300), 0.0)
        step = torch.where(energy > goal, step, 0.0)
        v, residual = v + step * direction, residual - step * image
        fresh = residual.square().sum(-1, keepdim=True)
        direction = residual + fresh / energy.clamp_min(1e-300) * direction
        energy = fresh
    return v
