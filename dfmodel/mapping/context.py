"""What a block is mapped on: the chip, the groups of the plan, and what time and collectives cost there."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from dfmodel.assumptions import Assumptions
from dfmodel.errors import InputError
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.problem import Overlap
from dfmodel.systems.chip import TileArray
from dfmodel.systems.collectives import CollectiveModel, collective_model
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.workloads.graph import BATCH, Block, Kernel, Tensor

#: A group of one chip, whose collectives take no time.
ONE_CHIP = Group()


@dataclass(frozen=True)
class Context:
    """A tensor parallel group on a system, the context parallel group its sequences are divided over and, where
    reductions are amortised, a data parallel one.

    `amortised_over` is the number of micro-batches a gradient reduction is spread over (assumption
    `iteration.model: amortised`); None: reductions are the iteration's business, not the partition's.
    """

    system: System
    assumptions: Assumptions
    dtype: str
    tensor: Group
    sequence: bool
    data: Group | None = None
    amortised_over: int | None = None
    context_parallel: Group = ONE_CHIP

    @cached_property
    def timer(self) -> KernelTimer:
        return KernelTimer(self.system.chip, self.dtype, self.assumptions)

    @cached_property
    def model(self) -> CollectiveModel:
        return network_model(self.system, self.assumptions)

    @property
    def tile_array(self) -> TileArray:
        """The chip's compute tiles. Raises InputError where its file states none."""
        if self.system.chip.tiles is None:
            raise InputError(
                f"assumptions.compute.model tiles: chip '{self.system.chip.name}' states no tiles; add tiles (count, "
                "lanes, stages, clock) to its file, or use model efficiency or flat"
            )
        return self.system.chip.tiles

    @property
    def chips(self) -> int:
        return self.tensor.size

    @property
    def dataflow(self) -> bool:
        return self.system.chip.execution == "dataflow"

    @property
    def fusions(self) -> tuple[str, ...]:
        """What may run as one kernel, where kernels run one by one."""
        return () if self.dataflow or not self.assumptions.partitions.fusion else self.system.chip.fusions

    @property
    def overlap(self) -> Overlap:
        p = self.assumptions.partitions
        return p.overlap if self.dataflow else p.kernel_overlap

    @property
    def start_s(self) -> float:
        """What starting a partition adds: reconfiguration of a dataflow chip, a kernel launch elsewhere."""
        return self.system.chip.reconfiguration_s if self.dataflow else self.timer.launch_s

    def starts_s(self, kernels: Iterable[Kernel]) -> float:
        """What starting `kernels` together adds: a kernel-by-kernel chip starts each of a kernel's runs."""
        return self.start_s if self.dataflow else self.start_s * max((k.runs for k in kernels), default=1)

    def bytes_between_runs(self, kernel: Kernel, split: str | None) -> float:
        """What one chip moves through memory between runs of a kernel; a dataflow chip lays the runs out in space."""
        return 0.0 if self.dataflow else kernel.bytes_between_runs(split, self.chips)

    def collective_s(self, operation: str, message_bytes: float) -> float:
        """Seconds of a collective over the tensor parallel group that no matrix kernel hides."""
        if self.chips == 1:
            return 0.0
        return float(self.model(operation, message_bytes, self.tensor)) * exposed_share(self.assumptions, self)

    def context_s(self, operation: str, message_bytes: float) -> float:
        """Seconds of a collective over the context parallel group."""
        group = self.context_parallel
        return float(self.model(operation, message_bytes, group)) if group.size > 1 else 0.0

    def reduction_s(self, gradient_bytes: float) -> float:
        """Seconds per micro-batch of the amortised data-parallel reduction of `gradient_bytes`."""
        if self.amortised_over is None or self.data is None or self.data.size == 1:
            return 0.0
        return float(self.model("all_reduce", gradient_bytes / self.amortised_over, self.data))


def exposed_share(assumptions: Assumptions, context: Context) -> float:
    """Share of tensor-parallel communication that is not hidden: one of as many pieces as the group has chips, where
    the assumptions hide the others."""
    hidden = assumptions.partitions.tensor_overlap and not context.dataflow
    return 1.0 / context.chips if hidden else 1.0


def network_model(system: System, assumptions: Assumptions) -> CollectiveModel:
    """The collective costs the assumptions name, with the chip's sustained share of link bandwidth."""
    physical = assumptions.network.collectives == "physical"
    domain = system.high_bandwidth_domain
    return collective_model(
        assumptions.network.collectives,
        efficiency=system.chip.efficiency.link_max if physical else 1.0,
        all_reduce_factor=assumptions.network.all_reduce_factor,
        high_bandwidth_domain=domain,
        fast_dimension=system.dimensions[0] if domain is not None else None,
        outer_dimension=system.dimensions[1] if domain is not None and len(system.dimensions) > 1 else None,
    )


def combine(overlap: Overlap, compute_s: float, memory_s: float, network_s: float) -> float:
    """Seconds of a partition from its three resources."""
    if overlap == "none":
        return compute_s + memory_s + network_s
    if overlap == "compute_memory":
        return max(compute_s, memory_s) + network_s
    return max(compute_s, memory_s, network_s)


def tile_counts(block: Block, assumptions: Assumptions) -> list[int]:
    """Numbers of tiles worth trying: every one that gives another tile size, where cycles have ceilings; elsewhere the
    finest, which takes the least SRAM and moves no more."""
    if assumptions.partitions.tiles is not None or assumptions.compute.model != "tiles":
        return [tiles_of(block, assumptions)]
    longest = tiles_of(block, assumptions)
    return sorted({math.ceil(longest / math.ceil(longest / n)) for n in range(1, longest + 1)})


def tiles_of(block: Block, assumptions: Assumptions) -> int:
    """Tiles a sequence is streamed in: as many as its longest tiled dimension has positions, unless fixed."""
    if assumptions.partitions.tiles is not None:
        return assumptions.partitions.tiles
    return max((k.dims[k.tiling] for k in block.kernels if k.tiling is not None), default=1)


def streamed_dims(block: Block, tensor: Tensor, tile_by: str) -> tuple[str, ...]:
    """The dimensions of `tensor` along which it is streamed in tiles; none where the tensor is held whole.

    Of several (its users walk it along different ones) each user streams its own; between two of them that share a
    partition the tensor is whole.
    """
    producer = block.producer.get(tensor.name)
    users = [] if producer is None else [producer]
    if tile_by == "users" or producer is None:
        users += block.consumers[tensor.name]
    dims = {_walked(block.by_name[u], tensor) for u in users}
    walked = tuple(sorted(d for d in dims if d is not None))
    return walked if len(walked) == len(dims) else ()


def _walked(kernel: Kernel, tensor: Tensor) -> str | None:
    """The tensor's own dimension that `kernel` walks along its tiling dimension."""
    for operand in (*kernel.inputs, *kernel.outputs):
        if operand.tensor == tensor.name and kernel.tiling in operand.dims:
            return tuple(tensor.dims)[operand.dims.index(kernel.tiling)]
    return None


def sequences_in(tensor: Tensor) -> int:
    """Sequences of a micro-batch a tensor holds; they are streamed one after another."""
    return tensor.dims.get(BATCH, 1)
