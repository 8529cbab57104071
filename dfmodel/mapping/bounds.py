"""Lower bounds of plans, as arrays: what no plan of a class can beat, before and after its blocks are mapped.

Before (dfmodel.mapping.least_cost): matrix work alone at the chip's efficiency, over stages as even as can be. After:
the blocks' own seconds, the slowest stage no faster than an even share, the largest block or a whole number of layers;
messages between stages; memory that no division into stages can do without; the optimizer's traffic; data-parallel
communication once per step where every stage has equally many layers (dfmodel.mapping.between). Traffic to lower memory
tiers is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dfmodel.assumptions import Assumptions
from dfmodel.mapping.between import Between
from dfmodel.mapping.block_costs import BlockCosts
from dfmodel.mapping.kernel_time import KernelTimer
from dfmodel.mapping.least_cost import LeastCost
from dfmodel.mapping.model_state import GRADIENT_PASSES, OPTIMIZER_STATE_TRAFFIC
from dfmodel.mapping.schedules import in_flight_table
from dfmodel.mapping.space import Pairs, Rows
from dfmodel.workloads.graph import DTYPE_BYTES, main_block

#: Halvings of an interval of seconds.
HALVINGS = 10

#: Rounding must not cut a plan that exactly fits.
SLACK = 1e-9


def pipelined_s(total: np.ndarray, slowest: np.ndarray, rows: Rows, largest: np.ndarray, bubble: bool) -> np.ndarray:
    """Least seconds of all micro-batches: `total` over all stages, a `slowest` stage and a `largest` chunk.

    1F1B: total + (m - 1) slowest; with chunks m slowest + (p - 1) largest; m slowest where the bubble may vanish.
    """
    m, p = rows.micro_batches, rows.pipeline
    if not bubble:
        return np.asarray(m * slowest)
    return np.asarray(np.where(rows.chunks > 1, m * slowest + (p - 1) * largest, total + (m - 1) * slowest))


def pairs_s(
    pairs: Pairs, seconds: Sequence[float], repeats: Sequence[int], bubble: bool, between: Between | None = None
) -> np.ndarray:
    """Least seconds per iteration of data and pipeline degrees whatever is chosen besides, from the seconds of a
    micro-batch in one copy of each block: the slowest stage has an even share at least, and enough whole layers."""
    total = sum(s * n for s, n in zip(seconds, repeats, strict=True))
    main = main_block(repeats)
    layers, layer = repeats[main], seconds[main]
    m, p = pairs.micro_batches, pairs.pipeline
    several = np.asarray(pairs.most_chunks > 1)
    slowest = np.maximum(total / p, np.ceil(layers / p - SLACK) * layer)
    send = 0.0 if between is None else between.send_s
    sends = 0.0 if between is None else between.interleaved_send_s
    plain_slowest = np.maximum(slowest, (total + 2 * (p - 1) * send) / p)
    # two chunks at least: each is sent on, and its gradient back, but at the ends
    chunked_slowest = np.maximum((total + 2 * (2 * p - 1) * sends) / p, layers / p * layer + 3 * sends)
    if not bubble:
        return np.asarray(m * np.where(several, np.minimum(plain_slowest, chunked_slowest), plain_slowest))
    plain = total + 2 * (p - 1) * send + (m - 1) * plain_slowest
    chunked = m * chunked_slowest + (p - 1) * (layers * layer / p / pairs.most_chunks + 2 * sends)
    if between is not None:
        plain = plain + np.where(p == 1, between.once_s(layers / p, plain_slowest), 0.0)
        chunked = chunked + between.once_s(layers / p, chunked_slowest)
    return np.asarray(np.where(several, np.minimum(plain, chunked), plain))


def after_mapping(
    rows: Rows,
    costs: Sequence[BlockCosts | LeastCost],
    repeats: Sequence[int],
    gradient_bytes: float,
    bubble: bool,
    between: Between | None = None,
) -> np.ndarray:
    """Seconds per iteration of rows of one recomputation mode from mapped blocks (least costs for some)."""
    seconds = [c.seconds for c in costs]
    main = main_block(repeats)
    p, v = rows.pipeline, rows.chunks
    send = np.zeros(len(rows))
    if between is not None:
        send = np.where(p > 1, np.where(v > 1, between.interleaved_send_s, between.send_s), 0.0)
    share = 1.0 if between is None else between.overlap_share
    total = _totals(rows, costs, repeats, gradient_bytes, [c.backward_s + c.weights_s for c in costs], share)
    total = total + 2 * (v * p - 1) * send
    slowest = np.maximum(slowest_stage_s(p, seconds, repeats), total / p)
    ends = max([s * n for i, (s, n) in enumerate(zip(seconds, repeats, strict=True)) if i != main], default=0.0)
    each = repeats[main] // np.maximum(p * v, 1) * seconds[main]
    even = repeats[main] / p * seconds[main] + ends + (2 * v - 1) * send
    slowest = np.where(v > 1, np.maximum(slowest, even), slowest)
    found = pipelined_s(total, slowest, rows, each + ends + 2 * send, bubble)
    if between is not None and bubble:
        layers = repeats[main] / p
        own = between.once_after_mapping_s(layers, slowest, costs[main], rows.zero)
        found = found + np.where((v > 1) | (p == 1), own, 0.0)
    return found


def _totals(
    rows: Rows,
    costs: Sequence[BlockCosts | LeastCost],
    repeats: Sequence[int],
    gradient_bytes: float,
    backward_s: Sequence[float],
    overlap_share: float,
) -> np.ndarray:
    """Seconds of a micro-batch over all stages. A pass hides no more than its share of the data-parallel communication
    that every micro-batch has behind it (ZeRO 2: gradients reduced; 3: weights gathered twice as well)."""

    def over(values: Sequence[float]) -> float:
        return sum(v * n for v, n in zip(values, repeats, strict=True))

    gather = over([c.parameter_bytes for c in costs]) * rows.gather_s_per_byte
    reduce = over([c.parameters * gradient_bytes for c in costs]) * rows.gather_s_per_byte
    forward, backward = over([c.forward_s for c in costs]), over(backward_s)
    before = np.where(rows.zero >= 3, gather, 0.0)
    behind = np.where(rows.zero >= 2, reduce, 0.0) + before
    seen = np.maximum(before - overlap_share * forward, 0.0) + np.maximum(behind - overlap_share * backward, 0.0)
    return np.asarray(forward + backward + seen)


def slowest_stage_s(stages: np.ndarray, seconds: Sequence[float], repeats: Sequence[int]) -> np.ndarray:
    """The slowest stage can be no faster: an even share; the largest block; enough whole layers of the main block on
    stages that also hold the other blocks, which take their seconds from at most as many stages as there are such."""
    total = sum(s * n for s, n in zip(seconds, repeats, strict=True))
    main = main_block(repeats)
    layer, layers = seconds[main], repeats[main]
    least = np.maximum(total / stages, max(s for s, n in zip(seconds, repeats, strict=True) if n))
    if layer <= 0:
        return least
    others = [s for i, (s, n) in enumerate(zip(seconds, repeats, strict=True)) if i != main for _ in range(n)]
    if len(others) > 4:
        return np.maximum(least, np.ceil(layers / stages - SLACK) * layer)
    unique = np.unique(stages)
    found = _whole_layers_s(unique, layer, layers, others)
    return np.maximum(least, found[np.searchsorted(unique, stages)])


def _whole_layers_s(stages: np.ndarray, layer: float, layers: int, others: Sequence[float]) -> np.ndarray:
    """Least T, by number of stages, such that some way to put the other blocks on stages leaves room for all layers: on
    every stage as many whole layers as fit T beside them."""
    low = (layer * layers + sum(others)) / stages * (1 - SLACK)
    high = layer * np.ceil(layers / stages) + sum(others)
    groupings = [[sum(g) for g in together] for together in _groupings(list(others))]
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        most = np.full(len(stages), -1.0)
        for held in groupings:
            inside = np.full(len(stages), 0.0)
            possible = len(held) <= stages
            for h in held:
                inside += np.floor((middle - h) / layer * (1 + SLACK))
                possible &= middle >= h
            inside += (stages - len(held)) * np.floor(middle / layer * (1 + SLACK))
            most = np.where(possible, np.maximum(most, inside), most)
        enough = most >= layers
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.asarray(low * (1 - SLACK))


def _groupings(others: list[float]) -> list[list[list[float]]]:
    """Every way to split a few blocks into groups."""
    if not others:
        return [[]]
    first, rest = others[0], others[1:]
    found = []
    for smaller in _groupings(rest):
        found.append([[first], *smaller])
        for i, group in enumerate(smaller):
            found.append([*smaller[:i], [first, *group], *smaller[i + 1 :]])
    return found


def optimizer_s(
    rows: Rows,
    costs: Sequence[BlockCosts | LeastCost],
    repeats: Sequence[int],
    assumptions: Assumptions,
    timer: KernelTimer,
) -> np.ndarray:
    """Least seconds of the optimizer step: the stage with most parameters has an even share at least."""
    parameters = sum(c.parameters * n for c, n in zip(costs, repeats, strict=True)) / rows.pipeline
    per = OPTIMIZER_STATE_TRAFFIC + DTYPE_BYTES[assumptions.memory.gradient] * GRADIENT_PASSES
    moved = parameters * per / np.where(rows.zero >= 1, rows.replicas, 1)
    return np.asarray(moved / timer.memory_bytes_per_s)


def may_fit(
    rows: Rows,
    costs: Sequence[BlockCosts | LeastCost],
    repeats: Sequence[int],
    assumptions: Assumptions,
    capacity: float,
    schedule: str,
    training: bool,
) -> np.ndarray:
    """Whether memory leaves some division into stages possible: every stage holds as many layers as its micro-batches
    in flight allow, and together they must hold all. Rows of one recomputation mode."""
    main = main_block(repeats)
    cost, layers = costs[main], repeats[main]
    memory = assumptions.memory
    weights = cost.parameter_bytes / np.where(rows.zero >= 3, rows.replicas, 1)
    state = weights
    if training:
        gradients = cost.parameters * DTYPE_BYTES[memory.gradient] / np.where(rows.zero >= 2, rows.replicas, 1)
        state = weights + gradients
        state = state + cost.parameters * memory.optimizer_bytes_per_parameter / np.where(
            rows.zero >= 1, rows.replicas, 1
        )
    room = capacity * (1 + SLACK)
    plain = rows.chunks == 1
    # with one micro-batch in flight on every stage: what even this does not leave possible needs no closer look
    held = rows.pipeline * np.minimum(np.floor(room / np.maximum(state + cost.saved_bytes, 1e-30)), layers)
    open_ = plain & (held >= layers)
    for p in np.unique(rows.pipeline[open_]):
        own = np.nonzero(open_ & (rows.pipeline == p))[0]
        flights = in_flight_table(schedule, int(p), rows.micro_batches[own])
        per_layer = np.maximum(state[own][None, :] + flights * cost.saved_bytes, 1e-30)
        held[own] = np.minimum(np.floor(room / per_layer), layers).sum(axis=0)
    # interleaved stages hold equally many layers, the first with most in flight
    first = (rows.pipeline * rows.chunks + rows.pipeline - 1) / rows.chunks
    flights = np.minimum(rows.micro_batches, first)
    most = np.floor(room / np.maximum(state + flights * cost.saved_bytes, 1e-30)) * rows.pipeline
    held = np.where(plain, held, most)
    return np.asarray(held >= layers)
