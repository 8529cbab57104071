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
    convention), `usd` and `w` a whole tier.
    """

    name: str
    capacity_bytes: float
    bytes_per_s: float
    usd_per_byte_per_s: float = 0.0
    w_per_byte_per_s: float = 0.0
    usd: float = 0.0
    w: float = 0.0
    j_per_byte: float | None = None

    @property
    def price_usd(self) -> float:
        return self.usd + self.usd_per_byte_per_s * self.bytes_per_s

    @property
    def power_w(self) -> float:
        return self.w + self.w_per_byte_per_s * self.bytes_per_s


def merged(memories: Sequence[Memory]) -> Memory:
    """One memory in place of several: their capacities together, the capacity-weighted mean of their bandwidths, priced
    and powered as they are (the original DFModel's reading of a chip with several tiers)."""
    unlimited = [m for m in memories if math.isinf(m.capacity_bytes)]
    weights = [1.0 for _ in unlimited] or [m.capacity_bytes for m in memories]
    counted = unlimited or memories

    def mean(values: Sequence[float]) -> float:
        return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    energies = [m.j_per_byte for m in counted if m.j_per_byte is not None]
    return Memory(
        " + ".join(m.name for m in memories),
        sum(m.capacity_bytes for m in memories),
        mean([m.bytes_per_s for m in counted]),
        usd=sum(m.price_usd for m in memories),
        w=sum(m.power_w for m in memories),
        j_per_byte=mean(energies) if len(energies) == len(counted) else None,
    )
