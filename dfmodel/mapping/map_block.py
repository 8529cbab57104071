"""One block mapped in one context: its sharding, its partitioning, and what was solved on the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from dfmodel.errors import LimitError
from dfmodel.mapping.build import build_partition_problem, build_sharding_problem, explain_sram
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator, check_against
from dfmodel.mapping.footprint import saved_bytes
from dfmodel.mapping.partitioning import MS, solve_assignment
from dfmodel.mapping.plan import RECOMPUTE
from dfmodel.mapping.sharding import Sharding
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.mapping.solver import SolveResult
from dfmodel.workloads.graph import Block


@dataclass(frozen=True)
class SolverSettings:
    """Limits and the log every program of a run shares; `certify_all` proves the sharding of every plan."""

    time_limit_s: float | None = None
    relative_gap: float = 0.0
    log: Path | None = None
    certify_all: bool = False


@dataclass
class MappedBlock:
    """A mapped block. `bound_share` is a proven lower bound of its seconds over its seconds (1.0: proven)."""

    evaluator: BlockEvaluator
    evaluation: BlockEvaluation
    bound_share: float = 1.0
    mips: list[dict[str, Any]] = field(default_factory=list)

    @cached_property
    def saved_bytes(self) -> dict[str, float]:
        """Activation bytes held between the passes, by recomputation mode."""
        return {mode: saved_bytes(self.evaluator, mode) for mode in RECOMPUTE}


def solve_block_sharding(
    block: Block, context: Context, pinned: Mapping[str, str] | None, settings: SolverSettings
) -> tuple[Sharding, SolveResult]:
    """The proven best sharding of `block` in `context`; kernels pinned elsewhere are ignored."""
    problem = build_sharding_problem(block, context, _own(block, pinned))
    sharding, result = solve_sharding(problem, time_limit_s=settings.time_limit_s, log=settings.log)
    return sharding, result


def _own(block: Block, pinned: Mapping[str, Any] | None) -> dict[str, Any]:
    return {k: v for k, v in (pinned or {}).items() if k in block.by_name}


def map_block(
    evaluator: BlockEvaluator, settings: SolverSettings, pinned: Mapping[str, int] | None = None
) -> MappedBlock:
    """Partition a sharded block: each kernel alone on a kernel-by-kernel chip, the assignment program elsewhere.

    Raises InfeasibleError where no partitioning fits SRAM, LimitError where the time limit left no solution.
    """
    block = evaluator.block
    if not evaluator.context.dataflow:
        alone = {name: i for i, name in enumerate(block.topological_order)}
        return MappedBlock(evaluator, evaluator.evaluate(alone))
    problem = build_partition_problem(evaluator, _own(block, pinned))
    assignment, result = solve_assignment(
        problem, time_limit_s=settings.time_limit_s, relative_gap=settings.relative_gap, log=settings.log
    )
    if assignment is None:
        if result.status == "infeasible":
            raise explain_sram(evaluator)
        raise LimitError(
            f"partitioning of block '{block.name}': no solution within the time limit ({result.status}); "
            "raise --time-limit"
        )
    evaluation = evaluator.evaluate(dict(zip(problem.kernels, assignment, strict=True)))
    assert result.objective is not None
    check_against(f"partitioning of block '{block.name}'", result.objective / MS, evaluation.seconds())
    share = 1.0 if result.bound is None or result.proven else result.bound / result.objective
    return MappedBlock(evaluator, evaluation, share, [describe_solve("partitioning", block.name, result, 1 / MS)])


def describe_solve(level: str, block: str, result: SolveResult, to_objective: float) -> dict[str, Any]:
    """One program for the certificate; `to_objective` turns its own unit into seconds (or bytes)."""
    return {
        "level": level,
        "block": block,
        "status": result.status,
        "objective": None if result.objective is None else result.objective * to_objective,
        "bound": None if result.bound is None else result.bound * to_objective,
        "gap": result.gap,
        "wall_s": result.wall_s,
        "columns": result.columns,
        "integers": result.integers,
        "rows": result.rows,
        "nodes": result.nodes,
    }
