"""Blocks to pipeline stages: contiguous, the slowest stage as fast as can be, every stage within its memory.

The sum over stages is the same for every division, so sum t_i + (m-1) max t_i is least where the slowest stage is. For
a given limit on the slowest, filling stages from the last backwards with as many blocks as they may hold finds a
division whenever there is one (a stage that may hold some blocks may hold fewer, and leaving more to do never helps),
so bisection on the limit is exact; it ends when nothing fits just below the best. From the last backwards, because the first stages keep more micro-batches in flight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: A division is the best one when none is faster by this share.
CLOSER = 1e-9

#: Rounding that must not make a stage that exactly reaches its limit too slow.
SLACK = 1e-12


@dataclass(frozen=True)
class Run:
    """`count` equal blocks in a row: seconds of one for a micro-batch; bytes of one on each stage ([stages], or empty
    where memory does not matter)."""

    count: int
    seconds: float
    bytes: Sequence[float] = ()


def divide(
    runs: Sequence[Run], stages: int, extra_s: Sequence[float] = (), capacity: float = math.inf
) -> list[list[int]] | None:
    """Copies of each run on each stage, [stages][runs]; None where no division fits.

    Every stage holds a block at least. `extra_s` are seconds of each stage besides its blocks (messages); `capacity`
    bytes hold what `Run.bytes` says.
    """
    extra = list(extra_s) or [0.0] * stages
    total = sum(r.count * r.seconds for r in runs)
    high = total + max(extra)
    found = _fill(runs, stages, extra, capacity, high)
    if found is None:
        return None
    low = max([total / stages, *(r.seconds for r in runs if r.count)]) * (1 - 1e-9)
    best, high = found, slowest_s(runs, found, extra)
    while True:
        found = _fill(runs, stages, extra, capacity, high * (1 - CLOSER))
        if found is None:
            return best
        best, high = found, slowest_s(runs, found, extra)
        found = _fill(runs, stages, extra, capacity, (low + high) / 2)
        if found is None:
            low = (low + high) / 2
        else:
            best, high = found, slowest_s(runs, found, extra)


def slowest_s(runs: Sequence[Run], counts: Sequence[Sequence[int]], extra_s: Sequence[float] = ()) -> float:
    """Seconds of the slowest stage of a division."""
    extra = list(extra_s) or [0.0] * len(counts)
    return max(e + sum(n * r.seconds for n, r in zip(c, runs, strict=True)) for c, e in zip(counts, extra, strict=True))


def _fill(
    runs: Sequence[Run], stages: int, extra: Sequence[float], capacity: float, limit: float
) -> list[list[int]] | None:
    """Stages from the last backwards, each with as many blocks as it may hold; None where blocks are left over."""
    table = [[0] * len(runs) for _ in range(stages)]
    left = [r.count for r in runs]
    remaining = sum(left)
    at = len(runs) - 1
    for stage in reversed(range(stages)):
        seconds, room = limit * (1 + SLACK) - extra[stage], capacity
        allowed = remaining - stage
        while at >= 0 and allowed > 0:
            run = runs[at]
            n = min(left[at], allowed)
            if run.seconds > 0:
                n = min(n, int(seconds / run.seconds + SLACK))
            own = run.bytes[stage] if run.bytes else 0.0
            if own > 0:
                n = min(n, int(room / own + SLACK))
            n = max(n, 0)
            table[stage][at] += n
            left[at] -= n
            remaining -= n
            allowed -= n
            seconds -= n * run.seconds
            room -= n * own
            if left[at]:
                break
            at -= 1
        if not any(table[stage]):
            return None
    return table if remaining == 0 else None
