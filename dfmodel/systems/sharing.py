"""Communications at the same time: those that use the links of one dimension share them.

A collective is a sequence of stages; a stage alone takes some seconds and keeps each dimension busy for a share of
them. Rates are max-min fair (Bertsekas and Gallager, Data Networks, 1992, section 6.5): all stages under way slow down
together until a dimension is full, and those that do not use it go on until they are full themselves. Latency counts as
use, so the answer is never optimistic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dfmodel.systems.collectives import CollectiveCost


@dataclass(frozen=True)
class Stage:
    """`seconds` alone, and the share of them for which each dimension is busy."""

    seconds: float
    busy: Mapping[str, float]


def stages_of(cost: CollectiveCost) -> list[Stage]:
    """A collective's phases one after the other; one stage for all where its pieces overlap. Its start, in which no
    link is busy, comes first."""
    started = cost.start_s
    stages = [Stage(started, {})] if started else []
    if cost.pieces == 1:
        return stages + [Stage(p.seconds, dict.fromkeys(p.wires, 1.0)) for p in cost.phases if p.seconds]
    whole = cost.seconds - started
    busy: dict[str, float] = {}
    for phase in cost.phases:
        for wire in phase.wires:
            busy[wire] = busy.get(wire, 0.0) + phase.seconds / whole
    return [*stages, Stage(whole, {wire: min(1.0, share) for wire, share in busy.items()})]


def together(costs: Sequence[CollectiveCost]) -> list[float]:
    """Seconds after which each of several collectives that start at once is done."""
    left = [list(stages_of(cost)) for cost in costs]
    remaining = [stages[0].seconds if stages else 0.0 for stages in left]
    done = [0.0] * len(left)
    now = 0.0
    while any(left):
        active = [c for c, stages in enumerate(left) if stages]
        rates = fair_rates({c: left[c][0].busy for c in active})
        step = min(remaining[c] / rates[c] for c in active)
        now += step
        for c in active:
            remaining[c] -= step * rates[c]
            if remaining[c] <= 1e-12 * left[c][0].seconds:
                left[c].pop(0)
                done[c] = now
                remaining[c] = left[c][0].seconds if left[c] else 0.0
    return done


def fair_rates(busy: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Max-min fair rates, at most 1, such that no dimension is busy for more than all of the time."""
    rates: dict[int, float] = {}
    room = {wire: 1.0 for shares in busy.values() for wire in shares}
    waiting = dict(busy)
    while waiting:
        asked = {wire: sum(s.get(wire, 0.0) for s in waiting.values()) for wire in room}
        limits = {wire: room[wire] / total for wire, total in asked.items() if total > 0}
        tightest = min(limits, key=limits.__getitem__, default=None)
        level = 1.0 if tightest is None else min(1.0, limits[tightest])
        held = [c for c, shares in waiting.items() if level == 1.0 or (tightest and shares.get(tightest, 0.0) > 0)]
        for c in held:
            rates[c] = level
            for wire, share in waiting.pop(c).items():
                room[wire] = max(0.0, room[wire] - level * share)
    return rates
