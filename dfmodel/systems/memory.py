"""Memory tiers below on-chip SRAM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """One memory tier of one chip.

    `capacity_bytes` may be infinite (no limit stated); `bytes_per_s` is the peak of reads and writes
    together; `usd_per_byte_per_s` and `w_per_byte_per_s` price and power the bandwidth (the original's
    convention), `usd` and `w` a whole tier; None where nothing is stated. `in_chip` says that the chip's own price or
    power includes it, `assumed` which values no source states.
    """

    name: str
    capacity_bytes: float
    bytes_per_s: float
    usd_per_byte_per_s: float | None = None
    w_per_byte_per_s: float | None = None
    usd: float | None = None
    w: float | None = None
    j_per_byte: float | None = None
    in_chip: bool = False
    assumed: tuple[str, ...] = ()

    @property
    def price_usd(self) -> float | None:
        return _whole(self.usd, self.usd_per_byte_per_s, self.bytes_per_s)

    @property
    def power_w(self) -> float | None:
        return _whole(self.w, self.w_per_byte_per_s, self.bytes_per_s)


def _whole(fixed: float | None, per_byte_per_s: float | None, bytes_per_s: float) -> float | None:
    """What is fixed and what goes with the bandwidth together; None where neither is stated."""
    if fixed is None and per_byte_per_s is None:
        return None
    return (fixed or 0.0) + (per_byte_per_s or 0.0) * bytes_per_s


def merged(memories: Sequence[Memory]) -> Memory:
    """One memory in place of several: their capacities together, the capacity-weighted mean of their bandwidths, priced
    and powered as they are (the original DFModel's reading of a chip with several tiers)."""
    unlimited = [m for m in memories if math.isinf(m.capacity_bytes)]
    weights = [1.0 for _ in unlimited] or [m.capacity_bytes for m in memories]
    counted = unlimited or memories

    def mean(values: Sequence[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    def together(values: Sequence[float | None]) -> float | None:
        return None if None in values else sum(v or 0.0 for v in values)

    energies = [m.j_per_byte for m in counted if m.j_per_byte is not None]
    return Memory(
        " + ".join(m.name for m in memories),
        sum(m.capacity_bytes for m in memories),
        mean([m.bytes_per_s for m in counted]),
        usd=together([m.price_usd for m in memories]),
        w=together([m.power_w for m in memories]),
        j_per_byte=mean(energies) if len(energies) == len(counted) else None,
        in_chip=any(m.in_chip for m in memories),
        assumed=tuple(dict.fromkeys(key for m in memories for key in m.assumed)),
    )
