"""Sharding: how every kernel of a block is divided over the chips of one mesh axis (tensor parallelism).

`sharding_problem` turns a block into nodes with options and tensors with layout conversions; `sharding_model`
is the mixed-integer program over them; `solve_sharding` solves it. Conversions use the local-polytope
(marginal) linearisation, y[a,b] summing to "producer in layout a" and to "consumer needs layout b", whose
linear relaxation is tight on trees (Alpa, arXiv 2201.12023, uses the same rows).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from dfmodel.errors import DfmodelError, InputError, did_you_mean
from dfmodel.mapping.fusion import FusedColumn, best_sets
from dfmodel.workloads.context_parallel import context_message
from dfmodel.workloads.graph import (
    BATCH,
    PARTIAL,
    REPLICATED,
    Block,
    Kernel,
    Layout,
    Operand,
    Strategy,
)

#: Seconds (or bytes) of a collective: (operation, message bytes) -> cost.
CollectiveCost = Callable[[str, float], float]

#: Dimensions that count positions of a sequence: divided only where sequence sharding is on.
SEQUENCE_DIMS = frozenset({"token", "key"})

#: Layout conversions that move data: (from, to) -> collective, with "divided" for any divided layout.
CONVERSIONS: dict[tuple[str, str], str] = {
    (PARTIAL, REPLICATED): "all_reduce",
    (PARTIAL, "divided"): "reduce_scatter",
    ("divided", REPLICATED): "all_gather",
    ("divided", "other"): "all_to_all",
}


@dataclass(frozen=True)
class Option:
    """One way to do a node: its own cost and the layouts it needs and gives, by tensor."""

    strategy: Strategy
    cost: float
    needs: Mapping[str, Layout]
    gives: Mapping[str, Layout]


@dataclass(frozen=True)
class Flow:
    """A tensor from the node that makes it to consumers of one phase; conversions among them are shared."""

    tensor: str
    producer: str
    consumers: tuple[str, ...]
    phase: str


@dataclass(frozen=True)
class ShardingProblem:
    """Nodes with options, flows between them, and what converting a tensor between layouts costs.

    Costs are in seconds (objective "time") or bytes. `conversion[(tensor, a, b)]` exists for every legal
    conversion, 0.0 where nothing moves. `tied` lists (weight, nodes that read it): all use one layout.
    """

    block: Block
    chips: int
    objective: Literal["time", "bytes"]
    options: Mapping[str, tuple[Option, ...]]
    flows: tuple[Flow, ...]
    conversion: Mapping[tuple[str, Layout, Layout], float]
    shared_conversions: bool
    pinned: Mapping[str, str] = field(default_factory=dict)
    #: Kernels alone and fused, with their seconds; where given they carry the kernels' costs.
    columns: tuple[FusedColumn, ...] = ()


@dataclass(frozen=True)
class Sharding:
    """A choice of option per node, with the objective it has in its problem."""

    problem: ShardingProblem
    choice: Mapping[str, int]
    objective: float
    bound: float | None
    status: str

    def option(self, node: str) -> Option:
        return self.problem.options[node][self.choice[node]]

    @property
    def names(self) -> dict[str, str]:
        """Kernel -> name of its strategy, pseudo-nodes left out."""
        return {k.name: self.option(k.name).strategy.name for k in self.problem.block.kernels}


@dataclass(frozen=True)
class ShardingRules:
    """What is legal: `sequence` allows sequence dimensions to be divided and puts block boundaries in that layout.

    `weights` "divided" forbids a replicated matrix weight; `pinned` fixes a kernel's strategy by name.
    """

    sequence: bool = False
    weights: Literal["divided", "free"] = "divided"
    shared_conversions: bool = True
    pinned: Mapping[str, str] = field(default_factory=dict)


def strategies(block: Block, kernel: Kernel, chips: int, rules: ShardingRules) -> tuple[Strategy, ...]:
    """Every legal way to divide `kernel` over `chips` chips, derived from its dimensions.

    Dividing a dimension divides each operand that has it and leaves the others whole; a contracted one
    leaves partial sums. The batch dimension is data parallelism's, unsplittable, sequential and gathered-over
    dimensions are whole, and a dimension shorter than the group cannot be divided.
    """
    if kernel.strategies is not None:
        return kernel.strategies
    if chips == 1:
        return (_replicated(kernel),)
    found = [_replicated(kernel)]
    if kernel.linear:
        needs = tuple(PARTIAL for _ in kernel.inputs)
        found.append(Strategy("partial", None, needs, tuple(PARTIAL for _ in kernel.outputs)))
    for dim, extent in kernel.dims.items():
        sequence = dim in SEQUENCE_DIMS
        if dim == BATCH or dim in kernel.whole or extent < chips or (sequence and not rules.sequence):
            continue
        found.append(_split(block, kernel, dim))
    if rules.weights == "divided":
        divided = [s for s in found if not _replicates_weight(block, kernel, s)]
        found = divided or found
    return tuple(found)


def _replicated(kernel: Kernel) -> Strategy:
    return Strategy(
        "replicated",
        None,
        tuple(REPLICATED for _ in kernel.inputs),
        tuple(REPLICATED for _ in kernel.outputs),
    )


def _split(block: Block, kernel: Kernel, dim: str) -> Strategy:
    def layout(operand: Operand, missing: Layout) -> Layout:
        own = tuple(block.tensors[operand.tensor].dims)
        return own[operand.dims.index(dim)] if dim in operand.dims else missing

    return Strategy(
        dim,
        dim,
        tuple(layout(o, REPLICATED) for o in kernel.inputs),
        tuple(layout(o, PARTIAL) for o in kernel.outputs),
    )


def _replicates_weight(block: Block, kernel: Kernel, strategy: Strategy) -> bool:
    """Whether a matrix weight (or the gradient of one) is whole on every chip under `strategy`."""
    if kernel.unit != "matrix":
        return False
    for operand, layout in zip((*kernel.inputs, *kernel.outputs), (*strategy.needs, *strategy.gives), strict=True):
        tensor = block.tensors[operand.tensor]
        if tensor.role in ("weight", "gradient") and len(tensor.dims) > 1 and layout in (REPLICATED, PARTIAL):
            return True
    return False


def sharding_problem(
    block: Block,
    chips: int,
    rules: ShardingRules,
    kernel_cost: Callable[[Kernel, Strategy], float],
    collective: CollectiveCost,
    objective: Literal["time", "bytes"] = "time",
) -> ShardingProblem:
    """The sharding problem of `block` on a group of `chips`.

    `kernel_cost` prices a kernel under a strategy, `collective` a conversion; under objective "bytes" the
    kernel's own work is free and conversions cost the bytes they bring to a chip.
    """
    options: dict[str, tuple[Option, ...]] = {}
    for kernel in block.kernels:
        legal = strategies(block, kernel, chips, rules)
        options[kernel.name] = tuple(
            _option(kernel, s, _node_cost(block, kernel, s, chips, kernel_cost, collective, objective)) for s in legal
        )
    flows = list(_flows(block))
    _add_boundary(block, rules, options, flows)
    _add_homes(block, chips, rules, options, flows)
    _check_pins(options, rules.pinned)
    conversion = _conversions(block, chips, options, flows, collective, objective)
    return ShardingProblem(
        block, chips, objective, options, tuple(flows), conversion, rules.shared_conversions, rules.pinned
    )


def _option(kernel: Kernel, strategy: Strategy, cost: float) -> Option:
    needs = {o.tensor: layout for o, layout in zip(kernel.inputs, strategy.needs, strict=True)}
    gives = {o.tensor: layout for o, layout in zip(kernel.outputs, strategy.gives, strict=True)}
    return Option(strategy, cost, needs, gives)


def _node_cost(
    block: Block,
    kernel: Kernel,
    strategy: Strategy,
    chips: int,
    kernel_cost: Callable[[Kernel, Strategy], float],
    collective: CollectiveCost,
    objective: str,
) -> float:
    reduced = sum(block.tensors[o.tensor].bytes for o in kernel.outputs) if strategy.reduce_outputs else 0.0
    if objective == "bytes":
        shared = context_message(block, kernel, strategy, chips)
        return reduced if shared is None else reduced + shared[2]
    return kernel_cost(kernel, strategy) + (collective("all_reduce", reduced) if reduced and chips > 1 else 0.0)


def _flows(block: Block) -> list[Flow]:
    """Activations between kernels, one flow per phase of consumers (a backward pass gathers again)."""
    found = []
    for tensor, producer in block.producer.items():
        by_phase: dict[str, list[str]] = {}
        for consumer in block.consumers[tensor]:
            by_phase.setdefault(block.by_name[consumer].phase, []).append(consumer)
        found += [Flow(tensor, producer, tuple(names), phase) for phase, names in by_phase.items()]
    return found


def _is_free_input(block: Block, tensor: str) -> bool:
    """Inputs every chip can have in any layout at no cost: token ids and other integers, caches."""
    t = block.tensors[tensor]
    return t.dtype.startswith(("int", "uint")) or t.role == "cache"


def boundary_layout(block: Block, tensor: str, rules: ShardingRules) -> Layout:
    """The layout activations have between blocks: divided along `token` under sequence sharding, else whole."""
    return "token" if rules.sequence and "token" in block.tensors[tensor].dims else REPLICATED


def _add_boundary(
    block: Block, rules: ShardingRules, options: dict[str, tuple[Option, ...]], flows: list[Flow]
) -> None:
    """Pseudo-nodes for what enters and leaves the block, in the boundary layout.

    Graphs in matrix form state their own layouts and have no boundary.
    """
    if any(k.strategies is not None for k in block.kernels):
        return
    nothing = Strategy("boundary", None, (), ())
    entering = [t for t in block.inputs if not _is_free_input(block, t)]
    if entering:
        gives = {t: boundary_layout(block, t, rules) for t in entering}
        options["boundary in"] = (Option(nothing, 0.0, {}, gives),)
        for tensor in entering:
            by_phase: dict[str, list[str]] = {}
            for consumer in block.consumers[tensor]:
                by_phase.setdefault(block.by_name[consumer].phase, []).append(consumer)
            flows += [Flow(tensor, "boundary in", tuple(names), phase) for phase, names in by_phase.items()]
    leaving = [t for t in block.outputs if block.tensors[t].role == "activation" and t in block.producer]
    if leaving:
        needs = {t: boundary_layout(block, t, rules) for t in leaving}
        options["boundary out"] = (Option(nothing, 0.0, needs, {}),)
        for tensor in leaving:
            phase = block.by_name[block.producer[tensor]].phase
            same = next((i for i, f in enumerate(flows) if f.tensor == tensor and f.phase == phase), None)
            if same is None:
                flows.append(Flow(tensor, block.producer[tensor], ("boundary out",), phase))
            else:
                flow = flows[same]
                flows[same] = Flow(tensor, flow.producer, (*flow.consumers, "boundary out"), phase)


def gradient_name(weight: str) -> str:
    """Name of the gradient tensor of `weight` (the rule of `workloads.differentiate`)."""
    return f"d_{weight}"


def _add_homes(
    block: Block,
    chips: int,
    rules: ShardingRules,
    options: dict[str, tuple[Option, ...]],
    flows: list[Flow],
) -> None:
    """One pseudo-node per weight: the layout it lives in, in which every kernel reads it and its gradient ends."""
    for weight in block.weights:
        readers = block.consumers[weight]
        tensor = block.tensors[weight]
        if not readers or any(block.by_name[r].strategies is not None for r in readers):
            continue
        layouts = [REPLICATED] + [d for d, n in tensor.dims.items() if n >= chips > 1]
        usable = [a for a in layouts if all(any(o.needs[weight] == a for o in options[reader]) for reader in readers)]
        gradient = gradient_name(weight)
        has_gradient = gradient in block.producer
        home = f"home {weight}"
        options[home] = tuple(
            Option(Strategy(a, None, (), ()), 0.0, {gradient: a} if has_gradient else {}, {weight: a}) for a in usable
        )
        for reader in readers:
            flows.append(Flow(weight, home, (reader,), "home"))
        if has_gradient:
            flows.append(Flow(gradient, block.producer[gradient], (home,), "backward"))


def _check_pins(options: Mapping[str, tuple[Option, ...]], pinned: Mapping[str, str]) -> None:
    problems = []
    for kernel, name in pinned.items():
        if kernel not in options:
            problems.append(f"plan.sharding: no kernel '{kernel}'{did_you_mean(kernel, options)}")
        elif name not in {o.strategy.name for o in options[kernel]}:
            valid = [o.strategy.name for o in options[kernel]]
            problems.append(f"plan.sharding.{kernel}: no strategy '{name}'{did_you_mean(name, valid)}")
    if problems:
        raise InputError(problems)


def conversion_operation(source: Layout, target: Layout) -> str | None:
    """The collective that brings a tensor from one layout to another; None when nothing moves.

    A whole tensor can be cut into any layout without communication.
    """
    if source in (target, REPLICATED):
        return None
    to = target if target == REPLICATED else ("divided" if source == PARTIAL else "other")
    return CONVERSIONS[(source if source == PARTIAL else "divided", to)]


def conversion_bytes(block: Block, tensor: str, operation: str, chips: int) -> float:
    """Message bytes in the convention of `systems.collectives`: the whole buffer, or what a rank sends (all-to-all)."""
    whole = block.tensors[tensor].bytes
    return whole / chips if operation == "all_to_all" else whole


def _conversions(
    block: Block,
    chips: int,
    options: Mapping[str, tuple[Option, ...]],
    flows: list[Flow],
    collective: CollectiveCost,
    objective: str,
) -> dict[tuple[str, Layout, Layout], float]:
    found: dict[tuple[str, Layout, Layout], float] = {}
    for flow in flows:
        sources = {o.gives[flow.tensor] for o in options[flow.producer]}
        for consumer in flow.consumers:
            for target in {o.needs[flow.tensor] for o in options[consumer]}:
                for source in sources:
                    key = (flow.tensor, source, target)
                    if key in found or (flow.phase == "home" and source != target):
                        continue
                    if target == PARTIAL and source != PARTIAL:
                        continue
                    operation = conversion_operation(source, target)
                    if operation is None or chips == 1:
                        found[key] = 0.0
                    elif objective == "bytes":
                        found[key] = block.tensors[flow.tensor].bytes
                    else:
                        found[key] = collective(operation, conversion_bytes(block, flow.tensor, operation, chips))
    return found


def sharding_cost(problem: ShardingProblem, choice: Mapping[str, int]) -> float:
    """The objective of one choice by plain addition; infinite where a conversion is not legal.

    Where kernels may fuse, they are fused as is best under the choice.
    """
    if problem.columns:
        usable = {
            c.kernels: c.seconds
            for c in problem.columns
            if all(choice[name] == o for name, o in zip(c.kernels, c.options, strict=True))
        }
        total = sum(usable[s] for s in best_sets(problem.block.topological_order, usable))
    else:
        total = sum(problem.options[node][i].cost for node, i in choice.items())
    for flow in problem.flows:
        source = problem.options[flow.producer][choice[flow.producer]].gives[flow.tensor]
        targets = [problem.options[c][choice[c]].needs[flow.tensor] for c in flow.consumers]
        for target in dict.fromkeys(targets) if problem.shared_conversions else targets:
            total += problem.conversion.get((flow.tensor, source, target), math.inf)
    return total


class NoShardingError(DfmodelError):
    """No legal sharding exists on this group (a dimension is shorter than the group)."""
