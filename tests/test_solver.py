"""The seam to HiGHS: statuses, bounds, limits, refusal of bad models, and agreement with Pyomo's own interface."""

from __future__ import annotations

import math
from pathlib import Path

import highspy
import numpy as np
import pyomo.environ as pyo
import pytest
from partition_reference import random_problem

from dfmodel.mapping.partitioning import assignment_model
from dfmodel.mapping.solver import SolverError, relative_gap_of, solve


def _knapsack(items: int = 30, seed: int = 0) -> pyo.ConcreteModel:
    rng = np.random.default_rng(seed)
    m = pyo.ConcreteModel(name="knapsack")
    m.x = pyo.Var(range(items), domain=pyo.Binary)
    m.t = pyo.Var(domain=pyo.NonNegativeReals)
    weights = [float(w) for w in rng.uniform(1, 10, items)]
    m.room = pyo.Constraint(expr=sum(w * m.x[i] for i, w in enumerate(weights)) <= sum(weights) / 3)
    m.epigraph = pyo.Constraint(expr=m.t >= 3 - sum(m.x.values()))
    m.cost = pyo.Objective(expr=m.t - sum((1 + i % 7) * m.x[i] for i in range(items)) + 5)
    return m


def test_optimal_with_bound_and_values() -> None:
    """Objective, bound and gap agree, the constant counts, and the loaded values give the objective."""
    m = _knapsack()
    r = solve(m)
    assert (r.status, r.proven, r.gap) == ("optimal", True, 0.0)
    assert pyo.value(m.cost) == pytest.approx(r.objective)
    assert r.bound == pytest.approx(r.objective)


@pytest.mark.parametrize("seed", range(4))
def test_same_objective_as_pyomos_own_interface(seed: int, tmp_path: Path) -> None:
    """The compiled arrays are the model: Pyomo's HiGHS interface and its LP file give the same optimum."""
    from pyomo.contrib.appsi.solvers import Highs

    m = assignment_model(random_problem(np.random.default_rng(seed + 20), 4))
    ours = solve(m)
    other = Highs()
    other.config.load_solution = False
    theirs = other.solve(m)
    if ours.objective is None:
        assert theirs.best_feasible_objective is None
        return
    assert theirs.best_feasible_objective == pytest.approx(ours.objective, rel=1e-6)
    m.write(str(tmp_path / "model.lp"))
    h = highspy.Highs()
    h.silent()
    h.setOptionValue("threads", 1)
    h.readModel(str(tmp_path / "model.lp"))
    h.run()
    assert h.getInfo().objective_function_value == pytest.approx(ours.objective, rel=1e-6)


def test_infeasible_unbounded_and_maximisation() -> None:
    """Each ending has its own status, and a maximisation is not turned round."""
    m = _knapsack()
    m.never = pyo.Constraint(expr=sum(m.x.values()) >= 31)
    assert solve(m).status == "infeasible"
    u = pyo.ConcreteModel()
    u.x = pyo.Var(domain=pyo.NonNegativeReals)
    u.row = pyo.Constraint(expr=u.x >= 1)
    u.cost = pyo.Objective(expr=-u.x)
    assert solve(u).status in ("unbounded", "infeasible_or_unbounded")
    u.top = pyo.Constraint(expr=u.x <= 4)
    u.cost.deactivate()
    u.gain = pyo.Objective(expr=2 * u.x, sense=pyo.maximize)
    assert solve(u).objective == pytest.approx(8)


def test_a_limit_is_a_status_not_an_exception() -> None:
    """With no time at all the seam reports, and never invents a solution."""
    r = solve(_knapsack(400, seed=3), time_limit_s=0)
    assert r.status in ("time_limit", "optimal")
    if r.objective is not None and r.bound is not None:
        assert r.bound <= r.objective + 1e-6


def test_numbers_that_cannot_be_trusted_are_refused() -> None:
    """Coefficients over too wide a range, and expressions that are not linear."""
    m = _knapsack()
    m.wild = pyo.Constraint(expr=1e-9 * m.t + 1e9 * m.x[0] <= 1e9)
    with pytest.raises(SolverError, match="range"):
        solve(m)
    n = _knapsack()
    n.square = pyo.Constraint(expr=n.t * n.t <= 4)
    with pytest.raises(SolverError, match="not linear"):
        solve(n)


def test_the_same_model_gives_the_same_answer_twice() -> None:
    first, second = _knapsack(40, 5), _knapsack(40, 5)
    a, b = solve(first), solve(second)
    assert (a.objective, a.nodes) == (b.objective, b.nodes)
    assert [v.value for v in first.x.values()] == [v.value for v in second.x.values()]


def test_another_users_threads_do_not_stop_the_solver() -> None:
    """HiGHS's thread pool is global: after a solve with other settings ours still gives an answer."""
    highspy.Highs.resetGlobalScheduler(True)
    other = highspy.Highs()
    other.silent()
    other.setOptionValue("threads", 2)
    x = other.addBinary()
    other.maximize(x)
    assert solve(_knapsack()).status == "optimal"


def test_gap() -> None:
    assert relative_gap_of(4.0, 3.0) == 0.25
    assert relative_gap_of(4.0, 4.0) == 0.0
    assert relative_gap_of(None, 3.0) is None
    assert not math.isnan(relative_gap_of(0.0, -1.0) or 0.0)
