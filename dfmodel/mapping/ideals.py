"""Order ideals of a block's kernels: the sets that can be finished when a partition ends.

An ideal holds every predecessor of what it holds. A partition is a difference of two ideals, so a partitioning is a
path in their lattice (Tarnawski et al., NeurIPS 2020, use the same states). Where phases may not mix, every forward
kernel comes before every backward one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dfmodel.errors import DfmodelError
from dfmodel.mapping.problem import PartitionProblem

#: More ideals than this are not enumerated; the assignment program is used instead.
MOST_IDEALS = 20_000


class LatticeTooLargeError(DfmodelError):
    """The block has more ideals than are enumerated."""


@dataclass(frozen=True)
class Ideals:
    """`members` [ideals, kernels] says what each ideal holds, smaller ideals first; `sizes` counts it.

    `waist` is the number of the ideal that holds exactly the forward kernels (None where phases mix or there is
    one phase only): ideals before and after it never share a partition.
    """

    members: np.ndarray
    sizes: np.ndarray
    waist: int | None


def enumerate_ideals(p: PartitionProblem, most: int = MOST_IDEALS) -> Ideals:
    """Every ideal of `p`. Raises LatticeTooLargeError above `most`."""
    count = len(p.kernels)
    needs = [0] * count
    for i, j in p.edges:
        needs[j] |= 1 << i
    forward = sum(1 << k for k, phase in enumerate(p.phase) if phase == 0)
    both = 0 < forward < (1 << count) - 1
    if both and not p.mixed_phases:
        for k, phase in enumerate(p.phase):
            needs[k] |= forward if phase else 0
    found = {0}
    frontier = [0]
    while frontier:
        grown = {
            ideal | (1 << k)
            for ideal in frontier
            for k in range(count)
            if not ideal >> k & 1 and needs[k] & ~ideal == 0
        }
        frontier = list(grown - found)
        found |= grown
        if len(found) > most:
            raise LatticeTooLargeError(
                f"the lattice of this block has more than {most:,} ideals ({count} kernels); "
                "the assignment program is used instead"
            )
    ordered = sorted(found, key=lambda ideal: (ideal.bit_count(), ideal))
    members = np.array([[ideal >> k & 1 for k in range(count)] for ideal in ordered], dtype=bool)
    waist = ordered.index(forward) if both and not p.mixed_phases else None
    return Ideals(members, members.sum(axis=1), waist)
