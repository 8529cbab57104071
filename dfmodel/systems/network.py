"""Networks: links, dimensions, and the groups of chips that the degrees of a plan span in them.

A topology is a product of dimensions, innermost first. A degree takes a factor of each dimension; what more
inner degrees take of the same dimension is its stride there. A `Group` holds those factors, and its parts say
what links the group really has: the rest of a dimension is used by the other groups of the same degree, which
run the same collective at the same time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np

from dfmodel.errors import InputError, UnknownNameError

DimensionKind = Literal["ring", "mesh", "switch", "fully_connected", "fat_tree"]
Collective = Literal[
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce", "point_to_point"
]

#: What the members of a group see of a dimension. ring: a closed ring; line: a path; switch: any pair,
#: limited by what a chip injects; tree: a switch with less bandwidth between pods; full: a link per pair.
Shape = Literal["ring", "line", "switch", "tree", "full"]

#: Kinds whose links all go to switches.
SWITCHED: tuple[DimensionKind, ...] = ("switch", "fat_tree")

#: Most placements that `factorizations` lists (they are held in memory at once).
MOST_PLACEMENTS = 20_000_000

#: Larger dimensions are taken for a slip, and products of dimensions must stay inside 64-bit integers.
LARGEST_DIMENSION = 10_000_000


@dataclass(frozen=True)
class Achieved:
    """What collectives reach of a link where it joins chips as one of `kinds`, in `operations`, by `algorithms`
    (empty: all): a phase that would take x seconds for m bytes takes (x / efficiency)(1 + sqrt(ramp / m)), and one
    start of the software comes on top of the whole collective. `inherited` says that another link was measured.
    """

    efficiency: float
    ramp_bytes: float = 0.0
    start_s: float = 0.0
    kinds: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    inherited: bool = False

    def covers(self, kind: str, operation: str, algorithm: str) -> bool:
        pairs = ((self.kinds, kind), (self.operations, operation), (self.algorithms, algorithm))
        return all(not chosen or value in chosen for chosen, value in pairs)


@dataclass(frozen=True)
class Link:
    """One link. `bytes_per_s` is per link and direction; prices and powers are per byte/s of it, None where unstated;
    `assumed` says which of its values no source states.

    `latency_s` is that of one hop: chip to chip over the link, or chip to chip through a switch. Of `achieved` the
    first that covers a phase holds for it; where none does, the efficiency that the user of the link assumes.
    """

    name: str
    bytes_per_s: float
    latency_s: float = 0.0
    usd_per_byte_per_s: float | None = None
    w_per_byte_per_s: float | None = None
    switch_usd_per_byte_per_s: float | None = None
    switch_w_per_byte_per_s: float | None = None
    j_per_byte: float | None = None
    achieved: tuple[Achieved, ...] = ()
    assumed: tuple[str, ...] = ()

    def achieved_in(self, kind: str, operation: str, algorithm: str) -> Achieved | None:
        """What is known of this link in such a phase."""
        return next((a for a in self.achieved if a.covers(kind, operation, algorithm)), None)

    def __post_init__(self) -> None:
        problems = []
        if not self.bytes_per_s > 0:
            problems.append(
                f"link {self.name}: bandwidth: {self.bytes_per_s} B/s per link and direction; must be above 0"
            )
        if not 0 <= self.latency_s < math.inf:
            problems.append(f"link {self.name}: latency: {self.latency_s} s; must be 0 or more")
        if problems:
            raise InputError(problems)


@dataclass(frozen=True)
class Dimension:
    """One factor of a topology: `size` chips (or groups of inner ones) joined as `kind` by `link`s.

    `links_per_chip` is how many links a chip has in this dimension (None: what the kind implies: ring and
    torus 2, mesh 2 inside, fully connected size - 1, switch 1), divided evenly over its neighbours; injection
    per chip and direction is `links_per_chip * link.bytes_per_s`. `oversubscription` divides what leaves a
    pod of `pod_size` consecutive positions of a fat tree; without a pod size, or in a blocking switch, it
    divides all that a chip injects.

    Raises InputError for sizes below 1, fewer links than neighbours, oversubscription below 1, and options
    that the kind does not have.
    """

    name: str
    kind: DimensionKind
    size: int
    link: Link
    links_per_chip: int | None = None
    oversubscription: float = 1.0
    in_network_reduction: bool = False
    pod_size: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(DimensionKind):
            raise UnknownNameError("kind of dimension", self.kind, get_args(DimensionKind), f"dimension {self.name}")
        problems = [f"dimension {self.name}: {p}" for p in self._problems()]
        if problems:
            raise InputError(problems)

    def _problems(self) -> list[str]:
        found = []
        if self.size < 1:
            return [f"size: {self.size}; must be 1 or more"]
        if self.size > LARGEST_DIMENSION:
            return [f"size: {self.size}; must be at most {LARGEST_DIMENSION:,}"]
        if self.links_per_chip is not None and self.size > 1 and self.links_per_chip < self._fewest_links:
            found.append(
                f"links_per_chip: {self.links_per_chip}; a {self.kind} of {self.size} needs "
                f"{self._fewest_links} or more, one per neighbour"
            )
        if not self.oversubscription >= 1:
            found.append(f"oversubscription: {self.oversubscription}; must be 1 or more")
        if self.pod_size is not None and self.pod_size < 1:
            found.append(f"pod_size: {self.pod_size}; must be 1 or more")
        if self.pod_size is not None and self.kind != "fat_tree":
            found.append(f"pod_size: a {self.kind} has no pods; only a fat_tree has")
        if self.oversubscription != 1 and self.kind not in SWITCHED:
            found.append(f"oversubscription: a {self.kind} has no switch; only switch and fat_tree take it")
        if self.in_network_reduction and self.kind not in SWITCHED:
            found.append(f"in_network_reduction: a {self.kind} has no switch; remove it")
        return found

    @property
    def _fewest_links(self) -> int:
        return self.neighbours if self.size > 2 else 1

    @property
    def neighbours(self) -> int:
        """Places that a chip's links go to, the switch of a switched dimension being one."""
        if self.size == 1:
            return 0
        return {"ring": 2, "mesh": min(2, self.size - 1), "fully_connected": self.size - 1}.get(self.kind, 1)

    @property
    def links(self) -> int:
        """Links of a chip in this dimension."""
        return self.neighbours if self.links_per_chip is None else self.links_per_chip

    @property
    def injection_bytes_per_s(self) -> float:
        """What a chip can send into this dimension (inside a mesh; its ends have half)."""
        return self.links * self.link.bytes_per_s


@dataclass(frozen=True)
class Part:
    """`size` members of a dimension, `stride` positions apart.

    Raises InputError where size or stride is below 1, or size * stride exceeds the dimension.
    """

    dimension: Dimension
    size: int
    stride: int = 1

    def __post_init__(self) -> None:
        name, most = self.dimension.name, self.dimension.size
        problems = [
            f"dimension {name}: {what} of a group: {value}; must be 1 or more"
            for what, value in (("size", self.size), ("stride", self.stride))
            if value < 1
        ]
        if not problems and self.size * self.stride > most:
            inner = f" (times {self.stride} of more inner degrees)" if self.stride > 1 else ""
            problems.append(
                f"dimension {name}: a group of {self.size}{inner} is larger than the dimension; "
                f"at most {most // self.stride}"
            )
        if problems:
            raise InputError(problems)

    @property
    def shape(self) -> Shape:
        """A ring only where the group reaches round the whole of it; a piece of a ring is a line."""
        kind = self.dimension.kind
        if kind == "fully_connected":
            return "full"
        if kind in SWITCHED:
            return "tree" if self.oversubscription > 1 and self.members_per_pod > 1 else "switch"
        # Two chips joined by a single cable have one path, not two.
        whole = self.size * self.stride == self.dimension.size
        return "ring" if kind == "ring" and whole and self.dimension.links > 1 else "line"

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth the group has, per direction: ring and line, to one neighbour; full, to one member;
        switch and tree, into the switch per chip.

        A link of a ring or mesh is shared by the `stride` interleaved groups that cross it.
        """
        d = self.dimension
        if d.kind in SWITCHED:
            blocked = self.shape == "switch" and self.oversubscription > 1
            return d.injection_bytes_per_s / (self.oversubscription if blocked else 1.0)
        if d.kind == "fully_connected":
            return d.injection_bytes_per_s / d.neighbours
        single_path = d.size == 2 and self.shape == "line"
        return d.injection_bytes_per_s / (1 if single_path else 2) / self.stride

    @property
    def step_s(self) -> float:
        """Latency to the next member: `stride` hops in a ring or mesh, one elsewhere."""
        hops = self.stride if self.dimension.kind in ("ring", "mesh") else 1
        return hops * self.dimension.link.latency_s

    @property
    def members_per_pod(self) -> int:
        """Members in a pod of a fat tree; the whole group if it never leaves one.

        Groups start at multiples of size * stride (or at an offset below the stride), so a group whose extent
        and the pod do not divide each other straddles pods somewhere. It is charged as the worst such group:
        with runs as short as the greatest common divisor allows.
        """
        run = math.gcd(self.dimension.pod_size or 1, self.size * self.stride)
        return run // self.stride if run % self.stride == 0 else 1

    @property
    def oversubscription(self) -> float:
        """The dimension's, or 1 for a group inside a pod."""
        return 1.0 if self.members_per_pod == self.size else self.dimension.oversubscription


@dataclass(frozen=True)
class Group:
    """The chips one instance of a degree spans: a part of each dimension, innermost first.

    Parts of size 1 are dropped, so equal groups compare equal. Raises InputError where two parts are of one
    dimension.
    """

    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(p for p in self.parts if p.size > 1))
        names = [p.dimension.name for p in self.parts]
        if len(set(names)) < len(names):
            raise InputError(f"group: dimension named twice in {', '.join(names)}; give each part its own dimension")

    @cached_property
    def size(self) -> int:
        return math.prod(p.size for p in self.parts)

    @cached_property
    def _hash(self) -> int:
        return hash(self.parts)

    def __hash__(self) -> int:
        """Groups are keys of prices: every figure of their links is hashed once, not with every look-up."""
        return self._hash

    def __str__(self) -> str:
        shown = [
            f"{p.size} of {p.dimension.name}" + (f" (stride {p.stride})" if p.stride > 1 else "") for p in self.parts
        ]
        return " x ".join(shown) or "one chip"


def place(degrees: Sequence[tuple[str, Sequence[int]]], dimensions: Sequence[Dimension]) -> dict[str, Group]:
    """Group of each degree, given (name, factor per dimension) from the innermost degree outwards.

    Factors of a dimension may multiply to less than its size (chips stay idle), never to more. Raises
    InputError with every problem found.
    """
    problems = [
        f"degree {name}: {len(factors)} factors for {len(dimensions)} dimensions; give one per dimension"
        for name, factors in degrees
        if len(factors) != len(dimensions)
    ]
    names = [name for name, _ in degrees]
    problems += [f"degree {n}: placed twice" for n in dict.fromkeys(names) if names.count(n) > 1]
    groups = {}
    strides = [1] * len(dimensions)
    for name, factors in degrees if not problems else ():
        parts = []
        for dimension, factor, stride in zip(dimensions, factors, strides, strict=True):
            try:
                parts.append(Part(dimension, int(factor), stride))
            except InputError as error:
                problems += [f"degree {name}: {p}" for p in error.problems]
        if problems:
            break
        groups[name] = Group(tuple(parts))
        strides = [s * int(f) for s, f in zip(strides, factors, strict=True)]
    if problems:
        raise InputError(problems)
    return groups


def innermost(chips: int, dimensions: Sequence[Dimension]) -> Group:
    """A group of so many chips as far inside as they go: on each dimension the largest factor it can take."""
    parts = []
    for dimension in dimensions:
        factor = math.gcd(chips, dimension.size) if chips > dimension.size or dimension.size % chips else chips
        parts.append(Part(dimension, factor))
        chips //= factor
    return Group(tuple(parts))


def factorizations(dimensions: Sequence[Dimension], names: Sequence[str]) -> np.ndarray:
    """Every way to split each dimension into ordered factors, one per degree.

    Integers [n, degrees, dimensions], degrees from the innermost outwards; the product over degrees is the
    dimension's size. A size with prime powers p^e has prod C(e + degrees - 1, degrees - 1) ways. Raises
    InputError above MOST_PLACEMENTS rows.
    """
    if not names:
        raise InputError("placements: no degrees to place; name one or more")
    exponents = [e for d in dimensions for _, e in _prime_powers(d.size)]
    rows = math.prod(math.comb(e + len(names) - 1, len(names) - 1) for e in exponents)
    if rows > MOST_PLACEMENTS:
        raise InputError(
            f"placements: {rows:,} of {len(names)} degrees ({', '.join(names)}) on "
            f"{' x '.join(str(d.size) for d in dimensions)} chips; at most {MOST_PLACEMENTS:,}: "
            "fix some degrees, or place fewer"
        )
    out = np.empty((rows, len(names), len(dimensions)), dtype=np.int64)
    repeats = rows
    for axis, dimension in enumerate(dimensions):
        table = _ordered_factors(dimension.size, len(names))
        repeats //= len(table)
        column = np.repeat(table, repeats, axis=0)
        out[:, :, axis] = np.tile(column, (rows // len(column), 1))
    return out


def distinct_groups(
    factors: np.ndarray, degree: int, dimensions: Sequence[Dimension]
) -> tuple[list[Group], np.ndarray]:
    """Groups of one degree over many placements: the distinct ones, and for each row which it is.

    `factors` is [n, degrees, dimensions] as from `factorizations`, degrees from the innermost outwards.
    A cost per group, indexed by the second result [n], is a cost per placement.
    """
    sizes = factors[:, degree, :]
    strides = np.where(sizes == 1, 1, factors[:, :degree, :].prod(axis=1))
    index = np.zeros(len(factors), dtype=np.int64)
    first = np.zeros(min(1, len(factors)), dtype=np.int64)
    for axis, dimension in enumerate(dimensions):
        code = sizes[:, axis] * (dimension.size + 1) + strides[:, axis]
        _, of_axis = np.unique(code, return_inverse=True)
        width = int(of_axis.max(initial=0)) + 1
        _, first, index = np.unique(index * width + of_axis, return_index=True, return_inverse=True)
    groups = []
    for row in first:
        taken = zip(dimensions, sizes[row], strides[row], strict=True)
        groups.append(Group(tuple(Part(d, int(s), int(t)) for d, s, t in taken)))
    return groups, index


@lru_cache(maxsize=4096)
def _ordered_factors(size: int, count: int) -> np.ndarray:
    """All tuples of `count` factors whose product is `size`: integers [n, count], read-only."""
    table = np.ones((1, count), dtype=np.int64)
    for prime, exponent in _prime_powers(size):
        powers = prime ** _compositions(exponent, count)
        table = (table[:, None, :] * powers[None, :, :]).reshape(-1, count)
    table.flags.writeable = False
    return table


def _compositions(total: int, count: int) -> np.ndarray:
    """All tuples of `count` integers >= 0 that sum to `total` (stars and bars)."""
    bars = list(itertools.combinations(range(total + count - 1), count - 1))
    edges = np.array([(-1, *b, total + count - 1) for b in bars], dtype=np.int64)
    return np.diff(edges, axis=1) - 1


def _prime_powers(number: int) -> list[tuple[int, int]]:
    found = []
    prime = 2
    while number > 1:
        if prime * prime > number:
            prime = number
        exponent = 0
        while number % prime == 0:
            number //= prime
            exponent += 1
        if exponent:
            found.append((prime, exponent))
        prime += 1
    return found
