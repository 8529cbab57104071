"""The one seam between Pyomo models and HiGHS.

A Pyomo model is compiled with Pyomo's own linear-expression walker into HiGHS's column and row arrays,
solved on one thread with a fixed seed, and every variable gets its value back. A limit is a status, not an
exception, and no answer is believed: rows and bounds are re-checked here at the returned point, and callers
re-evaluate the mapping it stands for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import highspy
import numpy as np
import pyomo.core as pyo
from pyomo.repn.linear import LinearRepnVisitor
from pyomo.repn.util import OrderedVarRecorder

from dfmodel.errors import DfmodelError

#: Feasibility is re-checked to this many units of each row (rows are in milliseconds and megabytes).
FEASIBILITY_TOLERANCE = 1e-5

#: A model whose coefficients span more than this is refused: its answer could not be trusted.
LARGEST_COEFFICIENT_RANGE = 1e12

_STATUS = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kModelEmpty: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnbounded: "unbounded",
    highspy.HighsModelStatus.kUnboundedOrInfeasible: "infeasible_or_unbounded",
    highspy.HighsModelStatus.kTimeLimit: "time_limit",
    highspy.HighsModelStatus.kInterrupt: "interrupted",
    highspy.HighsModelStatus.kSolutionLimit: "limit",
    highspy.HighsModelStatus.kIterationLimit: "limit",
}


class SolverError(DfmodelError):
    """The solver returned a point that breaks the model, or a model it should not be given."""


@dataclass(frozen=True)
class SolveResult:
    """What one solve gave. `objective` and `bound` are in the model's own unit; None where there is none."""

    name: str
    status: str
    objective: float | None
    bound: float | None
    gap: float | None
    wall_s: float
    build_s: float
    nodes: int
    columns: int
    integers: int
    rows: int

    @property
    def has_solution(self) -> bool:
        return self.objective is not None

    @property
    def proven(self) -> bool:
        return self.status == "optimal"


@dataclass(frozen=True)
class _Compiled:
    """A model as HiGHS takes it, with the Pyomo variables in column order."""

    lp: highspy.HighsLp
    variables: list[Any]
    integers: int


@cache
def versions() -> Mapping[str, str]:
    """Versions of what an answer depends on."""
    return {package: metadata.version(package) for package in ("pyomo", "highspy", "numpy")}


def solve(
    model: pyo.ConcreteModel,
    *,
    time_limit_s: float | None = None,
    relative_gap: float = 0.0,
    log: Path | None = None,
) -> SolveResult:
    """Solve `model` and load the values into its variables.

    `log` is a file the solver's log is appended to. Raises SolverError only where the answer cannot be trusted.
    """
    began = time.perf_counter()
    compiled = compile_model(model)
    build_s = time.perf_counter() - began
    highs = _new_highs(time_limit_s, relative_gap, log)
    if highs.passModel(compiled.lp) == highspy.HighsStatus.kError:
        raise SolverError(f"HiGHS refused the model '{model.name}'")
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kNotset:
        # HiGHS's scheduler is global to the process: another user of it may have started it with more threads
        highs.resetGlobalScheduler(True)
        highs.run()
    result = _read(highs, compiled, model.name, time.perf_counter() - began, build_s)
    if result.status == "error":
        raise SolverError(f"HiGHS could not solve the model '{model.name}' ({highs.getModelStatus()})")
    if result.has_solution:
        values = np.asarray(highs.getSolution().col_value)
        _check_point(compiled, values, model.name)
        _load(compiled, values)
    return result


def compile_model(model: pyo.ConcreteModel) -> _Compiled:
    """Arrays of a linear Pyomo model (minimisation or maximisation), in declaration order."""
    recorder = OrderedVarRecorder({}, {}, pyo.SortComponents.deterministic)
    visitor = LinearRepnVisitor({}, var_recorder=recorder)
    row_parts: list[tuple[list[int], list[float]]] = []
    row_lower: list[float] = []
    row_upper: list[float] = []
    for constraint in model.component_data_objects(pyo.Constraint, active=True, descend_into=True):
        lower, body, upper = constraint.to_bounded_expression(evaluate_bounds=True)
        repn = visitor.walk_expression(body)
        if repn.nonlinear is not None:
            raise SolverError(f"constraint '{constraint.name}' of '{model.name}' is not linear")
        row_parts.append((list(repn.linear.keys()), list(repn.linear.values())))
        row_lower.append(-math.inf if lower is None else lower - repn.constant)
        row_upper.append(math.inf if upper is None else upper - repn.constant)
    objective = next(model.component_data_objects(pyo.Objective, active=True))
    cost = visitor.walk_expression(objective.expr)
    if cost.nonlinear is not None:
        raise SolverError(f"the objective of '{model.name}' is not linear")
    column = {vid: j for j, vid in enumerate(recorder.var_map)}
    variables = list(recorder.var_map.values())
    lp = _highs_lp(variables, column, row_parts, row_lower, row_upper, cost, objective.sense == pyo.minimize)
    _check_range(lp, model.name)
    return _Compiled(lp, variables, sum(1 for v in variables if v.is_integer() or v.is_binary()))


def _highs_lp(
    variables: list[Any],
    column: dict[int, int],
    row_parts: list[tuple[list[int], list[float]]],
    row_lower: list[float],
    row_upper: list[float],
    cost: Any,
    minimise: bool,
) -> highspy.HighsLp:
    lp = highspy.HighsLp()
    lp.num_col_ = len(variables)
    lp.num_row_ = len(row_parts)
    costs = np.zeros(len(variables))
    for vid, c in cost.linear.items():
        costs[column[vid]] = c
    lp.col_cost_ = costs
    lp.offset_ = float(cost.constant)
    lp.sense_ = highspy.ObjSense.kMinimize if minimise else highspy.ObjSense.kMaximize
    fixed = [v.value if v.fixed else None for v in variables]
    lp.col_lower_ = np.array(
        [f if f is not None else (-math.inf if v.lb is None else v.lb) for v, f in zip(variables, fixed, strict=True)],
        dtype=float,
    )
    lp.col_upper_ = np.array(
        [f if f is not None else (math.inf if v.ub is None else v.ub) for v, f in zip(variables, fixed, strict=True)],
        dtype=float,
    )
    lp.integrality_ = [
        highspy.HighsVarType.kContinuous if v.is_continuous() else highspy.HighsVarType.kInteger for v in variables
    ]
    lp.row_lower_ = np.array(row_lower, dtype=float)
    lp.row_upper_ = np.array(row_upper, dtype=float)
    lengths = [len(ids) for ids, _ in row_parts]
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = (
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) if lengths else np.zeros(1, np.int32)
    )
    lp.a_matrix_.index_ = np.array([column[i] for ids, _ in row_parts for i in ids], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([c for _, cs in row_parts for c in cs], dtype=float)
    return lp


def _check_range(lp: highspy.HighsLp, name: str) -> None:
    sizes = np.abs(np.asarray(lp.a_matrix_.value_))
    sizes = sizes[sizes > 0]
    if sizes.size and (not np.all(np.isfinite(sizes)) or sizes.max() / sizes.min() > LARGEST_COEFFICIENT_RANGE):
        raise SolverError(
            f"model '{name}' has coefficients from {sizes.min():.3g} to {sizes.max():.3g}; a range above "
            f"{LARGEST_COEFFICIENT_RANGE:.0e} cannot be solved reliably: check the units of the inputs"
        )


def _new_highs(time_limit_s: float | None, relative_gap: float, log: Path | None) -> Any:
    # highspy.Highs() prints a banner on stdout, where results go, before it can be silenced; its base does not
    highs = highspy._core._Highs()
    highs.setOptionValue("output_flag", log is not None)
    if log is not None:
        highs.setOptionValue("log_to_console", False)
        highs.setOptionValue("log_file", str(log))
    # one thread and a fixed seed: the same input gives the same answer; parallelism is over points
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", 0)
    highs.setOptionValue("mip_rel_gap", relative_gap)
    highs.setOptionValue("mip_abs_gap", 1e-9)
    highs.setOptionValue("mip_feasibility_tolerance", 1e-7)
    highs.setOptionValue("primal_feasibility_tolerance", 1e-8)
    if time_limit_s is not None:
        highs.setOptionValue("time_limit", max(0.0, float(time_limit_s)))
    return highs


def _read(highs: Any, compiled: _Compiled, name: str, wall_s: float, build_s: float) -> SolveResult:
    status = _STATUS.get(highs.getModelStatus(), "error")
    info = highs.getInfo()
    feasible = info.primal_solution_status == 2 and status in {
        "optimal",
        "time_limit",
        "interrupted",
        "limit",
    }
    objective = float(info.objective_function_value) if feasible else None
    if compiled.integers:
        bound: float | None = float(info.mip_dual_bound)
    else:
        bound = objective if status == "optimal" else None
    if bound is not None and not math.isfinite(bound):
        bound = None
    gap = relative_gap_of(objective, bound)
    return SolveResult(
        name=name,
        status=status,
        objective=objective,
        bound=bound,
        gap=gap,
        wall_s=wall_s,
        build_s=build_s,
        nodes=max(0, int(info.mip_node_count)),
        columns=compiled.lp.num_col_,
        integers=compiled.integers,
        rows=compiled.lp.num_row_,
    )


def relative_gap_of(objective: float | None, bound: float | None) -> float | None:
    """(objective - bound) / objective for a minimisation, never negative; None where either is missing."""
    if objective is None or bound is None:
        return None
    if objective == bound:
        return 0.0
    return max(0.0, (objective - bound) / max(abs(objective), 1e-12))


def _check_point(compiled: _Compiled, values: np.ndarray, name: str) -> None:
    lp = compiled.lp
    rounded = values.copy()
    whole = np.array([not v.is_continuous() for v in compiled.variables], dtype=bool)
    rounded[whole] = np.round(rounded[whole])
    starts = np.asarray(lp.a_matrix_.start_)
    row = np.repeat(np.arange(lp.num_row_), np.diff(starts))
    products = np.asarray(lp.a_matrix_.value_) * rounded[np.asarray(lp.a_matrix_.index_)]
    activity = np.bincount(row, weights=products, minlength=lp.num_row_)
    scale = 1.0 + np.bincount(row, weights=np.abs(products), minlength=lp.num_row_)
    slack = FEASIBILITY_TOLERANCE * scale
    low = np.asarray(lp.row_lower_) - activity > slack
    high = activity - np.asarray(lp.row_upper_) > slack
    if np.any(low | high):
        raise SolverError(f"HiGHS returned a point that breaks {int(np.sum(low | high))} rows of '{name}'")


def _load(compiled: _Compiled, values: Iterable[float]) -> None:
    for variable, value in zip(compiled.variables, values, strict=True):
        whole = not variable.is_continuous()
        variable.set_value(round(value) if whole else float(value), skip_validation=True)


def quiet_pyomo() -> None:
    """Pyomo warns on stderr about things callers already report; only its errors are kept."""
    logging.getLogger("pyomo").setLevel(logging.ERROR)
