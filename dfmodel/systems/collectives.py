"""What a collective costs on a group of chips.

The message, m, is in bytes per chip: the full buffer for all-reduce, reduce-scatter (its input), all-gather
(its output), broadcast and reduce; what a chip holds to send for all-to-all, its own share included, so that
(n-1)/n of it leaves the chip; the message itself for point-to-point, which is between neighbouring members
while every other member does the same. A message of 0 bytes, or a group of one chip, costs nothing.

A group that spans several dimensions uses them in turn. Splitting after j of k dimensions (innermost first):
reduce-scatter over the first j, the operation itself over the rest on the share that is left, all-gather back
(scatter and all-gather for a broadcast, reduce-scatter and gather for a reduce). j = 0 is `sequential`, the
rest `hierarchical`: phases one after another. Dimensions have their own links, so an all-reduce,
reduce-scatter or all-gather may also cut its message in pieces that follow each other through the phases
(`pipelined`): the phases of one piece, then for each other piece what the busiest dimension takes for one.
Without it a group over many nodes would leave its network cards idle while it uses the links inside a node;
rings through all cards of a node reach about the same rate. Neighbouring whole rings may work together as a
torus, and a fat tree that the group leaves may be used as its pods and what joins them.

An all-to-all goes through the dimensions in order; every message is forwarded on its way
(`dimension_ordered`: the time is that of the slowest dimension) or only after the phase of a dimension ends
(`phased`: the sum). Unless named, the cheapest way for the message is taken.

A collective is a least of sums of leasts over algorithms, each of latency plus s_per_byte (m + sqrt(ramp m))
with what its links achieve (network.Achieved; without it their bandwidth times `efficiency`, and no ramp).
Latency is not scaled. The software's start is paid once: in the latency where there is one phase, else the
longest of the phases' least starts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, TypeVar, get_args, overload

import numpy as np

from dfmodel.errors import InputError, UnknownNameError
from dfmodel.systems.algorithms import ALGORITHMS, Cost, Fabric, costs, fabric_of, pods_of, torus_of
from dfmodel.systems.network import Collective, Dimension, Group
from dfmodel.systems.one_direction import OneDirectionCollectives

#: Names of the collectives.
COLLECTIVES: tuple[str, ...] = get_args(Collective)

#: What runs before and after the operation itself on the inner dimensions of a hierarchical one.
_WRAPPING = {
    "all_reduce": ("reduce_scatter", "all_gather"),
    "broadcast": ("scatter", "all_gather"),
    "reduce": ("reduce_scatter", "gather"),
}

#: Broadcast and reduce may be all wrapping; an all-reduce that is, is its ring on the outermost dimension.
_ALL_WRAPPING = {"broadcast": "scatter_all_gather", "reduce": "reduce_scatter_gather"}

#: Numbers of pieces that a pipelined collective may use.
PIECES = (4, 16, 64)

#: Operations whose way out mirrors their way in, so that pieces follow each other without gaps.
_PIPELINED = ("all_reduce", "reduce_scatter", "all_gather")

#: Longest run of rings that is tried in every order.
_MOST_REORDERED = 3


@dataclass(frozen=True)
class Phase:
    """One step of a collective: `op` with `bytes` (in that operation's convention) over a dimension.

    `seconds` is for all pieces of a pipelined collective together; phases of different dimensions overlap. `wires` are
    the dimensions whose links it uses.
    """

    dimension: str
    algorithm: str
    op: str
    bytes: float
    seconds: float
    wires: tuple[str, ...] = ()


@dataclass(frozen=True)
class CollectiveCost:
    """Seconds of a collective, the algorithm that takes them, and its phases in order.

    `algorithm` is that of the only phase, or the way phases are composed. `start_s` and the phases add up to
    `seconds` unless there are `pieces`, which overlap; with one phase the start is in it. A point-to-point
    message shows the slowest of the boundaries it may cross.
    """

    seconds: float
    algorithm: str
    phases: tuple[Phase, ...]
    pieces: int = 1
    start_s: float = 0.0


Seconds = TypeVar("Seconds", float, np.ndarray)


class CollectiveModel(Protocol):
    """Prices a collective: (op, message bytes, group) -> seconds, of the shape of the bytes."""

    @overload
    def __call__(self, op: str, message_bytes: float, group: Group) -> float: ...
    @overload
    def __call__(self, op: str, message_bytes: np.ndarray, group: Group) -> np.ndarray: ...


@dataclass(frozen=True)
class _Choice:
    """A phase and its algorithms; it moves `share` of the collective's message over the links `wires`."""

    dimension: str
    wires: tuple[str, ...]
    op: str
    share: float
    algorithms: Mapping[str, Cost]


@dataclass(frozen=True)
class _Scheme:
    """Phases that make up a collective: one after another, in pieces, or the slowest of them (`slowest`)."""

    name: str | None
    phases: tuple[_Choice, ...]
    slowest: bool = False
    pieces: int = 1

    @functools.cached_property
    def start_s(self) -> float:
        """The start of the whole collective, where its phases do not carry it themselves."""
        if len(self.phases) == 1:
            return 0.0
        return max(min(c.start_s for c in phase.algorithms.values()) for phase in self.phases)

    @functools.cached_property
    def starting(self) -> tuple[_Choice, ...]:
        """The phases with the start in their latency where there is only one."""
        if len(self.phases) > 1:
            return self.phases
        phase = self.phases[0]
        started = {n: c._replace(latency_s=c.latency_s + c.start_s, start_s=0.0) for n, c in phase.algorithms.items()}
        return (replace(phase, algorithms=started),)

    def busiest(self, seconds: Sequence[Seconds], larger: Callable[[Seconds, Seconds], Seconds]) -> Seconds:
        """Of the phases' `seconds`, summed over those on the same links, the largest."""
        totals: dict[tuple[str, ...], Seconds] = {}
        for choice, taken in zip(self.phases, seconds, strict=True):
            totals[choice.wires] = totals[choice.wires] + taken if choice.wires in totals else taken
        return functools.reduce(larger, totals.values())


def collective(
    op: str,
    message_bytes: float,
    group: Group,
    *,
    efficiency: float = 1.0,
    algorithm: str | None = None,
) -> CollectiveCost:
    """Cost of `op` with `message_bytes` (see the module) on `group`, by the cheapest or the named algorithm.

    A named algorithm is used in every phase that has it; at least one must. Raises UnknownNameError for an
    unknown operation or algorithm, InputError for an algorithm that the group cannot run, a negative message
    or an efficiency outside (0, 1].
    """
    _check(message_bytes, efficiency)
    schemes = _schemes(op, group, algorithm, efficiency)
    if group.size == 1 or message_bytes == 0:
        return CollectiveCost(0.0, "none", ())
    return min((_cost(s, message_bytes) for s in schemes), key=lambda c: c.seconds)


def collective_seconds(
    op: str,
    message_bytes: np.ndarray | Sequence[float],
    group: Group,
    *,
    efficiency: float = 1.0,
    algorithm: str | None = None,
) -> np.ndarray:
    """Seconds of `collective` for many messages, equal to the scalar ones; same shape, same errors."""
    message = np.asarray(message_bytes, dtype=float)
    if message.size:
        _check(float(message.min()), efficiency)
        _check(float(message.max()), efficiency)
    schemes = _schemes(op, group, algorithm, efficiency)
    if group.size == 1:
        return np.zeros_like(message)
    seconds = np.minimum.reduce([_seconds(s, message) for s in schemes])
    return np.where(message > 0, seconds, 0.0)


def legal_algorithms(op: str, group: Group) -> tuple[str, ...]:
    """Names that `collective` takes for this operation and group."""
    found: dict[str, None] = {}
    for scheme in _legal(op, group, 1.0):
        found |= dict.fromkeys([scheme.name] if scheme.name else [])
        found |= dict.fromkeys(name for phase in scheme.phases for name in phase.algorithms)
    return tuple(found)


def bus_bytes_per_s(op: str, message_bytes: float, size: int, seconds: float) -> float:
    """Bus bandwidth as nccl-tests define it: message/seconds times 2(n-1)/n for an all-reduce, (n-1)/n for
    reduce-scatter, all-gather and all-to-all, 1 for the others (nccl-tests, doc/PERFORMANCE.md)."""
    passes = {"all_reduce": 2, "reduce_scatter": 1, "all_gather": 1, "all_to_all": 1}.get(op)
    factor = 1.0 if passes is None else passes * (size - 1) / size
    return factor * message_bytes / seconds


@dataclass(frozen=True)
class PhysicalCollectives:
    """Collective model: the costs of this module."""

    efficiency: float = 1.0

    @overload
    def __call__(self, op: str, message_bytes: float, group: Group) -> float: ...
    @overload
    def __call__(self, op: str, message_bytes: np.ndarray, group: Group) -> np.ndarray: ...
    def __call__(self, op: str, message_bytes: float | np.ndarray, group: Group) -> float | np.ndarray:
        if isinstance(message_bytes, np.ndarray):
            return collective_seconds(op, message_bytes, group, efficiency=self.efficiency)
        return collective(op, message_bytes, group, efficiency=self.efficiency).seconds


def collective_model(
    name: str,
    *,
    efficiency: float = 1.0,
    all_reduce_factor: float = 1.0,
    high_bandwidth_domain: int | None = None,
    fast_dimension: Dimension | None = None,
    outer_dimension: Dimension | None = None,
    link_latency: bool = False,
) -> CollectiveModel:
    """The model that the assumption `network.collectives` names: `physical` or `one_direction`.

    `physical` uses only `efficiency`; see OneDirectionCollectives for the others.
    """
    models: dict[str, Callable[[], CollectiveModel]] = {
        "physical": lambda: PhysicalCollectives(efficiency),
        "one_direction": lambda: OneDirectionCollectives(
            efficiency,
            all_reduce_factor,
            high_bandwidth_domain,
            fast_dimension,
            outer_dimension,
            link_latency,
        ),
    }
    if name not in models:
        raise UnknownNameError("collective model", name, models)
    return models[name]()


def _check(message_bytes: float, efficiency: float) -> None:
    if not 0 <= message_bytes < math.inf:
        raise InputError(f"collective: message: {message_bytes} bytes; must be 0 or more")
    if not 0 < efficiency <= 1:
        raise InputError(f"collective: efficiency: {efficiency}; must be above 0 and at most 1")


def _cost(scheme: _Scheme, message_bytes: float) -> CollectiveCost:
    pieces = scheme.pieces
    phases, each = [], []
    for choice in scheme.starting:
        share = choice.share * message_bytes / pieces
        seconds, name = min(
            (
                (c.latency_s + c.s_per_byte * (share + math.sqrt(c.ramp_bytes * share)), n)
                for n, c in choice.algorithms.items()
            ),
            key=lambda found: found[0],
        )
        phases.append(Phase(choice.dimension, name, choice.op, pieces * share, pieces * seconds, choice.wires))
        each.append(seconds)
    if scheme.slowest:
        phases = [max(phases, key=lambda p: p.seconds)]
        each = [phases[0].seconds]
    total = sum(each)
    if pieces > 1:
        total += (pieces - 1) * scheme.busiest(each, max)
    start_s = scheme.start_s
    return CollectiveCost(start_s + total, scheme.name or phases[0].algorithm, tuple(phases), pieces, start_s)


def _seconds(scheme: _Scheme, message_bytes: np.ndarray) -> np.ndarray:
    each: list[np.ndarray] = []
    for choice in scheme.starting:
        share = choice.share * message_bytes / scheme.pieces
        each.append(
            np.minimum.reduce(
                [
                    c.latency_s + c.s_per_byte * (share + np.sqrt(c.ramp_bytes * share))
                    for c in choice.algorithms.values()
                ]
            )
        )
    if scheme.slowest:
        return scheme.start_s + np.maximum.reduce(each)
    total = sum(each, start=np.zeros_like(message_bytes))
    if scheme.pieces > 1:
        total = total + (scheme.pieces - 1) * scheme.busiest(each, np.maximum)
    return scheme.start_s + total


@lru_cache(maxsize=65536)
def _schemes(op: str, group: Group, algorithm: str | None, efficiency: float) -> tuple[_Scheme, ...]:
    """Ways to run `op` on the group: those that may be the cheapest, or those that use `algorithm`."""
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise UnknownNameError("algorithm", algorithm, ALGORITHMS)
    legal = _legal(op, group, efficiency)
    if algorithm is None:
        return tuple(replace(s, phases=tuple(map(_undominated, s.phases))) for s in legal)
    named = tuple(s for s in (_using(scheme, algorithm) for scheme in legal) if s is not None)
    if not named and group.size > 1:
        possible = ", ".join(legal_algorithms(op, group))
        raise InputError(f"collective: algorithm: '{algorithm}' cannot do {op} on {group}; possible here: {possible}")
    return named


def _legal(op: str, group: Group, efficiency: float) -> tuple[_Scheme, ...]:
    """Every way to run `op` on the group, with every algorithm."""
    if op not in COLLECTIVES:
        raise UnknownNameError("collective", op, COLLECTIVES)
    if group.size == 1:
        return ()
    found = []
    for levels in _level_lists(op, group):
        schemes = _compositions(op, levels, efficiency)
        found += schemes
        # Rings next to each other overlap better as a torus than in pieces.
        if op in _PIPELINED and len(_runs(levels)) == len(levels):
            whole = [s for s in schemes if s.name == "hierarchical"]
            found += [replace(s, name="pipelined", pieces=pieces) for s in whole for pieces in PIECES]
    return tuple(s for s in found if all(p.algorithms for p in s.phases))


def _undominated(choice: _Choice) -> _Choice:
    """Without the algorithms that another beats, or equals, in latency with start, in bandwidth and in ramp."""
    kept: dict[str, Cost] = {}
    for name, cost in sorted(choice.algorithms.items(), key=lambda item: (item[1].latency_s, item[1])):
        if not any(
            k.latency_s <= cost.latency_s
            and k.s_per_byte <= cost.s_per_byte
            and k.ramp_bytes * k.s_per_byte**2 <= cost.ramp_bytes * cost.s_per_byte**2
            and k.start_s <= cost.start_s
            for k in kept.values()
        ):
            kept[name] = cost
    return replace(choice, algorithms=kept)


def _using(scheme: _Scheme, algorithm: str) -> _Scheme | None:
    """The scheme with `algorithm` in every phase that has it; None where it has no place."""
    if scheme.name == algorithm:
        return scheme
    if not any(algorithm in p.algorithms for p in scheme.phases):
        return None
    phases = tuple(
        replace(p, algorithms={algorithm: p.algorithms[algorithm]}) if algorithm in p.algorithms else p
        for p in scheme.phases
    )
    return replace(scheme, phases=phases)


def _level_lists(op: str, group: Group) -> list[tuple[Fabric, ...]]:
    """Ways to see the group as levels: as it is first, then with pods split off, rings joined or reordered.

    Whole rings next to each other are equals: no order of them is the inner one.
    """
    flat = tuple(fabric_of(p) for p in group.parts)
    if op == "point_to_point":
        return [flat]
    split = tuple(level for f in flat for level in (pods_of(f) if f.shape == "tree" else (f,)))
    found = [flat, split]
    if op != "all_to_all":
        found += [tuple(torus_of(run) if len(run) > 1 else run[0] for run in _runs(v)) for v in (flat, split)]
    if op in _WRAPPING:
        orders = [itertools.permutations(run) if len(run) <= _MOST_REORDERED else [run] for run in _runs(split)]
        found += [tuple(itertools.chain(*choice)) for choice in itertools.product(*orders)]
    return list(dict.fromkeys(found))


def _runs(levels: tuple[Fabric, ...]) -> list[tuple[Fabric, ...]]:
    """The levels in order, whole rings next to each other in one run, any other level in its own."""
    runs: list[tuple[Fabric, ...]] = []
    for level in levels:
        if runs and level.shape == "ring" and runs[-1][-1].shape == "ring":
            runs[-1] = (*runs[-1], level)
        else:
            runs.append((level,))
    return runs


def _compositions(op: str, levels: tuple[Fabric, ...], efficiency: float) -> list[_Scheme]:
    def choice(level: Fabric, op: str, share: float) -> _Choice:
        return _Choice(level.name, level.used_wires, op, share, costs(level, op, efficiency))

    if op == "point_to_point":
        return [_Scheme(None, tuple(choice(level, op, 1.0) for level in levels), slowest=True)]
    if op == "all_to_all":
        return _all_to_all(levels, choice)
    if op in _WRAPPING:
        return _wrapped(op, levels, choice)
    phases = [choice(level, op, share) for level, share in zip(levels, _shares(levels), strict=False)]
    if op == "all_gather":
        phases.reverse()
    return [_Scheme("hierarchical" if len(levels) > 1 else None, tuple(phases))]


_Chooser = Callable[[Fabric, str, float], _Choice]


def _wrapped(op: str, levels: tuple[Fabric, ...], choice: _Chooser) -> list[_Scheme]:
    before, after = _WRAPPING[op]
    shares = _shares(levels)
    most = len(levels) if op in _ALL_WRAPPING else len(levels) - 1
    found = []
    for wrapped in range(most + 1):
        inner = list(zip(levels[:wrapped], shares, strict=False))
        phases = [choice(level, before, share) for level, share in inner]
        phases += [choice(level, op, shares[wrapped]) for level in levels[wrapped:]]
        phases += [choice(level, after, share) for level, share in reversed(inner)]
        if wrapped == len(levels):
            name: str | None = _ALL_WRAPPING[op]
        elif wrapped:
            name = "hierarchical"
        else:
            name = "sequential" if len(levels) > 1 else None
        found.append(_Scheme(name, tuple(phases)))
    return found


def _all_to_all(levels: tuple[Fabric, ...], choice: _Chooser) -> list[_Scheme]:
    phased = tuple(choice(level, "all_to_all", 1.0) for level in levels)
    if len(levels) == 1:
        return [_Scheme(None, phased)]
    found = [_Scheme("phased", phased)]
    direct = [p.algorithms["direct"] for p in phased]
    if len({p.wires for p in phased}) == len(phased):
        # Pods and what joins them share the chips' links, so their loads would add.
        slowest = max(direct, key=lambda c: c.s_per_byte)
        routed = slowest._replace(
            latency_s=sum(c.latency_s for c in direct),
            ramp_bytes=max(c.ramp_bytes for c in direct),
            start_s=max(c.start_s for c in direct),
        )
        name = " x ".join(level.name for level in levels)
        found.append(
            _Scheme(
                None,
                (
                    _Choice(
                        name,
                        tuple(w for p in phased for w in p.wires),
                        "all_to_all",
                        1.0,
                        {"dimension_ordered": routed},
                    ),
                ),
            )
        )
    return found


def _shares(levels: tuple[Fabric, ...]) -> list[float]:
    """Share of the message left at each level after a reduce-scatter over those inside it, and after all."""
    shares = [1.0]
    for level in levels:
        shares.append(shares[-1] / level.size)
    return shares
