r"""Projections onto sets with sums of absolute values and other maxima: which pieces count.

`linsat.constraints.plain_rows` makes linear rows of a formula for a `Choice` of leading and tied pieces. The right
choice is the one whose solution agrees with it. With lambda >= 0 the multiplier of a formula, at x and the multipliers
of the rows made for a choice:

    a formula that is violated binds; one with lambda < 0 does not
    a piece that exceeds the leading one ties with it
    a tied piece whose share of lambda is negative leaves; so does the leading one, and the next one leads
    a maximum in one variable, |x_j - c_j|: x_j is the point of its own objective that the rest of the multipliers asks
    for, to the right of c_j, to the left, or between the two at c_j itself, where its pieces tie

A choice that this leaves as it is satisfies all optimality conditions of the convex program, so its solution is the
projection. Repeated, it is a semismooth Newton (primal-dual active set) method: a few rounds as a rule, each a solve of
linear rows for all instances together, with every objective. What it leaves unsolved is put to the interior-point
method on the lifted program, with a column without cost for each maximum, and its solution to the same test.

Why not the lifted program alone: the core and its gradients do not take columns without curvature, every door would
need a second way, and a term that is zero would be zero to a tolerance. Why not cutting planes (a row for each pattern
of signs that a solution violates): at a term that is exactly zero the rows found say nothing about its multiplier, on
which the gradient depends. Here the rows of the right choice are what is differentiated.

Under the paper's entropic slack, formulas with several maxima, and soft ones, have no slack term: they act only where
they bind. The slack of a sum of absolute values would not be concave.

References: Hintermueller, Ito, Kunisch, SIAM J. Optim. 13 (2002).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from linsat._senses import GREATER
from linsat.arrays.interior import instances as interior_point
from linsat.arrays.interior.method import minimise
from linsat.arrays.interior.quadratic import with_matrix
from linsat.arrays.newton import Newton
from linsat.call import Call
from linsat.constraints.arrays import as_array
from linsat.constraints.constraint_set import Constraints
from linsat.constraints.plain_rows import Choice, PlainRows, Stated
from linsat.constraints.terms import lifted, summed
from linsat.errors import ConstraintError
from linsat.native.batch import Answer
from linsat.objectives import Euclidean, Objective
from linsat.objectives.quadratic import Matrix
from linsat.plan import Numbers, Plan, hold, plan_of
from linsat.request import Options
from linsat.status import Status
from linsat.verdict import judge
from linsat.verdict.diagnosis import linear_system

Array = np.ndarray

_ROUNDS = 100  # before the interior-point method is asked
_FURTHER = 10  # after it
_TOL = 1e-9  # by which a piece may exceed the leading one, relative to its size, and shares may be negative
_MODELS = 12  # quadratic models of an objective that the interior-point method does not know
_FAR, _INSIDE = 1e6, 1e-7  # how far bisection looks, and how close to a bound a model is made, as a share of the box
_SAME = 1e-7  # distance of two answers that are the same, relative to their size
_JUDGE_SECONDS = 10.0
_BEYOND = 1e30  # stands for a multiplier that may be as large as one likes


@dataclass
class Chosen:
    """The right choice for every instance, and the solution of its linear rows."""

    choice: Choice
    x: Array  # (N, l)
    duals: Array  # (N, k') of the linear rows
    counts: Array  # (3, N) codes, steps, solvers


def flat_numbers(stated: Stated, batch: tuple[int, ...]) -> Stated:
    """Numbers over a flattened batch of arrays: (1, .) where all instances share them, else (N, .)."""

    def flat(numbers: Any) -> Array:
        array = np.asarray(as_array(numbers), dtype=np.float64)
        if array.ndim <= 1:
            return array.reshape(1, -1)
        return np.broadcast_to(array, (*batch, array.shape[-1])).reshape(math.prod(batch), array.shape[-1])

    return Stated(*map(flat, stated))


def choose(
    constraints: Constraints, stated: Stated, scores: Array, objective: Objective, solver: Newton, start: Array | None
) -> Chosen:
    """The choice for scores (N, l); numbers and objective over the flattened batch, as arrays of the host."""
    search = _Search(constraints, stated, scores.astype(np.float64), objective, solver)
    with np.errstate(all="ignore"):
        return search.run(start)


class _Search:
    def __init__(
        self, constraints: Constraints, stated: Stated, scores: Array, objective: Objective, solver: Newton
    ) -> None:
        terms = constraints._terms
        assert terms is not None
        self.constraints, self.terms, self.solver, self.objective = constraints, terms, solver, objective
        self.rows = PlainRows.of(constraints, objective.entropic_slack)
        # A score of -inf holds a variable at its lower bound: from here on that is its box.
        numbers, held = hold(Numbers(*stated[:5]), scores, objective)
        self.stated = Stated(*numbers, *stated[5:])
        self.scores = scores if held is None else np.where(held, 0.0, scores)
        self.count, self.width = scores.shape
        template = self.rows.template(constraints)
        self.plan: Plan = plan_of(template, objective, solver, self.width, given=True)
        self.pattern = constraints._structure
        rows = self.rows
        self.sense = np.where(self.pattern.senses[rows.joint] == GREATER, 1.0, -1.0)  # of a multiplier that pushes
        self.joint_max = np.flatnonzero(rows.joint_pieces[terms.first[:-1]])  # maxima that need a choice
        self.row_of = rows.joint_of[terms.first[:-1]]  # (maxima,) position in joint
        self.bound_pairs = _sharing(rows.bound_column)
        self.others = np.setdiff1d(self.joint_max, rows.bound) if rows.by_bounds else self.joint_max
        first, per = terms.first, np.diff(terms.first)
        self.table = np.minimum(first[:-1, None] + np.arange(per.max()), first[1:, None] - 1)  # (maxima, widest)
        self.tie_rows = np.flatnonzero(rows.is_tie)
        self.joint_rows = np.flatnonzero(rows.is_joint)

    # ------------------------------------------------------------------ the iteration

    def run(self, start: Array | None) -> Chosen:
        count, rows = self.count, self.rows
        pieces, k = len(self.terms.base), len(rows.from_row)
        choice = Choice(np.zeros((count, len(rows.joint))), np.zeros((count, pieces)), np.zeros((count, pieces)))
        chosen = Chosen(choice, np.zeros((count, self.width)), np.zeros((count, k)), np.zeros((3, count), np.int64))
        if start is not None:
            chosen.duals[:] = rows.start(start)
        left = self._iterate(chosen, np.arange(count), _ROUNDS)
        self.latest, self.certain = chosen.x.copy(), np.zeros(count, dtype=bool)
        stated = interior_point.unsupported(self.objective) is None and not interior_point.is_modelled(self.objective)
        known = stated or isinstance(self.objective, Matrix)
        for _ in range(1 if known else _MODELS):
            for i in left:
                self._ask_interior_point(chosen, i, known)
            left = self._iterate(chosen, left, _FURTHER, finish=known) if len(left) else left
        for i in left:
            self._give_up(chosen, i)
        return chosen

    def _iterate(self, chosen: Chosen, index: Array, rounds: int, *, finish: bool = False) -> Array:
        """Rounds on some instances; returns those that have not settled. What is unusable settles as it is.

        Most choices on the way that the core cannot solve are wrong ones: only at the end is more done about them.
        """
        choice, undecided = chosen.choice, []
        seen: list[set[bytes]] = [set() for _ in range(self.count)]
        for _ in range(rounds):
            if not len(index):
                break
            now = Choice(*(part[index] for part in choice))
            plain, answer = self._solve(now, index, chosen.duals[index], finish)
            codes = answer.codes
            chosen.x[index], chosen.duals[index] = answer.x, answer.duals
            chosen.counts[0, index], chosen.counts[2, index] = codes, answer.counts[2]
            chosen.counts[1, index] += answer.counts[1]
            solved = codes == Status.CONVERGED.code
            # A set whose other rows are infeasible, and scores that are no numbers, are so whatever the choice.
            final = ~solved & ((now.active == 0).all(-1))
            undecided += index[~solved & ~final].tolist()
            chosen.duals[index[~solved]] = 0.0
            go = np.flatnonzero(solved)
            index = index[go]
            if not len(index):
                break
            at = Choice(*(part[go] for part in now)), _select(plain, go), answer.x[go]
            then = self._improved(*at, answer.duals[go], index)
            same = np.ones(len(go), dtype=bool)
            for old, new in zip(at[0], then, strict=True):
                same &= (old == new).all(-1)
            if finish:
                # The same x as that of the interior-point method, which vouches for it: whatever the multipliers.
                apart = np.abs(answer.x[go] - self.latest[index]).max(-1)
                close = apart <= _SAME * np.maximum(1.0, np.abs(self.latest[index]).max(-1))
                same |= self.certain[index] & close & self._holds(answer.x[go], index)
            index = index[~same]
            for kept, new in zip(choice, then, strict=True):
                kept[index] = new[~same]
            again = []
            for i in index:
                key = b"".join(np.packbits(part[i] > 0).tobytes() for part in choice)
                if key in seen[i]:
                    again.append(i)
                seen[i].add(key)
            undecided += again
            index = np.setdiff1d(index, again)
        return np.array(sorted([*undecided, *index.tolist()]), dtype=np.int64)

    def _solve(self, choice: Choice, index: Array, start: Array, finish: bool) -> tuple[Numbers, Answer]:
        """The linear rows of a choice, solved by the native core."""
        stated = _of(self.stated, index)
        selection = self.rows.selection(self.terms, choice, self.width, (len(index),))
        made = self.rows.numbers(self.terms, stated, selection)
        plain = Numbers(*(np.ascontiguousarray(part) for part in made))
        objective = self.objective.changed(lambda n: n if n.shape[0] == 1 else n[index])
        start = start.copy()  # a row that is not there keeps the multiplier it begins with
        start[:, self.joint_rows] *= choice.active
        start[:, self.tie_rows] *= choice.tied[:, self.rows.ties]
        return plain, solve_plain(self.plan, plain, objective, self.scores[index], start, finish=finish)

    def _improved(self, choice: Choice, plain: Numbers, x: Array, duals: Array, index: Array) -> Choice:
        """The choice that x and the multipliers ask for."""
        terms, rows, stated = self.terms, self.rows, _of(self.stated, index)
        values = self._pieces(x, stated)
        largest = values[:, self.table].max(-1)  # (n, maxima)
        excess = self._excess(x, stated)
        push = duals[:, self.joint_rows] * self.sense  # (n, joint) at least 0 where it pushes the right way
        push = np.where(self._no_room(plain, choice), _BEYOND, push)
        was = choice.active > 0
        scale = np.maximum(1.0, np.abs(duals).max(-1, initial=0.0))[:, None]
        active = np.where(was, push >= -_TOL * scale, excess)
        share = np.abs(terms.weight) * np.maximum(push, 0.0)[:, np.maximum(self.row_of, 0)]  # (n, maxima) lambda
        fresh = active & ~was
        leads, tied = choice.leads.copy(), choice.tied.copy()
        self._by_bounds(plain, stated, index, x, duals, share, choice, leads, tied)
        self._by_rows(values, duals, share, scale, choice, leads, tied)
        # Formulas that bind from now on begin with the pieces that are largest.
        at = (values[:, self.table] >= largest[..., None]).argmax(-1) + terms.first[:-1]  # (n, maxima)
        begin = np.zeros_like(leads)
        np.put_along_axis(begin, at, 1.0, -1)
        of = np.maximum(rows.joint_of, 0)
        leads = np.where(fresh[:, of], begin, leads) * active[:, of] * rows.joint_pieces
        tied = np.where(fresh[:, of], 0.0, tied) * active[:, of] * rows.joint_pieces
        return Choice(active.astype(np.float64), leads, tied)

    def _pieces(self, x: Array, stated: Stated) -> Array:
        """(n, pieces) their values at x."""
        terms = self.terms
        bases = summed(x[:, terms.matrix.col] * stated.T, terms.matrix.row, terms.matrix.shape[0]) - stated.t
        return bases[:, terms.base] * terms.sign

    def _excess(self, x: Array, stated: Stated) -> Array:
        """(n, joint) formulas that do not hold at x."""
        terms, k = self.terms, len(self.constraints)
        added = self._pieces(x, stated)[:, self.table].max(-1) * terms.weight
        linear = x[:, self.pattern.col] * stated.values
        activity = summed(linear, self.pattern.row, k) + summed(added, terms.row, k)
        size = summed(np.abs(linear), self.pattern.row, k) + summed(np.abs(added), terms.row, k)
        beyond = -self.sense * ((activity - stated.side) / np.maximum(1.0, size))[:, self.rows.joint]
        return beyond > _TOL

    def _holds(self, x: Array, index: Array) -> Array:
        """(n,) whether every hard formula holds at x."""
        stated = _of(self.stated, index)
        hard = ~np.isfinite(stated.price[:, self.rows.joint])
        return ~(self._excess(x, stated) & hard).any(-1)

    def _no_room(self, plain: Numbers, choice: Choice) -> Array:
        """(n, joint) formulas that bind where all of their variables are held: any multiplier fits."""
        rows = self.rows
        free = (plain.lower < plain.upper)[:, rows.cols]
        moving = summed(np.where(free & (plain.values != 0), 1.0, 0.0), rows.rows, len(rows.from_row))
        return (moving[:, self.joint_rows] == 0) & (choice.active > 0)

    def _by_bounds(
        self,
        plain: Numbers,
        stated: Stated,
        index: Array,
        x: Array,
        duals: Array,
        share: Array,
        choice: Choice,
        leads: Array,
        tied: Array,
    ) -> None:
        """Maxima in one variable: where that variable lies by itself, the others where they are."""
        rows, terms = self.rows, self.terms
        bound = rows.bound
        if not len(bound) or not rows.by_bounds:
            return
        column, first = rows.bound_column, terms.first[bound]
        n = len(duals)
        slopes = []
        for p in (0, 1):
            entry = rows.bound_entries[:, p]
            slopes.append(np.where(entry >= 0, stated.T[:, np.maximum(entry, 0)], 0.0) * terms.sign[first + p])
        slope0, slope1 = (np.broadcast_to(s, (n, len(bound))) for s in slopes)
        place = np.broadcast_to(rows.places(terms, stated.T, stated.t), (n, len(bound)))
        mine = share[:, bound] * (choice.active[:, self.row_of[bound]] > 0)
        objective = self.objective.changed(lambda m: m if m.shape[0] == 1 else m[index])
        pushed = summed(plain.values * duals[:, rows.rows], rows.cols, self.width)
        u = objective.linear(self.scores[index]) + pushed
        if isinstance(objective, Matrix):
            diagonal = np.stack([objective.of_instance(i, self.width).diagonal() for i in range(n)])
            u = u - objective.times(x) + diagonal * x
            objective = Euclidean(diagonal)
        leading = np.where(choice.leads[:, first] > 0, slope0, np.where(choice.leads[:, first + 1] > 0, slope1, 0.0))
        finite = np.where(mine >= _BEYOND, 0.0, mine)
        u = u + summed(finite * leading, column, self.width)
        low, high = np.minimum(slope0, slope1), np.maximum(slope0, slope1)
        to_right, to_left = np.zeros((n, len(bound))), np.zeros((n, len(bound)))
        i, j = self.bound_pairs
        after = np.where(place[:, j] <= place[:, i], high[:, j], low[:, j]) * mine[:, j]
        before = np.where(place[:, j] < place[:, i], high[:, j], low[:, j]) * mine[:, j]
        to_right, to_left = summed(after, i, len(bound)), summed(before, i, len(bound))
        own = objective.changed(lambda m: m[:, column] if m.shape[1] == self.width > 1 else m)
        ends = (np.broadcast_to(end, (n, self.width))[:, column] for end in (stated.lower, stated.upper))
        lower, upper = ends
        close = 1e-14 * np.maximum(1.0, np.abs(place))
        right = own.point(u[:, column] - to_right, lower, upper) > place + close
        left = own.point(u[:, column] - to_left, lower, upper) < place - close
        second = slope1 > slope0  # the piece to the right
        ties = ~right & ~left
        leads[:, first] = np.where(ties | (right != second), 1.0, 0.0)
        leads[:, first + 1] = 1.0 - leads[:, first]
        tied[:, first], tied[:, first + 1] = 0.0, ties

    def _by_rows(
        self, values: Array, duals: Array, share: Array, scale: Array, choice: Choice, leads: Array, tied: Array
    ) -> None:
        """Maxima in several variables: pieces that exceed the leading one, and shares of the multiplier."""
        terms, rows = self.terms, self.rows
        if not len(self.others):
            return
        shares = np.zeros_like(values)
        shares[:, rows.ties] = -duals[:, self.tie_rows]
        shares *= choice.tied > 0
        rest = share - summed(shares, terms.of, len(terms.row))
        shares = np.where(choice.leads > 0, rest[:, terms.of], shares)
        members = (choice.leads > 0) | (choice.tied > 0)
        leading = summed(np.where(choice.leads > 0, values, 0.0), terms.of, len(terms.row))
        stays = members & (shares >= -_TOL * scale)
        over = values > leading[:, terms.of] + _TOL * np.maximum(1.0, np.abs(values))
        highest = np.where(over, values, -np.inf)[:, self.table]
        enters = np.zeros_like(members)
        place = highest.argmax(-1) + terms.first[:-1]
        np.put_along_axis(enters, place, np.isfinite(highest.max(-1)), -1)
        stays |= enters & over
        none = summed(stays.astype(np.float64), terms.of, len(terms.row)) == 0
        stays |= none[:, terms.of] & members
        ahead = np.where(stays[:, self.table], np.arange(self.table.shape[1]), self.table.shape[1]).argmin(-1)
        lead = np.zeros_like(leads)
        np.put_along_axis(lead, ahead + terms.first[:-1], 1.0, -1)
        here = np.isin(terms.of, self.others)
        leads[:, here] = lead[:, here]
        tied[:, here] = (stays & (lead == 0))[:, here]

    # ------------------------------------------------------------------ what is left

    def _ask_interior_point(self, chosen: Chosen, i: int, known: bool) -> None:
        """The choice that the lifted program of an instance suggests, of an objective that the method knows; else of
        the quadratic model at x, which goes on to the optimum of that."""
        terms, rows = self.terms, self.rows
        one = np.array([i])
        nothing = Choice(*(np.zeros_like(part[one]) for part in chosen.choice))
        stated = _of(self.stated, one)
        selection = rows.selection(terms, nothing, self.width, (1,))
        made = Numbers(*(np.ascontiguousarray(part) for part in rows.numbers(terms, stated, selection)))
        objective = self.objective.changed(lambda n: n if n.shape[0] == 1 else n[one])
        problem = self.plan.problem(made, self.scores[one], objective.probe(self.scores[one]), None)
        if not isinstance(objective, Matrix):
            problem = replace(problem, objective=objective)
        elastic, program = interior_point.Elastic.of(problem, 0), interior_point.program_of(problem, 0)
        if isinstance(objective, Matrix):
            program = with_matrix(program, objective, 0, self.scores[i])
        elif not known:
            linear, quadratic = _model(objective, self.scores[one], self.latest[one], program.lower, program.upper)
            program = replace(program, linear=linear, quadratic=quadratic)
        program = elastic.added_to(program)
        l, maxima, joint = self.width, self.joint_max, rows.joint
        extra = len(program.lower) - l
        soft = np.flatnonzero(np.isfinite(stated.price[0, joint]))
        own = sp.csr_array((stated.values[0], (self.pattern.row, self.pattern.col)), shape=(len(self.constraints), l))
        column = np.full(len(terms.row), -1)
        column[maxima] = np.arange(len(maxima))
        weights = sp.csr_array(
            (terms.weight[maxima], (self.row_of[maxima], column[maxima])), shape=(len(joint), len(maxima))
        )
        broken = sp.csr_array((self.sense[soft], (soft, np.arange(len(soft)))), shape=(len(joint), len(soft)))
        pieces = np.flatnonzero(rows.joint_pieces)
        T = sp.csr_array((stated.T[0], (terms.matrix.row, terms.matrix.col)), shape=terms.matrix.shape)
        piece = sp.csr_array(sp.diags_array(terms.sign[pieces]) @ T[terms.base[pieces]])
        above = sp.csr_array(
            (-np.ones(len(pieces)), (np.arange(len(pieces)), column[terms.of[pieces]])),
            shape=(len(pieces), len(maxima)),
        )

        def none(height: int, width: int) -> sp.csr_array:
            return sp.csr_array((height, width))

        k0 = len(program.row_lower)
        matrix = sp.vstack(
            [
                sp.hstack([program.matrix, none(k0, len(maxima)), none(k0, len(soft))]),
                sp.hstack([own[joint], none(len(joint), extra), weights, broken]),
                sp.hstack([piece, none(len(pieces), extra), above, none(len(pieces), len(soft))]),
            ]
        )
        side, level = stated.side[0, joint], terms.sign[pieces] * stated.t[0, terms.base[pieces]]
        low = np.where(self.sense > 0, side, -np.inf)
        high = np.where(self.sense > 0, np.inf, side)
        hidden, unpaid = np.full(len(maxima), np.inf), np.zeros(len(maxima) + len(soft))
        whole = replace(
            program,
            matrix=sp.csr_array(matrix),
            row_lower=np.concatenate([program.row_lower, low, np.full(len(pieces), -np.inf)]),
            row_upper=np.concatenate([program.row_upper, high, level]),
            lower=np.concatenate([program.lower, -hidden, np.zeros(len(soft))]),
            upper=np.concatenate([program.upper, hidden, np.full(len(soft), np.inf)]),
            linear=np.concatenate([program.linear, np.zeros(len(maxima)), -stated.price[0, joint[soft]]]),
            quadratic=np.append(program.quadratic, unpaid),
            entropy=np.append(program.entropy, unpaid),
            row_entropy=np.concatenate([program.row_entropy, np.zeros(len(joint) + len(pieces))]),
            prior=None if program.prior is None else np.append(program.prior, unpaid),
            P=None if program.P is None else sp.csr_array(sp.block_diag([program.P, none(len(unpaid), len(unpaid))])),
        )
        optimum = minimise(whole, 0.1 * min(self.solver.tol, 1e-9))
        chosen.counts[1, i] += optimum.steps
        self.latest[i] = optimum.x[:l]
        x, levels = optimum.x[:l], optimum.x[l + extra : l + extra + len(maxima)]
        rests = np.abs(optimum.duals[k0:])
        of_rows, of_pieces = rests[: len(joint)], rests[len(joint) :]
        room = np.abs(side - own[joint] @ x - weights @ levels)
        if len(soft):
            room[soft] -= np.minimum(room[soft], optimum.x[l + extra + len(maxima) :])
        active = of_rows > room
        slack = levels[column[terms.of[pieces]]] + level - piece @ x
        member = np.zeros(len(terms.base), dtype=bool)
        member[pieces] = of_pieces > slack
        value = np.full(len(terms.base), -np.inf)
        value[pieces] = -slack
        for m in maxima:
            here = slice(terms.first[m], terms.first[m + 1])
            if not member[here].any():
                member[terms.first[m] + int(value[here].argmax())] = True
        member &= active[np.maximum(rows.joint_of, 0)] & rows.joint_pieces
        lead = np.zeros(len(member))
        for m in maxima:
            members = np.flatnonzero(member[terms.first[m] : terms.first[m + 1]])
            if len(members):
                lead[terms.first[m] + members[0]] = 1.0
        chosen.choice.active[i] = active
        chosen.choice.leads[i] = lead
        chosen.choice.tied[i] = member & (lead == 0)
        # At a vertex there are many multipliers: those found here have the right signs.
        duals = optimum.duals[:k0].copy()
        duals[self.joint_rows] = optimum.duals[k0 : k0 + len(joint)]
        of_piece = np.zeros(len(terms.base))
        of_piece[pieces] = optimum.duals[k0 + len(joint) :]
        duals[self.tie_rows] = of_piece[rows.ties]
        chosen.duals[i] = np.where(np.isfinite(duals), duals, 0.0)
        self.certain[i] = known and optimum.error <= min(self.solver.tol, 1e-9)

    def _give_up(self, chosen: Chosen, i: int) -> None:
        """An instance without a choice: infeasible where that is proved, else stalled; its x is what came last."""
        for part in chosen.choice:
            part[i] = 0.0
        chosen.counts[0, i] = Status.STALLED.code
        system = _lifted_system(self.constraints, _of(self.stated, np.array([i])))
        if judge(system, seconds=_JUDGE_SECONDS).kind == "infeasible":
            chosen.counts[0, i] = Status.INFEASIBLE.code


def solve_plain(
    plan: Plan, plain: Numbers, objective: Objective, scores: Array, start: Array, *, finish: bool
) -> Answer:
    """Linear rows solved by the native core, failures as they are; ``finish``: and by what it hands over to."""
    count = len(scores)
    if not plan.native():
        reason = plan.not_native("cpu") or f"solver={plan.solver!r} asks for something else"
        raise ConstraintError(
            f"formulas with sums of abs, maximum or norms are solved by the native core, which cannot be used here: "
            f"{reason}. Fix: an objective of linsat, with the solver left out, and fewer rows where they are too many."
        )
    scores, x, start = np.ascontiguousarray(scores), np.empty_like(scores), np.ascontiguousarray(start)
    statement = plan.state(plain, tuple(objective.parameters().values()), count)
    if not finish:
        return plan.solve(statement, scores, x, start)
    call = Call(
        plan=plan,
        stated=plain,
        objective=objective,
        options=Options(plan.solver, "ignore"),
        start=start,
        batch_shape=(count,),
        arrangement="flat",
        owner=plan.owner,
        statement=statement,
    )
    return call.attempt(scores, x)


def _model(objective: Objective, scores: Array, x: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Linear and quadratic costs (l,) that agree with an objective up to second order at x (1, l), or just inside.

    omega'(x) is the u whose point is x, which is found by bisection.
    """
    reach = np.where(np.isfinite(upper), upper - np.maximum(lower, -_FAR), _FAR)
    inside = np.clip(x, np.maximum(lower, -_FAR) + _INSIDE * reach, np.minimum(upper, _FAR) - _INSIDE * reach)
    low, high = np.full_like(inside, -_FAR), np.full_like(inside, _FAR)
    for _ in range(100):
        u = (low + high) / 2
        short = objective.point(u, lower[None], upper[None]) < inside
        low, high = np.where(short, u, low), np.where(short, high, u)
    quadratic = 1 / np.clip(objective.slope(high, lower[None], upper[None]), 1 / _FAR, _FAR)
    linear = objective.linear(scores) - high + quadratic * inside
    return linear[0], quadratic[0]


def _of(stated: Stated, index: Array) -> Stated:
    return Stated(*(part if part.shape[0] == 1 else part[index] for part in stated))


def _select(plain: Numbers, index: Array) -> Numbers:
    return Numbers(*(part if part.shape[0] == 1 else part[index] for part in plain))


def _sharing(columns: Array) -> tuple[Array, Array]:
    """All ordered pairs of positions with the same column, each with itself too."""
    order = np.argsort(columns, kind="stable")
    first, second = [], []
    starts = np.flatnonzero(np.diff(columns[order], prepend=-1))
    for group in np.split(order, starts[1:]) if len(order) else []:
        first.append(np.repeat(group, len(group)))
        second.append(np.tile(group, len(group)))
    if not first:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate(first), np.concatenate(second)


def _lifted_system(constraints: Constraints, stated: Stated) -> Any:
    """The lifted rows of one instance, for a verdict."""
    terms = constraints._terms
    assert terms is not None
    arguments: dict[str, Any] = {}
    row = entry = 0
    for (name, matrix), side in zip(constraints._matrices.items(), constraints._sides(), strict=True):
        rows, entries = matrix.shape[0], len(matrix.row)
        values = stated.values[0, entry : entry + entries]
        arguments[name] = replace(matrix, source=values, live=False, sparse=True)
        arguments[side] = stated.side[0, row : row + rows]
        row, entry = row + rows, entry + entries
    own = replace(
        terms, matrix=replace(terms.matrix, source=stated.T[0], live=False, sparse=True), side=stated.t[0], kept={}
    )
    lower, upper = stated.lower[0], stated.upper[0]
    single = Constraints(**arguments, lower=lower, upper=np.maximum(lower, upper), terms=own)
    if np.isfinite(stated.price[0]).any():
        single = single._with_full_price(stated.price[0])
    return linear_system(lifted(single)[0])
