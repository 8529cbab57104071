"""Discrete Fourier transforms over many chips: one long one, or one of three dimensions.

A 1D transform of n1 x n2 points goes in six steps (Bailey, "FFTs in external or hierarchical memory", 1990): transposes
between transforms of columns and rows, with a twiddle. A 3D one transforms an axis at a time and transposes between
them, once in slabs or twice in pencils. FLOP are counted as 5 N log2 N, half of it for real data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.catalog_files import settings_of
from dfmodel.errors import InputError
from dfmodel.workloads.graph import DTYPE_BYTES, Workload

#: Points on each side of the transform of a run that names no size.
DEFAULT_SIDE = 1024


class FftSettings(BaseModel):
    """What a run may set of workload `fft`.

    `length` makes it one-dimensional; else `nx` x `ny` x `nz` (what is left out is the cube's side, 1024 where none is
    stated). `data` real transforms real input to half a spectrum. `direction` pair is forward and back. `order` natural
    leaves the result where the input was, transposed where the last step left it (one exchange less). `uneven` lets
    grids divide sides unevenly: the chip with most is charged. `radix` is searched unless stated.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    length: int | None = Field(None, ge=2)
    nx: int | None = Field(None, ge=1)
    ny: int | None = Field(None, ge=1)
    nz: int | None = Field(None, ge=1)
    batch: int = Field(1, ge=1)
    data: Literal["complex", "real"] = "complex"
    direction: Literal["forward", "pair"] = "forward"
    order: Literal["natural", "transposed"] = "transposed"
    uneven: bool = False
    radix: int | None = Field(None, ge=2, le=1024)
    dtype: str = "fp32"

    @property
    def sides(self) -> tuple[int, ...]:
        """(length,), or the three sides."""
        if self.length is not None:
            return (self.length,)
        stated = next((n for n in (self.nx, self.ny, self.nz) if n is not None), DEFAULT_SIDE)
        return (self.nx or stated, self.ny or stated, self.nz or stated)

    @property
    def points(self) -> int:
        return math.prod(self.sides) * self.batch

    @property
    def point_bytes(self) -> float:
        """Bytes of a point: a complex number, or a real one (half a spectrum of complex ones is as long)."""
        return DTYPE_BYTES[self.dtype] * (2.0 if self.data == "complex" else 1.0)

    @property
    def transforms(self) -> int:
        return 2 if self.direction == "pair" else 1

    @property
    def flops(self) -> float:
        """5 N log2 N of every transform, half for real data."""
        whole = 5.0 * self.points * math.log2(max(2, math.prod(self.sides))) * self.transforms
        return whole if self.data == "complex" else whole / 2


def build(settings: Mapping[str, object]) -> Workload:
    """The workload of checked `settings` (see FftSettings). Raises InputError with every problem found."""
    made = settings_of(FftSettings, settings, "workload")
    both = [k for k in ("nx", "ny", "nz") if getattr(made, k) is not None]
    problems = [f"workload.{k}: workload.length makes the transform one-dimensional; remove one of them" for k in both]
    if made.length is not None and problems:
        raise InputError(problems)
    if made.dtype not in DTYPE_BYTES:
        raise InputError(f"workload.dtype: unknown format '{made.dtype}'; one of {', '.join(DTYPE_BYTES)}")
    shape = " x ".join(f"{n:,}" for n in made.sides)
    many = f"{made.batch:,} x " if made.batch > 1 else ""
    way = ", forward and back" if made.direction == "pair" else ""
    return Workload(
        name="fft",
        title=f"FFT of {many}{shape} {made.data} points{way}",
        blocks=(),
        batch=made.batch,
        unit="transform",
        units_per_sample=made.transforms,
        training=False,
        dtype=made.dtype,
        family="fft",
        settings=made,
    )
