"""The plans of a chip's system as arrays: degrees on dimensions, and what is chosen besides.

A plan places tensor, context, data and pipeline degrees on every dimension of the topology, innermost first; their
product may be less than a dimension's size (chips stay idle). Plans with the same tensor and context placement,
sequence sharding and micro-batch share the mapping of their blocks: they are a class. Inside a class, plans of the same
data and pipeline degrees differ only in where those lie.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Self

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
from dfmodel.workloads.context_parallel import context_degrees
from dfmodel.workloads.graph import Workload

#: Dimensions up to this size may be used in part by any number of chips; larger ones (and topologies of more than two
#: dimensions) by numbers that divide them.
LARGEST_FREE = 1024

#: Kinds of dimensions whose links interleaving groups share.
SHARED = ("ring", "mesh")

#: Chunks per stage that interleaving is tried with.
MOST_CHUNKS = 8


@dataclass(frozen=True)
class PlanClass:
    """Plans with one mapping of their blocks."""

    tensor: tuple[int, ...]
    context: tuple[int, ...]
    sequence: bool
    micro_batch: int

    @property
    def degree(self) -> int:
        """Tensor degree."""
        return math.prod(self.tensor)

    @property
    def context_degree(self) -> int:
        return math.prod(self.context)

    @property
    def taken(self) -> tuple[int, ...]:
        """What is gone of every dimension to the degrees inside a block."""
        return tuple(t * c for t, c in zip(self.tensor, self.context, strict=True))


@dataclass(frozen=True)
class _Columns:
    """Arrays of one length, of which some places can be taken."""

    data: np.ndarray
    pipeline: np.ndarray
    micro_batches: np.ndarray
    places: np.ndarray

    def __len__(self) -> int:
        return len(self.data)

    def taken(self, index: np.ndarray) -> Self:
        return type(self)(*(getattr(self, f.name)[index] for f in fields(self)))


@dataclass(frozen=True)
class Pairs(_Columns):
    """Data and pipeline degrees of a class, with the micro-batches they leave, how many placements they have and the
    most chunks stages may have; `number` among the degrees whatever the micro-batch."""

    number: np.ndarray
    most_chunks: np.ndarray


@dataclass(frozen=True)
class Rows(_Columns):
    """Plans of a class, one row per data and pipeline degree and further choice. `places` is how many placements of the
    two degrees a row stands for, `replicas` the chips that hold the same weights, `gather_s_per_byte` what gathering or
    reducing over them takes at least on any of the placements; `recompute` indexes into the space's list."""

    gather_s_per_byte: np.ndarray
    replicas: np.ndarray
    recompute: np.ndarray
    zero: np.ndarray
    chunks: np.ndarray

    @property
    def plans(self) -> int:
        return int(self.places.sum())


@dataclass(frozen=True)
class Inner:
    """Placements of the degrees inside a block: integers [n, dimensions] each."""

    tensor: np.ndarray
    context: np.ndarray


class PlanSpace:
    """Every plan a request leaves open, by class."""

    def __init__(
        self, workload: Workload, system: System, request: PlanRequest, reachable: Sequence[float] | None = None
    ):
        """`reachable`: the most bytes per second of every dimension that collectives reach; all of its bandwidth."""
        self.workload, self.system, self.request = workload, system, request
        self.reachable = reachable or [d.injection_bytes_per_s for d in system.dimensions]
        self._divided: dict[tuple[tuple[int, ...], int], Pairs] = {}
        self._rates: dict[tuple[tuple[int, ...], tuple[int, ...]], np.ndarray] = {}
        self._pairs: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._sequences: dict[tuple[int, int], list[bool]] = {}
        self.layers = workload.layers
        self.recomputes = recompute_choices(workload, request)
        self.micro_batches = micro_batches(workload, request)
        sizes = [d.size for d in system.dimensions]
        self.free = len([s for s in sizes if s > 1]) <= 2 and max(sizes) <= LARGEST_FREE
        self.chips = min(system.chips, request.at_most_chips or system.chips)

    def inner(self) -> Inner:
        """Every placement of tensor and context degrees, tensor inside, from the innermost dimension outwards."""
        contexts = np.array(
            [c for c in context_degrees(self.workload, self.chips) if self.request.context in (None, c)]
        )
        per_dimension = [np.array(self._pairs_of(d), dtype=np.int64).reshape(-1, 2) for d in self.system.dimensions]
        tensor, context = _product(per_dimension)
        degrees, shared = tensor.prod(axis=1), context.prod(axis=1)
        keep = np.isin(shared, contexts) & (degrees * shared <= self.chips)
        if self.request.tensor is not None:
            keep &= degrees == self.request.tensor
        else:
            heads = self.workload.facts.get("heads")
            keep &= heads % degrees == 0 if isinstance(heads, int) else True
        return Inner(tensor[keep], context[keep])

    def _pairs_of(self, dimension: Dimension) -> list[tuple[int, int]]:
        """Factors tensor and context degrees may take of a dimension."""
        size, name = dimension.size, dimension.name
        wanted = [(self.request.placement or {}).get(degree, {}).get(name) for degree in ("tensor", "context")]
        longest = context_degrees(self.workload, size)[-1]
        return [
            (t, c)
            for t in range(1, size + 1)
            if self._allowed(size, t)
            for c in range(1, min(size // t, longest) + 1)
            if self._allowed(size, t * c) and all(w in (None, f) for w, f in zip(wanted, (t, c), strict=True))
        ]

    def _allowed(self, size: int, used: int) -> bool:
        return self.free or size % used == 0

    def sequences(self, tensor: int, context: int) -> list[bool]:
        """With and without sequence sharding, where the degrees leave the choice."""
        key = (tensor, context)
        if key not in self._sequences:
            self._sequences[key] = sequence_choices(self.workload, tensor, self.request, context)
        return self._sequences[key]

    def classes(self) -> Iterator[PlanClass]:
        """Every class."""
        inner = self.inner()
        for tensor, context in zip(inner.tensor.tolist(), inner.context.tolist(), strict=True):
            for sequence in self.sequences(math.prod(tensor), math.prod(context)):
                for batch in self.micro_batches:
                    yield PlanClass(tuple(tensor), tuple(context), sequence, batch)

    def placements(self, taken: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Factors of data and pipeline on every dimension of which `taken` is gone: two integers [n, dimensions]."""
        wanted = self.request.placement or {}
        pinned = tuple(
            tuple(wanted.get(degree, {}).get(d.name) for d in self.system.dimensions) for degree in ("data", "pipeline")
        )
        sizes = tuple(d.size for d in self.system.dimensions)
        return _splits(sizes, taken, self.free, self.request.use_all, pinned)

    def _pairs_on(self, taken: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Distinct data and pipeline degrees [n, 2] that the request allows whatever the micro-batch, how many
        placements each has, and which pair every placement is (-1: not allowed)."""
        if taken not in self._pairs:
            data, pipeline = self.placements(taken)
            dp, pp = data.prod(axis=1), pipeline.prod(axis=1)
            keep = (pp <= self.layers) & (dp * pp * math.prod(taken) <= self.chips) & (dp <= self.workload.batch)
            for degree, values in (("data", dp), ("pipeline", pp)):
                wanted = getattr(self.request, degree)
                if wanted is not None:
                    keep &= values == wanted
            width = int(pp.max(initial=1)) + 1
            codes, which, places = np.unique(dp[keep] * width + pp[keep], return_inverse=True, return_counts=True)
            numbers = np.full(len(dp), -1)
            numbers[keep] = which.reshape(-1)
            self._pairs[taken] = np.stack([codes // width, codes % width], axis=1), places, numbers
        return self._pairs[taken]

    def _divides(self, data: np.ndarray, micro_batch: int) -> np.ndarray:
        """Which data degrees take a whole number of micro-batches of the batch."""
        step = np.maximum(data * micro_batch, 1)
        fits = step <= self.workload.batch
        return fits if self.request.batch_at_most else fits & (self.workload.batch % step == 0)

    def plans_in(self, taken: tuple[int, ...], context: int) -> np.ndarray:
        """How many plans a class has that leaves so much of every dimension, by micro-batch: [micro-batches]."""
        pairs, places, _ = self._pairs_on(taken)
        dp, pp = pairs[:, 0], pairs[:, 1]
        zeros = sum(self._may_zero(zero, dp * context, pp).astype(np.int64) for zero in range(4))
        found = []
        for micro_batch in self.micro_batches:
            counts = self.workload.batch // np.maximum(dp * micro_batch, 1)
            chunks = sum(self._can_interleave(pp, counts, v).astype(np.int64) for v in self._chunk_choices())
            found.append(int((places * zeros * chunks)[self._divides(dp, micro_batch)].sum()))
        return np.array(found) * len(self.recomputes)

    def pairs(self, c: PlanClass) -> Pairs:
        """The data and pipeline degrees of a class that divide the batch and have a layer for every stage."""
        key = (c.taken, c.micro_batch)
        if key not in self._divided:
            pairs, places, _ = self._pairs_on(c.taken)
            number = np.nonzero(self._divides(pairs[:, 0], c.micro_batch))[0]
            data, pipeline = pairs[number, 0], pairs[number, 1]
            counts = self.workload.batch // np.maximum(data * c.micro_batch, 1)
            most = np.ones(len(number), dtype=np.int64)
            for chunks in self._chunk_choices():
                most[self._can_interleave(pipeline, counts, chunks)] = chunks
            self._divided[key] = Pairs(data, pipeline, counts, places[number], number, most)
        return self._divided[key]

    def rows(self, c: PlanClass, chosen: np.ndarray | None = None) -> Rows:
        """The plans of a class, of the `chosen` of its pairs of degrees or of all; they do not depend on sequence
        sharding."""
        pairs = self.pairs(c)
        own = pairs if chosen is None else pairs.taken(chosen)
        replicas = own.data * c.context_degree
        # only ZeRO 2 and 3 communicate with every micro-batch
        may = self._may_zero(2, replicas, own.pipeline) | self._may_zero(3, replicas, own.pipeline)
        rates = np.zeros(len(replicas))
        if may.any():
            rates = np.where(may, self._gather_rates(c)[own.number], 0.0)
        return self._expanded(own, replicas, rates)

    def gather_rates(self, factors: np.ndarray, strides: np.ndarray) -> np.ndarray:
        """`gather_rates` on the space's dimensions."""
        return gather_rates(factors, strides, self.system.dimensions, self.reachable)

    def least_gather_rates(self, chips: np.ndarray, tensor: Sequence[int]) -> np.ndarray:
        """Least of those of any groups of so many chips beside `tensor` ones of every dimension: [n]."""
        found = np.zeros(len(chips))
        outer, room = [], []
        for d, gone, bandwidth in zip(self.system.dimensions, tensor, self.reachable, strict=True):
            room.append(d.size // gone)
            own = bandwidth / (gone if d.kind in SHARED else 1)
            outer.append(own if room[-1] > 1 else 0.0)
        inside = 1
        for axis, most in enumerate(room):
            links = sum(outer[axis:])
            if links == 0:
                break
            # the larger the block of inner dimensions, the less comes from outside for each of its chips' links
            block = np.minimum(chips, inside)
            found = np.maximum(found, (chips - block) / (chips * block * links))
            inside *= most
        return found

    def _gather_rates(self, c: PlanClass) -> np.ndarray:
        """Least seconds per byte over the replicas of every pair on any of its placements: [pairs of `_pairs_on`]."""
        key = (c.taken, c.tensor)
        if key not in self._rates:
            pairs, _, numbers = self._pairs_on(c.taken)
            placed = numbers >= 0
            replicas = self.placements(c.taken)[0][placed] * np.array(c.context)
            strides = np.broadcast_to(np.array(c.tensor), replicas.shape)
            self._rates[key] = np.full(len(pairs), np.inf)
            np.minimum.at(self._rates[key], numbers[placed], self.gather_rates(replicas, strides))
        return self._rates[key]

    def _expanded(self, pairs: Pairs, replicas: np.ndarray, rates: np.ndarray) -> Rows:
        """Every pair of degrees under every recomputation, ZeRO stage and number of chunks it may have."""
        shared = (pairs.data, pairs.pipeline, pairs.micro_batches, pairs.places, rates, replicas)
        parts: list[tuple[np.ndarray, ...]] = []
        divided = [(v, self._can_interleave(pairs.pipeline, pairs.micro_batches, v)) for v in self._chunk_choices()]
        for zero in range(4):
            legal = self._may_zero(zero, replicas, pairs.pipeline)
            for chunks, can in divided if legal.any() else ():
                fits = np.nonzero(legal & can)[0]
                n = len(fits)
                if not n:
                    continue
                own = [x[fits] for x in shared]
                zeros, chunk = np.full(n, zero), np.full(n, chunks)
                parts += [(*own, np.full(n, recompute), zeros, chunk) for recompute in range(len(self.recomputes))]
        if not parts:
            empty = np.zeros(0, dtype=np.int64)
            return Rows(*[empty] * 9)
        return Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _may_zero(self, zero: int, replicas: np.ndarray, pp: np.ndarray) -> np.ndarray:
        """Which pairs of degrees a ZeRO stage is tried with: what `zero_choices` says, for each kind of pair once."""
        found = np.zeros(len(pp), dtype=bool)
        for several, piped in itertools.product((False, True), repeat=2):
            kind = ((replicas > 1) == several) & ((pp > 1) == piped)
            found |= kind & (zero in zero_choices(self.workload, 2 if several else 1, 2 if piped else 1, self.request))
        return found

    def _chunk_choices(self) -> list[int]:
        if self.request.chunks is not None or self.request.schedule is not None:
            return [self.request.chunks or 1]
        most = self.request.most_chunks or MOST_CHUNKS
        return [v for v in range(1, most + 1) if self.layers % v == 0]

    def _can_interleave(self, pp: np.ndarray, counts: np.ndarray, chunks: int) -> np.ndarray:
        if chunks == 1:
            return np.ones(len(pp), dtype=bool)
        return np.asarray((pp > 1) & (self.layers % (pp * chunks) == 0) & (counts % pp == 0))

    def plans_of(self, c: PlanClass, rows: Rows, row: int) -> Iterator[Plan]:
        """The plans a row stands for: every placement of its data and pipeline degrees."""
        data, pipeline = self.placements(c.taken)
        here = (data.prod(axis=1) == rows.data[row]) & (pipeline.prod(axis=1) == rows.pipeline[row])
        chunks = int(rows.chunks[row])
        schedule = "interleaved" if chunks > 1 else self.request.schedule or "1f1b"
        for i in np.nonzero(here)[0]:
            factors = (c.tensor, c.context, tuple(map(int, data[i])), tuple(map(int, pipeline[i])))
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


def gather_rates(
    factors: np.ndarray, strides: np.ndarray, dimensions: Sequence[Dimension], reachable: Sequence[float]
) -> np.ndarray:
    """Least seconds per byte of gathering over groups that take `factors` of every dimension, `strides` places apart,
    which reducing takes too: [n].

    The chips of a block of inner dimensions must get what the others hold, over the links of the outer ones.
    """
    chips = factors.prod(axis=1)
    links = _links(factors, strides, dimensions, reachable)
    found = np.zeros(len(factors))
    block = np.ones(len(factors))
    for axis in range(factors.shape[1]):
        capacity = block * links[:, axis:].sum(axis=1)
        away = (chips - block) / chips
        found = np.maximum(found, np.divide(away, capacity, out=np.zeros(len(factors)), where=capacity > 0))
        block = block * factors[:, axis]
    return found


def _links(
    factors: np.ndarray, strides: np.ndarray, dimensions: Sequence[Dimension], reachable: Sequence[float]
) -> np.ndarray:
    """Bytes per second into the worst placed chip of a group from the others, on every dimension: [n, dimensions].

    Rings and meshes share their links among groups that interleave, and the end of a piece has neighbours on one side
    only; see Part.bytes_per_s.
    """
    found = np.zeros(factors.shape)
    for axis, (d, bandwidth) in enumerate(zip(dimensions, reachable, strict=True)):
        size, own = factors[:, axis], np.full(len(factors), bandwidth)
        if d.kind in SHARED:
            ring = (size * strides[:, axis] == d.size) & (d.kind == "ring")
            own = own / strides[:, axis] / np.where(ring | (d.size == 2), 1, 2)
        elif d.kind == "fully_connected":
            own = own * (size - 1) / d.neighbours
        found[:, axis] = np.where(size > 1, own, 0.0)
    return found


def _product(per_dimension: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Every combination of one pair per dimension: firsts and seconds, integers [n, dimensions] each."""
    index = np.indices([len(p) for p in per_dimension]).reshape(len(per_dimension), -1)
    first = np.stack([p[i, 0] for p, i in zip(per_dimension, index, strict=True)], axis=1)
    second = np.stack([p[i, 1] for p, i in zip(per_dimension, index, strict=True)], axis=1)
    return first, second


@lru_cache(maxsize=512)
def _splits(
    sizes: tuple[int, ...],
    taken: tuple[int, ...],
    free: bool,
    use_all: bool,
    pinned: tuple[tuple[int | None, ...], ...],
) -> tuple[np.ndarray, np.ndarray]:
    """All (data, pipeline) factors per dimension whose product with `taken` is at most the size (equal to it with
    `use_all`; dividing it unless `free`)."""
    per_dimension = []
    for axis, (size, gone) in enumerate(zip(sizes, taken, strict=True)):
        room = size // gone
        pairs = [
            (d, p)
            for d in range(1, room + 1)
            for p in range(1, room // d + 1)
            if (free or size % (gone * d * p) == 0) and (not use_all or gone * d * p == size)
        ]
        for degree in (0, 1):
            wanted = pinned[degree][axis]
            pairs = [pair for pair in pairs if wanted is None or pair[degree] == wanted]
        per_dimension.append(np.array(pairs, dtype=np.int64).reshape(-1, 2))
    return _product(per_dimension)
