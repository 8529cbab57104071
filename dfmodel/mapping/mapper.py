"""The workload's blocks mapped in contexts: shardings pooled by tensor degree, each mapping made once.

A context is a tensor parallel group with or without sequence sharding; with a micro-batch it decides how a block is
mapped, whatever else a plan chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InfeasibleError
from dfmodel.mapping.context import ONE_CHIP, Context
from dfmodel.mapping.evaluate import BlockEvaluator, check_against
from dfmodel.mapping.ideals import LatticeTooLargeError
from dfmodel.mapping.joint import JointProblem, JointResult, is_segmented, solve_joint
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.least_cost import LeastCosts, Message, context_messages
from dfmodel.mapping.map_block import MappedBlock, SolverSettings, describe_solve, map_block, solve_block_sharding
from dfmodel.mapping.plan import PlanRequest
from dfmodel.mapping.sharding import NoShardingError, Sharding, ShardingRules, strategies
from dfmodel.systems.network import Group, innermost
from dfmodel.systems.system import System
from dfmodel.workloads.context_parallel import over_context
from dfmodel.workloads.graph import Block, Strategy, Workload

#: Seconds of one branch and bound over sharding and partitioning together.
JOINT_S = 30.0

#: A sharding must beat the one a plan was evaluated with by this share to replace it.
IMPROVEMENT = 1e-9


class Key(NamedTuple):
    """What the mapping of a block depends on: its number, the micro-batch, and the context (with amortised reductions
    also data group and micro-batches)."""

    block: int
    micro_batch: int
    tensor: Group
    sequence: bool
    context_parallel: Group
    data: Group | None = None
    amortised_over: int | None = None


def key_of(block: int, micro_batch: int, context: Context) -> Key:
    return Key(
        block, micro_batch, context.tensor, context.sequence, context.context_parallel, context.data,
        context.amortised_over,
    )  # fmt: skip


@dataclass
class BlockMapper:
    """Mappings of one search. `limits` gives the solver's settings with what is left of the time limit."""

    workload: Workload
    system: System
    assumptions: Assumptions
    request: PlanRequest
    settings: SolverSettings
    limits: Callable[[], SolverSettings]
    mips_solved: int = 0
    all_proven: bool = True
    mapped: dict[Key, MappedBlock | InfeasibleError] = field(default_factory=dict)
    _blocks: dict[tuple[int, int], tuple[Block, ...]] = field(default_factory=dict)
    _shardings: dict[tuple[Any, ...], dict[str, Strategy]] = field(default_factory=dict)
    _evaluators: dict[Key, BlockEvaluator] = field(default_factory=dict)
    _unpartitioned: dict[Key, MappedBlock] = field(default_factory=dict)
    _contexts: dict[tuple[Group, bool, Group], Context] = field(default_factory=dict)
    _least: dict[tuple[int, str], LeastCosts] = field(default_factory=dict)
    _messages: dict[int, list[Message]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._smallest = self.request.micro_batch or 1

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

    def context_of(self, tensor: Group, sequence: bool, context_parallel: Group = ONE_CHIP) -> Context:
        """The context of every plan with these tensor and context parallel groups, where reductions are not
        amortised."""
        key = (tensor, sequence, context_parallel)
        if key not in self._contexts:
            self._contexts[key] = Context(
                self.system, self.assumptions, self.workload.dtype, tensor, sequence, context_parallel=context_parallel
            )
        return self._contexts[key]

    def blocks_at(self, micro_batch: int, context_degree: int = 1) -> tuple[Block, ...]:
        """The workload's blocks for micro-batches of so many sequences, each divided over a context parallel group."""
        key = (micro_batch, context_degree)
        if key not in self._blocks:
            self._blocks[key] = tuple(
                over_context(b, context_degree).at_batch(micro_batch) for b, _ in self.workload.blocks
            )
        return self._blocks[key]

    def least_costs(self, block: int, mode: str) -> LeastCosts:
        """What a block costs at least under a recomputation mode, by degrees and micro-batch."""
        key = (block, mode)
        if key not in self._least:
            timer = KernelTimer(self.system.chip, self.workload.dtype, self.assumptions)
            self._least[key] = LeastCosts(self.workload.blocks[block][0], mode, timer)
        return self._least[key]

    def messages(self, block: int) -> list[Message]:
        """What a block gathers over a context parallel group."""
        if block not in self._messages:
            self._messages[block] = context_messages(self.workload.blocks[block][0])
        return self._messages[block]

    def mapped_in(self, context: Context, micro_batch: int, block: int) -> MappedBlock:
        """One of the workload's blocks mapped in a context. Raises InfeasibleError or NoShardingError where it cannot
        be."""
        return self.map(key_of(block, micro_batch, context), context)

    def bounded_in(self, context: Context, micro_batch: int, block: int) -> MappedBlock:
        """The same where chips run kernel by kernel; on dataflow chips sharded only, with its seconds bounded."""
        if not context.dataflow:
            return self.mapped_in(context, micro_batch, block)
        return self.relaxed(key_of(block, micro_batch, context), context)

    def map(self, key: Key, context: Context) -> MappedBlock:
        """A block mapped once. Raises InfeasibleError (every time) where it cannot be."""
        if key not in self.mapped:
            try:
                mapped = map_block(self._sharded(key, context), self.limits(), self.request.partitioning)
                self.mips_solved += len(mapped.mips)
                self.mapped[key] = mapped
            except InfeasibleError as error:
                self.mapped[key] = error
        found = self.mapped[key]
        if isinstance(found, InfeasibleError):
            raise found
        return found

    def relaxed(self, key: Key, context: Context) -> MappedBlock:
        """A block sharded but not partitioned; its seconds are a lower bound."""
        if key not in self._unpartitioned:
            evaluator = self._sharded(key, context)
            self._unpartitioned[key] = MappedBlock(evaluator, evaluator.relaxed())
        return self._unpartitioned[key]

    def _sharded(self, key: Key, context: Context) -> BlockEvaluator:
        """The evaluator of a block with the pool's sharding for its tensor degree."""
        if key not in self._evaluators:
            block = self.blocks_at(key.micro_batch, key.context_parallel.size)[key.block]
            self._evaluators[key] = BlockEvaluator(block, self._pooled(key, block, context), context)
        return self._evaluators[key]

    def _pooled(self, key: Key, block: Block, context: Context) -> dict[str, Strategy]:
        """The sharding proven best for a block and tensor degree: of whole sequences, on the innermost placement of the
        degree with the smallest micro-batch, or (`certify_all`) in the very context."""
        own = key if self.settings.certify_all else (key.block, context.chips, context.sequence)
        if own not in self._shardings:
            where, there = block, context
            if not self.settings.certify_all and context.amortised_over is None:
                where = self.blocks_at(self._smallest)[key.block]
                there = self.context_of(innermost(context.chips, self.system.dimensions), context.sequence)
            self._shardings[own] = self._only_sharding(where, there) or strategies_of(
                self._solve_sharding(where, there)[0]
            )
        known = self._shardings[own]
        return known if len(known) == len(block.kernels) else sharded_alike(block, known, context)

    def _only_sharding(self, block: Block, context: Context) -> dict[str, Strategy] | None:
        """The strategies of a block on a single chip, where no kernel has a choice; else None."""
        if context.chips > 1:
            return None
        rules = ShardingRules(context.sequence, context.assumptions.sharding.weights)
        found = {k.name: strategies(block, k, 1, rules) for k in block.kernels}
        return {name: own[0] for name, own in found.items()} if all(len(own) == 1 for own in found.values()) else None

    def _solve_sharding(self, block: Block, context: Context) -> tuple[Sharding, dict[str, Any]]:
        sharding, result = solve_block_sharding(block, context, self.request.sharding, self.limits())
        self.mips_solved += 1
        self.all_proven &= result.proven
        scale = sharding.objective / result.objective if result.objective else 1.0
        return sharding, describe_solve(
            "sharding and fusion" if sharding.problem.columns else "sharding", block.name, result, scale
        )

    def mapped_block(self, key: Key) -> MappedBlock:
        """What `map` found before."""
        found = self.mapped[key]
        assert isinstance(found, MappedBlock)
        return found

    def prove_sharding(self, key: Key) -> dict[str, Any]:
        """Solve the sharding of a mapped block in its own context; a better one than it has replaces it."""
        mapped = self.mapped_block(key)
        block, context = mapped.evaluator.block, mapped.evaluator.context
        sharding, proof = self._solve_sharding(block, context)
        if not self.additive:
            self._prove_segments(key, strategies_of(sharding))
            return proof
        here = mapped.evaluation.seconds()
        if sharding.objective < here * (1 - IMPROVEMENT):
            mapped = self.mapped[key] = map_block(
                BlockEvaluator(block, strategies_of(sharding), context), self.settings, self.request.partitioning
            )
        check_against(f"sharding of block '{block.name}'", sharding.objective, mapped.evaluation.seconds())
        return proof

    def _prove_segments(self, key: Key, strategies: dict[str, Strategy]) -> None:
        """Branch and bound over sharding and partitioning in the block's own context; a better answer replaces it."""
        mapped = self.mapped_block(key)
        block, context = mapped.evaluator.block, mapped.evaluator.context
        chosen, found = self._with_segments(strategies, block, context)
        if found is None:
            return
        if found.seconds < mapped.evaluation.seconds() * (1 - IMPROVEMENT):
            evaluator = BlockEvaluator(block, chosen, context)
            mapped = self.mapped[key] = map_block(evaluator, self.limits(), self.request.partitioning)
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


def sharded_alike(block: Block, known: Mapping[str, Strategy], context: Context) -> dict[str, Strategy]:
    """The strategies `known` by kernel of a block, for the same block divided over a context parallel group: what
    gathers is divided as its reader needs it, what scatters as its writer leaves it, else whole.

    Raises NoShardingError where a kernel on fewer tokens can no longer be divided as before.
    """
    rules = ShardingRules(context.sequence, context.assumptions.sharding.weights)
    legal = {k.name: {s.name: s for s in strategies(block, k, context.chips, rules)} for k in block.kernels}
    found = {}
    for kernel in block.kernels:
        if kernel.name in known:
            name = known[kernel.name].name
            if name not in legal[kernel.name]:
                raise NoShardingError(f"kernel '{kernel.name}' is too short to be divided along {name}")
            found[kernel.name] = legal[kernel.name][name]
    for kernel in block.kernels:
        if kernel.context_collective is None:
            continue
        gathers = kernel.context_collective == "all_gather"
        whole = (kernel.outputs if gathers else kernel.inputs)[0].tensor
        other = block.consumers[whole][0] if gathers else block.producer[whole]
        operands, layouts = block.by_name[other].inputs, found[other].needs
        if not gathers:
            operands, layouts = block.by_name[other].outputs, found[other].gives
        wanted = next(layout for o, layout in zip(operands, layouts, strict=True) if o.tensor == whole)
        found[kernel.name] = legal[kernel.name].get(wanted, legal[kernel.name]["replicated"])
    return found


def strategies_of(sharding: Sharding) -> dict[str, Strategy]:
    """The strategy of every kernel."""
    return {k.name: sharding.option(k.name).strategy for k in sharding.problem.block.kernels}
