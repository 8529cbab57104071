"""The partitioning problem in numbers: what a block costs once plan, sharding and tile count are fixed.

Every route (assignment MIP, lattice, enumeration) solves this one object, so they can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dfmodel.mapping.allocation import Allocation

Overlap = Literal["none", "compute_memory", "full"]


@dataclass(frozen=True)
class TensorUse:
    """A tensor between kernels. Indices are positions in `PartitionProblem.kernels`.

    `producer` is None for a block input; `consumers` are in kernel order; `leaves` says that it is also
    written out of the block. `bytes` are read from memory by a partition that needs it, for one whole pass
    (all tiles, padded); `write_bytes` are written by the producer's (None: the same number; they differ
    where a collective changes the layout between the two). `tile_bytes` is one tile's buffer in SRAM;
    `depths[i]` is how many tiles are in flight between producer and consumers[i] inside one partition.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    bytes: float
    tile_bytes: float
    depths: tuple[int, ...]
    leaves: bool = False
    write_bytes: float | None = None

    @property
    def written_bytes(self) -> float:
        return self.bytes if self.write_bytes is None else self.write_bytes


@dataclass(frozen=True)
class TotalLimit:
    """A limit on a total over all partitions: per_s * seconds + per_byte * bytes of traffic <= at_most.

    `name` is what a user calls it (traffic: bytes; energy: joules).
    """

    name: str
    per_s: float
    per_byte: float
    at_most: float


@dataclass(frozen=True)
class PartitionProblem:
    """Kernels to ordered partitions that run one after another on the whole chip.

    Arrays are per kernel, in topological order, for one pass of the block (one micro-batch, all tiles):
    `compute_s` additive compute seconds, `network_s` seconds of the collectives charged to the kernel's
    partition, `memory_bytes` traffic independent of the partitioning (streamed weights, caches),
    `weight_bytes` resident in SRAM while the kernel's partition runs. `phase` is 0 for forward and 1 for
    backward kernels, which never share a partition unless `mixed_phases`.

    A tensor inside a partition takes depth * tile_bytes of SRAM (largest depth over its consumers there
    when traffic is per tensor, each consumer's own when per edge); one that enters or leaves takes
    `boundary_buffers * tile_bytes` (once, or per edge) and moves `bytes` per write and per read.
    `passes[k]` >= 2 marks a kernel too large for SRAM, which runs alone, its SRAM need divided by it.
    A partition takes `overlap` of compute, memory and network, plus `reconfiguration_s`.
    """

    kernels: tuple[str, ...]
    phase: tuple[int, ...]
    compute_s: tuple[float, ...]
    network_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    weight_bytes: tuple[float, ...]
    passes: tuple[int, ...]
    tensors: tuple[TensorUse, ...]
    sram_bytes: float
    memory_bytes_per_s: float
    overlap: Overlap
    traffic_per: Literal["tensor", "edge"]
    boundary_buffers: int
    maximum: int
    count: int | None = None
    halves: bool = False
    mixed_phases: bool = False
    reconfiguration_s: float = 0.0
    #: Where set, compute is not additive: the kernels of a partition share the chip's tiles and `compute_s` is unused.
    allocation: Allocation | None = None
    #: Kernel index -> partition index that a user fixes.
    pinned: tuple[tuple[int, int], ...] = ()
    limits: tuple[TotalLimit, ...] = ()
    #: How many times each kernel runs (empty: once); where set, kernels of different counts never share a partition.
    runs: tuple[int, ...] = ()

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(producer, consumer) pairs, each once."""
        return tuple(
            dict.fromkeys((t.producer, c) for t in self.tensors if t.producer is not None for c in t.consumers)
        )


@dataclass(frozen=True)
class PartitionCost:
    """What one partition takes: seconds by resource, their combination, bytes of SRAM and of traffic."""

    compute_s: float
    memory_s: float
    network_s: float
    seconds: float
    sram_bytes: float
    traffic_bytes: float
