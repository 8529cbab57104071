"""From a sharded block to the numbers the sharding and partitioning programs work on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from dfmodel.mapping.allocation import Allocation
from dfmodel.mapping.context import Context, combine
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.fusion import (
    FusedColumn,
    FusedSet,
    agrees,
    best_sets,
    legal_sets,
    numbered,
    option_combinations,
)
from dfmodel.mapping.problem import PartitionProblem, TensorUse
from dfmodel.mapping.sharding import ShardingProblem, ShardingRules, sharding_problem
from dfmodel.workloads.context_parallel import context_message
from dfmodel.workloads.graph import PARAMETER_ROLES, Block, Kernel, Strategy


def build_sharding_problem(block: Block, context: Context, pinned: Mapping[str, str] | None = None) -> ShardingProblem:
    """The sharding problem of `block` in `context`.

    On a kernel-by-kernel chip a kernel's cost is all its seconds and fused kernels are columns, so that the optimum is
    the block's; on a dataflow chip it is its compute seconds, and memory is left to the partitioning.
    """
    choices = context.assumptions.sharding
    rules = ShardingRules(context.sequence, choices.weights, choices.shared_conversions, pinned or {})
    if context.dataflow:
        return sharding_problem(
            block, context.chips, rules, _compute_price(block, context), context.collective_s, choices.objective
        )
    problem = sharding_problem(
        block, context.chips, rules, _kernel_price(block, context), context.collective_s, choices.objective
    )
    sets = legal_sets(block, context.fusions) if choices.objective == "time" else ()
    return replace(problem, columns=tuple(_columns(problem, context, sets))) if sets else problem


def _shared_s(block: Block, kernel: Kernel, strategy: Strategy, context: Context) -> float:
    """Seconds of a kernel's collective over the context parallel group, if it is one."""
    message = context_message(block, kernel, strategy, context.chips)
    return 0.0 if message is None else context.context_s(message[0], message[2])


def _compute_price(block: Block, context: Context) -> Callable[[Kernel, Strategy], float]:
    def price(kernel: Kernel, strategy: Strategy) -> float:
        compute = context.timer.kernel_s(kernel, strategy.split, context.chips)
        return compute + _shared_s(block, kernel, strategy, context)

    return price


def _kernel_price(block: Block, context: Context) -> Callable[[Kernel, Strategy], float]:
    def price(kernel: Kernel, strategy: Strategy) -> float:
        return fused_seconds(block, [kernel], [strategy], context) + _shared_s(block, kernel, strategy, context)

    return price


def _columns(problem: ShardingProblem, context: Context, sets: Sequence[FusedSet]) -> Iterator[FusedColumn]:
    """Every kernel alone and every legal set, under every choice of strategies that agrees inside it."""
    block = problem.block
    strategies = {k.name: [o.strategy for o in problem.options[k.name]] for k in block.kernels}
    for kernel in block.kernels:
        for o, option in enumerate(problem.options[kernel.name]):
            yield FusedColumn((kernel.name,), (o,), option.cost)
    for members in sets:
        kernels = [block.by_name[name] for name in members]
        for numbers in option_combinations(block, members, strategies):
            chosen = [strategies[name][o] for name, o in zip(members, numbers, strict=True)]
            yield FusedColumn(members, numbers, fused_seconds(block, kernels, chosen, context))


def fused_seconds(block: Block, kernels: Sequence[Kernel], strategies: Sequence[Strategy], context: Context) -> float:
    """Seconds of kernels run as one, network apart: operands from outside in the layouts they need, results others
    need in those they give, tensors between them on chip."""
    compute = sum(context.timer.kernel_s(k, s.split, context.chips) for k, s in zip(kernels, strategies, strict=True))
    memory = context.timer.memory_s(_moved_together(block, kernels, strategies, context))
    return combine(context.overlap, compute, memory, 0.0) + context.starts_s(kernels)


def _moved_together(block: Block, kernels: Sequence[Kernel], strategies: Sequence[Strategy], context: Context) -> float:
    traffic = context.assumptions.traffic
    inside = {k.name for k in kernels}
    moved = 0.0
    read: dict[tuple[str, str], float] = {}
    for kernel, strategy in zip(kernels, strategies, strict=True):
        split = strategy.split
        share = 1.0 if split is None else math.ceil(kernel.dims[split] / context.chips) / kernel.dims[split]
        moved += kernel.extra_bytes + context.bytes_between_runs(kernel, split)
        weights: dict[str, float] = {}
        for operand, layout in zip(kernel.inputs, strategy.needs, strict=True):
            tensor = block.tensors[operand.tensor]
            producer = block.producer.get(operand.tensor)
            if tensor.role == "weight":
                weights[operand.tensor] = tensor.bytes_in(layout, context.chips) if traffic.weights else 0.0
            elif tensor.role == "table":
                moved += kernel.points * share * tensor.bytes / tensor.elements
            elif producer not in inside and (producer is not None or traffic.block_boundary):
                read[operand.tensor, layout] = tensor.bytes_in(layout, context.chips)
        moved += sum(weights.values())
        for operand, layout in zip(kernel.outputs, strategy.gives, strict=True):
            leaves = traffic.block_boundary and operand.tensor in block.outputs
            if leaves or any(c not in inside for c in block.consumers[operand.tensor]):
                moved += block.tensors[operand.tensor].bytes_in(layout, context.chips)
    return moved + sum(read.values())


def fused_assignment(evaluator: BlockEvaluator) -> dict[str, int]:
    """The best fused kernels of a sharded block, as partition numbers; each kernel alone where nothing may fuse."""
    block, context = evaluator.block, evaluator.context
    alone = {name: i for i, name in enumerate(block.topological_order)}
    sets = legal_sets(block, context.fusions) if context.assumptions.sharding.objective == "time" else ()
    if not sets:
        return alone
    strategies = evaluator.strategies
    usable: dict[FusedSet, float] = {}
    for members in (*((k.name,) for k in block.kernels), *sets):
        if len(members) == 1 or agrees(block, members, strategies):
            kernels = [block.by_name[name] for name in members]
            usable[members] = fused_seconds(block, kernels, [strategies[name] for name in members], context)
    return numbered(block, best_sets(block.topological_order, usable)) or alone


def build_partition_problem(evaluator: BlockEvaluator) -> PartitionProblem:
    """The partitioning problem of a sharded block: prices per kernel and tensor, structure left to the solver."""
    block, context = evaluator.block, evaluator.context
    order = block.topological_order
    index = {name: i for i, name in enumerate(order)}
    kernels = [block.by_name[name] for name in order]
    choices = context.assumptions.partitions
    sram = context.system.chip.sram_bytes
    passes = tuple(passes_of(evaluator, k) for k in kernels)
    return PartitionProblem(
        kernels=order,
        phase=tuple(0 if k.phase == "forward" else 1 for k in kernels),
        compute_s=tuple(evaluator.compute_s(k) for k in kernels),
        network_s=tuple(evaluator.network_s(k.name) for k in kernels),
        memory_bytes=tuple(evaluator.fixed_traffic(k) for k in kernels),
        weight_bytes=tuple(evaluator.weight_bytes(k) for k in kernels),
        passes=passes,
        tensors=tuple(_tensor_uses(evaluator, index)),
        sram_bytes=sram,
        memory_bytes_per_s=context.timer.memory_bytes_per_s,
        overlap=context.overlap,
        traffic_per=context.assumptions.traffic.per,
        boundary_buffers=choices.boundary_buffers,
        maximum=choices.maximum,
        count=choices.count,
        halves=choices.halves,
        mixed_phases=choices.mixed_phases,
        reconfiguration_s=context.start_s,
        allocation=_allocation(evaluator, kernels),
        runs=tuple(k.runs for k in kernels) if choices.same_runs else (),
    )


def passes_of(evaluator: BlockEvaluator, kernel: Kernel) -> int:
    """Passes a kernel with a weight is cut into when it does not fit SRAM even alone; others cannot be cut."""
    need, sram = evaluator.sram({kernel.name}), evaluator.context.system.chip.sram_bytes
    return max(1, math.ceil(need / sram)) if evaluator.weight_bytes(kernel) else 1


def _allocation(evaluator: BlockEvaluator, kernels: list[Kernel]) -> Allocation | None:
    """Cycles by number of tiles, where the compute model is at cycle level."""
    if evaluator.context.assumptions.compute.model != "tiles":
        return None
    staircases = tuple(evaluator.staircase_of(k) for k in kernels)
    return Allocation(staircases, evaluator.context.tile_array.count, evaluator.seconds_per_cycle)


def _tensor_uses(evaluator: BlockEvaluator, index: Mapping[str, int]) -> list[TensorUse]:
    """One entry per tensor; where consumers need it in several layouts, one for the write and one per layout."""
    block, boundary = evaluator.block, evaluator.context.assumptions.traffic.block_boundary
    found = []
    for name, tensor in block.tensors.items():
        producer = block.producer.get(name)
        consumers = block.consumers[name]
        if tensor.role in PARAMETER_ROLES or (producer is None and not boundary):
            continue
        leaves = boundary and producer is not None and name in block.outputs
        by_layout: dict[str, list[str]] = {}
        for c in consumers:
            layout = evaluator.gives[name] if evaluator.stated and producer else evaluator.needs[c, name]
            by_layout.setdefault(layout, []).append(c)
        if not by_layout:
            by_layout[evaluator.gives[name]] = []
        written = 0.0 if producer is None else evaluator.padded(name, evaluator.held_bytes(name, evaluator.gives[name]))
        several = len(by_layout) > 1 and producer is not None
        if several:
            found.append(_use(evaluator, index, name, consumers, 0.0, written, 0.0, leaves))
        for layout, users in by_layout.items():
            size = evaluator.held_bytes(name, layout)
            tile, _ = evaluator.tile(name, size)
            read = evaluator.padded(name, size)
            found.append(_use(evaluator, index, name, users, read, 0.0 if several else written, tile, leaves))
    return found


def _use(
    evaluator: BlockEvaluator,
    index: Mapping[str, int],
    name: str,
    consumers: list[str] | tuple[str, ...],
    read: float,
    written: float,
    tile: float,
    leaves: bool,
) -> TensorUse:
    producer = evaluator.block.producer.get(name)
    ordered = sorted(consumers, key=index.__getitem__)
    depths = tuple(1 if producer is None else evaluator.depth(name, c) for c in ordered)
    return TensorUse(
        name=name,
        producer=None if producer is None else index[producer],
        consumers=tuple(index[c] for c in ordered),
        bytes=read,
        tile_bytes=tile,
        depths=depths,
        leaves=leaves,
        write_bytes=written,
    )
