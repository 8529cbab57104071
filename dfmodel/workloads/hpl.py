"""High-performance Linpack: one dense linear system, by LU factorisation with partial pivoting, in double precision.

`precision: mixed` is HPL-MxP: the factorisation in a narrow format without pivoting, then iterative refinement in
double precision to the same accuracy. Both are rated by the FLOP of the double precision solve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.catalog_files import settings_of
from dfmodel.workloads.graph import DTYPE_BYTES, Workload

Precision = Literal["double", "mixed"]

#: Bytes of a word in which HPL-MxP keeps its matrix.
MIXED_STORAGE = "fp32"


class HplSettings(BaseModel):
    """What a run may set of workload `hpl`.

    Without `n` it is the largest that fills `memory_fill` of the memory of the chips used. `dtype` is the format of the
    matrix product that updates the matrix: fp64, in mixed precision the narrow one. `iterations` cuts the factorisation
    short (the original's study graph, which needs `n` and `block`); `block` is searched where it is not stated here or
    in the plan. `refinements` counts the steps of refinement in mixed precision.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int | None = Field(None, ge=2)
    block: int | None = Field(None, ge=1)
    memory_fill: float = Field(0.85, gt=0, le=1)
    precision: Precision = "double"
    dtype: str = "fp64"
    iterations: int | None = Field(None, ge=1)
    refinements: int = Field(3, ge=0)

    @property
    def storage(self) -> str:
        """Format in which the matrix is kept."""
        return MIXED_STORAGE if self.precision == "mixed" else self.dtype

    @property
    def stored_bytes(self) -> float:
        return DTYPE_BYTES[self.storage]

    @property
    def sent_bytes(self) -> float:
        """Bytes of a word of what chips send each other."""
        return DTYPE_BYTES[self.dtype]


def build(settings: Mapping[str, object]) -> Workload:
    """The workload of checked `settings` (see HplSettings). Raises InputError with every problem found."""
    made = settings_of(HplSettings, settings, "workload")
    size = "N as memory allows" if made.n is None else f"N {made.n:,}"
    name = "HPL-MxP" if made.precision == "mixed" else "HPL"
    return Workload(
        name="hpl",
        title=f"{name}, {size}",
        blocks=(),
        batch=1,
        unit="solve",
        units_per_sample=1,
        training=False,
        dtype=made.dtype,
        family="hpl",
        settings=made,
    )


def solve_flops(n: int) -> float:
    """FLOP that a solve of n equations is rated by: 2/3 n^3 + 3/2 n^2 (netlib's HPL)."""
    return 2 / 3 * n**3 + 3 / 2 * n**2
