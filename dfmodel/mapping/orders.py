"""Partitioning blocks whose lattice is too large: one order of the kernels cut exactly, then improved window by window.

In a fixed order a partition is an interval, and the dynamic program over intervals is exact for that order. The path
is then improved by solving the full lattice between two of its ideals (a few partitions at a time) until nothing
changes or time is up. The answer is an upper bound of the optimum; `additive_bound_s` is a lower one, often far below
on memory-bound blocks, and the two together are what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dfmodel.mapping.columns import all_columns
from dfmodel.mapping.ideals import Ideals, LatticeTooLargeError
from dfmodel.mapping.lattice import best_free_path, solve_lattice
from dfmodel.mapping.problem import PartitionProblem, TensorUse

#: Partitions re-solved together at first; smaller windows are tried where their lattice is too large.
WINDOW = 4

#: Ideals a window may have.
WINDOW_IDEALS = 3_000


@dataclass(frozen=True)
class OrderedResult:
    """A partitioning as sets of kernels in order, its seconds, a lower bound, and how it came about."""

    parts: tuple[tuple[int, ...], ...]
    seconds: float
    bound_s: float
    windows_solved: int
    windows_improved: int
    wall_s: float

    @property
    def assignment(self) -> tuple[int, ...]:
        found = [0] * sum(len(p) for p in self.parts)
        for slot, part in enumerate(self.parts):
            for k in part:
                found[k] = slot
        return tuple(found)


def additive_bound_s(p: PartitionProblem) -> float:
    """Seconds no partitioning can beat: sums over kernels that do not depend on it, combined as one partition per
    phase (a sum of maxima is at least the maximum of the sums)."""
    total = 0.0
    for phase in set(p.phase):
        own = [k for k, f in enumerate(p.phase) if f == phase]
        compute = sum(p.compute_s[k] for k in own)
        network = sum(p.network_s[k] for k in own)
        memory = sum(p.memory_bytes[k] for k in own) / p.memory_bytes_per_s
        total += {
            "none": compute + memory + network,
            "compute_memory": max(compute, memory) + network,
            "full": max(compute, memory, network),
        }[p.overlap] + p.reconfiguration_s
    return total


def repeated_order(one: PartitionProblem, assignment: Sequence[int], names: Sequence[str], copies: int) -> list[int]:
    """An order for `copies` of a block (kernels `name@i`, see `workloads.stack`): the best partitions of one copy,
    copy after copy forwards, then backwards from the last. `names` are the large block's kernels."""
    position = {name: i for i, name in enumerate(names)}
    ranked = sorted(range(len(one.kernels)), key=lambda k: (assignment[k], k))
    forward = [one.kernels[k] for k in ranked if one.phase[k] == 0]
    backward = [one.kernels[k] for k in ranked if one.phase[k] == 1]
    ahead = [position[f"{name}@{i}"] for i in range(copies) for name in forward]
    return ahead + [position[f"{name}@{i}"] for i in reversed(range(copies)) for name in backward]


def solve_in_orders(
    p: PartitionProblem,
    orders: Sequence[Sequence[int]] = (),
    time_limit_s: float = 8.0,
) -> OrderedResult | None:
    """The best of the given orders (and the kernels' own), improved window by window; None where no cut of them fits.

    The number of partitions is free here; a fixed one, halves and pins are for the exact routes.
    """
    began = time.perf_counter()
    starts = [_cut(p, order) for order in (list(range(len(p.kernels))), *orders)]
    found = [s for s in starts if s is not None]
    if not found:
        return None
    seconds, parts = min(found, key=lambda s: s[0])
    solved = improved = 0
    changed = True
    while changed and time.perf_counter() - began < time_limit_s:
        changed = False
        for first in range(len(parts)):
            if time.perf_counter() - began > time_limit_s or first >= len(parts):
                break
            better = _improve(p, parts, first)
            solved += better is not None
            if better is not None and better[0] < -1e-12 * seconds:
                gain, replacement, width = better
                parts = [*parts[:first], *replacement, *parts[first + width :]]
                seconds += gain
                improved += 1
                changed = True
    return OrderedResult(
        tuple(tuple(part) for part in parts),
        seconds,
        additive_bound_s(p),
        solved,
        improved,
        time.perf_counter() - began,
    )


def _cut(p: PartitionProblem, order: Sequence[int]) -> tuple[float, list[list[int]]] | None:
    """The best partitioning into intervals of `order`, which must respect edges and phases."""
    members = np.zeros((len(order) + 1, len(order)), dtype=bool)
    for n, k in enumerate(order):
        members[n + 1] = members[n]
        members[n + 1, k] = True
    phases = [p.phase[k] for k in order]
    waist = phases.index(1) if 0 < sum(phases) < len(phases) and not p.mixed_phases else None
    ideals = Ideals(members, members.sum(axis=1), waist)
    columns = all_columns(p, ideals)
    seconds, path = best_free_path(ideals, columns)
    if not np.isfinite(seconds):
        return None
    return seconds, [[int(k) for k in order[columns.before[a] : columns.after[a]]] for a in path]


def _improve(p: PartitionProblem, parts: list[list[int]], first: int) -> tuple[float, list[list[int]], int] | None:
    """Re-solve a window of partitions from `first` on exactly: (change of seconds, new partitions, width)."""
    for width in range(min(WINDOW, len(parts) - first), 1, -1):
        window = parts[first : first + width]
        kernels = [k for part in window for k in part]
        done = {k for part in parts[:first] for k in part}
        sub = _subproblem(p, sorted(kernels), done)
        try:
            found = solve_lattice(sub, most_ideals=WINDOW_IDEALS)
        except LatticeTooLargeError:
            continue
        if found.assignment is None:
            return None
        here = {k: slot for slot, part in enumerate(window) for k in part}
        numbered = sorted(kernels)
        before = sum(_seconds_of(sub, [i for i, k in enumerate(numbered) if here[k] == slot]) for slot in range(width))
        slots = sorted(set(found.assignment))
        replacement = [[numbered[i] for i, s in enumerate(found.assignment) if s == slot] for slot in slots]
        return found.seconds - before, replacement, width
    return None


def _seconds_of(sub: PartitionProblem, members: list[int]) -> float:
    """Seconds of one partition of a sub-problem, through the same columns."""
    before = np.zeros(len(sub.kernels), dtype=bool)
    inside = before.copy()
    inside[members] = True
    # what must be done before the partition is what is not in it: only tensors' sides matter, so order them
    earlier = _earlier(sub, members)
    before[earlier] = True
    table = np.stack([before, before | inside])
    columns = all_columns(sub, Ideals(table, table.sum(axis=1), None))
    return float(columns.seconds[0]) if len(columns.seconds) else np.inf


def _earlier(sub: PartitionProblem, members: list[int]) -> list[int]:
    """Kernels of the sub-problem that some member depends on, directly or not, outside the partition."""
    chosen, found = set(members), set()
    grow = list(members)
    while grow:
        k = grow.pop()
        for i, j in sub.edges:
            if j == k and i not in chosen and i not in found:
                found.add(i)
                grow.append(i)
    return sorted(found)


def _subproblem(p: PartitionProblem, kernels: list[int], done: set[int]) -> PartitionProblem:
    """`p` restricted to `kernels`, given what is done before: tensors made earlier become inputs, tensors needed
    later leave."""
    index = {k: i for i, k in enumerate(kernels)}
    tensors: list[TensorUse] = []
    for t in p.tensors:
        inside = [(index[c], d) for c, d in zip(t.consumers, t.depths, strict=True) if c in index]
        made_here = t.producer in index
        if not inside and not made_here:
            continue
        if not made_here and t.producer is not None and t.producer not in done:
            continue
        later = sum(1 for c in t.consumers if c not in index and c not in done) if made_here else 0
        leaves = made_here and (t.leaves or later > 0)
        use = replace(
            t,
            producer=index[t.producer] if made_here and t.producer is not None else None,
            consumers=tuple(i for i, _ in inside),
            depths=tuple(d for _, d in inside),
            leaves=leaves,
        )
        tensors.append(use)
        if made_here and p.traffic_per == "edge":
            extra = later + t.leaves - 1
            tensors += [replace(use, name=f"{t.name}+{n}", consumers=(), depths=()) for n in range(max(0, extra))]

    def pick(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(values[k] for k in kernels)

    allocation = p.allocation
    if allocation is not None:
        allocation = replace(allocation, staircases=pick(allocation.staircases))
    return replace(
        p,
        kernels=pick(p.kernels),
        phase=pick(p.phase),
        compute_s=pick(p.compute_s),
        network_s=pick(p.network_s),
        memory_bytes=pick(p.memory_bytes),
        weight_bytes=pick(p.weight_bytes),
        passes=pick(p.passes),
        tensors=tuple(tensors),
        allocation=allocation,
        maximum=max(len(kernels), 1),
        count=None,
        halves=False,
        pinned=(),
    )
