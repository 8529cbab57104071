"""What a transform costs: passes over memory, arithmetic of a radix, exchanges between chips.

A pass transforms every line of an axis while it lies in on-chip memory: lines of n points take ceil(log n / log S)
passes, S being the points that one unit of a chip holds (Hong and Kung, 1981; a dataflow chip is one unit). Each pass
reads and writes all local data. Around an exchange data are packed and unpacked, a reading and writing each. Arithmetic
is butterflies on the vector units or, per stage of radix r, products with an r x r matrix on the matrix units (8 r FLOP
per complex point); stages are log_r n. An exchange is an all-to-all of all local data over its group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.context import network_model
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.systems.collectives import CollectiveModel
from dfmodel.systems.network import Group
from dfmodel.systems.system import System
from dfmodel.workloads.fft import FftSettings

#: Radices that are tried, of butterflies on vector units and as matrix products.
RADICES = (2, 4, 8, 16, 32, 64)

#: FLOP of butterflies per complex point and log2 of the length: radix 2, 4 and 8 as counted in textbooks (Van Loan,
#: "Computational frameworks for the FFT", 1992); larger ones hardly save more, and overflow registers.
BUTTERFLY_FLOPS = {2: 5.0, 4: 4.25, 8: 49 / 12}

#: Units of a chip that states none (multiprocessors of a GPU, cores of a CPU).
UNITS = 100

#: FLOP per point of the twiddle between the two halves of a six-step transform: a complex product.
TWIDDLE_FLOPS = 6.0


@dataclass(frozen=True)
class Local:
    """Work of one transform of an axis on one chip: seconds, FLOP and bytes."""

    name: str
    flops: float
    moved_bytes: float
    compute_s: float
    memory_s: float
    launch_s: float
    unit: str

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.memory_s) + self.launch_s


@dataclass(frozen=True)
class FftTimer:
    """Costs of a chip and its links for transforms with `settings` under `assumptions`."""

    system: System
    assumptions: Assumptions
    settings: FftSettings

    @cached_property
    def _timer(self) -> KernelTimer:
        return KernelTimer(self.system.chip, self.settings.dtype, self.assumptions)

    @cached_property
    def _model(self) -> CollectiveModel:
        return network_model(self.system, self.assumptions)

    @cached_property
    def _prices(self) -> dict[tuple[float, Group], float]:
        return {}

    @property
    def line_points(self) -> float:
        """Complex points that a unit holds while it transforms them."""
        chip = self.system.chip
        gemm = chip.efficiency.gemm
        units = 1 if chip.execution == "dataflow" else UNITS if gemm is None else gemm.units
        return max(4.0, chip.sram_bytes / units / (2.0 * self.settings.point_bytes))

    def passes(self, length: int) -> int:
        """Passes over memory that transforming lines of `length` points takes."""
        return 0 if length == 1 else math.ceil(math.log(length) / math.log(self.line_points) - 1e-12)

    def axis(self, name: str, length: int, points: float, radix: int) -> Local:
        """Transforms of `length` points over `points` local ones."""
        passes = self.passes(length)
        share = 1.0 if self.settings.data == "complex" else 0.5
        vector, matrix = self._arithmetic(length, points * share, radix)
        unit = "vector" if vector[1] <= matrix[1] else "matrix"
        flops, compute = min(vector, matrix, key=lambda found: found[1])
        moved = passes * 2.0 * points * self.settings.point_bytes
        return Local(name, flops, moved, compute, self._memory_s(moved), passes * self._timer.launch_s, unit)

    def sweep(self, name: str, points: float, flops_per_point: float = 0.0) -> Local:
        """All local data read and written once, with a little arithmetic."""
        moved = 2.0 * points * self.settings.point_bytes
        flops = flops_per_point * points
        launch = self._timer.launch_s
        return Local(
            name, flops, moved, self._timer.compute_s(flops, "vector"), self._memory_s(moved), launch, "vector"
        )

    def _arithmetic(self, length: int, points: float, radix: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """(FLOP, seconds) as butterflies and as matrix products; butterflies of large radices are not offered."""
        levels = math.log2(length)
        butterflies = BUTTERFLY_FLOPS.get(radix, math.inf) * levels * points
        products = 8.0 * radix * levels / math.log2(radix) * points
        if length == 1:
            return (0.0, 0.0), (0.0, 0.0)
        vector = math.inf if math.isinf(butterflies) else self._timer.compute_s(butterflies, "vector")
        return (butterflies, vector), (products, self._timer.compute_s(products, "matrix"))

    @property
    def memory_bytes_per_s(self) -> float:
        return self._timer.memory_bytes_per_s

    def _memory_s(self, moved_bytes: float) -> float:
        return self._timer.memory_s(moved_bytes)

    def exchange_s(self, local_bytes: float, group: Group) -> float:
        """An all-to-all of what a chip holds."""
        key = (local_bytes, group)
        if key not in self._prices:
            self._prices[key] = float(self._model("all_to_all", local_bytes, group))
        return self._prices[key]


def least_exchange_s(local_bytes: float, group: Group) -> float:
    """What an exchange takes at least: in each dimension what must cross its busiest link, at the rate of the link.
    A line's middle link is crossed by a quarter of what its n chips hold, each link of a ring's two by an eighth."""
    slowest = 0.0
    for part in group.parts:
        n = part.size
        crossing = {"ring": (n * n // 4) / (2 * n), "line": (n * n // 4) / n, "full": 1 / n}.get(part.shape, 1 - 1 / n)
        slowest = max(slowest, local_bytes * crossing / part.bytes_per_s)
    return slowest


@dataclass(frozen=True)
class Layout:
    """How a transform lies on a grid: local points, lines of each axis in order, and the group of every exchange.

    `axes` are (name, length); exchange i follows axis `after[i]`; -1 is before the first.
    """

    points: float
    axes: tuple[tuple[str, int], ...]
    exchanges: tuple[tuple[int, Group], ...]
    twiddle: bool = False


@dataclass(frozen=True)
class FftCost:
    """Local work and exchanges in order; seconds of one direction times the transforms of the run."""

    local: Sequence[Local]
    exchanges: Sequence[tuple[str, Group, float]]
    local_bytes: float
    transforms: int

    @cached_property
    def breakdown(self) -> Mapping[str, float]:
        parts = {"transforms": 0.0, "packing": 0.0, "exchanges": 0.0}
        for work in self.local:
            parts["packing" if work.name.startswith(("pack", "unpack")) else "transforms"] += work.seconds
        parts["exchanges"] = sum(seconds for *_, seconds in self.exchanges)
        return {k: v * self.transforms for k, v in parts.items()}

    @cached_property
    def seconds(self) -> float:
        return sum(self.breakdown.values())


def transform(timer: FftTimer, layout: Layout, radix: int) -> FftCost:
    """The cost of a transform in `layout`."""
    local: list[Local] = []
    found: list[tuple[str, Group, float]] = []
    size = layout.points * timer.settings.point_bytes

    def exchange(number: int, group: Group) -> None:
        if group.size == 1:
            return
        local.append(timer.sweep(f"pack {number + 1}", layout.points))
        found.append((f"exchange {number + 1}", group, timer.exchange_s(size, group)))
        local.append(timer.sweep(f"unpack {number + 1}", layout.points))

    for number, (after, group) in enumerate(layout.exchanges):
        if after == -1:
            exchange(number, group)
    for i, (name, length) in enumerate(layout.axes):
        local.append(timer.axis(f"transform {name}", length, layout.points, radix))
        if layout.twiddle and i == 0:
            local.append(timer.sweep("twiddle", layout.points, TWIDDLE_FLOPS))
        for number, (after, group) in enumerate(layout.exchanges):
            if after == i:
                exchange(number, group)
    return FftCost(local, found, size, timer.settings.transforms)
