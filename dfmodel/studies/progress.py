"""How far a sweep is, how fast it goes, and how long it will take: a line on stderr every few seconds."""

from __future__ import annotations

import sys
import time
from collections import Counter

#: Seconds between lines.
EVERY_S = 2.0


class Progress:
    """Counts finished points; `known` of `total` came from what was stored."""

    def __init__(self, total: int, known: int, what: str = "points", quiet: bool = False) -> None:
        self._total, self._known, self._what, self._quiet = total, known, what, quiet
        self._statuses: Counter[str] = Counter()
        self._began = time.perf_counter()
        self._last = self._began

    def finished(self, status: str) -> None:
        self._statuses[status] += 1
        now = time.perf_counter()
        if now - self._last >= EVERY_S:
            self._last = now
            self._say(self.line(now - self._began))

    def line(self, seconds: float) -> str:
        """`120/200 points  3.2/s  25 s left  (80 known, 2 infeasible)`"""
        computed = sum(self._statuses.values())
        rate = computed / seconds if seconds > 0 else 0.0
        left = self._total - self._known - computed
        parts = [f"{self._known + computed:,}/{self._total:,} {self._what}", f"{rate:.3g}/s"]
        if rate > 0 and left:
            parts.append(f"{_duration(left / rate)} left")
        others = [f"{n:,} {s}" for s, n in self._statuses.items() if s not in ("optimal", "bounded")]
        notes = ([f"{self._known:,} known"] if self._known else []) + others
        return "  ".join(parts) + (f"  ({', '.join(notes)})" if notes else "")

    def end(self) -> None:
        """The last line, where there was anything to do."""
        if self._statuses:
            self._say(self.line(time.perf_counter() - self._began))

    def _say(self, text: str) -> None:
        if not self._quiet:
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
