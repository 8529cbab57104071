"""Collective algorithms on one fabric: the latency and the seconds per byte of each.

n members; where links achieve all of their bandwidth a message of m bytes (dfmodel.systems.collectives says what
m is) takes `steps * step_s + load * m / bytes_per_s`, where `steps` is the hops on the longest chain of messages and
`load` the bytes of m that the busiest link carries, summed over rounds that wait for each other. The tables
below list (steps, load); tests/test_collectives.py derives each from a message-level simulation.

Sources: Thakur et al., IJHPCA 2005 (ring, recursive doubling, halving-doubling, binomial, pairwise, scatter
and all-gather); Bruck et al., IEEE TPDS 1997 (all-gather and all-to-all in ceil(log2 n) rounds for any n);
Bar-Noy, Kipnis, Schieber, Parallel Processing Letters 1993 (recursive doubling for any n); Sanders, Speck,
Traeff, Parallel Computing 2009 (two trees); Patarasuk, Yuan, JPDC 2009 (ring bandwidth).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, get_args

import numpy as np

from dfmodel.systems.network import Achieved, Collective, Dimension, Link, Part

#: What each algorithm does; the names a user may give.
ALGORITHMS: Mapping[str, str] = {
    "ring": "one ring, one direction, n - 1 rounds per pass",
    "bidirectional_ring": "two opposite rings, half of the message each",
    "line": "two opposite pipelines along a path",
    "one_shot": "every member gets every whole vector and reduces by itself",
    "recursive_doubling": "whole vectors in ceil(log2 n) rounds of doubling distance",
    "halving_doubling": "reduce-scatter and all-gather in ceil(log2 n) rounds each",
    "double_binary_tree": "reduce and broadcast over two complementary trees, half of the message each",
    "direct": "every pair exchanges by the shortest path",
    "bruck": "all-to-all in ceil(log2 n) rounds of up to half of the message",
    "chain": "broadcast or reduce from neighbour to neighbour",
    "binomial": "broadcast or reduce over a binomial tree",
    "in_network": "the switch reduces and multicasts",
    "torus_multi_ring": "all rings busy both ways, parts of the message in rotated orders",
    "scatter_all_gather": "broadcast as a scatter and an all-gather",
    "reduce_scatter_gather": "reduce as a reduce-scatter and a gather",
    "sequential": "the whole message dimension by dimension",
    "hierarchical": "reduce-scatter inside, the share outwards, all-gather back",
    "pipelined": "hierarchical, with the message in pieces so that dimensions work at the same time",
    "dimension_ordered": "all-to-all routed through the dimensions in order, all of them busy at once",
    "phased": "all-to-all one dimension after the other",
}


class Cost(NamedTuple):
    """Seconds of a message of m bytes: `latency_s + s_per_byte * (m + sqrt(ramp_bytes * m))`.

    `s_per_byte` is at the efficiency the link achieves; `start_s` is paid once per collective.
    """

    latency_s: float
    s_per_byte: float
    ramp_bytes: float = 0.0
    start_s: float = 0.0


@dataclass(frozen=True)
class Fabric:
    """Members joined in one of the shapes of a group's part, or `rings` crossed as a torus.

    `bytes_per_s` is per direction: ring and line, to one neighbour; full, to one member; switch and tree,
    into the switch; torus, all links of a chip. A tree has `pod` members per pod and `oversubscription` where
    they leave it.
    """

    name: str
    shape: str
    size: int
    bytes_per_s: float
    step_s: float
    in_network: bool = False
    pod: int = 1
    oversubscription: float = 1.0
    rings: tuple[Fabric, ...] = ()
    #: The dimension whose links it uses, where another fabric uses them too.
    wires: str = ""
    #: Kind of the dimension and its link, which say what collectives achieve; without a link, all of the bandwidth.
    kind: str = ""
    link: Link | None = None

    @property
    def used_wires(self) -> tuple[str, ...]:
        """Names of the dimensions whose links it uses."""
        return tuple(w for r in self.rings for w in r.used_wires) or (self.wires or self.name,)

    def achieved(self, op: str, algorithm: str, otherwise: float) -> Achieved:
        """What this fabric's link achieves in `op` by `algorithm`; the efficiency `otherwise` where it states none."""
        known = None if self.link is None else self.link.achieved_in(self.kind, op, algorithm)
        return Achieved(otherwise) if known is None else known


def fabric_of(part: Part) -> Fabric:
    """The fabric that a part of a group uses."""
    shape = part.shape
    return Fabric(
        name=part.dimension.name,
        shape=shape,
        size=part.size,
        bytes_per_s=part.bytes_per_s,
        step_s=part.step_s,
        in_network=part.dimension.in_network_reduction,
        pod=part.members_per_pod if shape == "tree" else 1,
        oversubscription=part.oversubscription if shape == "tree" else 1.0,
        kind=part.dimension.kind,
        link=part.dimension.link,
    )


def pods_of(tree: Fabric) -> tuple[Fabric, Fabric]:
    """A tree as two switches, for algorithms that work inside pods and between them in turn.

    Between pods every chip of a pod sends at once, so each has its bandwidth divided by the oversubscription.
    """

    def switch(name: str, size: int, bytes_per_s: float) -> Fabric:
        return Fabric(
            name, "switch", size, bytes_per_s, tree.step_s, tree.in_network, 1, 1.0, (), tree.name, tree.kind, tree.link
        )

    return (
        switch(f"{tree.name} pod", tree.pod, tree.bytes_per_s),
        switch(f"{tree.name} pods", tree.size // tree.pod, tree.bytes_per_s / tree.oversubscription),
    )


def torus_of(rings: tuple[Fabric, ...]) -> Fabric:
    """Several whole rings used together."""
    return Fabric(
        name=" x ".join(r.name for r in rings),
        shape="torus",
        size=math.prod(r.size for r in rings),
        bytes_per_s=sum(2 * r.bytes_per_s for r in rings),
        step_s=max(r.step_s for r in rings),
        rings=rings,
        kind=rings[0].kind,
        link=rings[0].link,
    )


def reachable_bytes_per_s(dimensions: Sequence[Dimension], efficiency: float = 1.0) -> tuple[float, ...]:
    """The most of every dimension's injection bandwidth that any collective reaches; `efficiency` as in `costs`."""

    def share(d: Dimension) -> float:
        operations = (*get_args(Collective), "scatter", "gather")
        names = [a for a in ALGORITHMS if a != "in_network" or d.in_network_reduction]
        found = (d.link.achieved_in(d.kind, op, name) for op in operations for name in names)
        return max(efficiency if known is None else known.efficiency for known in found)

    shares = [share(d) for d in dimensions]
    # rings may work together as a torus, which reaches what the first of them does
    rings = max((s for s, d in zip(shares, dimensions, strict=True) if d.kind == "ring"), default=0.0)
    return tuple(
        d.injection_bytes_per_s * (rings if d.kind == "ring" else s) for s, d in zip(shares, dimensions, strict=True)
    )


@lru_cache(maxsize=65536)
def costs(fabric: Fabric, op: str, efficiency: float = 1.0) -> Mapping[str, Cost]:
    """Every legal algorithm of `op` on the fabric; empty where there is none. Also `scatter` and `gather`.

    `efficiency` is for links that do not say what they achieve.
    """
    if fabric.shape == "torus":
        ideal = _torus(fabric, op)
    else:
        table = _TABLES[fabric.shape](fabric).get(op, {})
        ideal = {name: Cost(steps * fabric.step_s, load / fabric.bytes_per_s) for name, (steps, load) in table.items()}
    return {name: _achieved(cost, fabric.achieved(op, name, efficiency)) for name, cost in ideal.items()}


def _achieved(ideal: Cost, found: Achieved) -> Cost:
    return Cost(ideal.latency_s, ideal.s_per_byte / found.efficiency, found.ramp_bytes, found.start_s)


_Table = dict[str, dict[str, tuple[int, float]]]


def _both_ways(table: _Table) -> _Table:
    """Adds the operations that run another one backwards: same rounds, same bytes."""
    table["reduce_scatter"] = table["all_gather"]
    table["gather"] = table["scatter"]
    table["reduce"] = table["broadcast"]
    return table


def _ring(fabric: Fabric) -> _Table:
    """A closed ring. All-to-all by shortest paths loads each link and direction with floor(n^2/4)/2 of the n
    blocks (m n/8 for even n); a pair has two cables."""
    n = fabric.size
    pass_steps, pass_load = n - 1, (n - 1) / n
    return _both_ways(
        {
            "all_gather": {
                "ring": (pass_steps, pass_load),
                "bidirectional_ring": (pass_steps, pass_load / 2),
            },
            "all_reduce": {
                "ring": (2 * pass_steps, 2 * pass_load),
                "bidirectional_ring": (2 * pass_steps, pass_load),
                "one_shot": (pass_steps, (n - 1) / 2),
            },
            "all_to_all": {"direct": (n // 2, (n * n // 4) / (2 * n))},
            "scatter": {"direct": (n // 2, pass_load / 2)},
            "broadcast": {"chain": (n // 2, (n - 1) / 2)},
            "point_to_point": {"direct": (1, 1.0 if n > 2 else 0.5)},
        }
    )


def _line(fabric: Fabric) -> _Table:
    """A path. The middle link of an all-to-all carries floor(n^2/4) blocks each way; a root is at an end."""
    n = fabric.size
    pass_steps, pass_load = n - 1, (n - 1) / n
    return _both_ways(
        {
            "all_gather": {"line": (pass_steps, pass_load)},
            "all_reduce": {"line": (2 * pass_steps, 2 * pass_load), "one_shot": (pass_steps, n - 1.0)},
            "all_to_all": {"direct": (n - 1, (n * n // 4) / n)},
            "scatter": {"direct": (n - 1, pass_load)},
            "broadcast": {"chain": (n - 1, n - 1.0)},
            "point_to_point": {"direct": (1, 1.0)},
        }
    )


def _switch(fabric: Fabric) -> _Table:
    """A switch that does not block: a chip has one port, so `direct` takes n - 1 rounds of pairs.

    Block j of Bruck's all-to-all travels once per bit set in j. In-network reduction: each chip gives m to
    the reduction and m/n, its reduced share, to the multicast.
    """
    n = fabric.size
    rounds = (n - 1).bit_length()
    pass_load = (n - 1) / n
    table: _Table = {
        "all_gather": {
            "ring": (n - 1, pass_load),
            "halving_doubling": (rounds, pass_load),
            "direct": (n - 1, pass_load),
        },
        "all_reduce": {
            "ring": (2 * (n - 1), 2 * pass_load),
            "recursive_doubling": (rounds, float(rounds)),
            "halving_doubling": (2 * rounds, 2 * pass_load),
            "double_binary_tree": _double_tree(n),
            "direct": (2 * (n - 1), 2 * pass_load),
        },
        "all_to_all": {"direct": (n - 1, pass_load), "bruck": (rounds, _bits_set_below(n) / n)},
        "scatter": {"binomial": (rounds, pass_load)},
        "broadcast": {"binomial": (rounds, float(rounds))},
        "point_to_point": {"direct": (1, 1.0)},
    }
    if fabric.in_network:
        table["all_gather"]["in_network"] = (1, pass_load)
        table["all_reduce"]["in_network"] = (2, 1 + 1 / n)
        table["broadcast"]["in_network"] = (1, 1.0)
    return _both_ways(table)


def _tree(fabric: Fabric) -> _Table:
    """A fat tree whose group leaves the pods, used as one flat switch.

    A pod of g members has g/oversubscription of a chip's bandwidth for what leaves it. A ring that follows
    the pods crosses with one flow per pod; pairwise exchange sends n - g of n blocks of every chip out. The
    rest is composed of the two switches of `pods_of`.
    """
    n, g, o = fabric.size, fabric.pod, fabric.oversubscription
    pass_load = (n - 1) / n
    crossing = max(1.0, o / g)
    pairs = max(pass_load, o * (n - g) / n)
    table: _Table = {
        "all_gather": {"ring": (n - 1, crossing * pass_load), "direct": (n - 1, pairs)},
        "all_reduce": {"ring": (2 * (n - 1), 2 * crossing * pass_load), "direct": (2 * (n - 1), 2 * pairs)},
        "all_to_all": {"direct": (n - 1, pairs)},
        "scatter": {},
        "broadcast": {},
        "point_to_point": {"direct": (1, crossing)},
    }
    if fabric.in_network:
        # Two levels of switches, both ways; a pod sends one reduced vector out, and takes one in.
        table["all_reduce"]["in_network"] = (4, max(1 + 1 / n, o / g))
        table["broadcast"]["in_network"] = (2, crossing)
    return _both_ways(table)


def _full(fabric: Fabric) -> _Table:
    """One link per pair: `direct` uses all n - 1 of a chip at once."""
    n = fabric.size
    return _both_ways(
        {
            "all_gather": {"direct": (1, 1 / n), "ring": (n - 1, (n - 1) / n)},
            "all_reduce": {
                "direct": (2, 2 / n),
                "one_shot": (1, 1.0),
                "ring": (2 * (n - 1), 2 * (n - 1) / n),
            },
            "all_to_all": {"direct": (1, 1 / n)},
            "scatter": {"direct": (1, 1 / n)},
            "broadcast": {"direct": (1, 1.0)},
            "point_to_point": {"direct": (1, 1.0)},
        }
    )


_TABLES: Mapping[str, Callable[[Fabric], _Table]] = {
    "ring": _ring,
    "line": _line,
    "switch": _switch,
    "tree": _tree,
    "full": _full,
}


def _torus(torus: Fabric, op: str) -> Mapping[str, Cost]:
    """Parts of the message go round the rings in different orders, so that all 2d links of a chip are busy.

    With d equal rings an all-gather takes (n-1)/n m/(2 d B). In general, the loads of the orders are the
    vertices of the base polytope of f(S) = 1 - 1/prod_S a, so splitting the message over the orders reaches
    every load in it (Edmonds 1970), and the least time is the largest cut bound over sets S of dimensions:
    (prod_S a - 1)/n over the bandwidth of S. Latency: the passes of all rings, one after another.
    """
    steps_s = sum((r.size - 1) * r.step_s for r in torus.rings)
    slowest = max(
        (math.prod(r.size for r in some) - 1) / torus.size / sum(2 * r.bytes_per_s for r in some)
        for count in range(1, len(torus.rings) + 1)
        for some in itertools.combinations(torus.rings, count)
    )
    if op in ("all_gather", "reduce_scatter"):
        return {"torus_multi_ring": Cost(steps_s, slowest)}
    if op == "all_reduce":
        return {
            "torus_multi_ring": Cost(2 * steps_s, 2 * slowest),
            "one_shot": Cost(steps_s, torus.size * slowest),
        }
    return {}


def double_binary_trees(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Parent of each rank in two trees, -1 at the root; a rank with children in one is mostly a leaf in the
    other. In-order binary trees: the second mirrors the first, or shifts it by one where `size` is odd."""
    ranks = np.arange(size)
    low = ranks & -ranks
    parent = (ranks ^ low) | (low << 1)
    parent = np.where(parent >= size, ranks ^ low, parent)
    parent[0] = -1
    other = np.empty_like(parent)
    if size % 2 == 0:
        other[size - 1 - ranks] = np.where(parent < 0, -1, size - 1 - parent)
    else:
        other[(ranks + 1) % size] = np.where(parent < 0, -1, (parent + 1) % size)
    return parent, other


def _bits_set_below(number: int) -> int:
    """Bits set in 0, 1, ..., number - 1 together."""
    total = 0
    for bit in range(number.bit_length()):
        half = 1 << bit
        total += number // (2 * half) * half + max(0, number % (2 * half) - half)
    return total


@lru_cache(maxsize=4096)
def _double_tree(size: int) -> tuple[int, float]:
    """Steps: up and down the deeper tree. Load: m/2 each way on every edge of the busiest rank's port, the
    pipeline's pieces being small enough not to count."""
    edges = np.zeros(size, dtype=np.int64)
    depth = 0
    for parent in double_binary_trees(size):
        children = np.flatnonzero(parent >= 0)
        edges += np.bincount(parent[children], minlength=size)
        edges[children] += 1
        level = 0
        at = parent
        while np.any(at >= 0):
            level += 1
            at = np.where(at >= 0, parent[at], -1)
        depth = max(depth, level)
    return 2 * depth, float(edges.max()) / 2
