"""Partitioning as a path in the lattice of ideals: the program over the arcs that could still win, one row per ideal.

| variable | meaning | domain |
|---|---|---|
| use[a] | the partition of arc a is used | binary |

Times are in milliseconds, traffic in megabytes. The whole lattice is never handed to the solver: arcs whose best path
is no shorter than a known answer are left out first, by shortest paths from both ends.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyomo.environ as pyo

from dfmodel.mapping.columns import Columns
from dfmodel.mapping.ideals import Ideals
from dfmodel.mapping.lattice import LatticeResult
from dfmodel.mapping.partitioning import MB, MS, partitions_of
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.solver import SolveResult, solve

#: An arc must be able to beat the known answer by this share to be kept: ties (every path of a compute-bound block)
#: would keep the whole lattice and prove nothing more.
TIE = 1e-9


def surviving_arcs(result: LatticeResult, upper_s: float) -> np.ndarray:
    """Numbers of the arcs on some path shorter than `upper_s` seconds (with any number of partitions), and of the
    lattice's own path."""
    count = len(result.ideals.sizes)
    c = result.columns
    ahead = np.full(count, np.inf)
    ahead[0] = 0.0
    starts = np.searchsorted(c.after, np.arange(count + 1))
    for j in range(1, count):
        low, high = starts[j], starts[j + 1]
        if low < high:
            ahead[j] = np.min(ahead[c.before[low:high]] + c.seconds[low:high])
    behind = np.full(count, np.inf)
    behind[count - 1] = 0.0
    order = np.argsort(c.before, kind="stable")
    before = c.before[order]
    firsts = np.searchsorted(before, np.arange(count + 1))
    for i in range(count - 2, -1, -1):
        own = order[firsts[i] : firsts[i + 1]]
        if len(own):
            behind[i] = np.min(c.seconds[own] + behind[c.after[own]])
    better = ahead[c.before] + c.seconds + behind[c.after] < upper_s * (1 - TIE)
    better[list(result.path)] = True
    return np.nonzero(better)[0]


def add_flow(m: pyo.ConcreteModel, c: Columns, ideals: Ideals, arcs: np.ndarray) -> None:
    """Arcs out of an ideal less arcs into it: 1 at the empty ideal, -1 at the full one, 0 elsewhere."""
    m.use = pyo.Var([int(a) for a in arcs], domain=pyo.Binary)
    out: dict[int, list[int]] = {}
    into: dict[int, list[int]] = {}
    for a in m.use:
        out.setdefault(int(c.before[a]), []).append(a)
        into.setdefault(int(c.after[a]), []).append(a)
    last = len(ideals.sizes) - 1

    def rule(m: pyo.ConcreteModel, i: int) -> pyo.Expression:
        balance = sum(m.use[a] for a in out.get(i, [])) - sum(m.use[a] for a in into.get(i, []))
        return balance == (1 if i == 0 else -1 if i == last else 0)

    m.flow = pyo.Constraint(sorted({*out, *into}), rule=rule)


def add_count(m: pyo.ConcreteModel, c: Columns, ideals: Ideals, p: PartitionProblem) -> None:
    """At most as many arcs as there are partitions; with halves, at most half of them on either side of the waist,
    an odd middle on one."""
    slots = partitions_of(p)
    m.count = pyo.Constraint(expr=sum(m.use.values()) <= slots)
    if p.halves and ideals.waist is not None:
        waist = ideals.sizes[ideals.waist]
        first = [a for a in m.use if ideals.sizes[c.after[a]] <= waist]
        second = [a for a in m.use if ideals.sizes[c.after[a]] > waist]
        m.halves = pyo.Constraint(
            [0, 1], rule=lambda m, side: sum(m.use[a] for a in (first, second)[side]) <= (slots + 1) // 2
        )


def add_traffic_limit(m: pyo.ConcreteModel, c: Columns, limit_bytes: float) -> None:
    """Megabytes moved through memory by all partitions are at most the limit."""
    m.traffic = pyo.Constraint(expr=sum(float(c.traffic_bytes[a]) * MB * m.use[a] for a in m.use) <= limit_bytes * MB)


def path_model(
    p: PartitionProblem, ideals: Ideals, c: Columns, arcs: np.ndarray, traffic_limit_bytes: float | None = None
) -> pyo.ConcreteModel:
    """Minimise the milliseconds of the arcs used."""
    m = pyo.ConcreteModel(name="partition path")
    add_flow(m, c, ideals, arcs)
    add_count(m, c, ideals, p)
    if traffic_limit_bytes is not None:
        add_traffic_limit(m, c, traffic_limit_bytes)
    m.objective = pyo.Objective(expr=sum(float(c.seconds[a]) * MS * m.use[a] for a in m.use))
    return m


def solve_path(
    p: PartitionProblem,
    result: LatticeResult,
    *,
    upper_s: float | None = None,
    traffic_limit_bytes: float | None = None,
    time_limit_s: float | None = None,
    log: Path | None = None,
) -> SolveResult:
    """Solve the path program on the arcs that could still beat `upper_s` (the lattice's optimum); its unit is ms.

    The program's bound covers every path: one through an arc left out is no shorter than `upper_s`.
    """
    arcs = surviving_arcs(result, result.seconds if upper_s is None else upper_s)
    m = path_model(p, result.ideals, result.columns, arcs, traffic_limit_bytes)
    return solve(m, time_limit_s=time_limit_s, log=log)
