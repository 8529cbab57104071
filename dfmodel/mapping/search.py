"""The levels together: every plan, its sharding and partitioning, the best one, and what proves it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InfeasibleError, InputError, LimitError, did_you_mean
from dfmodel.mapping.best_first import Counts
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation
from dfmodel.mapping.footprint import live_bytes
from dfmodel.mapping.kernel_search import (
    Baseline,
    baselines,
    least_chip_seconds,
    limited_request,
    search_plans,
    seed,
    try_most_saving,
)
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.map_block import (
    MappedBlock,
    SolverSettings,
    second_opinions,
)
from dfmodel.mapping.mapper import BlockMapper, Key, key_of
from dfmodel.mapping.objective import limits_in_words, objective_of
from dfmodel.mapping.pipeline import Iteration, amortised
from dfmodel.mapping.plan import Plan, PlanRequest, candidate_plans, check_space, one_schedule_each
from dfmodel.mapping.sharding import NoShardingError
from dfmodel.mapping.staging import Stager
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import Workload

KEPT_ALTERNATIVES = 5

Progress = Callable[[str], None]

#: Seconds of an evaluated plan, and its number among the plans counted.
Record = tuple[float, int]


@dataclass(frozen=True)
class Evaluated:
    """A feasible plan with everything evaluated."""

    plan: Plan
    context: Context
    mapped: tuple[MappedBlock, ...]
    iteration: Iteration
    memory_bytes: dict[str, float]
    memory_tiers: Mapping[str, Mapping[str, float]]
    #: The stage that holds most.
    fullest_stage: int = 0

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
    settled_by_bound: int = 0
    mips_solved: int = 0
    out_of_time: bool = False
    interrupted: bool = False
    bound: float = float("inf")
    shortfalls: list[tuple[float, Plan, dict[str, float]]] = field(default_factory=list)
    best_plans: list[Evaluated] = field(default_factory=list)
    _plans: list[Plan] = field(default_factory=list)
    unplaced: dict[int, tuple[str, ...]] = field(default_factory=dict)
    refused: list[InfeasibleError] = field(default_factory=list)
    baselines: list[Baseline] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._stager = Stager(self.workload, self.system, self.assumptions)
        self.timer = KernelTimer(self.system.chip, self.workload.dtype, self.assumptions)
        self.mapper = BlockMapper(
            self.workload, self.system, self.assumptions, self.request, self.settings, self._limits
        )
        self.objective = objective_of(self.workload, self.system, self.request)

    @property
    def as_arrays(self) -> bool:
        """Whether plans are searched best first as arrays: under the scheduled iteration. Under the original's they are
        enumerated, all chips in use."""
        return self.assumptions.iteration.model == "scheduled"

    def value(self, found: Evaluated) -> float:
        """What is minimised, per sample; infinite where a limit per unit of work is not kept."""
        return self.objective.value_of(found.plan.chips, found.iteration.seconds / found.plan.batch)

    def run(self) -> tuple[Evaluated, list[dict[str, Any]]]:
        """The best plan, and the programs that prove its levels.

        Raises InfeasibleError naming what is short by how much. Where time runs out (LimitError) or the user
        interrupts, the best plan so far is the answer, unproven; without one the exception goes on.
        """
        self._check_pins()
        if not self.as_arrays:
            self._check_chips()
            self._plans = list(candidate_plans(self.workload, self.system, self.request))
            self.counted = len(self._plans)
        try:
            best, proofs = self._prove(self.best_of_space() if self.as_arrays else self._first_best())
        except (LimitError, KeyboardInterrupt) as stopped:
            if not self.best_plans:
                raise
            self.out_of_time = True
            self.interrupted = isinstance(stopped, KeyboardInterrupt)
            best = self.best_plans[0]
            proofs = [mip for mapped in best.mapped for mip in mapped.mips]
        self.bound = min(self.bound, best.iteration.seconds * best.bound_share)
        self.out_of_time |= not self.mapper.all_proven
        self.mips_solved += self.mapper.mips_solved
        if self.as_arrays and self.settings.compare and not self.out_of_time:
            self.baselines = baselines(self, self.value(best))
        if self.request.within is not None:
            most = self.value(best) * (1 + self.request.within) * (1 + 1e-12)
            self.best_plans = [found for found in self.best_plans if self.value(found) <= most]
        return best, proofs

    def best_of_space(self) -> Evaluated:
        """The best plan of the whole space, best first; the K best distinct ones are kept where asked."""
        check_space(self.workload, self.system, self.request)
        request = limited_request(self.system, self.request)
        by_schedule = one_schedule_each(request)
        if self.settings.prune:
            seed(self, by_schedule[0], self._record)
        found = [search_plans(self, own, self._record, self._threshold) for own in by_schedule]
        counts = self.counts = sum((f.counts for f in found), Counts())
        open_bound = min(f.open_bound for f in found)
        self.counted = counts.counted
        self.evaluated = counts.evaluated - counts.infeasible
        self.infeasible = counts.infeasible + counts.cut_by_memory + counts.unmappable
        self.settled_by_bound = counts.cut_by_bound + counts.cut_before_mapping + counts.dominated
        if not self.best_plans:
            if open_bound < math.inf:
                raise LimitError("no plan evaluated within the time limit; raise --time-limit")
            if counts.cut_by_memory and not self.shortfalls:
                try_most_saving(self, found[0])
            raise self._over_limit() or self._why_nothing(self.refused)
        best = self.best_plans[0]
        self.out_of_time = open_bound < self.value(best)
        share = min(1.0, open_bound / self.value(best))
        self.bound = best.iteration.seconds * share
        return best

    def _record(self, found: Evaluated) -> float:
        value = self.value(found)
        if value == math.inf:
            return value
        if not self.best_plans or value < self.value(self.best_plans[0]):
            self.progress(f"best {format_quantity(found.iteration.seconds, 'time')} per iteration")
        if all(found.plan != known.plan for known in self.best_plans):
            self.best_plans.append(found)
        self.best_plans.sort(key=self.value)
        del self.best_plans[self.request.best or KEPT_ALTERNATIVES :]
        return value

    def _threshold(self) -> float:
        """The value a plan must beat: the best's, or with K best plans asked for the K-th's within their margin."""
        if not self.best_plans:
            return math.inf
        best, wanted = self.value(self.best_plans[0]), self.request.best or 1
        if wanted == 1:
            return best
        last = self.value(self.best_plans[wanted - 1]) if len(self.best_plans) >= wanted else math.inf
        return min(last, best * (1 + (self.request.within or 0.0)))

    def _check_pins(self) -> None:
        """Raises InputError for pinned kernels that no block has."""
        kernels = {k.name for block, _ in self.workload.blocks for k in block.kernels}
        problems = [
            f"plan.{what}: no kernel '{name}'{did_you_mean(name, kernels)}"
            for what, pins in (("sharding", self.request.sharding), ("partition", self.request.partition))
            for name in pins or {}
            if name not in kernels
        ]
        if self.request.partitioning and self.system.chip.execution != "dataflow":
            problems.append(
                "plan.partition, plan.limits: only for dataflow chips; "
                f"{self.system.chip.name} runs kernel by kernel, its fusions are decided with the sharding"
            )
        if problems:
            raise InputError(problems)

    def _first_best(self) -> Evaluated:
        """The best plan with one proven sharding per tensor degree; every feasible plan is recorded."""
        refused: list[InfeasibleError] = []
        for floor, number in self._by_floor(refused):
            if self.best_plans and floor >= self.best_plans[0].iteration.seconds:
                self.settled_by_bound += 1
                continue
            if self.late() and self.best_plans:
                self.out_of_time = True
                break
            found = self._tried(self._plans[number], refused)
            if found is None:
                continue
            self.evaluated += 1
            self.bound = min(self.bound, found.iteration.seconds * found.bound_share)
            self._keep(found)
        if not self.best_plans:
            raise self._why_nothing(refused)
        best = self.best_plans[0]
        if self.value(best) == math.inf:
            # all plans use all chips for one batch: the fastest takes the fewest chip-seconds
            raise self._beyond(best.iteration.seconds / best.plan.batch * best.plan.chips)
        return best

    def _check_chips(self) -> None:
        """Raises InfeasibleError where chips, cost or power are limited to less than all chips, which the original's
        iteration uses."""
        most = limited_request(self.system, self.request).at_most_chips
        if most is not None and most < self.system.chips:
            raise InfeasibleError(
                f"plan.at_most_chips, plan.at_most_cost, plan.at_most_power: they leave {most} of the "
                f"{self.system.chips} chips, and plans under assumptions.iteration.model=amortised use all; make the "
                "system smaller, or use assumptions.iteration.model=scheduled"
            )

    def _over_limit(self) -> InfeasibleError | None:
        """The error for limits per unit of work that no plan keeps; None where nothing fits without them either."""
        if self.request.at_most_unit_cost is None and self.request.at_most_unit_energy is None:
            return None
        least = least_chip_seconds(self)
        return None if least is None else self._beyond(least)

    def _beyond(self, chip_seconds: float) -> InfeasibleError:
        told = limits_in_words(self.workload, self.system, self.request, chip_seconds)
        return InfeasibleError(f"{self.workload.title}: no plan keeps {told}")

    def _by_floor(self, refused: list[InfeasibleError]) -> Iterator[Record]:
        """Plans to evaluate with a lower bound of their seconds, best first.

        Only dataflow chips have one (a partitioning is a program of its own): every block as if each of its
        passes were one partition without traffic between kernels. Plans that do not fit memory are dropped here.
        """
        if self.system.chip.execution != "dataflow":
            yield from ((0.0, number) for number in range(len(self._plans)))
            return
        floors = []
        for number, plan in enumerate(self._plans):
            found = self._tried(plan, refused, relaxed=True)
            if found is not None:
                floors.append((found.iteration.seconds, number))
        yield from sorted(floors)

    def _tried(self, plan: Plan, refused: list[InfeasibleError], relaxed: bool = False) -> Evaluated | None:
        """The plan evaluated (or its relaxation); None, counted as infeasible, where it cannot be."""
        try:
            found = self.evaluate(plan, relaxed)
        except NoShardingError:
            found = None
        except InfeasibleError as error:
            refused.append(error)
            found = None
        self.infeasible += found is None
        return found

    def _keep(self, found: Evaluated) -> None:
        if not self.best_plans or found.iteration.seconds < self.best_plans[0].iteration.seconds:
            self.progress(f"{self.evaluated} plans, best {format_quantity(found.iteration.seconds, 'time')}")
        self.best_plans.append(found)
        self.best_plans.sort(key=lambda e: e.iteration.seconds)
        del self.best_plans[KEPT_ALTERNATIVES:]

    def evaluate(self, plan: Plan, relaxed: bool = False) -> Evaluated | None:
        """The plan evaluated, or None (recorded as a shortfall) where its bytes do not fit.

        `relaxed` takes blocks before partitioning, whose seconds are a lower bound.
        """
        context = self.context(plan)
        take = self.mapper.relaxed if relaxed else self.mapper.map
        mapped = tuple(take(key, context) for key in self._keys(plan, context))
        if self.assumptions.iteration.model == "amortised":
            return self._amortised(plan, context, mapped)
        costs = [m.costs(plan.recompute, self.workload.training) for m in mapped]
        staged = self._stager.stage(plan, context, costs, [m.evaluation for m in mapped])
        if staged.missing:
            self.shortfalls.append((staged.missing, plan, staged.fullest.categories))
            self.unplaced[id(plan)] = tuple(staged.fullest.placement.missing)
            return None
        fullest = staged.fullest
        return Evaluated(
            plan, context, mapped, staged.iteration, fullest.categories, fullest.placement.tiers, staged.stage
        )

    def is_refused(self, plan: Plan) -> bool:
        """Whether a block of the plan is known to fit no partitioning."""
        keys = self._keys(plan, self.context(plan))
        return any(isinstance(self.mapper.mapped.get(key), InfeasibleError) for key in keys)

    def _amortised(self, plan: Plan, context: Context, mapped: tuple[MappedBlock, ...]) -> Evaluated | None:
        """The original's iteration and its rule of what memory holds."""
        (only,) = mapped
        steps = amortised(self.workload, plan, context, only.evaluation)
        live = live_bytes(only.evaluator, only.evaluation) * plan.micro_batch
        memory = {"weights": only.evaluation.parameter_bytes * steps.stage_counts[0][0], "live tensors": live}
        if sum(memory.values()) > self.capacity_bytes:
            self.shortfalls.append((sum(memory.values()) - self.capacity_bytes, plan, memory))
            return None
        return Evaluated(plan, context, mapped, steps, memory, {self.system.chip.memories[0].name: memory})

    @property
    def capacity_bytes(self) -> float:
        return self._stager.capacity_bytes

    def price(self, operation: str, size: float, group: Group) -> float:
        """Seconds of a collective, remembered."""
        return self._stager.price(operation, size, group)

    def context(self, plan: Plan) -> Context:
        amortised = self.assumptions.iteration.model == "amortised"
        if not amortised:
            return self.mapper.context_of(plan.groups["tensor"], plan.sequence, plan.groups["context"])
        return Context(
            self.system,
            self.assumptions,
            self.workload.dtype,
            plan.groups["tensor"],
            plan.sequence,
            plan.groups["data"] if amortised else None,
            plan.micro_batches if amortised else None,
        )

    def _keys(self, plan: Plan, context: Context) -> tuple[Key, ...]:
        """What the mapping of each block depends on, of a plan."""
        return tuple(key_of(i, plan.micro_batch, context) for i in range(len(self.workload.blocks)))

    def _prove(self, best: Evaluated) -> tuple[Evaluated, list[dict[str, Any]]]:
        """The winner with its shardings solved in its own context, and the programs behind it."""
        keys = self._keys(best.plan, best.context)
        before = {key: self.mapper.mapped[key] for key in keys}
        proofs = {key: self.mapper.prove_sharding(key) for key in keys}
        again = self._again(best.plan)
        if again is None or again.iteration.seconds > best.iteration.seconds:
            # faster blocks can make a slower iteration: they may hold more between the passes, or hide less
            self.mapper.mapped.update(before)
        else:
            best = again
        listed = []
        for key in self._keys(best.plan, best.context):
            mapped = self.mapper.mapped_block(key)
            opinions = second_opinions(mapped, self._limits())
            self.mips_solved += len(opinions)
            listed += [proofs[key], *mapped.mips, *opinions]
        return best, listed + self._prove_stages(best)

    def _prove_stages(self, best: Evaluated) -> list[dict[str, Any]]:
        """The integer program of the winner's stages, where its iteration has them."""
        if self.assumptions.iteration.model == "amortised":
            return []
        costs = [m.costs(best.plan.recompute, self.workload.training) for m in best.mapped]
        limits = self._limits()
        found = self._stager.prove(
            best.plan, best.context, costs, best.iteration.stage_counts, best.blocks, limits.time_limit_s, limits.log
        )
        self.mips_solved += len(found)
        return found

    def _again(self, plan: Plan) -> Evaluated | None:
        """A plan evaluated anew, after the shardings of its blocks have been proven."""
        before = len(self.shortfalls)
        found = self.evaluate(plan)
        del self.shortfalls[before:]
        return found

    def _limits(self) -> SolverSettings:
        """The settings with what is left of the time limit."""
        if self.deadline is None:
            return self.settings
        return replace(self.settings, time_limit_s=max(0.0, self.deadline - time.perf_counter()))

    def _not_held(self, plan: Plan) -> str:
        """The categories of a plan that found no room, in words."""
        names = self.unplaced.get(id(plan), ())
        return f" for {' and '.join(names)}" if names else ""

    def late(self) -> bool:
        return self.deadline is not None and time.perf_counter() > self.deadline

    def _why_nothing(self, refused: list[InfeasibleError]) -> InfeasibleError | LimitError:
        if self.shortfalls:
            shortfall, plan, memory = min(self.shortfalls, key=lambda s: s[0])
            shown = ", ".join(f"{name} {format_quantity(size, 'bytes')}" for name, size in memory.items() if size)
            tier = " + ".join(m.name for m in self.system.chip.memories)
            return InfeasibleError(
                f"{self.workload.title} fits no plan on {self.system.chips} chips: the best one (tensor "
                f"{plan.degree('tensor')}, pipeline {plan.degree('pipeline')}, data {plan.degree('data')}, "
                f"recomputation {plan.recompute}) is short of memory '{tier}' by "
                f"{format_quantity(shortfall, 'bytes')} per chip{self._not_held(plan)} (needs {shown}; has "
                f"{format_quantity(self.capacity_bytes, 'bytes')}). Use more chips, a larger memory, or a smaller model"
            )
        if refused:
            return refused[0]
        return InfeasibleError(f"{self.workload.title}: no tensor degree of the allowed plans can divide every kernel")


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
