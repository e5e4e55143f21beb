"""Safety filters: the action nearest to a policy's that keeps control barriers, rows C(s) u >= d(s) of each state.

    unicycle            2 actions, 8 rows: speed and turn along a wall of discs, barriers on a point ahead of the axle
    double integrator   2 and 10: acceleration in the plane, discs by barriers of second order, limits of speed
    arm                 4 and 11: torques of joints with point masses, limits of the joints, discs for the tip

Every state has rows of its own. Rivals: layers with gradients (qpth, ProxQP, Moreau, qpax) and solvers without
(quadprog, OSQP, ProxQP's dense one). The oracle for the gradient is the projection onto the rows that bind.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import linsat
from arena.tables import bars, mean, table

Tensor = torch.Tensor
HEADING = "Safety filters"
BATCHES = (1, 64, 4096)
PRICE = 1e3  # of a row that has to give way
SECONDS, STEPS = 60.0, 60  # of training a policy; of a rollout, each 0.15 s


class Filter(NamedTuple):
    """What a system asks of the actions in each of its states, and what a simple controller would do."""

    wanted: Tensor  # (batch, n)
    C: Tensor  # (batch, rows, n)
    d: Tensor  # (batch, rows)
    low: Tensor  # (n,)
    high: Tensor  # (n,)


# ------------------------------------------------------------------ systems

_WALL = torch.linspace(-1.05, 1.05, 8).double()  # eight discs side by side, between the starts and the origin
DISCS = 1.5 * torch.stack([_WALL.cos(), _WALL.sin()], -1)
RADIUS, AHEAD, ALPHA = 0.45, 0.15, 2.0


def unicycle(state: Tensor, wanted: Tensor) -> Filter:
    """state (batch, 3): place and heading; actions: speed, turn."""
    cos, sin = state[:, 2].cos(), state[:, 2].sin()
    to_disc = state[:, None, :2] + AHEAD * torch.stack([cos, sin], -1)[:, None] - DISCS
    moves = torch.stack([cos, -AHEAD * sin, sin, AHEAD * cos], -1).view(-1, 2, 2)
    h = to_disc.square().sum(-1) - RADIUS**2
    limit = torch.tensor([1.0, 3.0]).double()
    return Filter(wanted, 2 * to_disc @ moves, -ALPHA * h, -limit, limit)


def towards_origin(state: Tensor) -> Tensor:
    """A controller that knows no obstacles: turn to the origin, faster from afar."""
    away = state[:, :2].norm(dim=-1)
    turn = torch.atan2(-state[:, 1], -state[:, 0]) - state[:, 2]
    return torch.stack([away * turn.cos(), 2.0 * torch.atan2(turn.sin(), turn.cos())], -1)


def _unicycle(draw: torch.Generator, count: int) -> Filter:
    state = torch.rand(count, 3, generator=draw).double() * torch.tensor([6.0, 6.0, 6.3]) - torch.tensor([3.0, 3.0, 0])
    return unicycle(state, towards_origin(state))


def _double_integrator(draw: torch.Generator, count: int) -> Filter:
    p, v = (2.0 * torch.randn(2, count, 2, generator=draw).double()).unbind()
    v = v.clamp(-1.4, 1.4)
    gap = p[:, None] - DISCS[:6]
    h, dh = gap.square().sum(-1) - RADIUS**2, 2 * (gap * v[:, None]).sum(-1)
    rest = 2 * v.square().sum(-1, keepdim=True) + 2 * ALPHA * dh + ALPHA**2 * h
    eye = torch.eye(2).double().expand(count, 2, 2)
    C = torch.cat([2 * gap, eye, -eye], 1)
    d = torch.cat([-rest, -ALPHA * (1.5 + v), -ALPHA * (1.5 - v)], 1)
    limit = torch.tensor([4.0, 4.0]).double()
    return Filter(-p - 1.5 * v, C, d, -limit, limit)


def _arm(draw: torch.Generator, count: int, speed: float = 0.5) -> Filter:
    """Four links of length 0.5 with masses at their ends: M = sum m J'J, rows by  ddq = M^-1 (torque - c)."""
    n, length, mass, gravity = 4, 0.5, torch.tensor([2.0, 1.5, 1.0, 0.5]).double(), 9.81
    q = 0.9 * torch.randn(count, n, generator=draw).double().clamp(-1.8, 1.8)
    dq = speed * torch.randn(count, n, generator=draw).double()
    angle, turn = q.cumsum(-1), dq.cumsum(-1)
    steps = length * torch.stack([-angle.sin(), angle.cos()], -1)  # (batch, link, 2): d place / d angle
    moved = -length * turn[..., None] * torch.stack([angle.cos(), angle.sin()], -1)
    chain = torch.tril(torch.ones(n, n)).double()  # mass k hangs on links 0..k; link i turns with joints 0..i
    J = torch.einsum("ki,bic,ij->bkcj", chain, steps, chain)  # (batch, mass, 2, joint)
    dJ = torch.einsum("ki,bic,ij->bkcj", chain, moved, chain)
    M = torch.einsum("k,bkci,bkcj->bij", mass, J, J)
    accelerated = torch.einsum("bkcj,bj->bkc", dJ, dq)
    c = torch.einsum("k,bkci,bkc->bi", mass, J, accelerated + torch.tensor([0.0, gravity]))
    inverse = torch.linalg.inv(M + 0.05 * torch.eye(n))  # the motors' inertia
    drift = -(inverse @ c[..., None]).squeeze(-1)  # ddq without torque
    tip = length * torch.stack([angle.cos(), angle.sin()], -1).sum(1)
    discs = torch.tensor([[1.2, 1.2], [-1.3, 0.9], [0.3, -1.7]]).double()
    gap, pace = tip[:, None] - discs, J[:, -1] @ dq[..., None]  # (batch, 3, 2), (batch, 2, 1)
    h, dh = gap.square().sum(-1) - 0.3**2, 2 * (gap @ pace).squeeze(-1)
    pulled = accelerated[:, -1] + (J[:, -1] @ drift[..., None])[..., 0]  # the tip's acceleration without torque
    still = 2 * pace.square().sum(1) + 2 * (gap @ pulled[..., None])[..., 0]
    a = 4.0
    C = torch.cat([inverse, -inverse, 2 * gap @ J[:, -1] @ inverse], 1)
    below, above = drift + 2 * a * dq + a**2 * (q + 2.0), -drift - 2 * a * dq + a**2 * (2.0 - q)
    d = -torch.cat([below, above, still + 2 * a * dh + a**2 * h], 1)
    limit = torch.tensor([60.0, 40.0, 20.0, 8.0]).double()
    return Filter(c + (M @ (-8 * q - 3 * dq)[..., None]).squeeze(-1), C, d, -limit, limit)


SYSTEMS: dict[str, Callable[..., Filter]] = {
    "unicycle": _unicycle,
    "double integrator": _double_integrator,
    "arm": _arm,
}


def scaled(f: Filter) -> Filter:
    """Rows of unit length and actions in units of their limits, for everybody alike."""
    C = f.C * f.high
    size = C.norm(dim=-1, keepdim=True)
    return Filter(f.wanted / f.high, C / size, f.d / size[..., 0], f.low / f.high, f.high / f.high)


def _quadprog(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nearest point and the multipliers of the rows and of the box [-1, 1], lower then upper."""
    import quadprog

    eye = np.eye(len(y))
    rows, sides = np.vstack([C, eye, -eye]), np.concatenate([d, -np.ones(2 * len(y))])
    solution = quadprog.solve_qp(eye, y, rows.T, sides)
    return solution[0], solution[4]


def states(system: str, count: int, conflicting: bool = False) -> Filter:
    """States whose rows can be met, by quadprog's verdict, or cannot; the first ``count`` of a generator's."""
    draw, kept, left = torch.Generator().manual_seed(0), [], count
    while left > 0:
        speed = {"speed": 3.0} if conflicting and system == "arm" else {}
        f = scaled(SYSTEMS[system](draw, min(4 * count, 4096), **speed))
        fits = []
        for y, C, d in zip(*(t.numpy() for t in f[:3])):
            try:
                _quadprog(y, C, d)
                fits.append(True)
            except ValueError:
                fits.append(False)
        chosen = torch.tensor(fits) != conflicting
        kept.append([t[chosen] for t in f[:3]])
        left -= int(chosen.sum())
    return Filter(*(torch.cat(parts)[:count].contiguous() for parts in zip(*kept)), f.low, f.high)


# ------------------------------------------------------------------ layers and solvers

Run = Callable[[np.ndarray, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray | None]]


@functools.cache
def _set(rows: int, n: int) -> linsat.Constraints:
    return linsat.Constraints(C=np.ones((rows, n)), d=np.zeros(rows), lower=-1.0, upper=1.0)


def _torch_layer(project: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Run:
    """Forward, and backward of the sum to actions, coefficients and sides."""

    def run(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        leaves = [torch.from_numpy(a).requires_grad_() for a in (y, C, d)]
        u = project(*leaves)
        u.sum().backward()
        return u.detach().numpy(), leaves[0].grad.numpy()

    return run


def _with_box(C: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """G u <= h of rows and box together, for layers that know no box."""
    eye = torch.eye(C.shape[-1]).double().expand(len(C), -1, -1)
    return torch.cat([-C, eye, -eye], 1), torch.cat([-d, torch.ones(len(C), 2 * C.shape[-1]).double()], 1)


def _linsat_torch(rows: int, n: int) -> Run:
    cons, near = _set(rows, n), linsat.Euclidean()
    return _torch_layer(lambda y, C, d: linsat.project(y, cons, objective=near, C=C, d=d))


def _qpth(rows: int, n: int) -> Run:
    from qpth.qp import QPFunction

    eye, none = torch.eye(n).double(), torch.Tensor()
    return _torch_layer(lambda y, C, d: QPFunction(verbose=-1)(eye, -y, *_with_box(C, d), none, none))


def _proxqp(rows: int, n: int) -> Run:
    from proxsuite.torch.qplayer import QPFunction

    eye = torch.eye(n).double()

    def project(y: Tensor, C: Tensor, d: Tensor) -> Tensor:
        G, h = _with_box(C, d)
        empty = torch.empty(len(y), 0, n).double(), torch.empty(len(y), 0).double()
        return QPFunction()(eye.expand(len(y), -1, -1), -y, *empty, G, torch.full_like(h, -1e20), h)[0]

    return _torch_layer(project)


def _moreau(rows: int, n: int) -> Run:
    import moreau
    import scipy.sparse as sp
    from moreau.torch import Solver

    P, pattern = sp.csr_array(sp.eye_array(n)), sp.csr_array(np.ones((rows + 2 * n, n)))
    parts = [torch.from_numpy(a.astype(np.int64)) for a in (P.indptr, P.indices, pattern.indptr, pattern.indices)]
    made: dict[int, Any] = {}

    def project(y: Tensor, C: Tensor, d: Tensor) -> Tensor:
        if len(y) not in made:
            settings = moreau.Settings(device="cpu", batch_size=len(y))
            made[len(y)] = Solver(n, rows + 2 * n, *parts, moreau.Cones(num_nonneg_cones=rows + 2 * n), settings)
        G, h = _with_box(C, d)
        diagonal = torch.ones(len(y), n).double()
        return made[len(y)].solve(diagonal, G.flatten(1), -y, h).x.reshape(y.shape)

    return _torch_layer(project)


def _jax_layer(project: Callable[..., Any]) -> Run:
    import jax

    jax.config.update("jax_enable_x64", True)

    @jax.jit
    def both(y: Any, C: Any, d: Any) -> Any:
        def total(y: Any, C: Any, d: Any) -> Any:
            u = project(y, C, d)
            return u.sum(), u

        return jax.grad(total, argnums=(0, 1, 2), has_aux=True)(y, C, d)

    def run(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        gradient, u = jax.block_until_ready(both(y, C, d))
        return np.asarray(u), np.asarray(gradient[0])

    return run


def _linsat_jax(rows: int, n: int) -> Run:
    import linsat.jax

    cons, near = _set(rows, n), linsat.Euclidean()
    return _jax_layer(lambda y, C, d: linsat.jax.project(y, cons, objective=near, C=C, d=d))


def _qpax(rows: int, n: int) -> Run:
    import jax
    import jax.numpy as jnp
    import qpax

    jax.config.update("jax_enable_x64", True)
    eye, none = jnp.eye(n), (jnp.zeros((0, n)), jnp.zeros(0))

    def one(y: Any, C: Any, d: Any) -> Any:
        G, h = jnp.concatenate([-C, eye, -eye]), jnp.concatenate([-d, jnp.ones(2 * n)])
        return qpax.solve_qp_primal(eye, -y, *none, G, h)

    return _jax_layer(jax.vmap(one))


def _each(solve: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> Run:
    """One state after the other, without a gradient."""
    return lambda y, C, d: (np.stack([solve(*one) for one in zip(y, C, d)]), None)


def _linsat_numpy(rows: int, n: int) -> Run:
    cons, near = _set(rows, n), linsat.Euclidean()
    return lambda y, C, d: (linsat.project(y, cons, objective=near, C=C, d=d), None)


def _osqp(rows: int, n: int) -> Run:
    """One set-up; vector and matrix updated for every state. Its tolerance is 1e-6 here, its default 1e-3."""
    import osqp
    import scipy.sparse as sp

    solver = osqp.OSQP()
    eye = np.eye(n)
    pattern = sp.csc_matrix(np.vstack([np.ones((rows, n)), eye]))
    where = np.nonzero(pattern.toarray().T.ravel())[0]
    high = np.concatenate([np.full(rows, np.inf), np.ones(n)])
    options = {"verbose": False, "eps_abs": 1e-6, "eps_rel": 1e-6, "max_iter": 20_000}
    solver.setup(sp.csc_matrix(eye), np.zeros(n), pattern, np.full(rows + n, -1.0), high, **options)

    def solve(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> np.ndarray:
        values = np.vstack([C, eye]).T.ravel()[where]
        solver.update(q=-y, Ax=values, l=np.concatenate([d, -np.ones(n)]))
        return solver.solve().x

    return _each(solve)


def _proxqp_dense(rows: int, n: int) -> Run:
    import proxsuite

    eye = np.eye(n)

    def solve(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> np.ndarray:
        G, low = np.vstack([C, eye]), np.concatenate([d, -np.ones(n)])
        high = np.concatenate([np.full(rows, 1e20), np.ones(n)])
        return proxsuite.proxqp.dense.solve(eye, -y, None, None, G, low, high, eps_abs=1e-9).x

    return _each(solve)


LAYERS: dict[str, Callable[[int, int], Run]] = {
    "linsat, torch": _linsat_torch,
    "linsat, JAX": _linsat_jax,
    "qpth": _qpth,
    "ProxQP's layer": _proxqp,
    "Moreau": _moreau,
    "qpax": _qpax,
}
SOLVERS: dict[str, Callable[[int, int], Run]] = {
    "linsat, numpy": _linsat_numpy,
    "quadprog": lambda rows, n: _each(lambda y, C, d: _quadprog(y, C, d)[0]),
    "OSQP": _osqp,
    "ProxQP": _proxqp_dense,
}


# ------------------------------------------------------------------ measuring


def right_answers(f: Filter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """quadprog's actions; the gradient of their sum to those wanted, where it exists; where it does."""
    y, C, d = (t.numpy() for t in f[:3])
    n = y.shape[1]
    actions, gradients, exists = [], [], []
    for one in zip(y, C, d):
        u, multipliers = _quadprog(*one)
        rows = np.vstack([one[1], np.eye(n), -np.eye(n)])
        slack = rows @ u - np.concatenate([one[2], -np.ones(2 * n)])
        binding = rows[multipliers > 1e-9]
        kept = np.ones(n)
        if len(binding):
            kept = kept - binding.T @ np.linalg.lstsq(binding.T, kept, rcond=None)[0]
        actions.append(u)
        gradients.append(kept)
        exists.append(bool(((multipliers > 1e-5) | (slack > 1e-5)).all()))
    return np.array(actions), np.array(gradients), np.array(exists)


def compare(system: str, batches: tuple[int, ...], least: float = 0.3) -> dict[str, Any]:
    """Microseconds an action at every batch size, the largest error of actions and of gradients, of everybody."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    f = states(system, max(batches))
    actions, gradients, exists = right_answers(f)
    arrays = [t.numpy() for t in f[:3]]
    result: dict[str, Any] = {}
    for name, make in {**LAYERS, **SOLVERS}.items():
        try:
            run = make(*arrays[1].shape[1:])
            times = {}
            for batch in batches:
                part = [np.ascontiguousarray(a[:batch]) for a in arrays]
                run(*part)
                spent: list[float] = []
                while not spent or sum(spent) < least or (len(spent) < 3 and sum(spent) < 3):
                    begin = time.perf_counter()
                    u, slopes = run(*part)
                    spent.append(time.perf_counter() - begin)
                times[str(batch)] = 1e6 * float(np.median(spent)) / batch
            made = {"us": times, "away": float(np.abs(u - actions).max())}
            if slopes is not None:
                made["gradient error"] = float(np.abs(slopes - gradients)[exists].max())
            result[name] = made
        except Exception as error:  # a rival that fails is said to
            result[name] = {"error": f"{type(error).__name__}: {error}"[:200]}
    return result


def conflicts(count: int) -> dict[str, Any]:
    """Arms too fast to stop: every row may give way at a price a unit; beside qpax and Clarabel."""
    import clarabel
    import jax
    import jax.numpy as jnp
    import qpax
    import scipy.sparse as sp

    torch.set_num_threads(1)
    jax.config.update("jax_enable_x64", True)
    f = states("arm", count, conflicting=True)
    y, C, d = (t.numpy() for t in f[:3])
    rows, n = C.shape[1:]
    cons, near = _set(rows, n).soften(price=PRICE), linsat.Euclidean()

    def value(u: np.ndarray) -> np.ndarray:
        short = np.maximum(d - np.einsum("bri,bi->br", C, u), 0).sum(-1)
        return ((u - y) ** 2).sum(-1) / 2 + PRICE * short

    def best(y: np.ndarray, C: np.ndarray, d: np.ndarray) -> np.ndarray:
        """min |u - y|^2 / 2 + price s over C u + s >= d, s >= 0, the box."""
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.tol_gap_abs, settings.tol_gap_rel, settings.tol_feas = False, 1e-10, 1e-10, 1e-10
        P = sp.diags(np.concatenate([np.ones(n), np.zeros(rows)])).tocsc()
        eye, none = np.eye(n), np.zeros((rows, n))
        G = np.block([[-C, -np.eye(rows)], [none, -np.eye(rows)], [eye, none.T], [-eye, none.T]])
        h = np.concatenate([-d, np.zeros(rows), np.ones(2 * n)])
        q = np.concatenate([-y, np.full(rows, PRICE)])
        cones = [clarabel.NonnegativeConeT(len(h))]
        return np.array(clarabel.DefaultSolver(P, q, sp.csc_matrix(G), h, cones, settings).solve().x[:n])

    box = jnp.concatenate([jnp.eye(n), -jnp.eye(n)])

    @jax.jit
    @jax.vmap
    def elastic(y: Any, C: Any, d: Any) -> Any:
        """Its rows are soft all alike; the box, at a price a thousand times as high, by its scale."""
        G, h = jnp.concatenate([-C, 1e3 * box]), jnp.concatenate([-d, 1e3 * jnp.ones(2 * n)])
        return qpax.solve_qp_elastic(jnp.eye(n), -y, G, h, PRICE)[0]

    runs: dict[str, Callable[[], np.ndarray]] = {
        "linsat, numpy": lambda: linsat.project(y, cons, objective=near, C=C, d=d),
        "qpax, elastic": lambda: np.asarray(elastic(y, C, d)),
        "Clarabel": lambda: np.stack([best(*one) for one in zip(y, C, d)]),
    }
    result, answers = {}, {}
    for name, run in runs.items():
        run()
        spent = []
        for _ in range(3):
            begin = time.perf_counter()
            answers[name] = run()
            spent.append(time.perf_counter() - begin)
        result[name] = {"us": 1e6 * min(spent) / count}
    least = value(answers["Clarabel"])
    for name, u in answers.items():
        excess = (value(np.clip(u, -1, 1)) - least) / np.maximum(1, np.abs(least))
        result[name] |= {"above": float(np.nanmax(excess)), "failed": int(np.isnan(u).any(-1).sum())}
        result[name]["box"] = float(np.nanmax(np.abs(u)) - 1)
    return result


# ------------------------------------------------------------------ a policy trained through the filter


def policy() -> torch.nn.Sequential:
    made = torch.nn.Sequential(
        torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2)
    ).double()
    for p in made[-1].parameters():
        p.data.mul_(0.1)
    return made


def rollout(network: torch.nn.Module, state: Tensor, filtered: bool, steps: int = STEPS) -> tuple[Tensor, Tensor]:
    """Places (steps, batch, 2) and the least barrier of each start; the network adds to a simple controller."""
    cons, near = _set(len(DISCS), 2).soften(price=PRICE), linsat.Euclidean()
    places, barrier = [], []
    for _ in range(steps):
        seen = torch.stack([state[:, 0], state[:, 1], state[:, 2].cos(), state[:, 2].sin()], -1)
        f = scaled(unicycle(state, towards_origin(state) + 2 * network(seen)))
        u = f.wanted.clamp(-1, 1)
        if filtered:
            u = linsat.project(f.wanted, cons, objective=near, C=f.C, d=f.d)
        speed, turn = u[:, 0], 3 * u[:, 1]
        moved = torch.stack([speed * state[:, 2].cos(), speed * state[:, 2].sin(), turn], -1)
        state = state + 0.15 * moved
        ahead = state[:, :2] + AHEAD * torch.stack([state[:, 2].cos(), state[:, 2].sin()], -1)
        places.append(state[:, :2])
        barrier.append(((ahead[:, None] - DISCS).square().sum(-1) - RADIUS**2).amin(-1))
    return torch.stack(places), torch.stack(barrier).amin(0)


def starts(count: int, seed: int) -> Tensor:
    """Beyond the wall, looking anywhere."""
    draw = torch.Generator().manual_seed(seed)
    angle, heading = torch.rand(2, count, generator=draw).double()
    angle = 2.6 * (angle - 0.5)
    return torch.stack([2.8 * angle.cos(), 2.8 * angle.sin(), 6.2832 * heading], -1)


def train(how: str, seed: int, seconds: float, steps: int = STEPS) -> dict[str, float]:
    """A policy that should reach the origin, trained for so long; judged on fresh starts, with the filter and without.

    ``through``: the filter is part of the rollout that is differentiated. ``afterwards``: it is not. ``penalty``: it is
    not, and entering a disc costs.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    network = policy()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds and how != "untrained":
        places, least = rollout(network, starts(64, 1000 * seed + count), how == "through", steps)
        loss = places.norm(dim=-1).mean()
        if how == "penalty":
            loss = loss + 20 * (0.05 - least).clamp(min=0).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        count += 1
    result: dict[str, float] = {"updates": count}
    with torch.no_grad():
        for name, filtered in (("with", True), ("without", False)):
            places, least = rollout(network, starts(512, 10**6), filtered, steps)
            result[f"arrived {name}"] = float((places[-1].norm(dim=-1) < 0.2).double().mean())
            result[f"hit {name}"] = float((least < -1e-3).double().mean())
            result[f"distance {name}"] = float(places.norm(dim=-1).mean())
    return result


WAYS = ("untrained", "afterwards", "penalty", "through")


def units(quick: bool) -> dict[str, Callable[[], Any]]:
    batches = (1, 8) if quick else BATCHES
    seconds, steps = (0.5, 4) if quick else (SECONDS, STEPS)
    made: dict[str, Callable[[], Any]] = {
        f"filters/{system}": functools.partial(compare, system, batches, 0.01 if quick else 0.3) for system in SYSTEMS
    }
    made["filters/conflicts"] = functools.partial(conflicts, 8 if quick else 1024)
    for how in WAYS:
        for seed in range(2 if not quick and how == "through" else 1):
            made[f"filters/policy/{how}/{seed}"] = functools.partial(train, how, seed, seconds, steps)
    return made


# ------------------------------------------------------------------ on the page


def section(results: dict[str, Any]) -> list[str]:
    made = {system: results[f"filters/{system}"] for system in SYSTEMS if f"filters/{system}" in results}
    parts = [
        f"""
## {HEADING}

The action nearest to the one that a policy wants, among those that keep control barriers and limits of the actuators:
a projection onto rows that every state has for itself. Published toy systems, states drawn at random from those whose
rows can be met. Microseconds an action; layers forward and backward (to actions, coefficients and sides), solvers
forward. *Off*: the largest difference to quadprog; *gradient off*: to the projection onto the rows that bind.
"""
    ]
    firsts: dict[str, list[float]] = {"linsat, torch": [], "linsat, JAX": []}
    within = []
    for system, runs in made.items():
        rows = []
        for name, r in runs.items():
            kind = "forward and backward" if name in LAYERS else "forward"
            if "error" in r:
                rows.append((name, kind, r["error"], *[""] * (len(BATCHES) + 1)))
                continue
            cells = [f"{r['us'][b]:,.3g}" if b in r["us"] else "" for b in map(str, BATCHES)]
            slope = f"{r['gradient error']:.0e}" if "gradient error" in r else ""
            rows.append((name, kind, *cells, f"{r['away']:.0e}", slope))
        head = ("", "", *[f"batch {b:,}" for b in BATCHES], "off", "gradient off")
        parts.append(f"**{system.capitalize()}**\n\n{table(head, rows)}")
        good = {name: r["us"] for name, r in runs.items() if "error" not in r}
        rivals = [name for name in LAYERS if name in good and not name.startswith("linsat")]
        for ours, ratios in firsts.items():
            beside = [name for name in rivals if name != "qpax" or "JAX" in ours]  # which has no door to torch
            ratios += [min(good[name][b] for name in beside) / good[ours][b] for b in good[ours]]
        within.append(good["linsat, numpy"]["1"] / good["quadprog"]["1"])
    if made:
        found = []
        for ours, beside in (("linsat, JAX", "of all"), ("linsat, torch", "of those in torch")):
            ratios = firsts[ours]
            words = f"{sum(r > 1 for r in ratios)} of {len(ratios)}; the next takes {min(ratios):.1f} to"
            asked = f"{ours}: first {beside} at every batch size, among layers with gradients"
            found.append((asked, f"{words} {max(ratios):.1f} times as long", min(ratios) > 1))
        words = f"{', '.join(f'{r:.1f}' for r in within)} times ({', '.join(made)})"
        found.append(("linsat, numpy: one action, forward, within 3 times quadprog", words, max(within) <= 3))
        parts.append(bars(found))
    clash = results.get("filters/conflicts", {})
    if clash:
        rows = [
            (name, f"{r['us']:,.3g}", f"{r['above']:.0e}", f"{max(r['box'], 0):.0e}", str(r["failed"]))
            for name, r in clash.items()
        ]
        parts.append(
            f"""
**Rows that conflict**: 1,024 arms too fast to stop with their torques. Every row may give way at {PRICE:,.0f} a unit
(`constraints.soften(price=...)`), the torques may not. *Value*: above Clarabel's, relative.
"""
        )
        parts.append(table(("", "us an action", "value", "beyond a limit", "failed"), rows))
    rows = []
    for how in WAYS:
        runs = [r for unit, r in results.items() if unit.startswith(f"filters/policy/{how}/")]
        if runs:
            shares = [
                ", ".join(f"{100 * r[f'{what} {side}']:.0f} %" for r in runs)
                for side in ("without", "with")
                for what in ("arrived", "hit")
            ]
            rows.append((how, f"{mean(r['updates'] for r in runs):.0f}", *shares))
    head = ("trained", "updates", "arrived, no filter", "hit, no filter", "arrived, filter", "hit, filter")
    parts += [
        f"""
**A policy**: unicycles should reach the origin behind a wall of discs; a network adds to a controller that knows of
none. {SECONDS:.0f} seconds of training each: without the filter (*afterwards*: it is put on when all is
learned), with a *penalty* for entering a disc, or *through* the filter. 512 fresh starts, {STEPS} steps of 0.15 s;
one figure a seed.
""",
        table(head, rows),
        """
![Unicycles among discs](assets/arena/filters.png)

`python examples/flagships/filters.py` draws the picture.

**What this shows.** What one filter costs where it runs alone, in a batch and in training; that a conflict ends in the
least violation instead of an error; that a policy can learn around its filter.

**What it does not show.** Safety of a machine: barriers hold in continuous time and for the model, states are drawn and
not those of a loop, and a step of 0.15 s may enter a disc by a little (*hit* counts more than 0.001). qpax smooths its
gradient on purpose, and its defaults stop early; ProxQP's layer has its default accuracy, and some of its answers are
elsewhere altogether. qpth's worst figures are of a few states. Two seeds say little about training: where they differ,
they show that it may fail. OSQP is given 1e-6 and one set-up. None of the solvers is started from the last action,
which would help them in a loop; C code generated for one system (CVXGEN, acados) was not run.
""",
    ]
    return parts
