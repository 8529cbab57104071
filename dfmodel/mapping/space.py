"""The plans of a kernel-by-kernel chip as arrays: degrees on dimensions, and what is chosen besides.

A plan places tensor, data and pipeline degrees on every dimension of the topology, innermost first; their product may
be less than a dimension's size (chips stay idle). Plans with the same tensor placement, sequence sharding and
micro-batch share the mapping of their blocks: they are a class. Inside a class, plans of the same data and pipeline
degrees differ only in where those lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dfmodel.mapping.plan import (
    Plan,
    PlanRequest,
    micro_batches,
    recompute_choices,
    sequence_choices,
    zero_choices,
)
from dfmodel.systems.network import Dimension
from dfmodel.systems.system import System
from dfmodel.workloads.graph import Workload

#: Dimensions up to this size may be used in part by any number of chips; larger ones (and topologies of more than two
#: dimensions) by numbers that divide them.
LARGEST_FREE = 1024

#: Chunks per stage that interleaving is tried with.
MOST_CHUNKS = 8


@dataclass(frozen=True)
class PlanClass:
    """Plans with one mapping of their blocks."""

    tensor: tuple[int, ...]
    sequence: bool
    micro_batch: int

    @property
    def degree(self) -> int:
        return math.prod(self.tensor)


@dataclass(frozen=True)
class Rows:
    """Plans of a class, one row per data and pipeline degree and further choice. `places` is how many placements of the
    two degrees a row stands for, `gather_s_per_byte` what gathering or reducing over the data group takes at least on
    any of them; `recompute` indexes into the space's list."""

    data: np.ndarray
    pipeline: np.ndarray
    micro_batches: np.ndarray
    places: np.ndarray
    gather_s_per_byte: np.ndarray
    recompute: np.ndarray
    zero: np.ndarray
    chunks: np.ndarray

    def __len__(self) -> int:
        return len(self.data)

    @property
    def plans(self) -> int:
        return int(self.places.sum())


class PlanSpace:
    """Every plan a request leaves open, by class."""

    def __init__(self, workload: Workload, system: System, request: PlanRequest):
        self.workload, self.system, self.request = workload, system, request
        self._rows: dict[tuple[tuple[int, ...], int], Rows] = {}
        self.layers = workload.layers
        self.recomputes = recompute_choices(workload, request)
        sizes = [d.size for d in system.dimensions]
        self.free = len([s for s in sizes if s > 1]) <= 2 and max(sizes) <= LARGEST_FREE

    def classes(self) -> Iterator[PlanClass]:
        """Every class, tensor placements from the innermost dimension outwards."""
        choices = [self._factors_of(d, "tensor", 1) for d in self.system.dimensions]
        for tensor in itertools.product(*choices):
            degree = math.prod(tensor)
            if self.request.tensor not in (None, degree):
                continue
            if degree > 1 and self.request.tensor is None and not self._divides_heads(degree):
                continue
            for sequence in sequence_choices(self.workload, degree, self.request):
                for batch in micro_batches(self.workload, self.request):
                    yield PlanClass(tensor, sequence, batch)

    def _divides_heads(self, degree: int) -> bool:
        """Whether a tensor degree divides the attention heads, where the workload has them."""
        heads = self.workload.facts.get("heads")
        return not isinstance(heads, int) or heads % degree == 0

    def _factors_of(self, dimension: Dimension, degree: str, taken: int) -> list[int]:
        """Factors a degree may take of a dimension of which `taken` is gone to more inner degrees."""
        wanted = (self.request.placement or {}).get(degree, {}).get(dimension.name)
        room = dimension.size // taken
        possible = [f for f in range(1, room + 1) if self._allowed(dimension.size, taken * f)]
        return [f for f in possible if wanted is None or f == wanted]

    def _allowed(self, size: int, used: int) -> bool:
        return self.free or size % used == 0

    def placements(self, tensor: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Factors of data and pipeline on every dimension: two integer arrays [n, dimensions]."""
        wanted = self.request.placement or {}
        pinned = tuple(
            tuple(wanted.get(degree, {}).get(d.name) for d in self.system.dimensions) for degree in ("data", "pipeline")
        )
        sizes = tuple(d.size for d in self.system.dimensions)
        return _splits(sizes, tensor, self.free, self.request.use_all, pinned)

    def rows(self, c: PlanClass) -> Rows:
        """The plans of a class that divide the batch and have a layer for every stage; they do not depend on sequence
        sharding."""
        key = (c.tensor, c.micro_batch)
        if key not in self._rows:
            self._rows[key] = self._rows_of(c)
        return self._rows[key]

    def _rows_of(self, c: PlanClass) -> Rows:
        data, pipeline = self.placements(c.tensor)
        dp, pp = data.prod(axis=1), pipeline.prod(axis=1)
        keep = pp <= self.layers
        keep &= dp * c.micro_batch <= self.workload.batch
        if not self.request.batch_at_most:
            keep &= self.workload.batch % np.maximum(dp * c.micro_batch, 1) == 0
        for degree, values in (("data", dp), ("pipeline", pp)):
            wanted = getattr(self.request, degree)
            if wanted is not None:
                keep &= values == wanted
        if self.request.at_most_chips is not None:
            keep &= dp * pp * c.degree <= self.request.at_most_chips
        width = int(pp.max(initial=1)) + 1
        codes, which, places = np.unique(dp[keep] * width + pp[keep], return_inverse=True, return_counts=True)
        pairs = np.stack([codes // width, codes % width], axis=1)
        # only ZeRO 2 and 3 communicate with every micro-batch
        may = self._may_zero(2, pairs[:, 0], pairs[:, 1]) | self._may_zero(3, pairs[:, 0], pairs[:, 1])
        rates = np.full(len(pairs), np.inf)
        some = may[which.reshape(-1)]
        np.minimum.at(rates, which.reshape(-1)[some], self._data_rates(data[keep][some]))
        rates[~may] = 0.0
        return self._expanded(c, pairs[:, 0], pairs[:, 1], places, rates)

    def _data_rates(self, data: np.ndarray) -> np.ndarray:
        """Least seconds per byte of gathering over every data-parallel group, which reducing takes too: [n].

        The chips of a block of inner dimensions must get what the others hold, over the links of the outer ones.
        """
        chips = data.prod(axis=1)
        found = np.zeros(len(data))
        block = np.ones(len(data))
        for axis in range(data.shape[1]):
            outer = [d.injection_bytes_per_s for d in self.system.dimensions[axis:]]
            capacity = block * (np.where(data[:, axis:] > 1, np.array(outer), 0.0)).sum(axis=1)
            away = (chips - block) / chips
            found = np.maximum(found, np.divide(away, capacity, out=np.zeros(len(data)), where=capacity > 0))
            block = block * data[:, axis]
        return found

    def _expanded(self, c: PlanClass, dp: np.ndarray, pp: np.ndarray, places: np.ndarray, rates: np.ndarray) -> Rows:
        """Every pair of degrees under every recomputation, ZeRO stage and number of chunks it may have."""
        counts = self.workload.batch // np.maximum(dp * c.micro_batch, 1)
        parts: list[tuple[np.ndarray, ...]] = []
        for recompute in range(len(self.recomputes)):
            for zero in range(4):
                legal = self._may_zero(zero, dp, pp)
                for chunks in self._chunk_choices():
                    fits = legal & self._can_interleave(pp, counts, chunks)
                    n = int(fits.sum())
                    if n:
                        same = (np.full(n, recompute), np.full(n, zero), np.full(n, chunks))
                        parts.append((dp[fits], pp[fits], counts[fits], places[fits], rates[fits], *same))
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return Rows(*[empty] * 8)
        return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _may_zero(self, zero: int, dp: np.ndarray, pp: np.ndarray) -> np.ndarray:
        """Which pairs of degrees a ZeRO stage is tried with: what `zero_choices` says, for each kind of pair once."""
        found = np.zeros(len(dp), dtype=bool)
        for several, piped in itertools.product((False, True), repeat=2):
            kind = ((dp > 1) == several) & ((pp > 1) == piped)
            found |= kind & (zero in zero_choices(self.workload, 2 if several else 1, 2 if piped else 1, self.request))
        return found

    def _chunk_choices(self) -> list[int]:
        if self.request.chunks is not None or self.request.schedule is not None:
            return [self.request.chunks or 1]
        return list(range(1, MOST_CHUNKS + 1))

    def _can_interleave(self, pp: np.ndarray, counts: np.ndarray, chunks: int) -> np.ndarray:
        if chunks == 1:
            return np.ones(len(pp), dtype=bool)
        return np.asarray((pp > 1) & (self.layers % (pp * chunks) == 0) & (counts % pp == 0))

    def plans_of(self, c: PlanClass, rows: Rows, row: int) -> Iterator[Plan]:
        """The plans a row stands for: every placement of its data and pipeline degrees."""
        data, pipeline = self.placements(c.tensor)
        here = (data.prod(axis=1) == rows.data[row]) & (pipeline.prod(axis=1) == rows.pipeline[row])
        chunks = int(rows.chunks[row])
        schedule = "interleaved" if chunks > 1 else self.request.schedule or "1f1b"
        for i in np.nonzero(here)[0]:
            factors = (c.tensor, tuple(map(int, data[i])), tuple(map(int, pipeline[i])))
            yield Plan(
                self.system,
                factors,
                c.sequence,
                c.micro_batch,
                int(rows.micro_batches[row]),
                self.recomputes[int(rows.recompute[row])],
                schedule,
                chunks,
                int(rows.zero[row]),
            )


@lru_cache(maxsize=512)
def _splits(
    sizes: tuple[int, ...],
    tensor: tuple[int, ...],
    free: bool,
    use_all: bool,
    pinned: tuple[tuple[int | None, ...], ...],
) -> tuple[np.ndarray, np.ndarray]:
    """All (data, pipeline) factors per dimension whose product with `tensor` is at most the size (equal to it with
    `use_all`; dividing it unless `free`)."""
    per_dimension = []
    for axis, (size, taken) in enumerate(zip(sizes, tensor, strict=True)):
        room = size // taken
        pairs = [
            (d, p)
            for d in range(1, room + 1)
            for p in range(1, room // d + 1)
            if (free or size % (taken * d * p) == 0) and (not use_all or taken * d * p == size)
        ]
        for degree in (0, 1):
            wanted = pinned[degree][axis]
            pairs = [pair for pair in pairs if wanted is None or pair[degree] == wanted]
        per_dimension.append(np.array(pairs, dtype=np.int64).reshape(-1, 2))
    index = np.indices([len(p) for p in per_dimension]).reshape(len(sizes), -1)
    data = np.stack([p[i, 0] for p, i in zip(per_dimension, index, strict=True)], axis=1)
    pipeline = np.stack([p[i, 1] for p, i in zip(per_dimension, index, strict=True)], axis=1)
    return data, pipeline
