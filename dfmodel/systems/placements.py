"""What a collective costs in every placement of some degrees on a topology, as arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmodel.systems.collectives import CollectiveModel
from dfmodel.systems.network import Dimension, distinct_groups


def placement_seconds(
    op: str,
    message_bytes: float | np.ndarray,
    factors: np.ndarray,
    degree: int,
    dimensions: Sequence[Dimension],
    model: CollectiveModel,
) -> np.ndarray:
    """Seconds of `op` over the groups of one degree in every placement: [n].

    `factors` [n, degrees, dimensions] as from `network.factorizations`; `message_bytes` one number, or [n]. Placements
    that give the degree the same group are priced together: thousands cost what their few distinct groups do.
    """
    messages = np.broadcast_to(np.asarray(message_bytes, dtype=float), (len(factors),))
    groups, index = distinct_groups(factors, degree, dimensions)
    seconds = np.empty(len(factors))
    order = np.argsort(index, kind="stable")
    starts = np.searchsorted(index[order], np.arange(len(groups) + 1))
    for g, group in enumerate(groups):
        rows = order[starts[g] : starts[g + 1]]
        sizes, which = np.unique(messages[rows], return_inverse=True)
        seconds[rows] = model(op, sizes, group)[which]
    return seconds
