"""Matrix products on chips of many equal units (GPUs): how long one takes by its shape.

A product of m x k and k x n is cut into tiles of the result, one to a unit at a time (NVIDIA, "Matrix multiplication
background", DU-09799): tiles at the edge are padded, and the last wave of tiles leaves units idle. A tile takes its k
plus a prologue and epilogue worth `k_half` more; smaller tiles reuse less and run slower, as a power of their area. A
library chooses the tile, and for few tiles and a long k it divides k too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

#: Rows and columns of result tiles that libraries offer.
TILES = (
    (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 128), (128, 32), (64, 32), (32, 64),
    (32, 32),
)  # fmt: skip
LARGEST = 256 * 128

#: Parts k may be divided into, and the least k of a part.
K_PARTS = (1, 2, 4, 8, 16, 32, 64)
SHORTEST_K = 128

#: Weight of whole waves beside the mean number of them: tiles do not all end together, and other kernels fill in.
WHOLE_WAVES = 0.5


@dataclass(frozen=True)
class GemmShape:
    """`batch` products of [m, k] and [k, n]."""

    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class GemmCurve:
    """Shape dependence of one chip's matrix work; its rate for large products is stated elsewhere.

    `units` work on tiles side by side; `k_half` is the k at which half the time is prologue and epilogue; tiles of an
    area a run at (a / 32,768)^`tile_exponent` of the rate of the largest. Where memory matters as much as arithmetic
    both are combined as a norm of order `blend`.
    """

    units: int
    k_half: float
    tile_exponent: float
    blend: float

    def compute_s(self, shape: GemmShape, flops_per_s: float) -> float:
        """Seconds of arithmetic where large products reach `flops_per_s`, without memory and start."""
        return _least_s(self, shape, flops_per_s)

    def tiled_s(self, shape: GemmShape, rows: int, columns: int, flops_per_s: float) -> float:
        """The same in tiles of rows x columns of the result."""
        tiles = math.ceil(shape.m / rows) * math.ceil(shape.n / columns) * shape.batch
        per_unit = flops_per_s / self.units * (rows * columns / LARGEST) ** self.tile_exponent
        best = math.inf
        for parts in K_PARTS:
            if parts > 1 and shape.k / parts < SHORTEST_K:
                break
            mean = tiles * parts / self.units
            waves = WHOLE_WAVES * math.ceil(mean) + (1 - WHOLE_WAVES) * max(1.0, mean)
            best = min(best, waves * 2.0 * rows * columns * (shape.k / parts + self.k_half) / per_unit)
        return best

    def alone_s(self, shape: GemmShape, flops_per_s: float, moved_bytes: float, bytes_per_s: float) -> float:
        """Seconds of a product that runs by itself, its operands read and its result written, start apart."""
        compute, memory = self.compute_s(shape, flops_per_s), moved_bytes / bytes_per_s
        largest = max(compute, memory)
        return float(
            largest * ((compute / largest) ** self.blend + (memory / largest) ** self.blend) ** (1 / self.blend)
        )


@lru_cache(maxsize=65536)
def _least_s(curve: GemmCurve, shape: GemmShape, flops_per_s: float) -> float:
    return min(curve.tiled_s(shape, rows, columns, flops_per_s) for rows, columns in TILES)
