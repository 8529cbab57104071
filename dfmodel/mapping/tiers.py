"""Categories of bytes to memory tiers: what is moved most lies nearest.

A linear program: x[c, t] bytes of category c in tier t, all placed, no tier over its capacity, least seconds of traffic
through the tiers below the first (their streams are charged in full; the first tier's traffic is in the kernels). Its
costs are products of a category's traffic per byte and a tier's seconds per byte, so filling the tiers from the fastest
with the categories moved most is optimal (an exchange of any two bytes that lie otherwise costs nothing or gains).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tier:
    """`bytes_per_s` is what it sustains; the first tier's is not used here."""

    name: str
    capacity_bytes: float
    bytes_per_s: float


@dataclass(frozen=True)
class Held:
    """Bytes of a category on a chip, and the bytes of it that one iteration moves."""

    bytes: float
    traffic_bytes: float

    @property
    def density(self) -> float:
        return self.traffic_bytes / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Placement:
    """Bytes of each category in each tier (tier -> category -> bytes), seconds of traffic below the first tier, and the
    bytes of each category that fit nowhere."""

    tiers: Mapping[str, Mapping[str, float]]
    seconds: float
    missing: Mapping[str, float]

    @property
    def fits(self) -> bool:
        return not self.missing


def place(held: Mapping[str, Held], tiers: Sequence[Tier]) -> Placement:
    """The placement with least seconds; the first tier is the nearest, the others are taken fastest first."""
    order = [tiers[0], *sorted(tiers[1:], key=lambda t: -t.bytes_per_s)]
    waiting = sorted(((name, h, h.bytes) for name, h in held.items() if h.bytes > 0), key=lambda w: -w[1].density)
    placed: dict[str, dict[str, float]] = {t.name: {} for t in tiers}
    seconds = 0.0
    at, room = 0, order[0].capacity_bytes
    missing: dict[str, float] = {}
    for name, h, left in waiting:
        while left > 0 and at < len(order):
            taken = min(left, room)
            if taken > 0:
                placed[order[at].name][name] = placed[order[at].name].get(name, 0.0) + taken
                seconds += taken * h.density / order[at].bytes_per_s if at else 0.0
                left -= taken
                room -= taken
            if left > 0:
                at += 1
                room = order[at].capacity_bytes if at < len(order) else 0.0
        if left > 0:
            missing[name] = left
    return Placement(placed, seconds, missing)
