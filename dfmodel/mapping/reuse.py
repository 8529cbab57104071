"""Sharding programs solved before: a sweep asks for the same one at many points.

Points that differ in what the program does not see (chips outside the tensor parallel group, capacities, prices, the
batch) pose it digit for digit the same. Nothing is kept unless `reusing` is in force. What is taken from a store is
priced again in the problem at hand, so that a damaged entry cannot pass for an answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from dfmodel.mapping.sharding import Sharding, ShardingProblem, sharding_cost
from dfmodel.mapping.solver import SolveResult, versions

#: Content of a program -> its solution as plain data.
Store = MutableMapping[str, Mapping[str, Any]]

_stores: list[Store] = []


@contextmanager
def reusing(store: Store) -> Iterator[None]:
    """Look programs up in `store`, and put proven ones there, until the block ends."""
    _stores.append(store)
    try:
        yield
    finally:
        _stores.pop()


def solved(p: ShardingProblem) -> tuple[Sharding, SolveResult] | None:
    """The proven optimum of `p` found before, or None."""
    if not _stores:
        return None
    entry = _stores[-1].get(content(p))
    if entry is None:
        return None
    choice = {str(k): int(v) for k, v in entry["choice"].items()}
    if choice.keys() != p.options.keys() or any(o >= len(p.options[n]) for n, o in choice.items()):
        return None
    objective = sharding_cost(p, choice)
    if not math.isclose(objective, entry["objective"], rel_tol=1e-12):
        return None
    result = SolveResult(**entry["result"])
    return Sharding(p, choice, objective, entry["bound"], result.status), result


def keep(sharding: Sharding, result: SolveResult) -> None:
    """Put a proven optimum into the store in force."""
    if _stores and result.proven:
        _stores[-1][content(sharding.problem)] = {
            "choice": dict(sharding.choice),
            "objective": sharding.objective,
            "bound": sharding.bound,
            "result": asdict(result),
        }


def content(p: ShardingProblem) -> str:
    """A digest of everything the program is made of, and of the versions of what solves it."""
    options = [
        (node, [(o.strategy.name, o.cost, sorted(o.needs.items()), sorted(o.gives.items())) for o in own])
        for node, own in p.options.items()
    ]
    whole = (
        versions(),
        p.block.name,
        p.chips,
        p.objective,
        options,
        p.flows,
        sorted(p.conversion.items()),
        p.shared_conversions,
        sorted(p.pinned.items()),
        p.columns,
    )
    return hashlib.sha256(repr(whole).encode()).hexdigest()
