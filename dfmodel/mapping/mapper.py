"""The workload's blocks mapped in contexts: shardings pooled by tensor degree, each mapping made once.

A context is a tensor parallel group with or without sequence sharding; with a micro-batch it decides how a block is
mapped, whatever else a plan chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InfeasibleError
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator, check_against
from dfmodel.mapping.ideals import LatticeTooLargeError
from dfmodel.mapping.joint import JointProblem, JointResult, is_segmented, solve_joint
from dfmodel.mapping.map_block import MappedBlock, SolverSettings, describe_solve, map_block, solve_block_sharding
from dfmodel.mapping.plan import PlanRequest
from dfmodel.mapping.sharding import Sharding
from dfmodel.systems.network import Group, innermost
from dfmodel.systems.system import System
from dfmodel.workloads.graph import Block, Strategy, Workload

#: Seconds of one branch and bound over sharding and partitioning together.
JOINT_S = 10.0

#: A sharding must beat the one a plan was evaluated with by this share to replace it.
IMPROVEMENT = 1e-9

#: Block number, tensor group, sequence sharding, micro-batch, and (amortised reductions) data group and micro-batches.
Key = tuple[int, Group, bool, int, Group | None, int | None]


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
    _blocks: dict[int, tuple[Block, ...]] = field(default_factory=dict)
    _shardings: dict[tuple[Any, ...], dict[str, Strategy]] = field(default_factory=dict)
    _evaluators: dict[Key, BlockEvaluator] = field(default_factory=dict)
    _unpartitioned: dict[Key, MappedBlock] = field(default_factory=dict)
    _contexts: dict[tuple[Group, bool], Context] = field(default_factory=dict)

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

    def context_of(self, tensor: Group, sequence: bool) -> Context:
        """The context of every plan with this tensor parallel group, where reductions are not amortised."""
        key = (tensor, sequence)
        if key not in self._contexts:
            self._contexts[key] = Context(self.system, self.assumptions, self.workload.dtype, tensor, sequence)
        return self._contexts[key]

    def blocks_at(self, micro_batch: int) -> tuple[Block, ...]:
        """The workload's blocks for micro-batches of so many sequences."""
        if micro_batch not in self._blocks:
            self._blocks[micro_batch] = tuple(b.at_batch(micro_batch) for b, _ in self.workload.blocks)
        return self._blocks[micro_batch]

    def mapped_in(self, context: Context, micro_batch: int, block: int) -> MappedBlock:
        """One of the workload's blocks mapped in a context. Raises InfeasibleError or NoShardingError where it cannot
        be."""
        return self.map((block, context.tensor, context.sequence, micro_batch, None, None), context)

    def bounded_in(self, context: Context, micro_batch: int, block: int) -> MappedBlock:
        """The same where chips run kernel by kernel; on dataflow chips sharded only, with its seconds bounded."""
        if not context.dataflow:
            return self.mapped_in(context, micro_batch, block)
        return self.relaxed((block, context.tensor, context.sequence, micro_batch, None, None), context)

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
            block = self.blocks_at(key[3])[key[0]]
            self._evaluators[key] = BlockEvaluator(block, self._pooled(key, block, context), context)
        return self._evaluators[key]

    def _pooled(self, key: Key, block: Block, context: Context) -> dict[str, Strategy]:
        """The sharding proven best for a block and tensor degree: on the innermost placement of the degree with the
        smallest micro-batch, or (`certify_all`) in the very context."""
        own = key if self.settings.certify_all else (key[0], context.chips, context.sequence)
        if own not in self._shardings:
            where, there = block, context
            if not self.settings.certify_all and context.amortised_over is None:
                where = self.blocks_at(self._smallest)[key[0]]
                there = self.context_of(innermost(context.chips, self.system.dimensions), context.sequence) or context
            sharding, _ = self._solve_sharding(where, there)
            self._shardings[own] = strategies_of(sharding)
        return self._shardings[own]

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


def strategies_of(sharding: Sharding) -> dict[str, Strategy]:
    """The strategy of every kernel."""
    return {k.name: sharding.option(k.name).strategy for k in sharding.problem.block.kernels}
