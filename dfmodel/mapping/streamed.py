"""Lattices of many ideals (two layers): columns made level by level and forgotten, ideals that cannot win left out.

The dynamic program goes through the ideals by size. An ideal whose least seconds, with an additive bound of what is
left, do not beat a known answer starts no column. What remains proves that answer or finds a better one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dfmodel.mapping.columns import BLOCK_PAIRS, ColumnMaker
from dfmodel.mapping.ideals import Ideals, enumerate_ideals
from dfmodel.mapping.problem import PartitionProblem

#: An ideal must be able to beat the known answer by this share to be kept.
TIE = 1e-9


@dataclass(frozen=True)
class StreamedResult:
    """`seconds` is the optimum with any number of partitions; `assignment` is None where the known answer is it (or
    nothing fits). `opened` ideals of all started `columns`; where `finished` is false time ran out, and `bound_s` is
    what is proven."""

    assignment: tuple[int, ...] | None
    seconds: float
    bound_s: float
    ideals: int
    opened: int
    columns: int
    finished: bool
    wall_s: float


def remaining_s(p: PartitionProblem, ideals: Ideals) -> np.ndarray:
    """A lower bound of the seconds of the kernels outside each ideal, whatever their partitioning: sums that do not
    depend on it, one partition per phase."""
    outside = (~ideals.members).astype(float)
    total = np.zeros(len(outside))
    for phase in set(p.phase):
        own = np.array([float(f == phase) for f in p.phase])
        compute = np.zeros(len(outside)) if p.allocation is not None else outside @ (own * p.compute_s)
        network = outside @ (own * p.network_s)
        memory = outside @ (own * p.memory_bytes) / p.memory_bytes_per_s
        if p.overlap == "none":
            total += compute + memory + network
        elif p.overlap == "compute_memory":
            total += np.maximum(compute, memory) + network
        else:
            total += np.maximum(np.maximum(compute, memory), network)
        total += p.reconfiguration_s * (outside @ own > 0)
    return total


def solve_streamed(
    p: PartitionProblem, known_s: float, most_ideals: int, time_limit_s: float | None = None
) -> StreamedResult:
    """The optimum of `p` with any number of partitions, given an answer of `known_s` seconds (infinite: none).

    Memory grows with the ideals, not the columns. Raises LatticeTooLargeError above `most_ideals`.
    """
    began = time.perf_counter()
    ideals = enumerate_ideals(p, most_ideals)
    maker = ColumnMaker(p, ideals)
    rest = remaining_s(p, ideals)
    count = len(ideals.sizes)
    least = np.full(count, np.inf)
    least[0] = 0.0
    came_from = np.full(count, -1)
    upper = known_s * (1 - TIE)
    opened = columns = 0
    most = max(1, BLOCK_PAIRS // count)
    for size in range(int(ideals.sizes[-1])):
        level = np.nonzero(ideals.sizes == size)[0]
        level = level[least[level] + rest[level] < min(upper, least[-1])]
        for start in range(0, len(level), most):
            if time_limit_s is not None and time.perf_counter() - began > time_limit_s:
                open_ = np.concatenate([level[start:], np.nonzero(ideals.sizes > size)[0]])
                bound = min(known_s, float(np.min(least[open_] + rest[open_])))
                wall = time.perf_counter() - began
                return StreamedResult(None, known_s, bound, count, opened, columns, False, wall)
            rows = level[start : start + most]
            opened += len(rows)
            block = maker.starting_at(rows)
            columns += len(block.seconds)
            _relax(least, came_from, block.before, block.after, block.seconds)
    wall = time.perf_counter() - began
    seconds = min(known_s, float(least[-1]))
    assignment = _traced(ideals, came_from) if least[-1] < upper else None
    return StreamedResult(assignment, seconds, seconds, count, opened, columns, True, wall)


def _relax(
    least: np.ndarray, came_from: np.ndarray, before: np.ndarray, after: np.ndarray, seconds: np.ndarray
) -> None:
    """Lower the ideals that some column reaches sooner."""
    totals = least[before] + seconds
    order = np.lexsort((totals, after))
    targets, first = np.unique(after[order], return_index=True)
    best = order[first]
    better = totals[best] < least[targets]
    least[targets[better]] = totals[best][better]
    came_from[targets[better]] = before[best][better]


def _traced(ideals: Ideals, came_from: np.ndarray) -> tuple[int, ...]:
    nodes = [len(ideals.sizes) - 1]
    while nodes[-1]:
        nodes.append(int(came_from[nodes[-1]]))
    nodes.reverse()
    found = np.zeros(ideals.members.shape[1], dtype=int)
    for slot in range(len(nodes) - 1):
        found[ideals.members[nodes[slot + 1]] & ~ideals.members[nodes[slot]]] = slot
    return tuple(int(s) for s in found)
