"""The independent evaluator: seconds of a mapped block, recomputed from its kernels by plain loops.

It takes a sharding (a strategy per kernel) and a partitioning (a partition number per kernel) and knows
nothing of the programs that found them. Every answer is checked against it before it is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from dfmodel.errors import MismatchError
from dfmodel.mapping.allocation import Staircase, array_work, slowest_cycles, staircase
from dfmodel.mapping.context import Context, combine, sequences_in, streamed_dims, tiles_of
from dfmodel.mapping.sharding import ShardingRules, boundary_layout, conversion_bytes, conversion_operation
from dfmodel.workloads.context_parallel import context_message
from dfmodel.workloads.graph import BATCH, PARAMETER_ROLES, PARTIAL, Block, Kernel, Layout, Strategy

#: Largest relative difference between a program's objective and the evaluator's seconds.
TOLERANCE = 1e-6


#: The group a collective inside a block is over.
Over = Literal["tensor", "context"]


@dataclass(frozen=True)
class Communication:
    """One collective over the tensor or context parallel group, charged to a kernel."""

    kernel: str
    operation: str
    tensor: str
    message_bytes: float
    seconds: float
    over: Over = "tensor"


@dataclass(frozen=True)
class KernelEvaluation:
    """One kernel on one chip for one micro-batch; memory figures are those of the kernel run alone."""

    kernel: Kernel
    strategy: Strategy
    flops: float
    compute_s: float
    network_s: float
    memory_bytes: float


@dataclass(frozen=True)
class PartitionEvaluation:
    """One partition on one chip for one micro-batch. `seconds` includes `start_s`."""

    kernels: tuple[str, ...]
    phase: str
    compute_s: float
    memory_s: float
    network_s: float
    start_s: float
    seconds: float
    sram_bytes: float
    memory_bytes: float

    @property
    def bound_by(self) -> str:
        parts = {
            "compute": self.compute_s,
            "memory": self.memory_s,
            "network": self.network_s,
            "launch": self.start_s,
        }
        return max(parts, key=parts.__getitem__)


@dataclass(frozen=True)
class BlockEvaluation:
    """A mapped block: partitions in order, kernels, collectives, and bytes of parameters on a chip."""

    block: Block
    partitions: tuple[PartitionEvaluation, ...]
    communications: tuple[Communication, ...]
    parameter_bytes: float
    parameters: float
    sharding: Mapping[str, str]
    assignment: Mapping[str, int]
    #: Evaluates every kernel as run alone, which only reports need.
    each_kernel: Callable[[], tuple[KernelEvaluation, ...]] = field(repr=False, compare=False)

    @cached_property
    def kernels(self) -> tuple[KernelEvaluation, ...]:
        return self.each_kernel()

    def seconds(self, *phases: str) -> float:
        return sum(p.seconds for p in self.partitions if not phases or p.phase in phases)

    @cached_property
    def exposed_s(self) -> dict[str, float]:
        """Seconds by category over all partitions, hidden time not counted; they add up to `seconds()`."""
        total = dict.fromkeys(("compute", "memory", "network", "launch"), 0.0)
        for p in self.partitions:
            compute, memory, network = exposed(p.compute_s, p.memory_s, p.network_s, p.seconds - p.start_s)
            total["compute"] += compute
            total["memory"] += memory
            total["network"] += network
            total["launch"] += p.start_s
        return total

    @cached_property
    def forward_s(self) -> float:
        """Seconds of the forward partitions of a block that also runs backward, else 0: what recomputation repeats."""
        return self.seconds("forward") if len({p.phase for p in self.partitions}) > 1 else 0.0


def exposed(compute_s: float, memory_s: float, network_s: float, seconds: float) -> tuple[float, float, float]:
    """Split `seconds` into compute, memory and network without counting hidden time: compute in full, of the
    network what compute does not hide, of memory the rest. They sum to `seconds` under every overlap rule.
    """
    compute = min(compute_s, seconds)
    network = min(network_s, seconds - compute)
    memory = max(0.0, seconds - compute - network)
    return compute, memory, seconds - compute - memory


class BlockEvaluator:
    """Evaluates mappings of one block in one context."""

    def __init__(self, block: Block, strategies: Mapping[str, Strategy], context: Context):
        self.block = block
        self.strategies = strategies
        self.context = context
        self.shared = context.assumptions.sharding.shared_conversions
        self.needs: dict[tuple[str, str], Layout] = {}
        self.gives: dict[str, Layout] = {}
        for kernel in block.kernels:
            strategy = strategies[kernel.name]
            for operand, layout in zip(kernel.inputs, strategy.needs, strict=True):
                self.needs[kernel.name, operand.tensor] = layout
            for operand, layout in zip(kernel.outputs, strategy.gives, strict=True):
                self.gives[operand.tensor] = layout
        self.stated = any(k.strategies is not None for k in block.kernels)
        self._tiles = tiles_of(block, context.assumptions)
        self._streamed = {
            name: streamed_dims(block, tensor, context.assumptions.partitions.tile_by)
            for name, tensor in block.tensors.items()
            if tensor.role not in PARAMETER_ROLES
        }
        self._touched: dict[str, list[str]] = {}
        for kernel in block.kernels:
            used = dict.fromkeys(o.tensor for o in (*kernel.inputs, *kernel.outputs))
            self._touched[kernel.name] = [t for t in used if block.tensors[t].role not in PARAMETER_ROLES]
        self.communications = tuple(self._communications())

    def evaluate(self, assignment: Mapping[str, int]) -> BlockEvaluation:
        """The block with kernel k in partition assignment[k]. Raises MismatchError where the order is broken."""
        for edge in self.block.edges:
            if assignment[edge.producer] > assignment[edge.consumer]:
                raise MismatchError(
                    f"partitioning breaks the order: {edge.producer} (partition {assignment[edge.producer]}) "
                    f"feeds {edge.consumer} (partition {assignment[edge.consumer]})"
                )
        members: dict[int, list[Kernel]] = {}
        for name in self.block.topological_order:
            members.setdefault(assignment[name], []).append(self.block.by_name[name])
        return self._evaluation(tuple(self._partition(members[p]) for p in sorted(members)), assignment)

    def _evaluation(
        self, partitions: tuple[PartitionEvaluation, ...], assignment: Mapping[str, int]
    ) -> BlockEvaluation:
        return BlockEvaluation(
            self.block,
            partitions,
            self.communications,
            self._parameter_bytes(),
            self._parameters(),
            {n: s.name for n, s in self.strategies.items()},
            dict(assignment),
            lambda: tuple(self._kernel(k) for k in self.block.kernels),
        )

    def relaxed(self) -> BlockEvaluation:
        """A lower bound of every partitioning: each phase as one partition, no tensor moved between kernels.

        Compute, network and fixed traffic are sums over kernels whatever the partitions, and a sum of maxima is
        at least the maximum of the sums.
        """
        by_phase: dict[str, list[Kernel]] = {}
        for name in self.block.topological_order:
            by_phase.setdefault(self.block.by_name[name].phase, []).append(self.block.by_name[name])
        partitions = tuple(self._partition(kernels, crossing=False) for kernels in by_phase.values())
        number = {k.name: i for i, kernels in enumerate(by_phase.values()) for k in kernels}
        return self._evaluation(partitions, number)

    def _partition(self, kernels: list[Kernel], crossing: bool = True) -> PartitionEvaluation:
        names = {k.name for k in kernels}
        phases = {k.phase for k in kernels}
        if len(phases) > 1 and not self.context.assumptions.partitions.mixed_phases:
            raise MismatchError(f"a partition holds forward and backward kernels: {', '.join(sorted(names))}")
        context = self.context
        compute = self.compute_of(kernels, crossing)
        network = sum(self.network_s(k.name) for k in kernels)
        moved = sum(self.fixed_traffic(k) for k in kernels) + (self._traffic(names) if crossing else 0.0)
        timer = context.timer
        memory = moved / timer.memory_bytes_per_s if context.dataflow else timer.memory_s(moved)
        start = context.starts_s(kernels)
        return PartitionEvaluation(
            tuple(k.name for k in kernels),
            phases.pop() if len(phases) == 1 else "mixed",
            compute,
            memory,
            network,
            start,
            combine(context.overlap, compute, memory, network) + start,
            self.sram(names),
            moved,
        )

    def _kernel(self, kernel: Kernel) -> KernelEvaluation:
        strategy = self.strategies[kernel.name]
        return KernelEvaluation(
            kernel,
            strategy,
            kernel.flops_split(strategy.split, self.context.chips),
            self.compute_s(kernel),
            self.network_s(kernel.name),
            self._traffic({kernel.name}) + self.fixed_traffic(kernel),
        )

    @property
    def _by_tiles(self) -> bool:
        return self.context.assumptions.compute.model == "tiles"

    def compute_of(self, kernels: list[Kernel], allocated: bool = True) -> float:
        """Compute seconds of a partition: a sum, or at cycle level the slowest kernel under the best sharing of tiles
        (not `allocated`: the work over all tiles, a lower bound that adds up over partitions).
        """
        if not self._by_tiles:
            return sum(self.compute_s(k) for k in kernels)
        array = self.context.tile_array
        if not allocated:
            work = sum(self._ideal_cycles(k) for k in kernels)
            return work * self._sequences / array.clock_hz
        cycles = slowest_cycles([self.staircase_of(k) for k in kernels], array.count)
        return math.inf if cycles is None else cycles * self.seconds_per_cycle

    @property
    def seconds_per_cycle(self) -> float:
        """Seconds over a whole pass that one cycle per streamed tile adds up to."""
        return self._tiles * self._sequences / self.context.tile_array.clock_hz

    def staircase_of(self, kernel: Kernel) -> Staircase:
        """Cycles of a kernel on one chip, per streamed tile, by number of compute tiles."""
        split = self.strategies[kernel.name].split
        work = array_work(self._one_sequence(kernel), split, self.context.chips, self._tiles)
        return staircase(work, self.context.tile_array)

    def _one_sequence(self, kernel: Kernel) -> Kernel:
        return kernel if BATCH not in kernel.dims else replace(kernel, dims={**kernel.dims, BATCH: 1})

    @property
    def _sequences(self) -> int:
        return max((k.dims.get(BATCH, 1) for k in self.block.kernels), default=1)

    def _ideal_cycles(self, kernel: Kernel) -> float:
        """Cycles of the kernel's unpadded work, per sequence, on all tiles at once."""
        array = self.context.tile_array
        work = array_work(self._one_sequence(kernel), self.strategies[kernel.name].split, self.context.chips, 1)
        per_tile = array.lanes * array.stages if work.systolic else array.lanes
        return work.rows * work.columns * work.depth / (per_tile * array.count)

    def compute_s(self, kernel: Kernel) -> float:
        """Compute seconds of a kernel that has the chip to itself."""
        if self._by_tiles:
            return self.compute_of([kernel])
        return self.context.timer.kernel_s(kernel, self.strategies[kernel.name].split, self.context.chips)

    def network_s(self, name: str) -> float:
        own = sum(c.seconds for c in self.communications if c.kernel == name)
        kernel = self.block.by_name[name]
        gradients = sum(
            self.held_bytes(o.tensor, self.gives[o.tensor])
            for o in kernel.outputs
            if self.block.tensors[o.tensor].role == "gradient"
        )
        return own + (self.context.reduction_s(gradients) if gradients else 0.0)

    def _communications(self) -> list[Communication]:
        """Reductions inside kernels and layout conversions over the tensor parallel group; gathers and scatters over
        the context parallel one."""
        found = []
        for kernel in self.block.kernels:
            shared = context_message(self.block, kernel, self.strategies[kernel.name], self.context.chips)
            if shared is not None:
                operation, tensor, size = shared
                seconds = self.context.context_s(operation, size)
                found.append(Communication(kernel.name, operation, tensor, size, seconds, "context"))
            if self.strategies[kernel.name].reduce_outputs:
                for o in kernel.outputs:
                    size = self.padded(o.tensor, self.block.tensors[o.tensor].bytes)
                    found.append(self._communication(kernel.name, "all_reduce", o.tensor, size))
        for tensor in self.block.tensors:
            found += self._conversions(tensor)
        return found

    def _conversions(self, tensor: str) -> list[Communication]:
        """Conversions of one tensor: one per layout that consumers of a phase need, or one per consumer."""
        block = self.block
        producer = block.producer.get(tensor)
        if block.tensors[tensor].role in PARAMETER_ROLES or (producer is None and self._is_free(tensor)):
            return []
        source = self.gives[tensor] if producer is not None else self.boundary(tensor)
        asked: list[tuple[str, str, Layout]] = [
            (block.by_name[c].phase, c, self.needs[c, tensor]) for c in block.consumers[tensor]
        ]
        if producer is not None and tensor in block.outputs and not self.stated:
            own = block.by_name[producer].phase
            if block.tensors[tensor].role == "gradient":
                asked.append((own, producer, self._home(tensor)))
            else:
                asked.append((own, producer, self.boundary(tensor)))
        found: dict[object, Communication] = {}
        for phase, consumer, target in asked:
            operation = conversion_operation(source, target) if target != PARTIAL else None
            key = (phase, target) if self.shared else (consumer, target)
            if operation is None or key in found:
                continue
            same_phase = producer is not None and phase == block.by_name[producer].phase
            charged = producer if same_phase and producer is not None else consumer
            size = self.padded(tensor, conversion_bytes(block, tensor, operation, self.context.chips))
            found[key] = self._communication(charged, operation, tensor, size)
        return list(found.values())

    def _communication(self, kernel: str, operation: str, tensor: str, size: float) -> Communication:
        return Communication(kernel, operation, tensor, size, self.context.collective_s(operation, size))

    def _is_free(self, tensor: str) -> bool:
        t = self.block.tensors[tensor]
        return t.role == "cache" or t.dtype.startswith(("int", "uint"))

    def boundary(self, tensor: str) -> Layout:
        return boundary_layout(self.block, tensor, ShardingRules(sequence=self.context.sequence))

    def _home(self, gradient: str) -> Layout:
        """The layout of the weight whose gradient this is: the one its forward kernel reads it in."""
        weight = gradient.removeprefix("d_")
        readers = self.block.consumers.get(weight, ())
        return self.needs[readers[0], weight] if readers else self.gives[gradient]

    def held_bytes(self, tensor: str, layout: Layout) -> float:
        return self.block.tensors[tensor].bytes_in(layout, self.context.chips)

    def weight_bytes(self, kernel: Kernel) -> float:
        return sum(
            self.held_bytes(o.tensor, self.needs[kernel.name, o.tensor])
            for o in kernel.inputs
            if self.block.tensors[o.tensor].role == "weight"
        )

    def _parameter_bytes(self) -> float:
        """Bytes of weights and tables on one chip, each once; graphs in matrix form name a weight per kernel."""
        if self.stated:
            return sum(self.weight_bytes(k) for k in self.block.kernels)
        return sum(self.held_bytes(w, self._read_layout(w)) for w in self.block.weights)

    def _parameters(self) -> float:
        """Parameters on one chip, each weight counted once."""
        total = 0.0
        for weight in self.block.weights:
            tensor = self.block.tensors[weight]
            total += self.held_bytes(weight, self._read_layout(weight)) / tensor.bytes * tensor.elements
        return total

    def _read_layout(self, weight: str) -> Layout:
        """The layout in which its first reader needs a weight."""
        readers = self.block.consumers[weight]
        return self.needs[readers[0], weight] if readers else "replicated"

    def fixed_traffic(self, kernel: Kernel) -> float:
        """Traffic whatever the partition: the kernel's extra bytes, rows looked up, weights where they cost."""
        split = self.strategies[kernel.name].split
        moved = kernel.extra_bytes + self.context.bytes_between_runs(kernel, split)
        if self.context.assumptions.traffic.weights:
            moved += self.weight_bytes(kernel)
        share = 1.0 if split is None else math.ceil(kernel.dims[split] / self.context.chips) / kernel.dims[split]
        for operand in kernel.inputs:
            tensor = self.block.tensors[operand.tensor]
            if tensor.role == "table":
                moved += kernel.points * share * tensor.bytes / tensor.elements
        return moved

    def padded(self, tensor: str, size: float) -> float:
        """Bytes with the streamed dimension padded to whole tiles."""
        tile, tiles = self.tile(tensor, size)
        return tile * tiles

    def tile(self, tensor: str, size: float) -> tuple[float, int]:
        """Bytes of one tile, and how many tiles a micro-batch has."""
        t = self.block.tensors[tensor]
        sequences = sequences_in(t)
        streamed = self._streamed[tensor]
        if not streamed:
            return size / sequences, sequences
        extent = min(t.dims[d] for d in streamed)  # users may tile differently: the larger tile
        tiles = min(self._tiles, extent)
        return size / sequences / extent * math.ceil(extent / tiles), sequences * tiles

    def depth(self, tensor: str, consumer: str) -> int:
        """Tiles of a tensor in flight between its producer and a consumer in the same partition: all of a sequence
        where its users stream it along different dimensions."""
        if len(self._streamed[tensor]) > 1:
            return self.tile(tensor, 1.0)[1] // sequences_in(self.block.tensors[tensor])
        levels = self.block.levels
        return levels[consumer] - levels[self.block.producer[tensor]] + 1

    def _crossing(self, names: set[str]) -> list[tuple[str, str, list[str], list[str]]]:
        """Tensors this partition touches: (tensor, producer or "", consumers inside, consumers outside)."""
        found = []
        for tensor in dict.fromkeys(t for name in names for t in self._touched[name]):
            consumers = self.block.consumers[tensor]
            inside = [c for c in consumers if c in names]
            outside = [c for c in consumers if c not in names]
            found.append((tensor, self.block.producer.get(tensor, ""), inside, outside))
        return found

    def _traffic(self, names: set[str]) -> float:
        """Bytes moved through memory by tensors that enter or leave the partition."""
        boundary = self.context.assumptions.traffic.block_boundary
        per_edge = self.context.assumptions.traffic.per == "edge"
        moved = 0.0
        for tensor, producer, inside, outside in self._crossing(names):
            made_here = producer in names
            if made_here:
                written = self.padded(tensor, self.held_bytes(tensor, self.gives[tensor]))
                leaves = boundary and tensor in self.block.outputs
                if per_edge:
                    moved += written * (len(outside) + leaves)
                elif outside or leaves:
                    moved += written
            elif producer or boundary:
                read = {c: self.padded(tensor, self.read_bytes(tensor, c)) for c in inside}
                if per_edge:
                    moved += sum(read.values())
                else:
                    moved += sum({self.needs[c, tensor]: size for c, size in read.items()}.values())
        return moved

    def read_bytes(self, tensor: str, consumer: str) -> float:
        """Bytes a consumer reads; graphs in matrix form move what the producer holds."""
        if self.stated and tensor in self.gives:
            return self.held_bytes(tensor, self.gives[tensor])
        return self.held_bytes(tensor, self.needs[consumer, tensor])

    def sram(self, names: set[str]) -> float:
        """SRAM of a partition: tile buffers of what stays inside, enters or leaves, and resident weights."""
        p = self.context.assumptions.partitions
        per_edge = self.context.assumptions.traffic.per == "edge"
        boundary = self.context.assumptions.traffic.block_boundary
        used = sum(self.weight_bytes(self.block.by_name[n]) for n in names)
        for tensor, producer, inside, outside in self._crossing(names):
            made_here = producer in names
            if not made_here and not producer and not boundary:
                continue
            depths = [self.depth(tensor, c) for c in inside] if made_here else []
            leaves = boundary and made_here and tensor in self.block.outputs
            asking = (*inside, *outside) if made_here else inside
            layouts = set() if self.stated else {self.needs[c, tensor] for c in asking}
            for layout in layouts or {self.gives[tensor]}:
                size = self.held_bytes(tensor, layout)
                tile, _ = self.tile(tensor, size)
                if per_edge:
                    crossing = (len(outside) + leaves) if made_here else len(inside)
                    used += tile * (sum(depths) + p.boundary_buffers * crossing)
                    continue
                here = [
                    d for c, d in zip(inside, depths, strict=False) if self.needs[c, tensor] == layout or self.stated
                ]
                away = made_here and any(self.needs[c, tensor] == layout or self.stated for c in outside)
                buffers = max([*here, p.boundary_buffers if away or leaves or not made_here else 0], default=0)
                used += tile * buffers
        return used


def check_against(label: str, claimed_s: float, evaluated_s: float) -> None:
    """Raises MismatchError where a program's objective is not what the evaluator finds for its mapping."""
    if not math.isclose(claimed_s, evaluated_s, rel_tol=TOLERANCE, abs_tol=1e-15):
        raise MismatchError(
            f"{label}: the solver says {claimed_s:.9g} s, the independent evaluator {evaluated_s:.9g} s "
            f"for the same mapping; please report this as a bug"
        )
