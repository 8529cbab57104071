"""One block mapped in one context: its sharding, its partitioning, and what was solved on the way."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfmodel.errors import InfeasibleError, InputError, LimitError, MismatchError
from dfmodel.mapping.block_costs import BlockCosts, block_costs
from dfmodel.mapping.build import (
    build_partition_problem,
    build_sharding_problem,
    fused_assignment,
    passes_of,
)
from dfmodel.mapping.context import Context, tile_counts, tiles_of
from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator, check_against
from dfmodel.mapping.ideals import LatticeTooLargeError
from dfmodel.mapping.lattice import LatticeResult, check_certificate, solve_lattice
from dfmodel.mapping.limited import solve_limited
from dfmodel.mapping.orders import solve_in_orders
from dfmodel.mapping.partition_request import (
    PartitionRequest,
    explain_infeasible,
    explain_limits,
    with_request,
)
from dfmodel.mapping.partitioning import MS, solve_assignment
from dfmodel.mapping.path_mip import solve_path
from dfmodel.mapping.problem import PartitionProblem
from dfmodel.mapping.sharding import Sharding
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.mapping.solver import SolveResult
from dfmodel.mapping.streamed import StreamedResult, solve_streamed
from dfmodel.workloads.graph import Block

#: Seconds the search over orders gets, for blocks whose lattice is too large.
ORDERS_S = 8.0

#: Ideals, kernels and seconds of the streamed lattice, which proves what the orders found.
STREAMED_IDEALS = 100_000
STREAMED_KERNELS = 128
STREAMED_S = 60.0

#: A solver's rows hold to 1e-7 of a megabyte; a partition may exceed SRAM by no more than this share.
SRAM_SLACK = 1e-6

#: Seconds the assignment program gets as a second opinion: it stops closing on large blocks.
SECOND_OPINION_S = 5.0


@dataclass(frozen=True)
class SolverSettings:
    """Limits and the log every program of a run shares; `certify_all` proves the sharding of every plan in its own
    context; without `prune` every plan is evaluated; `compare` puts plans users try beside the optimum."""

    time_limit_s: float | None = None
    relative_gap: float = 0.0
    log: Path | None = None
    certify_all: bool = False
    prune: bool = True
    compare: bool = True


@dataclass
class MappedBlock:
    """A mapped block. `bound_share` is a proven lower bound of its seconds over its seconds (1.0: proven)."""

    evaluator: BlockEvaluator
    evaluation: BlockEvaluation
    bound_share: float = 1.0
    mips: list[dict[str, Any]] = field(default_factory=list)
    problem: PartitionProblem | None = None
    lattice: LatticeResult | None = None
    _costs: dict[str, BlockCosts] = field(default_factory=dict)

    def costs(self, mode: str, training: bool) -> BlockCosts:
        """What the iteration needs of it, under a recomputation mode."""
        if mode not in self._costs:
            self._costs[mode] = block_costs(self.evaluator, self.evaluation, mode, training)
        return self._costs[mode]


def solve_block_sharding(
    block: Block, context: Context, pinned: Mapping[str, str] | None, settings: SolverSettings
) -> tuple[Sharding, SolveResult]:
    """The proven best sharding of `block` in `context`; kernels pinned elsewhere are ignored."""
    own = {k: v for k, v in (pinned or {}).items() if k in block.by_name}
    problem = build_sharding_problem(block, context, own)
    sharding, result = solve_sharding(problem, time_limit_s=settings.time_limit_s, log=settings.log)
    return sharding, result


NOTHING_ASKED = PartitionRequest()


def map_block(
    evaluator: BlockEvaluator, settings: SolverSettings, request: PartitionRequest = NOTHING_ASKED
) -> MappedBlock:
    """Partition a sharded block: each kernel alone on a kernel-by-kernel chip, the lattice's exact dynamic program
    elsewhere (for every number of tiles worth trying), or the assignment program where the lattice is too large.

    Raises InfeasibleError where no partitioning fits SRAM, LimitError where the time limit left no solution.
    """
    choices = evaluator.context.assumptions
    found: MappedBlock | None = None
    refused: InfeasibleError | None = None
    for tiles in tile_counts(evaluator.block, choices):
        try:
            mapped = _at_tiles(_with_tiles(evaluator, tiles), settings, request)
        except InfeasibleError as error:
            refused = error
            continue
        if found is None or mapped.evaluation.seconds() < found.evaluation.seconds():
            found = mapped
    if found is None:
        assert refused is not None
        raise refused
    return found


def _with_tiles(evaluator: BlockEvaluator, tiles: int) -> BlockEvaluator:
    """The same sharded block streamed in another number of tiles."""
    context = evaluator.context
    if tiles == tiles_of(evaluator.block, context.assumptions):
        return evaluator
    partitions = context.assumptions.partitions.model_copy(update={"tiles": tiles})
    assumptions = context.assumptions.model_copy(update={"partitions": partitions})
    return BlockEvaluator(evaluator.block, evaluator.strategies, replace(context, assumptions=assumptions))


def _at_tiles(evaluator: BlockEvaluator, settings: SolverSettings, request: PartitionRequest) -> MappedBlock:
    if not evaluator.context.dataflow:
        if evaluator.context.assumptions.compute.model == "tiles":
            _check_alone(evaluator)
        return MappedBlock(evaluator, evaluator.evaluate(fused_assignment(evaluator)))
    problem = with_request(build_partition_problem(evaluator), request, evaluator.context)
    try:
        if problem.limits:
            return _within_limits(evaluator, problem, settings)
        return _by_lattice(evaluator, problem)
    except LatticeTooLargeError:
        if problem.count is None and not (problem.halves or problem.pinned or problem.limits):
            ordered = _by_orders(evaluator, problem, settings)
            if ordered is not None:
                return ordered
        if problem.allocation is not None:
            raise
        # the assignment program has no such limit; its status and gap are in the certificate
        return _by_assignment(evaluator, problem, settings)


def _check_alone(evaluator: BlockEvaluator) -> None:
    """Raises InfeasibleError where a kernel streamed through the compute tiles does not fit SRAM by itself."""
    sram = evaluator.context.system.chip.sram_bytes
    if any(evaluator.sram({k.name}) / passes_of(evaluator, k) > sram for k in evaluator.block.kernels):
        raise explain_infeasible(evaluator)


def _by_lattice(evaluator: BlockEvaluator, problem: PartitionProblem) -> MappedBlock:
    """The optimum by dynamic program, its potentials checked and its seconds evaluated anew."""
    found = solve_lattice(problem)
    if found.assignment is None:
        raise explain_infeasible(evaluator, problem)
    check_certificate(problem, found)
    evaluation = _checked(evaluator, problem, found.assignment, found.seconds)
    entry = {
        "level": "partitioning (lattice)",
        "block": evaluator.block.name,
        "status": "optimal",
        "objective": found.seconds,
        "bound": found.seconds,
        "gap": 0.0,
        "wall_s": found.wall_s,
        "columns": len(found.columns.seconds),
        "integers": 0,
        "rows": len(found.ideals.sizes),
        "nodes": 0,
    }
    return MappedBlock(evaluator, evaluation, 1.0, [entry], problem, found)


def _within_limits(evaluator: BlockEvaluator, problem: PartitionProblem, settings: SolverSettings) -> MappedBlock:
    """The optimum within limits on totals, by Lagrangian bound and path program; with pins, by the assignment program.

    Raises InfeasibleError with the least possible totals, InputError for pins and limits together at cycle level.
    """
    name = evaluator.block.name
    if problem.pinned:
        if problem.allocation is not None:
            raise InputError("plan.limits: not together with plan.partition under assumptions.compute.model=tiles")
        return _by_assignment(evaluator, problem, settings)
    lattice = solve_lattice(problem)
    if lattice.assignment is None:
        raise explain_infeasible(evaluator, problem)
    found = solve_limited(problem, lattice, settings.time_limit_s, settings.log)
    if found.assignment is None and found.bound_s < math.inf:
        raise LimitError(f"partitioning of block '{name}': nothing within plan.limits in time; raise --time-limit")
    if found.assignment is None:
        raise explain_limits(name, problem, found.least)
    evaluation = _checked(evaluator, problem, found.assignment, found.seconds)
    check_limits(name, problem, evaluation)
    share = found.bound_s / found.seconds
    entry = {
        "level": "partitioning within limits (Lagrangian, path program)",
        "block": name,
        "status": "optimal" if share >= 1 - 1e-9 else "limit",
        "objective": found.seconds,
        "bound": found.bound_s,
        "gap": max(0.0, 1 - share),
        "wall_s": lattice.wall_s + found.wall_s,
        "columns": found.arcs,
        "integers": found.kept,
        "rows": len(lattice.ideals.sizes),
        "nodes": 0 if found.program is None else found.program.nodes,
    }
    return MappedBlock(evaluator, evaluation, min(1.0, share), [entry], problem)


def check_limits(name: str, problem: PartitionProblem, evaluation: BlockEvaluation) -> None:
    """Raises MismatchError where the mapping evaluated anew exceeds a limit."""
    moved = sum(p.memory_bytes for p in evaluation.partitions)
    for limit in problem.limits:
        total = limit.per_s * evaluation.seconds() + limit.per_byte * moved
        if total > limit.at_most * (1 + SRAM_SLACK):
            raise MismatchError(
                f"partitioning of block '{name}': {limit.name} is {total:g}, its limit {limit.at_most:g}; "
                "please report this as a bug"
            )


def _by_assignment(evaluator: BlockEvaluator, problem: PartitionProblem, settings: SolverSettings) -> MappedBlock:
    name = evaluator.block.name
    assignment, result = solve_assignment(
        problem, time_limit_s=settings.time_limit_s, relative_gap=settings.relative_gap, log=settings.log
    )
    if assignment is None:
        if result.status == "infeasible":
            raise explain_infeasible(evaluator, problem)
        raise LimitError(
            f"partitioning of block '{name}': no solution within the time limit ({result.status}); raise --time-limit"
        )
    assert result.objective is not None
    evaluation = _checked(evaluator, problem, assignment, result.objective / MS)
    check_limits(name, problem, evaluation)
    share = 1.0 if result.bound is None or result.proven else result.bound / result.objective
    entry = describe_solve("partitioning (assignment)", name, result, 1 / MS)
    return MappedBlock(evaluator, evaluation, share, [entry], problem)


def _by_orders(evaluator: BlockEvaluator, problem: PartitionProblem, settings: SolverSettings) -> MappedBlock | None:
    """A good partitioning of a block too large for the lattice, with an additive bound; None where none is found."""
    limit = ORDERS_S if settings.time_limit_s is None else min(ORDERS_S, settings.time_limit_s)
    found = solve_in_orders(problem, time_limit_s=limit)
    if found is None:
        return None
    assignment, seconds, bound_s = found.assignment, found.seconds, min(found.bound_s, found.seconds)
    streamed = _streamed(problem, seconds, settings)
    if streamed is not None:
        bound_s = max(bound_s, streamed.bound_s)
        if streamed.assignment is not None:
            assignment, seconds = streamed.assignment, streamed.seconds
    evaluation = _checked(evaluator, problem, assignment, seconds)
    share = bound_s / seconds
    proven = share >= 1 - 1e-9
    entry = {
        "level": "partitioning (orders and windows, then the streamed lattice)"
        if streamed is not None
        else "partitioning (orders and windows, relaxed bound)",
        "block": evaluator.block.name,
        "status": "optimal" if proven else "relaxed",
        "objective": seconds,
        "bound": bound_s,
        "gap": 1.0 - share,
        "wall_s": found.wall_s + (0.0 if streamed is None else streamed.wall_s),
        "columns": found.windows_solved if streamed is None else streamed.columns,
        "integers": 0,
        "rows": len(problem.kernels) if streamed is None else streamed.ideals,
        "nodes": found.windows_improved if streamed is None else streamed.opened,
    }
    return MappedBlock(evaluator, evaluation, share, [entry], problem)


def _streamed(problem: PartitionProblem, known_s: float, settings: SolverSettings) -> StreamedResult | None:
    """The streamed lattice where the number of ideals allows it and that of partitions does not bind; else None."""
    if len(problem.kernels) > STREAMED_KERNELS or problem.maximum < len(problem.kernels):
        return None
    limit = STREAMED_S if settings.time_limit_s is None else min(STREAMED_S, settings.time_limit_s)
    try:
        return solve_streamed(problem, known_s, STREAMED_IDEALS, limit)
    except LatticeTooLargeError:
        return None


def _checked(
    evaluator: BlockEvaluator, problem: PartitionProblem, assignment: tuple[int, ...], seconds: float
) -> BlockEvaluation:
    """The mapping evaluated anew. Raises MismatchError where its seconds are not those claimed, or a partition does
    not fit SRAM."""
    name = evaluator.block.name
    evaluation = evaluator.evaluate(dict(zip(problem.kernels, assignment, strict=True)))
    check_against(f"partitioning of block '{name}'", seconds, evaluation.seconds())
    passes = dict(zip(problem.kernels, problem.passes, strict=True))
    for p in evaluation.partitions:
        held = p.sram_bytes / (passes[p.kernels[0]] if len(p.kernels) == 1 else 1)
        if held > problem.sram_bytes * (1 + SRAM_SLACK):
            raise MismatchError(
                f"partitioning of block '{name}': a partition of {', '.join(p.kernels)} holds {held:,.0f} bytes, SRAM "
                f"has {problem.sram_bytes:,.0f}; please report this as a bug"
            )
    return evaluation


def second_opinions(mapped: MappedBlock, settings: SolverSettings) -> list[dict[str, Any]]:
    """The winner's partitioning as programs: the path program on the arcs that could beat it, and the assignment
    program with as many partitions as it uses, for at most SECOND_OPINION_S (not at cycle level: sharing of tiles is
    in the columns' costs; a path program has no slots for pinned kernels). Raises MismatchError where one of them,
    proven, finds anything else.
    """
    if mapped.lattice is None or mapped.problem is None:
        return []
    name, found = mapped.evaluator.block.name, mapped.lattice
    opinions = []
    if not mapped.problem.pinned:
        path = solve_path(mapped.problem, found, time_limit_s=settings.time_limit_s, log=settings.log)
        opinions.append(("partitioning (path program)", path))
    used = mapped.problem.count or len(set(mapped.evaluation.assignment.values()))
    limit = SECOND_OPINION_S if settings.time_limit_s is None else min(SECOND_OPINION_S, settings.time_limit_s)
    if mapped.problem.allocation is None:
        _, assigned = solve_assignment(replace(mapped.problem, count=used), time_limit_s=limit, log=settings.log)
        opinions.append(("partitioning (assignment program)", assigned))
    for label, result in opinions:
        if result.proven and result.objective is not None:
            check_against(f"{label} of block '{name}'", result.objective / MS, found.seconds)
    return [describe_solve(label, name, result, 1 / MS) for label, result in opinions]


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
