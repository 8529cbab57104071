"""Pipeline schedules in closed form: seconds, micro-batches in flight, and messages over stage borders.

With stages that take F_i, B_i and W_i seconds for the forward pass of a micro-batch, the backward pass with respect to
inputs and the one with respect to weights, and t_i their sum, m micro-batches on p stages take

    gpipe        sum F + (m-1) max F + sum (B+W) + (m-1) max (B+W)
    1f1b         sum t + (m-1) max t                        (the pipeline objective of Alpa, arXiv 2201.12023)
    interleaved  m max t + (p-1) times the largest chunk    (v chunks of layers per stage)
    zb_h1        m max t + (p-1) (B + max(0, F - W))        (= F+B-W where W <= F: Qi et al., ICLR 2024)
    zb_h2        m max t + (p-1) max(0, F+B-2W, B-F)        (with the optimizer step not synchronised)

Each equals the schedule played step by step (dfmodel.mapping.timeline) where stages are equal; where they differ 1f1b's
is never below it and the others take the largest F, B and W of any stage. Zero-bubble schedules need micro-batches to
fill them: with fewer than 2p the schedule is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dfmodel.mapping.timeline import Operation, orders, play

#: What each schedule is; the names a user may give.
SCHEDULES = {
    "gpipe": "all forward passes, then all backward passes",
    "1f1b": "one forward, one backward: fewer micro-batches in flight",
    "interleaved": "1f1b over several chunks of layers per stage: a smaller bubble, more messages",
    "zb_h1": "backward split in two, weights' part fills the bubble; the memory of 1f1b",
    "zb_h2": "the same with up to twice the micro-batches in flight: almost no bubble",
}


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of one micro-batch on every stage: forward, backward by inputs, backward by weights; and of the largest
    chunk of any stage, all passes together (equal to the largest stage where there is one chunk)."""

    forward: Sequence[float]
    backward: Sequence[float]
    weights: Sequence[float]
    largest_chunk: float = 0.0

    @property
    def totals(self) -> list[float]:
        return [f + b + w for f, b, w in zip(self.forward, self.backward, self.weights, strict=True)]


def pipeline_s(schedule: str, s: StageSeconds, micro_batches: int) -> float:
    """Seconds of all micro-batches through all stages."""
    totals, m = s.totals, micro_batches
    slowest, p = max(totals), len(totals)
    if schedule == "gpipe":
        back = [b + w for b, w in zip(s.backward, s.weights, strict=True)]
        return sum(totals) + (m - 1) * (max(s.forward) + max(back))
    if schedule == "1f1b":
        return sum(totals) + (m - 1) * slowest
    if schedule == "interleaved":
        return m * slowest + (p - 1) * s.largest_chunk
    if m < 2 * p:
        return _played_s(schedule, s, m)
    f, b, w = max(s.forward), max(s.backward), max(s.weights)
    if schedule == "zb_h1":
        return m * slowest + (p - 1) * (b + max(0.0, f - w))
    return m * slowest + (p - 1) * max(0.0, f + b - 2 * w, b - f)


def _played_s(schedule: str, s: StageSeconds, micro_batches: int) -> float:
    by_kind = {"F": s.forward, "B": s.backward, "W": s.weights}

    def seconds(stage: int, operation: Operation) -> float:
        return by_kind[operation.kind][stage]

    return play(orders(schedule, len(s.forward), micro_batches), seconds).seconds


def in_flight(schedule: str, stage: int, stages: int, micro_batches: int, chunks: int = 1) -> float:
    """Most micro-batches of which a stage holds activations, in whole passes through all its layers."""
    return float(in_flight_table(schedule, stages, np.array([micro_batches]), chunks)[stage, 0])


def in_flight_table(schedule: str, stages: int, micro_batches: np.ndarray, chunks: int = 1) -> np.ndarray:
    """The same for every stage and several numbers of micro-batches: [stages, n]."""
    stage = np.arange(stages)[:, None]
    m = np.asarray(micro_batches)[None, :]
    if schedule == "gpipe":
        return np.broadcast_to(m, (stages, m.shape[1])).astype(float)
    if schedule == "interleaved":
        ahead = 2 * (stages - stage - 1) + (chunks - 1) * stages
        return np.asarray(np.minimum(m * chunks, ahead + 1) / chunks)
    most = {"1f1b": stages - stage, "zb_h1": stages + 0 * stage, "zb_h2": 2 * stages - 1 + 0 * stage}[schedule]
    return np.minimum(most, m).astype(float)


def messages(stage: int, stages: int, chunks: int = 1) -> tuple[int, int]:
    """Activations and gradients that a stage sends for one micro-batch: (forward, backward)."""
    forward = chunks if stage < stages - 1 else chunks - 1
    backward = chunks if stage > 0 else chunks - 1
    return forward, backward
