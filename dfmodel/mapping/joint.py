"""Sharding and partitioning together on dataflow chips: branch and bound over segments, lattice at every node.

Segments are connected groups of elementwise kernels over the hidden size (norms, residuals, dropout) of one phase,
between matrix kernels. Each may stay as a given sharding has it, repeat its work on every chip, or divide it along the
sequence; the other kernels keep the given division. The sharding that communicates least is not always the fastest: a
divided segment moves and holds a fraction of the bytes, which the sharding level does not see. A node leaves some
segments open; its bound is the lattice's optimum with every kernel, tensor and conversion at its cheapest over what is
open, which is admissible because a partition's seconds and SRAM never fall when one of these grows.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dfmodel.mapping.allocation import Allocation, cheapest
from dfmodel.mapping.build import build_partition_problem
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.lattice import LatticeResult, solve_lattice
from dfmodel.mapping.problem import PartitionProblem, TensorUse
from dfmodel.mapping.sharding import ShardingRules, conversion_bytes, conversion_operation, strategies
from dfmodel.workloads.graph import PARAMETER_ROLES, PARTIAL, Block, Layout, Strategy

#: The ways of a segment: as given, or every kernel under the strategy of this name.
GIVEN = "given"
WAYS = (GIVEN, "replicated", "token")


@dataclass(frozen=True)
class JointResult:
    """The best ways of the segments with the lattice's answer for them, and what was opened to prove it."""

    ways: dict[str, str]
    strategies: dict[str, Strategy]
    lattice: LatticeResult
    problem: PartitionProblem
    seconds: float
    bound_s: float
    nodes: int
    leaves: int
    combinations: int
    wall_s: float

    @property
    def proven(self) -> bool:
        return self.bound_s >= self.seconds * (1 - 1e-12)


class JointProblem:
    """Segments of a block with their ways, and the prices every node is built from."""

    def __init__(self, block: Block, base: Mapping[str, Strategy], context: Context):
        self.block, self.context = block, context
        self.base = dict(base)
        self.options = self._options()
        self.segments = self._segments()
        self.ways = {segment: self._ways(members) for segment, members in self.segments.items()}
        self.evaluators = {
            way: BlockEvaluator(block, self._chosen(dict.fromkeys(self.names, way)), context) for way in WAYS
        }

    @property
    def names(self) -> list[str]:
        return list(self.segments)

    def _ways(self, members: tuple[str, ...]) -> tuple[str, ...]:
        """The given way, and the others that differ from it."""
        given = {self.base[name].name for name in members} - {"partial"}
        return (GIVEN, *(way for way in WAYS[1:] if given != {way}))

    def _options(self) -> dict[str, dict[str, Strategy]]:
        """Elementwise kernels over the hidden size that can be done both ways, with the strategy of each."""
        rules = ShardingRules(sequence=True)
        found: dict[str, dict[str, Strategy]] = {}
        for kernel in self.block.kernels:
            if kernel.unit == "matrix" or "hidden" not in kernel.dims or kernel.strategies is not None:
                continue
            legal = {s.name: s for s in strategies(self.block, kernel, self.context.chips, rules)}
            if all(way in legal for way in WAYS[1:]):
                found[kernel.name] = legal
        return found

    def _segments(self) -> dict[str, tuple[str, ...]]:
        """Connected groups of such kernels of one phase, named by their first kernel."""
        root = {name: name for name in self.options}

        def find(name: str) -> str:
            while root[name] != name:
                name = root[name]
            return name

        for edge in self.block.edges:
            a, b = edge.producer, edge.consumer
            if a in root and b in root and self.block.by_name[a].phase == self.block.by_name[b].phase:
                root[find(b)] = find(a)
        groups: dict[str, list[str]] = {}
        for name in self.block.topological_order:
            if name in root:
                groups.setdefault(find(name), []).append(name)
        return {members[0]: tuple(members) for members in groups.values()}

    def _chosen(self, ways: Mapping[str, str]) -> dict[str, Strategy]:
        """Strategies under a way for every segment; a sum of partial sums stays one (its result is reduced once)."""
        found = dict(self.base)
        for segment, way in ways.items():
            for name in self.segments[segment] if way != GIVEN else ():
                if found[name].name != "partial":
                    found[name] = self.options[name][way]
        return found

    def leaf(self, ways: Mapping[str, str]) -> tuple[PartitionProblem, LatticeResult, dict[str, Strategy]]:
        """The exact partitioning problem and optimum of one way for every segment."""
        chosen = self._chosen(ways)
        problem = build_partition_problem(BlockEvaluator(self.block, chosen, self.context))
        return problem, solve_lattice(problem), chosen

    def bound(self, open_ways: Mapping[str, Sequence[str]]) -> float:
        """A lower bound of every leaf whose ways are among `open_ways`."""
        ways = self._open(open_ways)
        base = build_partition_problem(self.evaluators[WAYS[0]])
        order = base.kernels

        def least(price: str) -> tuple[float, ...]:
            return tuple(min(self._price(price, name, way) for way in ways[name]) for name in order)

        relaxed = replace(
            base,
            compute_s=least("compute"),
            network_s=tuple(self._least_network(name, ways) for name in order),
            memory_bytes=least("fixed"),
            weight_bytes=least("weights"),
            tensors=tuple(self._least_tensors(ways, {n: i for i, n in enumerate(order)})),
            passes=(1,) * len(order),
            allocation=self._least_allocation(base.allocation, ways, order),
        )
        return solve_lattice(relaxed).seconds

    def _open(self, open_ways: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
        """The ways of every kernel, of those open for its segment."""
        owner = {name: segment for segment, members in self.segments.items() for name in members}
        return {k.name: tuple(open_ways[owner[k.name]]) if k.name in owner else WAYS[:1] for k in self.block.kernels}

    def _least_allocation(
        self, given: Allocation | None, ways: Mapping[str, tuple[str, ...]], order: Sequence[str]
    ) -> Allocation | None:
        if given is None:
            return None
        least = [
            cheapest([self.evaluators[way].staircase_of(self.block.by_name[name]) for way in ways[name]])
            for name in order
        ]
        return replace(given, staircases=tuple(least))

    def _price(self, price: str, name: str, way: str) -> float:
        evaluator, kernel = self.evaluators[way], self.block.by_name[name]
        if price == "compute":
            return evaluator.compute_s(kernel)
        return evaluator.fixed_traffic(kernel) if price == "fixed" else evaluator.weight_bytes(kernel)

    def _least_network(self, name: str, ways: Mapping[str, tuple[str, ...]]) -> float:
        """Collectives that some way cannot avoid and that are charged to `name` whatever the ways: those of its own
        results to readers of its phase, and those of its operands where it alone reads them in its phase."""
        block = self.block
        kernel = block.by_name[name]
        total = 0.0
        for operand in kernel.outputs:
            readers = [c for c in block.consumers[operand.tensor] if block.by_name[c].phase == kernel.phase]
            costs = [self._least_conversion(operand.tensor, name, c, ways) for c in readers]
            if operand.tensor in block.outputs and not costs:
                costs = [min(self._leaving(operand.tensor, way) for way in ways[name])]
            total += max(costs, default=0.0)
        for tensor in dict.fromkeys(o.tensor for o in kernel.inputs):
            producer = block.producer.get(tensor)
            if producer is None or block.by_name[producer].phase == kernel.phase:
                continue
            same = [c for c in block.consumers[tensor] if block.by_name[c].phase == kernel.phase]
            if same == [name]:
                total += self._least_conversion(tensor, producer, name, ways)
        return total

    def _least_conversion(
        self, tensor: str, producer: str, consumer: str, ways: Mapping[str, tuple[str, ...]]
    ) -> float:
        return min(
            self._conversion(tensor, self.evaluators[a].gives[tensor], self.evaluators[b].needs[consumer, tensor])
            for a, b in itertools.product(ways[producer], ways[consumer])
        )

    def _leaving(self, tensor: str, way: str) -> float:
        evaluator = self.evaluators[way]
        if self.block.tensors[tensor].role != "activation":
            return 0.0
        return self._conversion(tensor, evaluator.gives[tensor], evaluator.boundary(tensor))

    def _conversion(self, tensor: str, source: Layout, target: Layout) -> float:
        operation = conversion_operation(source, target) if target != PARTIAL else None
        if operation is None:
            return 0.0
        size = conversion_bytes(self.block, tensor, operation, self.context.chips)
        return self.context.collective_s(operation, size)

    def _least_tensors(self, ways: Mapping[str, tuple[str, ...]], index: Mapping[str, int]) -> list[TensorUse]:
        """Every tensor once, with the fewest bytes any way writes, reads and holds."""
        block, found = self.block, []
        boundary = self.context.assumptions.traffic.block_boundary
        for name, tensor in block.tensors.items():
            producer, consumers = block.producer.get(name), block.consumers[name]
            if tensor.role in PARAMETER_ROLES or (producer is None and not boundary):
                continue
            sizes = [
                self.evaluators[way].held_bytes(name, self.evaluators[way].needs[c, name])
                for c in consumers
                for way in ways[c]
            ]
            written = []
            if producer is not None:
                written = [self.evaluators[w].held_bytes(name, self.evaluators[w].gives[name]) for w in ways[producer]]
            smallest = min(sizes or written)
            evaluator = self.evaluators[WAYS[0]]
            tile, _ = evaluator.tile(name, smallest)
            levels = block.levels
            found.append(
                TensorUse(
                    name,
                    None if producer is None else index[producer],
                    tuple(sorted(index[c] for c in consumers)),
                    evaluator.padded(name, smallest),
                    tile,
                    tuple(
                        1 if producer is None else levels[c] - levels[producer] + 1
                        for c in sorted(consumers, key=index.__getitem__)
                    ),
                    boundary and producer is not None and name in block.outputs,
                    evaluator.padded(name, min(written)) if written else 0.0,
                )
            )
        return found


def is_segmented(block: Block) -> bool:
    """Whether a block has a sequence to divide; graphs in matrix form state their own divisions."""
    return any("token" in k.dims for k in block.kernels) and all(k.strategies is None for k in block.kernels)


def solve_joint(joint: JointProblem, time_limit_s: float | None = None) -> JointResult:
    """Best-first branch and bound over the segments' ways. Without a time limit the answer is proven."""
    began = time.perf_counter()
    names = joint.names
    start = dict(joint.ways)
    queue: list[tuple[float, int, dict[str, tuple[str, ...]]]] = [(joint.bound(start), 0, start)]
    best: tuple[float, dict[str, str]] | None = None
    nodes, leaves = 1, 0
    seen: set[tuple[str, ...]] = set()

    def try_leaf(ways: dict[str, str]) -> None:
        nonlocal best, leaves
        key = tuple(ways[n] for n in names)
        if key in seen:
            return
        seen.add(key)
        leaves += 1
        seconds = joint.leaf(ways)[1].seconds
        if best is None or seconds < best[0]:
            best = (seconds, ways)

    for way in WAYS:
        try_leaf({name: way if way in joint.ways[name] else GIVEN for name in names})
    assert best is not None
    while queue and queue[0][0] < best[0] * (1 - 1e-12):
        if time_limit_s is not None and time.perf_counter() - began > time_limit_s:
            break
        _, _, ways = heapq.heappop(queue)
        open_names = [n for n in names if len(ways[n]) > 1]
        if not open_names:
            try_leaf({n: w[0] for n, w in ways.items()})
            continue
        for way in ways[open_names[0]]:
            child = {**ways, open_names[0]: (way,)}
            bound = joint.bound(child)
            nodes += 1
            if bound < best[0] * (1 - 1e-12):
                heapq.heappush(queue, (bound, nodes, child))
    bound_s = min([best[0], *[q[0] for q in queue]])
    problem, lattice, chosen = joint.leaf(best[1])
    return JointResult(
        ways=best[1],
        strategies=chosen,
        lattice=lattice,
        problem=problem,
        seconds=best[0],
        bound_s=bound_s,
        nodes=nodes,
        leaves=leaves,
        combinations=math.prod(len(w) for w in joint.ways.values()),
        wall_s=time.perf_counter() - began,
    )


def exhaustive(joint: JointProblem) -> float:
    """Least seconds over every combination of ways, by solving each: the oracle of the branch and bound."""
    names = joint.names
    return min(
        joint.leaf(dict(zip(names, ways, strict=True)))[1].seconds
        for ways in itertools.product(*(joint.ways[name] for name in names))
    )
