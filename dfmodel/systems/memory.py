"""Memory tiers below on-chip SRAM."""

from __future__ import annotations

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
