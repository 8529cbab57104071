"""The levels together: every plan, its sharding and partitioning, the best one, and what proves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InfeasibleError, LimitError
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation, check_against
from dfmodel.mapping.footprint import live_bytes, stage_memory
from dfmodel.mapping.map_block import (
    MappedBlock,
    SolverSettings,
    describe_solve,
    map_block,
    solve_block_sharding,
)
from dfmodel.mapping.pipeline import Iteration, iteration
from dfmodel.mapping.plan import Plan, PlanRequest, candidate_plans
from dfmodel.mapping.sharding import NoShardingError, Sharding
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import Block, Strategy, Workload

#: A sharding must beat the pool's by this share before plans are evaluated again with it.
IMPROVEMENT = 1e-9

KEPT_ALTERNATIVES = 5

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Evaluated:
    """A feasible plan with everything evaluated."""

    plan: Plan
    context: Context
    mapped: tuple[MappedBlock, ...]
    iteration: Iteration
    memory_bytes: dict[str, float]

    @property
    def blocks(self) -> tuple[BlockEvaluation, ...]:
        return tuple(m.evaluation for m in self.mapped)

    @property
    def bound_share(self) -> float:
        return min(m.bound_share for m in self.mapped)


@dataclass
class Search:
    """State of one search; `run` returns the best plan and fills the counts the certificate reports."""

    workload: Workload
    system: System
    assumptions: Assumptions
    request: PlanRequest
    settings: SolverSettings
    progress: Progress
    deadline: float | None = None
    counted: int = 0
    infeasible: int = 0
    evaluated: int = 0
    skipped: int = 0
    mips_solved: int = 0
    out_of_time: bool = False
    bound: float = float("inf")
    shortfalls: list[tuple[float, Plan, dict[str, float]]] = field(default_factory=list)
    best_plans: list[Evaluated] = field(default_factory=list)
    _blocks: dict[int, tuple[Block, ...]] = field(default_factory=dict)
    _shardings: dict[tuple[int, int, bool], list[dict[str, Strategy]]] = field(default_factory=dict)
    _mapped: dict[tuple[Any, ...], MappedBlock | InfeasibleError] = field(default_factory=dict)

    def run(self) -> tuple[Evaluated, list[dict[str, Any]]]:
        """The best plan, and the programs that prove its levels.

        Raises InfeasibleError naming what is short by how much, LimitError where time ran out first.
        """
        plans = list(candidate_plans(self.workload, self.system, self.request))
        self.counted = len(plans)
        while True:
            best = self._best_of(plans)
            proofs, improved = self._prove(best)
            if not improved:
                return best, proofs
            self._mapped.clear()

    def _best_of(self, plans: Iterable[Plan]) -> Evaluated:
        self.infeasible = self.evaluated = self.skipped = 0
        self.bound = float("inf")
        self.best_plans, self.shortfalls = [], []
        refused: list[InfeasibleError] = []
        for plan in plans:
            if self.deadline is not None and time.perf_counter() > self.deadline and self.best_plans:
                self.out_of_time = True
                break
            try:
                found = self.evaluate(plan)
            except NoShardingError:
                self.infeasible += 1
                continue
            except InfeasibleError as error:
                self.infeasible += 1
                refused.append(error)
                continue
            if found is None:
                continue
            self.evaluated += 1
            self.bound = min(self.bound, found.iteration.seconds * found.bound_share)
            self._keep(found)
        if self.out_of_time:
            self.bound = 0.0
        if not self.best_plans:
            raise self._why_nothing(refused)
        return self.best_plans[0]

    def _keep(self, found: Evaluated) -> None:
        if not self.best_plans or found.iteration.seconds < self.best_plans[0].iteration.seconds:
            self.progress(f"{self.evaluated} plans, best {format_quantity(found.iteration.seconds, 'time')}")
        self.best_plans.append(found)
        self.best_plans.sort(key=lambda e: e.iteration.seconds)
        del self.best_plans[KEPT_ALTERNATIVES:]

    def evaluate(self, plan: Plan) -> Evaluated | None:
        """The plan evaluated, or None (recorded as a shortfall) where its bytes do not fit."""
        context = self.context(plan)
        blocks = self._blocks_at(plan.micro_batch)
        mapped = tuple(self._map(i, block, context, plan) for i, block in enumerate(blocks))
        steps = iteration(self.workload, plan, context, tuple(m.evaluation for m in mapped))
        memory = self._fullest_stage(plan, mapped, steps)
        capacity = self.capacity_bytes
        if sum(memory.values()) > capacity:
            self.infeasible += 1
            self.shortfalls.append((sum(memory.values()) - capacity, plan, memory))
            return None
        return Evaluated(plan, context, mapped, steps, memory)

    @property
    def capacity_bytes(self) -> float:
        first = self.system.chip.memories[0].capacity_bytes
        return first * (1.0 - self.assumptions.memory.reserved_fraction)

    def context(self, plan: Plan) -> Context:
        amortised = self.assumptions.iteration.model == "amortised"
        return Context(
            self.system,
            self.assumptions,
            self.workload.dtype,
            plan.groups["tensor"],
            plan.sequence,
            plan.groups["data"] if amortised else None,
            plan.micro_batches if amortised else None,
        )

    def _blocks_at(self, micro_batch: int) -> tuple[Block, ...]:
        if micro_batch not in self._blocks:
            self._blocks[micro_batch] = tuple(b.at_batch(micro_batch) for b, _ in self.workload.blocks)
        return self._blocks[micro_batch]

    def _map(self, i: int, block: Block, context: Context, plan: Plan) -> MappedBlock:
        data: Group | None = context.data
        key = (i, context.tensor, context.sequence, plan.micro_batch, data, context.amortised_over)
        if key not in self._mapped:
            try:
                self._mapped[key] = self._map_new(i, block, context)
            except InfeasibleError as error:
                self._mapped[key] = error
        found = self._mapped[key]
        if isinstance(found, InfeasibleError):
            raise found
        return found

    def _map_new(self, i: int, block: Block, context: Context) -> MappedBlock:
        pool_key = (i, context.chips, context.sequence)
        if pool_key not in self._shardings:
            sharding, _ = self._solve_sharding(block, context)
            self._shardings[pool_key] = [_strategies(sharding)]
        options = [
            map_block(block, context, strategies, self.settings, self.request.partition)
            for strategies in self._shardings[pool_key]
        ]
        self.mips_solved += sum(len(o.mips) for o in options)
        return min(options, key=lambda o: o.evaluation.seconds())

    def _solve_sharding(self, block: Block, context: Context) -> tuple[Sharding, dict[str, Any]]:
        sharding, result = solve_block_sharding(block, context, self.request.sharding, self.settings)
        self.mips_solved += 1
        scale = sharding.objective / result.objective if result.objective else 1.0
        return sharding, describe_solve("sharding", block.name, result, scale)

    def _fullest_stage(self, plan: Plan, mapped: tuple[MappedBlock, ...], steps: Iteration) -> dict[str, float]:
        """Bytes by category of the stage that holds most."""
        choices = self.assumptions.memory
        evaluations = [m.evaluation for m in mapped]
        if choices.capacity == "weights_and_live":
            (m,) = mapped
            live = live_bytes(m.evaluator, m.evaluation) * plan.micro_batch
            return {"weights": m.evaluation.parameter_bytes * steps.stage_counts[0][0], "live tensors": live}
        saved = [m.saved_bytes[plan.recompute] for m in mapped]
        full = plan.recompute == "full"
        working = [m.saved_bytes["none"] if full or not self.workload.training else 0.0 for m in mapped]
        stages = len(steps.stage_counts)
        per_stage = [
            stage_memory(
                evaluations,
                saved,
                working,
                counts,
                min(stages - stage, plan.micro_batches),
                choices.state_bytes_per_parameter,
                self.workload.training,
            )
            for stage, counts in enumerate(steps.stage_counts)
        ]
        return max(per_stage, key=lambda c: sum(c.values()))

    def _prove(self, best: Evaluated) -> tuple[list[dict[str, Any]], bool]:
        """Solve the winner's sharding in its own context; a better one joins the pool and the search repeats."""
        proofs: list[dict[str, Any]] = []
        improved = False
        for i, (mapped, block) in enumerate(zip(best.mapped, self._blocks_at(best.plan.micro_batch), strict=True)):
            sharding, proof = self._solve_sharding(block, best.context)
            proofs += [proof, *mapped.mips]
            additive = not best.context.dataflow and self._additive
            if not additive:
                continue
            here = mapped.evaluation.seconds()
            if sharding.objective < here * (1 - IMPROVEMENT):
                candidate = map_block(block, best.context, _strategies(sharding), self.settings)
                check_against(f"sharding of block '{block.name}'", sharding.objective, candidate.evaluation.seconds())
                self._shardings[i, best.context.chips, best.context.sequence].append(_strategies(sharding))
                improved = True
            else:
                check_against(f"sharding of block '{block.name}'", sharding.objective, here)
        return proofs, improved

    @property
    def _additive(self) -> bool:
        """Whether a kernel-by-kernel block's seconds are the sharding program's objective."""
        a = self.assumptions
        return a.sharding.objective == "time" and a.partitions.kernel_overlap != "full" and a.traffic.per == "tensor"

    def _why_nothing(self, refused: list[InfeasibleError]) -> InfeasibleError | LimitError:
        if self.shortfalls:
            shortfall, plan, memory = min(self.shortfalls, key=lambda s: s[0])
            shown = ", ".join(f"{name} {format_quantity(size, 'bytes')}" for name, size in memory.items() if size)
            tier = self.system.chip.memories[0].name
            return InfeasibleError(
                f"{self.workload.title} fits no plan on {self.system.chips} chips: the best one (tensor "
                f"{plan.degree('tensor')}, pipeline {plan.degree('pipeline')}, data {plan.degree('data')}, "
                f"recomputation {plan.recompute}) is short of memory '{tier}' by "
                f"{format_quantity(shortfall, 'bytes')} per chip (needs {shown}; has "
                f"{format_quantity(self.capacity_bytes, 'bytes')}). Use more chips, a larger memory, or a smaller model"
            )
        if refused:
            return refused[0]
        return InfeasibleError(f"{self.workload.title}: no tensor degree of the allowed plans can divide every kernel")


def _strategies(sharding: Sharding) -> dict[str, Strategy]:
    return {k.name: sharding.option(k.name).strategy for k in sharding.problem.block.kernels}


def search(
    workload: Workload,
    system: System,
    assumptions: Assumptions,
    request: PlanRequest,
    settings: SolverSettings,
    progress: Progress,
    deadline: float | None = None,
) -> tuple[Search, Evaluated, list[dict[str, Any]]]:
    """Search all plans; the state (for counts and alternatives), the best plan, and the programs that prove it."""
    state = Search(workload, system, assumptions, request, settings, progress, deadline)
    best, proofs = state.run()
    return state, best, proofs
