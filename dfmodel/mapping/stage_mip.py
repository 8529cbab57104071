"""Blocks to pipeline stages as a program with one integer per run of equal blocks and stage.

| variable | meaning | domain |
|---|---|---|
| n[r, i] | blocks of run r on stage i | integer >= 0 |
| over[r, i] | stages up to i hold all of run r | binary |
| T | ms of the slowest stage | >= 0 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pyomo.core as pyo

from dfmodel.mapping.solver import SolveResult, solve
from dfmodel.mapping.stages import Run

MS = 1e3
MB = 1e-6


def add_counts(
    m: pyo.ConcreteModel, runs: Sequence[Run], stages: int, extra_s: Sequence[float], capacity: float
) -> None:
    """sum_i n[r, i] = count of run r; sum_r n[r, i] >= 1."""
    m.all_placed = pyo.Constraint(
        range(len(runs)), rule=lambda m, r: sum(m.n[r, i] for i in range(stages)) == runs[r].count
    )
    m.none_empty = pyo.Constraint(range(stages), rule=lambda m, i: sum(m.n[r, i] for r in range(len(runs))) >= 1)


def add_order(
    m: pyo.ConcreteModel, runs: Sequence[Run], stages: int, extra_s: Sequence[float], capacity: float
) -> None:
    """count_r over[r, i] <= sum_{j<=i} n[r, j]; n[r+1, i] <= count_{r+1} over[r, i]: runs follow each other."""
    pairs = [(r, i) for r in range(len(runs) - 1) for i in range(stages)]
    m.over = pyo.Var(pairs, domain=pyo.Binary)
    m.finished = pyo.Constraint(
        pairs, rule=lambda m, r, i: runs[r].count * m.over[r, i] <= sum(m.n[r, j] for j in range(i + 1))
    )
    m.after = pyo.Constraint(pairs, rule=lambda m, r, i: m.n[r + 1, i] <= runs[r + 1].count * m.over[r, i])


def add_slowest(
    m: pyo.ConcreteModel, runs: Sequence[Run], stages: int, extra_s: Sequence[float], capacity: float
) -> None:
    """T >= extra_i + sum_r seconds_r n[r, i], in ms."""
    m.slowest = pyo.Constraint(
        range(stages),
        rule=lambda m, i: MS * extra_s[i] + sum(MS * r.seconds * m.n[k, i] for k, r in enumerate(runs)) <= m.T,
    )


def add_memory(
    m: pyo.ConcreteModel, runs: Sequence[Run], stages: int, extra_s: Sequence[float], capacity: float
) -> None:
    """sum_r bytes_{r,i} n[r, i] <= capacity, in MB."""
    if math.isinf(capacity) or not any(r.bytes for r in runs):
        return
    m.memory = pyo.Constraint(
        range(stages),
        rule=lambda m, i: sum(MB * r.bytes[i] * m.n[k, i] for k, r in enumerate(runs) if r.bytes) <= MB * capacity,
    )


#: Constraint functions of this model, for the list of golden LP texts.
CONSTRAINTS = (add_counts, add_order, add_slowest, add_memory)


def stage_model(
    runs: Sequence[Run], stages: int, extra_s: Sequence[float] = (), capacity: float = math.inf
) -> pyo.ConcreteModel:
    """Minimise the milliseconds of the slowest stage."""
    extra = list(extra_s) or [0.0] * stages
    m = pyo.ConcreteModel(name="stages")
    m.n = pyo.Var(range(len(runs)), range(stages), domain=pyo.NonNegativeIntegers)
    for r, run in enumerate(runs):
        for i in range(stages):
            m.n[r, i].setub(run.count)
    m.T = pyo.Var(domain=pyo.NonNegativeReals)
    for add in CONSTRAINTS:
        add(m, runs, stages, extra, capacity)
    m.objective = pyo.Objective(expr=m.T)
    return m


def solve_stages(
    runs: Sequence[Run],
    stages: int,
    extra_s: Sequence[float] = (),
    capacity: float = math.inf,
    *,
    time_limit_s: float | None = None,
    log: Path | None = None,
) -> tuple[list[list[int]] | None, SolveResult]:
    """Copies of each run on each stage (None where there is no solution), and the solve; its unit is ms."""
    m = stage_model(runs, stages, extra_s, capacity)
    result = solve(m, time_limit_s=time_limit_s, log=log)
    if not result.has_solution:
        return None, result
    return [[round(m.n[r, i].value) for r in range(len(runs))] for i in range(stages)], result
