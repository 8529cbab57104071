"""Chips: peak rates, on-chip memory, tile geometry, execution style and efficiency curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from dfmodel.errors import InputError
from dfmodel.systems.gemm import GemmCurve
from dfmodel.systems.memory import Memory
from dfmodel.systems.silicon import Silicon

#: attention: scores, softmax and context in one kernel; epilogue: elementwise work after a matrix kernel that makes
#: its operand; elementwise: elementwise kernels in a row, norms included.
Fusion = Literal["attention", "epilogue", "elementwise"]
FUSIONS: tuple[Fusion, ...] = get_args(Fusion)

Execution = Literal["dataflow", "kernel_by_kernel"]


@dataclass(frozen=True)
class TileArray:
    """The compute tiles of a chip: `count` arrays of `lanes` x `stages` multiply-accumulators at `clock_hz`.

    A matrix kernel uses lanes x stages of a tile, a vector kernel its lanes only.
    """

    count: int
    lanes: int
    stages: int
    clock_hz: float

    @property
    def matrix_flops_per_s(self) -> float:
        return 2.0 * self.count * self.lanes * self.stages * self.clock_hz

    @property
    def vector_flops_per_s(self) -> float:
        """One elementwise operation per lane and cycle."""
        return self.count * self.lanes * self.clock_hz


@dataclass(frozen=True)
class Efficiency:
    """Achieved share of peak as a function of size: max * size / (size + half), never falling with size.

    `matrix_max` and `vector_max` are shares of the peak FLOP rates, `memory_max` of memory bandwidth,
    `link_max` of every link's that does not state what it achieves (none does where `links_achieve` is false);
    `matrix_half_flops` and `memory_half_bytes` the sizes at half of it;
    `launch_s` what starting one kernel adds, `step_s` what one step of a recurrence takes that waits for the step
    before. `status` is "assumed" or "calibrated", `source` says by what.
    """

    name: str
    matrix_max: float
    matrix_half_flops: float
    vector_max: float
    memory_max: float
    memory_half_bytes: float
    link_max: float
    launch_s: float
    step_s: float
    status: str
    source: str
    links_achieve: bool = True
    #: How matrix work depends on its shape; then `matrix_max` is the rate of large products in long runs and
    #: `matrix_half_flops` is unused.
    gemm: GemmCurve | None = None
    #: Share of the matrix peak that fused attention reaches, FLOP counted over the whole square (a causal kernel that
    #: leaves half of it out may reach more than 1); None: `matrix_max`.
    attention_max: float | None = None
    #: Width of a head at which it reaches half of that.
    attention_half: float = 0.0
    #: `matrix_max` of formats that reach another share of their own peak.
    matrix_max_of: Mapping[str, float] = field(default_factory=dict)
    #: Share of the matrix rate that software stacks other than the reference reach, by name.
    stacks: Mapping[str, float] = field(default_factory=dict)

    def matrix_share(self, dtype: str) -> float:
        """Share of the matrix peak of `dtype` that large products reach in long runs."""
        return self.matrix_max_of.get(dtype, self.matrix_max)

    def attention_share(self, width: int) -> float:
        """Share of the matrix peak that fused attention reaches with heads of `width`."""
        most = self.matrix_max if self.attention_max is None else self.attention_max
        return most * width / (width + self.attention_half)


@dataclass(frozen=True)
class OperationEnergy:
    """Joules of what a chip does, where known: of matrix work per FLOP by format, of vector work per FLOP, and of a
    byte read from or written to its on-chip memory. Leakage, clocks and control are not part of it."""

    matrix_j_per_flop: Mapping[str, float] = field(default_factory=dict)
    vector_j_per_flop: float | None = None
    sram_j_per_byte: float | None = None


@dataclass(frozen=True)
class Chip:
    """A chip. Peaks are dense, per dtype; `memories` go from the fastest tier outwards."""

    name: str
    title: str
    kind: str
    execution: Execution
    matrix_flops_per_s: Mapping[str, float]
    vector_flops_per_s: Mapping[str, float]
    sram_bytes: float
    memories: tuple[Memory, ...]
    efficiency: Efficiency
    tiles: TileArray | None = None
    power_w: float | None = None
    price_usd: float | None = None
    energy: OperationEnergy = OperationEnergy()
    #: How it is made, where its price follows from that.
    silicon: Silicon | None = None
    reconfiguration_s: float = 0.0
    #: What a kernel-by-kernel chip's software can run as one kernel: see FUSIONS.
    fusions: tuple[Fusion, ...] = ()
    #: Names of the values that no source states and a documented default fills.
    assumed: tuple[str, ...] = ()

    def matrix_peak(self, dtype: str) -> float:
        """Dense matrix FLOP/s in `dtype`. Raises InputError, naming the supported ones, when there is none."""
        if dtype not in self.matrix_flops_per_s:
            supported = ", ".join(sorted(self.matrix_flops_per_s))
            raise InputError(
                f"chip '{self.name}' has no matrix peak for dtype '{dtype}'; it supports {supported}: "
                f"choose one with --set workload.dtype=..., or add peak.matrix.{dtype} to the chip's file"
            )
        return self.matrix_flops_per_s[dtype]

    def vector_peak(self, dtype: str) -> float:
        """Vector FLOP/s; elementwise work of narrow dtypes is done in fp32 where the chip names no own rate."""
        for candidate in (dtype, "fp32"):
            if candidate in self.vector_flops_per_s:
                return self.vector_flops_per_s[candidate]
        return next(iter(self.vector_flops_per_s.values()))
