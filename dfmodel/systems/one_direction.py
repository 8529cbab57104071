"""Collective costs of the original DFModel: closed forms, one direction of a link, no algorithm choice.

Source: github.com/kosho2013/DFModel, src/intra_chip.py at 04f93d5 (ratios, high-bandwidth domain) and d818f8b
(factor of two, link latency). With p chips of a group and bandwidth B of one link, seconds are bytes times

| | ring, mesh | switch, fat tree | fully connected |
|---|---|---|---|
| all-reduce, all-gather, reduce-scatter | (p-1)/(p B) | (p-1)/(p B) | 1/(p B) |
| all-to-all | p^2/(8 B) | p/(4 B) | 1/B |
| point-to-point, broadcast, reduce | 1/B | 1/B | 1/B |

An all-reduce takes `all_reduce_factor` times that: 2 where it is a reduce-scatter and an all-gather. The
bytes are used as they are; the original charges an all-to-all the bytes of the whole tensor, and so must a
caller that reproduces it. Strides and partial dimensions do not count: p alone does.

Not in the original, which gives a group one dimension: mesh and fat tree (as ring and switch), reduce-scatter
(as all-gather), reduce (as broadcast), and groups of several dimensions (the share of the message that inner
dimensions leave, summed; the slowest dimension for the other operations).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import overload

import numpy as np

from dfmodel.errors import InputError, UnknownNameError
from dfmodel.systems.network import Dimension, Group, Part

_REDUCING = ("all_reduce", "all_gather", "reduce_scatter")
_WHOLE = ("point_to_point", "broadcast", "reduce")
_RINGS = ("ring", "mesh")


@dataclass(frozen=True)
class OneDirectionCollectives:
    """Collective model: (op, bytes, group) -> seconds.

    `high_bandwidth_domain` H with `fast_dimension`, whose link has bandwidth F: an all-reduce, all-gather or
    reduce-scatter of p <= H chips takes (p-1)/(p F); of more, (H-1)/(H F) + (p/H - 1)/(p B), whatever the
    kind. B is the link of the group's own dimension; for a group on the fast dimension itself, that of
    `outer_dimension`. `link_latency` adds the link's latency to an all-reduce, p - 1 times (once if fully
    connected), twice that with a factor of 2.

    Raises InputError for an efficiency outside (0, 1], a factor or domain below 1, or a dimension missing for
    the domain.
    """

    efficiency: float = 1.0
    all_reduce_factor: float = 1.0
    high_bandwidth_domain: int | None = None
    fast_dimension: Dimension | None = None
    outer_dimension: Dimension | None = None
    link_latency: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not 0 < self.efficiency <= 1:
            problems.append(f"efficiency: {self.efficiency}; must be above 0 and at most 1")
        if not self.all_reduce_factor >= 1:
            problems.append(f"all_reduce_factor: {self.all_reduce_factor}; must be 1 or more (1 or 2)")
        if self.high_bandwidth_domain is not None and self.high_bandwidth_domain < 1:
            problems.append(f"high_bandwidth_domain: {self.high_bandwidth_domain}; must be 1 or more")
        if self.high_bandwidth_domain is not None and self.fast_dimension is None:
            problems.append("high_bandwidth_domain: needs the fast dimension; give fast_dimension")
        if problems:
            raise InputError([f"one_direction collectives: {p}" for p in problems])

    @overload
    def __call__(self, op: str, message_bytes: float, group: Group) -> float: ...
    @overload
    def __call__(self, op: str, message_bytes: np.ndarray, group: Group) -> np.ndarray: ...
    def __call__(self, op: str, message_bytes: float | np.ndarray, group: Group) -> float | np.ndarray:
        """Seconds, of the shape of `message_bytes`; 0 for one chip or no bytes."""
        if np.any(np.asarray(message_bytes) < 0):
            raise InputError(f"collective: message: {np.min(message_bytes)} bytes; must be 0 or more")
        s_per_byte = self.s_per_byte(op, group)
        latency_s = self.latency_s(op, group)
        if isinstance(message_bytes, np.ndarray):
            return np.where(message_bytes > 0, message_bytes * s_per_byte + latency_s, 0.0)
        return message_bytes * s_per_byte + latency_s if message_bytes > 0 else 0.0

    def s_per_byte(self, op: str, group: Group) -> float:
        """Seconds per byte of the message. Raises UnknownNameError for an unknown operation."""
        if op in _REDUCING:
            factor = self.all_reduce_factor if op == "all_reduce" else 1.0
            total, share = 0.0, 1.0
            for part in group.parts:
                total += share * self._reducing(part)
                share /= part.size
            return factor * total / self.efficiency
        if op == "all_to_all":
            each = [_all_to_all(part) for part in group.parts]
        elif op in _WHOLE:
            each = [1 / part.dimension.link.bytes_per_s for part in group.parts]
        else:
            raise UnknownNameError("collective", op, (*_REDUCING, "all_to_all", *_WHOLE))
        return max(each, default=0.0) / self.efficiency

    def latency_s(self, op: str, group: Group) -> float:
        """Latency of one all-reduce; 0 for the other operations, or unless `link_latency`."""
        if not self.link_latency or op != "all_reduce":
            return 0.0
        passes = 2 if self.all_reduce_factor == 2 else 1
        return passes * sum(
            part.dimension.link.latency_s * (1 if part.dimension.kind == "fully_connected" else part.size - 1)
            for part in group.parts
        )

    def _reducing(self, part: Part) -> float:
        p, own = part.size, part.dimension.link.bytes_per_s
        domain, fast = self.high_bandwidth_domain, self.fast_dimension
        if domain is None or fast is None:
            return (1 if part.dimension.kind == "fully_connected" else p - 1) / (p * own)
        inside = min(domain, p)
        seconds = (inside - 1) / (inside * fast.link.bytes_per_s)
        if p <= domain:
            return seconds
        slow = self.outer_dimension if part.dimension == fast else part.dimension
        if slow is None:
            raise InputError(
                f"one_direction collectives: a group of {p} on the fast dimension {fast.name} exceeds the "
                f"high-bandwidth domain of {domain}; give outer_dimension"
            )
        return seconds + (p / domain - 1) / (p * slow.link.bytes_per_s)


def _all_to_all(part: Part) -> float:
    """(p/2)^2 over the links that cross the middle: 2 in a ring, p in a switch, p^2/4 fully connected."""
    p = part.size
    kind = part.dimension.kind
    middle = p * p / 4 if kind == "fully_connected" else 2 if kind in _RINGS else p
    return (p / 2) ** 2 / (middle * part.dimension.link.bytes_per_s)
