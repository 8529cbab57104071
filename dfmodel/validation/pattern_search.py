"""A minimum by trying factors on one value after the other: for a few positive constants and misfits with kinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping


def descend(
    misfit: Callable[[Mapping[str, float]], float],
    point: Mapping[str, float],
    first: float = 2.0,
    last: float = 1.0005,
) -> tuple[float, dict[str, float]]:
    """The misfit and the point where no factor of at least `last` on one value helps any more; the first factor tried
    is `first`, smaller ones follow as its roots."""
    best, found, factor = misfit(point), dict(point), first
    while factor > last:
        moved = False
        for key in point:
            for f in (factor, 1 / factor):
                trial = {**found, key: found[key] * f}
                value = misfit(trial)
                if value < best:
                    best, found, moved = value, trial, True
        if not moved:
            factor = math.sqrt(factor)
    return best, found
