"""The choice of a grid together with a setting as a one-hot program, solved beside its enumeration.

One variable per grid and per setting, one per pair: each grid's pairs add up to its variable and each setting's to its
own, so that the program chooses both at once. Where it and the enumeration differ one of them is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pyomo.core as pyo

from dfmodel.errors import LimitError, MismatchError
from dfmodel.mapping.solver import solve

#: Pairs that the program sees, the best ones: thousands of nearly equal ones take it minutes and prove no more.
MOST_PAIRS = 200

#: Relative difference up to which program and enumeration are the same.
SAME = 1e-9


def choose(
    name: str, costs: Mapping[tuple[int, int], float], level: str, block: str, **limits: Any
) -> tuple[tuple[int, int], dict[str, Any]]:
    """The (grid, setting) of least cost, and the program as a certificate lists it.

    `costs` are of any unit, one per pair that may be chosen; the program sees the MOST_PAIRS best relative to the
    least. Raises
    MismatchError where the program's answer is not the enumeration's, LimitError where time ran out first.
    """
    costs = dict(sorted(costs.items(), key=lambda item: (item[1], item[0]))[:MOST_PAIRS])
    scale = min(costs.values())
    model = pyo.ConcreteModel(name=name)
    pairs = list(costs)
    firsts, seconds = sorted({a for a, _ in pairs}), sorted({b for _, b in pairs})
    model.grid = pyo.Var(firsts, domain=pyo.Binary)
    model.setting = pyo.Var(seconds, domain=pyo.Binary)
    model.pair = pyo.Var(range(len(pairs)), bounds=(0, 1))
    of_grid: dict[int, list[int]] = {a: [] for a in firsts}
    of_setting: dict[int, list[int]] = {b: [] for b in seconds}
    for i, (a, b) in enumerate(pairs):
        of_grid[a].append(i)
        of_setting[b].append(i)
    model.one = pyo.Constraint(expr=sum(model.grid[a] for a in firsts) == 1)
    model.of_grid = pyo.Constraint(firsts, rule=lambda m, a: sum(m.pair[i] for i in of_grid[a]) == m.grid[a])
    model.of_setting = pyo.Constraint(seconds, rule=lambda m, b: sum(m.pair[i] for i in of_setting[b]) == m.setting[b])
    model.cost = pyo.Objective(expr=sum(costs[p] / scale * model.pair[i] for i, p in enumerate(pairs)))
    found = solve(model, **limits)
    if not found.has_solution or found.objective is None:
        raise LimitError(f"{name}: no solution within the time limit; raise --time-limit")
    if found.proven and not math.isclose(found.objective, 1.0, rel_tol=SAME):
        raise MismatchError(f"{name}: the program's best is {found.objective} times the enumeration's")
    chosen = max(range(len(pairs)), key=lambda i: pyo.value(model.pair[i]))
    return pairs[chosen], {
        "level": level,
        "block": block,
        "status": found.status,
        "objective": found.objective * scale,
        "bound": None if found.bound is None else found.bound * scale,
        "gap": found.gap,
        "columns": found.columns,
        "integers": found.integers,
        "rows": found.rows,
        "wall_s": found.wall_s,
        "nodes": found.nodes,
    }
