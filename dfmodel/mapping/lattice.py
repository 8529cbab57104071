"""Partitioning by the lattice of ideals: the exact dynamic program and the potentials that prove it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dfmodel.errors import MismatchError
from dfmodel.mapping.columns import Columns, all_columns
from dfmodel.mapping.ideals import MOST_IDEALS, Ideals, enumerate_ideals
from dfmodel.mapping.partitioning import partitions_of
from dfmodel.mapping.problem import PartitionProblem


@dataclass(frozen=True)
class LatticeResult:
    """The best path of partitions. `assignment` is the partition of each kernel, None where nothing
    fits, `path` the arcs behind it.

    `potentials` are least seconds to every ideal, [layers, ideals]: one layer where the number of partitions does not
    bind, else one per number; with halves one array from the empty ideal and one from the forward one. They are the
    certificate: see `check_certificate`.
    """

    assignment: tuple[int, ...] | None
    path: tuple[int, ...]
    seconds: float
    ideals: Ideals
    columns: Columns
    potentials: tuple[np.ndarray, ...]
    wall_s: float


def solve_lattice(p: PartitionProblem, most_ideals: int = MOST_IDEALS) -> LatticeResult:
    """The optimum of `p` over all partitionings; a pinned kernel's partition is in its slot, others may stay empty.

    Raises LatticeTooLargeError where the block has too many ideals.
    """
    began = time.perf_counter()
    ideals = enumerate_ideals(p, most_ideals)
    columns = all_columns(p, ideals)
    slots = partitions_of(p)
    path, seconds, potentials = _best_path(p, ideals, columns, slots)
    assignment = None if path is None else path_assignment(p, ideals, columns, path)
    return LatticeResult(
        assignment, tuple(path or ()), seconds, ideals, columns, potentials, time.perf_counter() - began
    )


def _best_path(
    p: PartitionProblem, ideals: Ideals, columns: Columns, slots: int
) -> tuple[list[int] | None, float, tuple[np.ndarray, ...]]:
    """Arcs of the best path, its seconds, and the potentials that prove it."""
    last = len(ideals.sizes) - 1
    free, arcs = _least_free(ideals, columns, columns.seconds)
    if np.isfinite(free[last]) and not p.halves and not p.pinned:
        path = _trace(arcs, columns, last)
        if len(path) <= slots:
            return path, float(free[last]), (free[None, :],)
    if ideals.waist is None or not p.halves or p.pinned:
        layers, chosen = _layered(ideals, columns, slots, 0, _slot_masks(p, ideals, columns, slots))
        if not np.isfinite(layers[slots, last]):
            return None, np.inf, (layers,)
        return _trace_layers(layers, chosen, columns, slots, last), float(layers[slots, last]), (layers,)
    return _halved(ideals, columns, slots)


def _least_free(ideals: Ideals, columns: Columns, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least cost to every ideal with any number of partitions, and the arc that reaches it so."""
    count = len(ideals.sizes)
    least = np.full(count, np.inf)
    least[0] = 0.0
    arc = np.full(count, -1)
    starts = np.searchsorted(columns.after, np.arange(count + 1))
    for j in range(1, count):
        low, high = starts[j], starts[j + 1]
        if low < high:
            totals = least[columns.before[low:high]] + costs[low:high]
            best = int(np.argmin(totals))
            least[j], arc[j] = totals[best], low + best
    return least, arc


def shortest_ends(ideals: Ideals, columns: Columns, costs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least cost from the empty ideal to every ideal, and from every ideal to the full one, over any number of arcs."""
    ahead, _ = _least_free(ideals, columns, costs)
    count = len(ideals.sizes)
    behind = np.full(count, np.inf)
    behind[count - 1] = 0.0
    order = np.argsort(columns.before, kind="stable")
    before = columns.before[order]
    firsts = np.searchsorted(before, np.arange(count + 1))
    for i in range(count - 2, -1, -1):
        own = order[firsts[i] : firsts[i + 1]]
        if len(own):
            behind[i] = np.min(costs[own] + behind[columns.after[own]])
    return ahead, behind


def _slot_masks(p: PartitionProblem, ideals: Ideals, columns: Columns, slots: int) -> list[np.ndarray] | None:
    """Which arcs may be the partition of each slot: those holding no kernel pinned elsewhere, nor (with halves) one of
    the wrong phase; None where every arc may be any."""
    if not p.pinned:
        return None
    inside = ideals.members.astype(float)
    forward = inside @ np.array([float(phase == 0) for phase in p.phase])
    masks = []
    for slot in range(slots):
        elsewhere = [k for k, q in p.pinned if q != slot]
        barred = inside[:, elsewhere].sum(axis=1)
        if p.halves and not p.mixed_phases and len(set(p.phase)) > 1:
            if slot >= (slots + 1) // 2:
                barred = barred + forward
            elif slot < slots // 2:
                barred = barred + inside.sum(axis=1) - forward
        masks.append(barred[columns.after] - barred[columns.before] < 0.5)
    return masks


def _layered(
    ideals: Ideals, columns: Columns, layers: int, source: int, masks: list[np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """least[n, j]: least seconds from `source` to ideal j in the first n slots (some may be empty); and the arcs that
    reach it. `masks[n]` says which arcs slot n may hold."""
    count = len(ideals.sizes)
    least = np.full((layers + 1, count), np.inf)
    least[0, source] = 0.0
    chosen = np.full((layers + 1, count), -1)
    targets, starts = np.unique(columns.after, return_index=True)
    for n in range(1, layers + 1):
        least[n] = least[n - 1]
        if not len(targets):
            continue
        totals = least[n - 1][columns.before] + columns.seconds
        if masks is not None:
            totals = np.where(masks[n - 1], totals, np.inf)
        best = np.minimum.reduceat(totals, starts)
        better = best < least[n, targets]
        for t in np.nonzero(better)[0]:
            low = starts[t]
            high = starts[t + 1] if t + 1 < len(starts) else len(totals)
            chosen[n, targets[t]] = low + int(np.argmin(totals[low:high]))
        least[n, targets[better]] = best[better]
    return least, chosen


def _halved(ideals: Ideals, columns: Columns, slots: int) -> tuple[list[int] | None, float, tuple[np.ndarray, ...]]:
    """Forward kernels in the first half of the slots, backward ones in the second; an odd middle serves either."""
    waist, last = ideals.waist, len(ideals.sizes) - 1
    assert waist is not None
    half = (slots + 1) // 2
    to_waist, first_arcs = _layered(ideals, columns, half, 0)
    from_waist, second_arcs = _layered(ideals, columns, half, waist)
    splits = _splits(slots)
    totals = [(float(to_waist[f, waist] + from_waist[b, last]), f, b) for f, b in splits]
    seconds, f, b = min(totals)
    potentials = (to_waist, from_waist)
    if not np.isfinite(seconds):
        return None, np.inf, potentials
    first = _trace_layers(to_waist, first_arcs, columns, f, waist)
    return first + _trace_layers(from_waist, second_arcs, columns, b, last), seconds, potentials


def best_free_path(ideals: Ideals, columns: Columns, costs: np.ndarray | None = None) -> tuple[float, list[int]]:
    """Cost (seconds unless given) and arcs of the best path to the last ideal with any number of partitions; infinite
    where none fits."""
    least, arcs = _least_free(ideals, columns, columns.seconds if costs is None else costs)
    last = len(ideals.sizes) - 1
    return float(least[last]), _trace(arcs, columns, last) if np.isfinite(least[last]) else []


def _trace(arc: np.ndarray, columns: Columns, last: int) -> list[int]:
    path = []
    node = last
    while arc[node] >= 0:
        path.append(int(arc[node]))
        node = int(columns.before[arc[node]])
    return path[::-1]


def _trace_layers(least: np.ndarray, chosen: np.ndarray, columns: Columns, layers: int, last: int) -> list[int]:
    path = []
    node, n = last, layers
    while n > 0:
        if chosen[n, node] >= 0 and least[n, node] < least[n - 1, node]:
            path.append(int(chosen[n, node]))
            node = int(columns.before[chosen[n, node]])
        n -= 1
    return path[::-1]


def path_assignment(p: PartitionProblem, ideals: Ideals, columns: Columns, path: list[int]) -> tuple[int, ...]:
    """Partition numbers of the kernels; with halves the backward ones start at the second half."""
    found = np.zeros(len(p.kernels), dtype=int)
    slots = partitions_of(p)
    slot = 0
    wanted = dict(p.pinned)
    for arc in path:
        before, after = columns.before[arc], columns.after[arc]
        if p.halves and ideals.waist is not None and before == ideals.waist:
            slot = max(slot, slots // 2)
        held = ideals.members[after] & ~ideals.members[before]
        slot = max([slot, *[q for k, q in wanted.items() if held[k]]])
        found[held] = slot
        slot += 1
    return tuple(int(s) for s in found)


def _splits(slots: int) -> list[tuple[int, int]]:
    """(forward, backward) numbers of partitions that halves allow."""
    half = (slots + 1) // 2
    return [(f, min(half, slots - f)) for f in range(half + 1)]


def check_certificate(p: PartitionProblem, result: LatticeResult) -> None:
    """Raises MismatchError unless the potentials prove the optimum, arc by arc.

    Every arc must satisfy potential(after) <= potential(before) + seconds (from one layer to the next where there are
    several), so no path is shorter than the potential of the full ideal, and that must be the seconds claimed.
    """
    c = result.columns
    masks = _slot_masks(p, result.ideals, c, partitions_of(p))
    for layers in result.potentials:
        pairs = [(layers[0], layers[0])] if len(layers) == 1 else list(pairwise(layers))
        for slot, (before, after) in enumerate(pairs):
            reached = before[c.before] + c.seconds
            broken = after[c.after] > reached * (1 + 1e-12)
            if masks is not None:
                broken &= masks[slot]
            if broken.any():
                raise MismatchError(f"{int(broken.sum())} arcs of the lattice are shorter than their potentials allow")
    last = len(result.ideals.sizes) - 1
    if len(result.potentials) == 1:
        proven = float(result.potentials[0][-1, last])
    else:
        first, second = result.potentials
        proven = min(float(first[f, result.ideals.waist] + second[b, last]) for f, b in _splits(partitions_of(p)))
    if proven != result.seconds:
        raise MismatchError(f"the lattice claims {result.seconds} s, its potentials prove {proven} s")
