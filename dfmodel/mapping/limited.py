"""The best partitioning within limits on totals (memory traffic, energy): Lagrangian bound, then the path program.

Pricing the totals at multipliers m >= 0 gives paths by the same dynamic program, and a lower bound
min(seconds + m * total) - m * limit (Handler and Zang, Networks 10, 1980, on the constrained shortest path). Arcs whose
best path at those prices is no better than a known answer within the limits are left out; the path program decides
among the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dfmodel.mapping.columns import totals_of
from dfmodel.mapping.lattice import LatticeResult, best_free_path, path_assignment, shortest_ends
from dfmodel.mapping.partitioning import MS, partitions_of
from dfmodel.mapping.path_mip import path_model
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.solver import SolveResult, solve

#: Halvings of the interval of one multiplier; rounds over the multipliers where there are several limits.
HALVINGS = 40
ROUNDS = 3

#: A path's totals may exceed a limit by this share of it (the solver's own tolerance is larger).
SLACK = 1e-9


@dataclass(frozen=True)
class LimitedResult:
    """The best assignment within the limits (None where none is), a proven bound, and how it was found.

    `least` is the least possible total per limit, whatever the seconds; `kept` of `arcs` went to the solver.
    """

    assignment: tuple[int, ...] | None
    seconds: float
    bound_s: float
    lagrangian_s: float
    multipliers: tuple[float, ...]
    least: dict[str, float]
    arcs: int
    kept: int
    program: SolveResult | None
    wall_s: float


class _Priced:
    """The lattice with totals: paths at multipliers, and the best one seen that keeps every limit."""

    def __init__(self, p: PartitionProblem, lattice: LatticeResult):
        self.p, self.ideals, self.columns = p, lattice.ideals, lattice.columns
        self.totals = [totals_of(self.columns, limit) for limit in p.limits]
        self.limits = np.array([limit.at_most for limit in p.limits])
        self.best: tuple[float, list[int]] = (np.inf, [])
        self.bound_s = -np.inf
        self.multipliers = np.zeros(len(p.limits))

    def priced(self, multipliers: np.ndarray) -> np.ndarray:
        return np.asarray(self.columns.seconds + sum(m * t for m, t in zip(multipliers, self.totals, strict=True)))

    def sums(self, path: list[int]) -> np.ndarray:
        return np.array([float(t[path].sum()) for t in self.totals])

    def offer(self, path: list[int]) -> None:
        """Keep a path that is within the limits and the number of partitions, if it is the fastest so far."""
        if len(path) > partitions_of(self.p) or self.p.halves or (self.sums(path) > self.limits * (1 + SLACK)).any():
            return
        seconds = float(self.columns.seconds[path].sum())
        if seconds < self.best[0]:
            self.best = (seconds, path)

    def at(self, multipliers: np.ndarray) -> np.ndarray:
        """Totals of the best path at these multipliers; its bound and itself are noted."""
        priced, path = best_free_path(self.ideals, self.columns, self.priced(multipliers))
        self.offer(path)
        bound = priced - float(multipliers @ self.limits)
        if bound > self.bound_s:
            self.bound_s, self.multipliers = bound, multipliers.copy()
        return self.sums(path)


def solve_limited(
    p: PartitionProblem, lattice: LatticeResult, time_limit_s: float | None = None, log: Path | None = None
) -> LimitedResult:
    """The optimum of `p` within its limits; `lattice` is its optimum without. Pinned kernels are not for this route."""
    began = time.perf_counter()
    state = _Priced(p, lattice)
    least = {
        limit.name: best_free_path(lattice.ideals, lattice.columns, total)[0]
        for limit, total in zip(p.limits, state.totals, strict=True)
    }

    def answer(
        assignment: tuple[int, ...] | None,
        seconds: float,
        bound: float,
        kept: int = 0,
        program: SolveResult | None = None,
    ) -> LimitedResult:
        return LimitedResult(
            assignment, seconds, bound, state.bound_s, tuple(float(m) for m in state.multipliers), least,
            len(lattice.columns.seconds), kept, program, time.perf_counter() - began,
        )  # fmt: skip

    if lattice.assignment is None or any(least[limit.name] > limit.at_most * (1 + SLACK) for limit in p.limits):
        return answer(None, np.inf, np.inf)
    if (state.sums(list(lattice.path)) <= state.limits * (1 + SLACK)).all():
        state.bound_s = lattice.seconds
        return answer(lattice.assignment, lattice.seconds, lattice.seconds)
    _maximise(state)
    ahead, behind = shortest_ends(lattice.ideals, lattice.columns, state.priced(state.multipliers))
    through = ahead[lattice.columns.before] + state.priced(state.multipliers) + behind[lattice.columns.after]
    floor = through - float(state.multipliers @ state.limits)
    arcs = np.nonzero(floor < state.best[0] * (1 - 1e-12))[0]
    known = path_assignment(p, lattice.ideals, lattice.columns, state.best[1]) if state.best[1] else None
    if not len(arcs):
        return answer(known, state.best[0], state.best[0])
    m = path_model(p, lattice.ideals, lattice.columns, arcs)
    result = solve(m, time_limit_s=time_limit_s, log=log)
    if result.objective is None or result.objective / MS >= state.best[0]:
        proven = result.status == "infeasible" or result.proven
        left = state.bound_s if result.bound is None else max(state.bound_s, result.bound / MS)
        return answer(known, state.best[0], state.best[0] if proven else min(left, state.best[0]), len(arcs), result)
    used = [a for a in m.use if m.use[a].value > 0.5]
    chosen = sorted(used, key=lambda a: int(lattice.ideals.sizes[lattice.columns.after[a]]))
    seconds = float(lattice.columns.seconds[chosen].sum())
    bound = seconds if result.proven else max(state.bound_s, (result.bound or 0.0) / MS)
    assignment = path_assignment(p, lattice.ideals, lattice.columns, chosen)
    return answer(assignment, seconds, min(bound, seconds), len(arcs), result)


def _maximise(state: _Priced) -> None:
    """The best Lagrangian bound by bisection on one multiplier after the other."""
    count = len(state.p.limits)
    multipliers = np.zeros(count)
    for _ in range(1 if count == 1 else ROUNDS):
        for n in range(count):

            def excess(m: float, n: int = n) -> float:
                multipliers[n] = m
                return float(state.at(multipliers)[n] - state.limits[n])

            multipliers[n] = _bisect(excess, float(state.columns.seconds.max()) / float(state.limits[n]))


def _bisect(excess: Callable[[float], float], start: float) -> float:
    """The least multiplier, nearly, at which the path keeps the limit; 0 where it does so for nothing."""
    if excess(0.0) <= 0:
        return 0.0
    low, high = 0.0, start
    while excess(high) > 0 and high < start * 1e9:
        low, high = high, 4 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    excess(high)
    return high
