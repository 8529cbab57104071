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
import pyomo.core as pyo

from dfmodel.mapping.columns import Columns, totals_of
from dfmodel.mapping.ideals import Ideals
from dfmodel.mapping.lattice import LatticeResult, shortest_ends
from dfmodel.mapping.partitioning import MS, partitions_of
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.solver import SolveResult, solve

#: An arc must be able to beat the known answer by this share to be kept: ties (every path of a compute-bound block)
#: would keep the whole lattice and prove nothing more.
TIE = 1e-9


def surviving_arcs(result: LatticeResult, upper_s: float) -> np.ndarray:
    """Numbers of the arcs on some path shorter than `upper_s` seconds (with any number of partitions), and of the
    lattice's own path."""
    c = result.columns
    ahead, behind = shortest_ends(result.ideals, c, c.seconds)
    better = ahead[c.before] + c.seconds + behind[c.after] < upper_s * (1 - TIE)
    better[list(result.path)] = True
    return np.nonzero(better)[0]


def add_flow(m: pyo.ConcreteModel, c: Columns, ideals: Ideals, p: PartitionProblem) -> None:
    """Arcs out of an ideal less arcs into it: 1 at the empty ideal, -1 at the full one, 0 elsewhere."""
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


def add_limits(m: pyo.ConcreteModel, c: Columns, ideals: Ideals, p: PartitionProblem) -> None:
    """Every total over the arcs used, in percent of its limit, is at most 100."""
    share = [100 * totals_of(c, limit) / limit.at_most for limit in p.limits]
    m.limit = pyo.Constraint(
        range(len(p.limits)), rule=lambda m, n: sum(float(share[n][a]) * m.use[a] for a in m.use) <= 100
    )


#: Constraint functions of this model beyond its flow, for the list of golden LP texts.
CONSTRAINTS = (add_flow, add_count, add_limits)


def path_model(p: PartitionProblem, ideals: Ideals, c: Columns, arcs: np.ndarray) -> pyo.ConcreteModel:
    """Minimise the milliseconds of the arcs used."""
    m = pyo.ConcreteModel(name="partition path")
    m.use = pyo.Var([int(a) for a in arcs], domain=pyo.Binary)
    for add in CONSTRAINTS:
        add(m, c, ideals, p)
    m.objective = pyo.Objective(expr=sum(float(c.seconds[a]) * MS * m.use[a] for a in m.use))
    return m


def solve_path(
    p: PartitionProblem,
    result: LatticeResult,
    *,
    upper_s: float | None = None,
    time_limit_s: float | None = None,
    log: Path | None = None,
) -> SolveResult:
    """Solve the path program on the arcs that could still beat `upper_s` (the lattice's optimum); its unit is ms.

    The program's bound covers every path: one through an arc left out is no shorter than `upper_s`.
    """
    arcs = surviving_arcs(result, result.seconds if upper_s is None else upper_s)
    m = path_model(p, result.ideals, result.columns, arcs)
    return solve(m, time_limit_s=time_limit_s, log=log)
