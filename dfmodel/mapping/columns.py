"""Costs of every partition at once: a partition is a pair of ideals (before, after).

Each figure of a partition is a sum over kernels or tensors of (something of the ideal before) times (something of the
ideal after), so all of them are a few matrix products. Arrays are [before, after]; pairs that are not a partition, or
do not fit SRAM, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dfmodel.mapping.allocation import Allocation, tiles_needed
from dfmodel.mapping.ideals import Ideals
from dfmodel.mapping.problem import PartitionProblem, TensorUse, TotalLimit

#: Pairs handled at a time: bounds the memory of the products.
BLOCK_PAIRS = 4_000_000

#: Rounding of the products must not make a partition that exactly fills SRAM infeasible.
SRAM_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Columns:
    """Feasible partitions as arcs from ideal `before` to ideal `after`, sorted by `after`, with their seconds."""

    before: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    traffic_bytes: np.ndarray
    candidates: int


def totals_of(columns: Columns, limit: TotalLimit) -> np.ndarray:
    """What every column adds to a limited total."""
    return limit.per_s * columns.seconds + limit.per_byte * columns.traffic_bytes


@dataclass
class _Terms:
    """sum of left[i] * right[j] over columns, plus per-ideal parts: total(i, j) = left @ right.T + a[j] - b[i]."""

    left: list[np.ndarray]
    right: list[np.ndarray]

    def add(self, left: np.ndarray, right: np.ndarray) -> None:
        self.left.append(left)
        self.right.append(right)

    def matrices(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if not self.left:
            return np.zeros((count, 1)), np.zeros((count, 1))
        return np.stack(self.left, axis=1), np.stack(self.right, axis=1)


def all_columns(p: PartitionProblem, ideals: Ideals) -> Columns:
    """Every feasible partition of `p` with what it costs."""
    parts = list(column_blocks(p, ideals))
    order = np.argsort(np.concatenate([part.after for part in parts]), kind="stable")

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    return Columns(
        joined("before"),
        joined("after"),
        joined("seconds"),
        joined("traffic_bytes"),
        sum(part.candidates for part in parts),
    )


class ColumnMaker:
    """What every column of a lattice is computed from: sums and products over its ideals."""

    def __init__(self, p: PartitionProblem, ideals: Ideals):
        self.p, self.ideals = p, ideals
        self.inside = inside = ideals.members.astype(float)
        self.traffic, self.sram = _traffic(p, ideals.members), _sram(p, ideals.members)
        self.sums = {
            "compute": inside @ np.array(p.compute_s),
            "network": inside @ np.array(p.network_s),
            "fixed": inside @ np.array(p.memory_bytes),
            "weights": inside @ np.array(p.weight_bytes),
            "large": inside @ np.array([float(n > 1) for n in p.passes]),
        }
        for n in sorted(set(p.runs)) if len(set(p.runs)) > 1 else ():
            self.sums[f"runs {n}"] = inside @ np.array([float(r == n) for r in p.runs])

    def starting_at(self, rows: np.ndarray) -> Columns:
        """The columns whose ideal before is one of `rows` (consecutive or not)."""
        return Columns(*_block(self.p, self.ideals, rows, self.inside, self.traffic, self.sram, self.sums))


def column_blocks(p: PartitionProblem, ideals: Ideals) -> Iterator[Columns]:
    """The columns block by block, by ideal before."""
    maker = ColumnMaker(p, ideals)
    count = len(ideals.sizes)
    most = max(1, BLOCK_PAIRS // max(1, count))
    for start in range(0, count, most):
        yield maker.starting_at(np.arange(start, min(start + most, count)))


def _block(
    p: PartitionProblem,
    ideals: Ideals,
    rows: np.ndarray,
    inside: np.ndarray,
    traffic: tuple[np.ndarray, np.ndarray],
    sram: tuple[np.ndarray, np.ndarray],
    sums: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The columns whose ideal before is in `rows`."""
    first = int(np.searchsorted(ideals.sizes, ideals.sizes[rows[0]], side="right"))
    sizes = ideals.sizes[first:]
    subset = inside[rows] @ (1.0 - inside[first:]).T < 0.5
    subset &= ideals.sizes[rows, None] < sizes[None, :]
    if ideals.waist is not None:
        waist = ideals.sizes[ideals.waist]
        subset &= ~((ideals.sizes[rows, None] < waist) & (sizes[None, :] > waist))
    if max(p.passes) == 1:
        weights = sums["weights"]
        subset &= weights[first:][None, :] - weights[rows, None] <= p.sram_bytes * (1 + SRAM_TOLERANCE)
    i, j = np.nonzero(subset)
    candidates = len(i)
    i, j = rows[i], j + first
    single = ideals.sizes[j] - ideals.sizes[i] == 1
    large = sums["large"][j] - sums["large"][i] > 0.5
    keep = single | ~large
    counts = [sums[name][j] - sums[name][i] > 0.5 for name in sums if name.startswith("runs ")]
    if counts:
        keep &= np.sum(counts, axis=0) < 2
    i, j, single, large = i[keep], j[keep], single[keep], large[keep]
    held = _pairs(sram, i, j) + sums["weights"][j] - sums["weights"][i]
    alone = single & large
    if alone.any():
        kernel = np.argmax(ideals.members[j[alone]] & ~ideals.members[i[alone]], axis=1)
        held[alone] /= np.array(p.passes, dtype=float)[kernel]
    fits = held <= p.sram_bytes * (1 + SRAM_TOLERANCE)
    i, j = i[fits], j[fits]
    moved = _pairs(traffic, i, j) + sums["fixed"][j] - sums["fixed"][i]
    if p.allocation is not None:
        compute, enough = _allocated(p.allocation, inside, i, j)
        i, j, moved, compute = i[enough], j[enough], moved[enough], compute[enough]
    else:
        compute = sums["compute"][j] - sums["compute"][i]
    network = sums["network"][j] - sums["network"][i]
    return i, j, _combined(p, compute, moved / p.memory_bytes_per_s, network), moved, candidates


def _allocated(
    allocation: Allocation, inside: np.ndarray, i: np.ndarray, j: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute seconds of each column under its best sharing of tiles, and which columns have tiles enough.

    Tiles needed at a speed are sums over kernels, so all columns bisect over the distinct cycle counts at once.
    """
    values, needed = tiles_needed(allocation.staircases, allocation.tiles)
    table = (inside @ needed.T).T
    low = np.zeros(len(i), dtype=int)
    high = np.full(len(i), len(values))
    while True:
        open_ = low < high
        if not open_.any():
            break
        middle = (low + high) // 2
        at = np.minimum(middle, len(values) - 1)
        fits = table[at, j] - table[at, i] <= allocation.tiles + 0.5
        high = np.where(open_ & fits, middle, high)
        low = np.where(open_ & ~fits, middle + 1, low)
    enough = low < len(values)
    seconds = values[np.minimum(low, len(values) - 1)] * allocation.seconds_per_cycle
    return seconds, enough


def _combined(p: PartitionProblem, compute: np.ndarray, memory: np.ndarray, network: np.ndarray) -> np.ndarray:
    if p.overlap == "none":
        seconds = compute + memory + network
    elif p.overlap == "compute_memory":
        seconds = np.maximum(compute, memory) + network
    else:
        seconds = np.maximum(np.maximum(compute, memory), network)
    return seconds + p.reconfiguration_s


def _pairs(terms: tuple[np.ndarray, np.ndarray], i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """sum over columns of left[i] * right[j], for pairs; by a full product where that is cheaper."""
    left, right = terms
    if not len(i):
        return np.zeros(0)
    rows, at = np.unique(i, return_inverse=True)
    low, high = int(j.min()), int(j.max()) + 1
    product = left[rows] @ right[low:high].T
    return np.asarray(product[at, j - low])


def _traffic(p: PartitionProblem, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes through memory of (before, after), the kernels' own fixed traffic left out."""
    terms = _Terms([], [])
    for t in p.tensors:
        if p.traffic_per == "edge":
            _edge_terms(terms, t, members, t.written_bytes, t.written_bytes, t.bytes)
        else:
            leaving = _leaves(t, members)
            if t.producer is not None and t.written_bytes:
                terms.add(1.0 - members[:, t.producer], t.written_bytes * (members[:, t.producer] & leaving))
            if t.bytes:
                _read_terms(terms, t, members, t.bytes)
    return terms.matrices(len(members))


def _sram(p: PartitionProblem, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """SRAM bytes of the tile buffers of (before, after)."""
    terms = _Terms([], [])
    for t in p.tensors:
        if t.tile_bytes == 0:
            continue
        border = p.boundary_buffers * t.tile_bytes
        if p.traffic_per == "edge":
            _edge_terms(terms, t, members, border, border, border, t.tile_bytes)
            continue
        if t.producer is not None:
            deepest = np.max(
                [d * members[:, c] for c, d in zip(t.consumers, t.depths, strict=True)] or [np.zeros(len(members))],
                axis=0,
            )
            buffers = np.maximum(deepest, p.boundary_buffers * _leaves(t, members))
            terms.add(1.0 - members[:, t.producer], t.tile_bytes * members[:, t.producer] * buffers)
        _read_terms(terms, t, members, border)
    return terms.matrices(len(members))


def _leaves(t: TensorUse, members: np.ndarray) -> np.ndarray:
    """Whether a tensor made before the ideal ends is needed after it, or leaves the block."""
    if t.leaves:
        return np.ones(len(members), dtype=bool)
    return ~np.all(members[:, list(t.consumers)], axis=1) if t.consumers else np.zeros(len(members), dtype=bool)


def _read_terms(terms: _Terms, t: TensorUse, members: np.ndarray, amount: float) -> None:
    """`amount` where the tensor was made before and a consumer is in the partition.

    Some consumer is in (before, after) unless both ideals hold equally many of them, so the indicator is
    1 - sum over n of [n held before] [n held after].
    """
    if not t.consumers:
        return
    made = np.ones(len(members)) if t.producer is None else members[:, t.producer].astype(float)
    held = members[:, list(t.consumers)].sum(axis=1)
    terms.add(amount * made, np.ones(len(members)))
    for n in range(len(t.consumers) + 1):
        terms.add(-amount * made * (held == n), (held == n).astype(float))


def _edge_terms(
    terms: _Terms,
    t: TensorUse,
    members: np.ndarray,
    outgoing: float,
    leaving: float,
    incoming: float,
    inside_tile: float = 0.0,
) -> None:
    """Per consumer: `outgoing` where it is after the partition that makes the tensor, depth * `inside_tile` where it is
    in it, `incoming` where the tensor was made before; `leaving` once where the tensor leaves the block.
    """
    made = None if t.producer is None else members[:, t.producer].astype(float)
    for c, depth in zip(t.consumers, t.depths, strict=True):
        consumed = members[:, c].astype(float)
        if made is not None:
            terms.add(1.0 - made, made * (outgoing * (1.0 - consumed) + inside_tile * depth * consumed))
        before = np.ones(len(members)) if made is None else made
        terms.add(before * (1.0 - consumed) * incoming, consumed)
    if t.leaves and made is not None:
        terms.add(1.0 - made, leaving * made)
