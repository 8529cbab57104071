"""Blocks to pipeline stages: contiguous, the slowest stage as fast as can be, every stage within its memory.

The sum over stages is the same for every division, so sum t_i + (m-1) max t_i is least where the slowest stage is.
For a given limit on the slowest, filling stages one after the other with as many blocks as they may hold finds a
division whenever there is one (a stage that may hold some blocks may hold fewer, and leaving more to do never
helps), so bisection on the limit is exact; it ends when nothing fits just below the best. Of the divisions that
reach the optimum the one closest to even is taken.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: A division is the best one when none is faster by this share.
CLOSER = 1e-9

#: Rounding that must not make a stage that exactly reaches its limit too slow or too large.
SLACK = 1e-12


@dataclass(frozen=True)
class Run:
    """`count` equal blocks in a row: seconds of one for a micro-batch; bytes of one on each stage ([stages], or empty
    where memory does not matter)."""

    count: int
    seconds: float
    bytes: Sequence[float] = ()


class _Line:
    """The blocks in a row, as running sums of seconds and of each stage's bytes."""

    def __init__(self, runs: Sequence[Run], stages: int, extra_s: Sequence[float], capacity: float):
        self.runs, self.stages, self.capacity = runs, stages, capacity
        self.extra = list(extra_s) or [0.0] * stages
        blocks = [r for r in runs for _ in range(r.count)]
        self.count = len(blocks)
        self.seconds = [0.0, *itertools.accumulate(b.seconds for b in blocks)]
        self.bytes: list[list[float]] = []
        if math.isfinite(capacity) and any(r.bytes for r in runs):
            self.bytes = [
                [0.0, *itertools.accumulate(b.bytes[i] if b.bytes else 0.0 for b in blocks)] for i in range(stages)
            ]

    def first_of(self, stage: int, end: int, limit: float) -> int:
        """The earliest block a stage that ends before block `end` may begin with."""
        first = bisect_left(self.seconds, self.seconds[end] - (limit - self.extra[stage]) - SLACK * limit)
        if self.bytes:
            held = self.bytes[stage]
            first = max(first, bisect_left(held, held[end] - self.capacity * (1 + SLACK)))
        return first

    def end_of(self, stage: int, first: int, limit: float) -> int:
        """The block after the last that a stage beginning with block `first` may hold."""
        end = bisect_right(self.seconds, self.seconds[first] + (limit - self.extra[stage]) + SLACK * limit) - 1
        if self.bytes:
            held = self.bytes[stage]
            end = min(end, bisect_right(held, held[first] + self.capacity * (1 + SLACK)) - 1)
        return end

    def slowest(self, cuts: Sequence[int]) -> float:
        return max(
            e + self.seconds[b] - self.seconds[a]
            for e, (a, b) in zip(self.extra, itertools.pairwise(cuts), strict=True)
        )

    def furthest(self, limit: float) -> list[int] | None:
        """Cuts where every stage holds as many blocks as it may, one at least; None where blocks are left over."""
        cuts = [0]
        for stage in range(self.stages):
            end = min(self.end_of(stage, cuts[-1], limit), self.count - (self.stages - 1 - stage))
            if end <= cuts[-1]:
                return None
            cuts.append(end)
        return cuts if cuts[-1] == self.count else None

    def evenly(self, limit: float, furthest: Sequence[int]) -> list[int]:
        """Cuts within the limit as close to an even share of seconds as they can be, from the last backwards."""
        cuts = [self.count]
        for stage in reversed(range(1, self.stages)):
            earliest = max(self.first_of(stage, cuts[-1], limit), stage)
            latest = min(furthest[stage], cuts[-1] - 1)
            wanted = self.seconds[cuts[-1]] * stage / (stage + 1)
            near = bisect_left(self.seconds, wanted)
            if near and wanted - self.seconds[near - 1] < self.seconds[min(near, self.count)] - wanted:
                near -= 1
            cuts.append(min(max(near, earliest), latest))
        cuts.append(0)
        return cuts[::-1]

    def counts(self, cuts: Sequence[int]) -> list[list[int]]:
        """Copies of each run between the cuts."""
        ends = list(itertools.accumulate(r.count for r in self.runs))
        starts = [0, *ends[:-1]]
        return [
            [max(0, min(b, end) - max(a, start)) for start, end in zip(starts, ends, strict=True)]
            for a, b in itertools.pairwise(cuts)
        ]


def divide(
    runs: Sequence[Run], stages: int, extra_s: Sequence[float] = (), capacity: float = math.inf
) -> list[list[int]] | None:
    """Copies of each run on each stage, [stages][runs]; None where no division fits.

    Every stage holds a block at least. `extra_s` are seconds of each stage besides its blocks (messages);
    `capacity` bytes hold what `Run.bytes` says.
    """
    line = _Line(runs, stages, extra_s, capacity)
    best = line.furthest(2 * (line.seconds[-1] + max(line.extra)) + 1.0)
    if best is None:
        return None
    low, high = max(line.seconds[-1] / stages * (1 - CLOSER), 0.0), line.slowest(best)
    while True:
        found = line.furthest(high * (1 - CLOSER))
        if found is None:
            return line.counts(line.evenly(high, best))
        best, high = found, line.slowest(found)
        middle = (low + high) / 2
        found = line.furthest(middle)
        if found is None:
            low = middle
        else:
            best, high = found, line.slowest(found)


def slowest_s(runs: Sequence[Run], counts: Sequence[Sequence[int]], extra_s: Sequence[float] = ()) -> float:
    """Seconds of the slowest stage of a division."""
    extra = list(extra_s) or [0.0] * len(counts)
    return max(e + sum(n * r.seconds for n, r in zip(c, runs, strict=True)) for c, e in zip(counts, extra, strict=True))
