"""The levels together: every plan, its sharding and partitioning, the best one, and what proves it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InfeasibleError, InputError, LimitError, did_you_mean
from dfmodel.mapping.build import build_sharding_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluation, BlockEvaluator, check_against
from dfmodel.mapping.footprint import live_bytes
from dfmodel.mapping.ideals import LatticeTooLargeError
from dfmodel.mapping.joint import JointProblem, JointResult, is_segmented, solve_joint
from dfmodel.mapping.map_block import (
    MappedBlock,
    SolverSettings,
    describe_solve,
    map_block,
    second_opinions,
    solve_block_sharding,
)
from dfmodel.mapping.pipeline import Iteration, amortised
from dfmodel.mapping.plan import Plan, PlanRequest, candidate_plans
from dfmodel.mapping.sharding import NoShardingError, Sharding, ShardingProblem
from dfmodel.mapping.staging import Stager
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.units import format_quantity
from dfmodel.workloads.graph import Block, Strategy, Workload

#: Seconds of one branch and bound over sharding and partitioning together.
JOINT_S = 10.0

#: A sharding must beat the one a plan was evaluated with by this share to replace it.
IMPROVEMENT = 1e-9

KEPT_ALTERNATIVES = 5

Progress = Callable[[str], None]

#: Block number, tensor group, sequence sharding, micro-batch, and (amortised reductions) data group and micro-batches.
Key = tuple[int, Group, bool, int, Group | None, int | None]

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
    _blocks: dict[int, tuple[Block, ...]] = field(default_factory=dict)
    _shardings: dict[tuple[int, int, bool], dict[str, Strategy]] = field(default_factory=dict)
    _mapped: dict[Key, MappedBlock | InfeasibleError] = field(default_factory=dict)
    _plans: list[Plan] = field(default_factory=list)
    _records: list[Record] = field(default_factory=list)
    _evaluators: dict[Key, BlockEvaluator] = field(default_factory=dict)
    _unpartitioned: dict[Key, MappedBlock] = field(default_factory=dict)
    _floors: dict[Key, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stager = Stager(self.workload, self.system, self.assumptions)

    def run(self) -> tuple[Evaluated, list[dict[str, Any]]]:
        """The best plan, and the programs that prove its levels.

        Raises InfeasibleError naming what is short by how much. Where time runs out (LimitError) or the user
        interrupts, the best plan so far is the answer, unproven; without one the exception goes on.
        """
        self._check_pins()
        self._plans = list(candidate_plans(self.workload, self.system, self.request))
        self.counted = len(self._plans)
        try:
            best, proofs = self._prove(self._first_best())
        except (LimitError, KeyboardInterrupt) as stopped:
            if not self.best_plans:
                raise
            self.out_of_time = True
            self.interrupted = isinstance(stopped, KeyboardInterrupt)
            best = self.best_plans[0]
            proofs = [mip for mapped in best.mapped for mip in mapped.mips]
        self.bound = min(self.bound, best.iteration.seconds * best.bound_share)
        return best, proofs

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
            if self._late() and self.best_plans:
                self.out_of_time = True
                break
            found = self._tried(self._plans[number], refused)
            if found is None:
                continue
            self.evaluated += 1
            self._records.append((found.iteration.seconds, number))
            self.bound = min(self.bound, found.iteration.seconds * found.bound_share)
            self._keep(found)
        if not self.best_plans:
            raise self._why_nothing(refused)
        return self.best_plans[0]

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
        take = self._relaxed if relaxed else self._map
        mapped = tuple(take(key, context) for key in self._keys(plan, context))
        if self.assumptions.iteration.model == "amortised":
            return self._amortised(plan, context, mapped)
        costs = [m.costs(plan.recompute, self.workload.training) for m in mapped]
        staged = self._stager.stage(plan, context, costs, [m.evaluation for m in mapped])
        if staged.missing:
            self.shortfalls.append((staged.missing, plan, staged.fullest.categories))
            return None
        fullest = staged.fullest
        return Evaluated(plan, context, mapped, staged.iteration, fullest.categories, fullest.placement.tiers)

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

    def _keys(self, plan: Plan, context: Context) -> tuple[Key, ...]:
        """What the mapping of each block depends on, of a plan."""
        rest = (context.tensor, context.sequence, plan.micro_batch, context.data, context.amortised_over)
        return tuple((i, *rest) for i in range(len(self.workload.blocks)))

    def _map(self, key: Key, context: Context) -> MappedBlock:
        if key not in self._mapped:
            try:
                mapped = map_block(self._sharded(key, context), self._limits(), self.request.partitioning)
                self.mips_solved += len(mapped.mips)
                self._mapped[key] = mapped
            except InfeasibleError as error:
                self._mapped[key] = error
        found = self._mapped[key]
        if isinstance(found, InfeasibleError):
            raise found
        return found

    def _relaxed(self, key: Key, context: Context) -> MappedBlock:
        """A block sharded but not partitioned; its seconds are a lower bound."""
        if key not in self._unpartitioned:
            evaluator = self._sharded(key, context)
            self._unpartitioned[key] = MappedBlock(evaluator, evaluator.relaxed())
        return self._unpartitioned[key]

    def _sharded(self, key: Key, context: Context) -> BlockEvaluator:
        """The evaluator of a block with the pool's sharding for its tensor degree."""
        if key not in self._evaluators:
            block = self._blocks_at(key[3])[key[0]]
            pool_key = (key[0], context.chips, context.sequence)
            if pool_key not in self._shardings:
                sharding, _ = self._solve_sharding(block, context)
                self._shardings[pool_key] = strategies_of(sharding)
            self._evaluators[key] = BlockEvaluator(block, self._shardings[pool_key], context)
        return self._evaluators[key]

    def _with_segments(
        self, strategies: dict[str, Strategy], block: Block, context: Context
    ) -> tuple[dict[str, Strategy], JointResult | None]:
        """On a dataflow chip, the ways of the norm and residual segments chosen together with the partitioning."""
        if not context.dataflow or context.chips == 1 or self.request.partitioning or not is_segmented(block):
            return strategies, None
        joint = JointProblem(block, strategies, context)
        if not joint.names:
            return strategies, None
        try:
            found = solve_joint(joint, JOINT_S)
        except LatticeTooLargeError:
            return strategies, None
        return found.strategies, found

    def _solve_sharding(self, block: Block, context: Context) -> tuple[Sharding, dict[str, Any]]:
        sharding, result = solve_block_sharding(block, context, self.request.sharding, self._limits())
        self.mips_solved += 1
        self.out_of_time |= not result.proven
        scale = sharding.objective / result.objective if result.objective else 1.0
        return sharding, describe_solve(
            "sharding and fusion" if sharding.problem.columns else "sharding", block.name, result, scale
        )

    def _prove(self, best: Evaluated) -> tuple[Evaluated, list[dict[str, Any]]]:
        """The proven winner, and the programs behind it.

        The winner's shardings are solved in its own context. With `certify_all`, where a block's seconds are the
        sharding program's objective, so is every other plan's: one whose bound (each kernel at its cheapest,
        communication free) is above the winner is settled by it, and the sharding of the rest is solved in their
        own contexts, which may make one of them the winner.
        """
        proofs = {key: self._prove_sharding(key) for key in self._keys(best.plan, best.context)}
        best = self._again(best.plan) or best
        if self.additive:
            for record in sorted(self._records) if self.settings.certify_all else ():
                if self._late():
                    self.out_of_time = True
                    break
                best = self._settle(record, best, proofs)
        listed = []
        for key in self._keys(best.plan, best.context):
            mapped = self._mapped_block(key)
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

    def _settle(self, record: Record, best: Evaluated, proofs: dict[Key, dict[str, Any]]) -> Evaluated:
        """The better of the winner so far and one plan under its own proven shardings."""
        seconds, number = record
        plan = self._plans[number]
        keys = self._keys(plan, self.context(plan))
        open_keys = [key for key in keys if key not in proofs]
        if not open_keys:
            return best if seconds >= best.iteration.seconds else self._better(plan, best)
        floors = [self._floor_share(key) if key in open_keys else 1.0 for key in keys]
        if seconds * min(floors) >= best.iteration.seconds:
            self.settled_by_bound += 1
            return best
        for key in open_keys:
            proofs[key] = self._prove_sharding(key)
        return self._better(plan, best)

    def _better(self, plan: Plan, best: Evaluated) -> Evaluated:
        found = self._again(plan)
        return found if found is not None and found.iteration.seconds < best.iteration.seconds else best

    def _again(self, plan: Plan) -> Evaluated | None:
        """A plan evaluated anew, after the shardings of its blocks have been proven."""
        before = len(self.shortfalls)
        found = self.evaluate(plan)
        del self.shortfalls[before:]
        return found

    def _prove_sharding(self, key: Key) -> dict[str, Any]:
        """Solve the sharding of a mapped block in its own context; a better one than it has replaces it."""
        mapped = self._mapped_block(key)
        block, context = mapped.evaluator.block, mapped.evaluator.context
        sharding, proof = self._solve_sharding(block, context)
        if not self.additive:
            self._prove_segments(key, strategies_of(sharding))
            return proof
        here = mapped.evaluation.seconds()
        if sharding.objective < here * (1 - IMPROVEMENT):
            mapped = self._mapped[key] = map_block(
                BlockEvaluator(block, strategies_of(sharding), context), self.settings, self.request.partitioning
            )
        check_against(f"sharding of block '{block.name}'", sharding.objective, mapped.evaluation.seconds())
        return proof

    def _prove_segments(self, key: Key, strategies: dict[str, Strategy]) -> None:
        """Branch and bound over sharding and partitioning in the block's own context; a better answer replaces it."""
        mapped = self._mapped_block(key)
        block, context = mapped.evaluator.block, mapped.evaluator.context
        chosen, found = self._with_segments(strategies, block, context)
        if found is None:
            return
        if found.seconds < mapped.evaluation.seconds() * (1 - IMPROVEMENT):
            evaluator = BlockEvaluator(block, chosen, context)
            mapped = self._mapped[key] = map_block(evaluator, self._limits(), self.request.partitioning)
        mapped.mips.append(
            {
                "level": "sharding segments with partitioning (branch and bound)",
                "block": block.name,
                "status": "optimal" if found.proven else "limit",
                "objective": found.seconds,
                "bound": found.bound_s,
                "gap": max(0.0, 1 - found.bound_s / found.seconds),
                "wall_s": found.wall_s,
                "columns": found.combinations,
                "integers": len(found.ways),
                "rows": found.leaves,
                "nodes": found.nodes,
            }
        )

    def _floor_share(self, key: Key) -> float:
        """A lower bound of a mapped block's seconds over all shardings, as a share of its seconds."""
        if key not in self._floors:
            mapped = self._mapped_block(key)
            problem = build_sharding_problem(mapped.evaluator.block, mapped.evaluator.context, self._pins(key))
            floor = least_seconds(problem)
            self._floors[key] = min(1.0, floor / mapped.evaluation.seconds())
        return self._floors[key]

    def _pins(self, key: Key) -> dict[str, str]:
        block = self._mapped_block(key).evaluator.block
        return {k: v for k, v in (self.request.sharding or {}).items() if k in block.by_name}

    def _mapped_block(self, key: Key) -> MappedBlock:
        found = self._mapped[key]
        assert isinstance(found, MappedBlock)
        return found

    @property
    def additive(self) -> bool:
        """Whether a block's seconds are the sharding program's objective (kernel by kernel, network not hidden)."""
        a = self.assumptions
        return (
            self.system.chip.execution != "dataflow"
            and a.sharding.objective == "time"
            and a.partitions.kernel_overlap != "full"
            and a.traffic.per == "tensor"
        )

    def _limits(self) -> SolverSettings:
        """The settings with what is left of the time limit."""
        if self.deadline is None:
            return self.settings
        return replace(self.settings, time_limit_s=max(0.0, self.deadline - time.perf_counter()))

    def _late(self) -> bool:
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
                f"{format_quantity(shortfall, 'bytes')} per chip (needs {shown}; has "
                f"{format_quantity(self.capacity_bytes, 'bytes')}). Use more chips, a larger memory, or a smaller model"
            )
        if refused:
            return refused[0]
        return InfeasibleError(f"{self.workload.title}: no tensor degree of the allowed plans can divide every kernel")


def least_seconds(problem: ShardingProblem) -> float:
    """A lower bound of a sharding problem: each kernel at its cheapest (its share of a fused one), no communication."""
    if not problem.columns:
        return sum(min(o.cost for o in options) for options in problem.options.values())
    least: dict[str, float] = {}
    for column in problem.columns:
        share = column.seconds / len(column.kernels)
        for name in column.kernels:
            least[name] = min(share, least.get(name, share))
    return sum(least.values())


def strategies_of(sharding: Sharding) -> dict[str, Strategy]:
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
