"""Pipeline schedules played step by step: what every stage runs in order, and when.

An operation is the forward pass (F), the backward pass with respect to inputs (B) or to weights (W) of one micro-batch
through one chunk of a stage's layers. It waits for the stage to be free and for what it needs: F for F of the chunk
before, B for its own F and B of the chunk after, W for its own B. Schedules that do not split the backward pass have
its weight part in B.

Sources: GPipe (Huang et al., NeurIPS 2019); 1F1B and its interleaved form (Narayanan et al., SC'21); zero-bubble
ZB-H1 and ZB-H2 (Qi et al., ICLR 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Operation(NamedTuple):
    """`kind` is F, B or W; `chunk` counts the chunks of one stage from the front of the model."""

    kind: str
    micro_batch: int
    chunk: int = 0


@dataclass(frozen=True)
class Timeline:
    """Start and end of every operation of every stage, in the order they run."""

    operations: tuple[tuple[tuple[Operation, float, float], ...], ...]

    @property
    def seconds(self) -> float:
        """The longest span of a stage from its first start to its last end: what an iteration costs where the
        optimizer step does not make stages wait for each other."""
        return max(stage[-1][2] - stage[0][1] for stage in self.operations)

    @property
    def makespan_s(self) -> float:
        return max(stage[-1][2] for stage in self.operations)

    def in_flight(self, stage: int) -> int:
        """Most forward passes (of one chunk each) whose backward pass, weights included, is not over."""
        held = most = 0
        splits = any(o.kind == "W" for o, _, _ in self.operations[stage])
        for operation, _, _ in self.operations[stage]:
            held += (operation.kind == "F") - (operation.kind == ("W" if splits else "B"))
            most = max(most, held)
        return most


def orders(schedule: str, stages: int, micro_batches: int, chunks: int = 1) -> list[list[Operation]]:
    """What each stage runs, in order."""
    return [_ORDERS[schedule](i, stages, micro_batches, chunks) for i in range(stages)]


def play(
    sequences: Sequence[Sequence[Operation]],
    seconds: Callable[[int, Operation], float],
    send_s: float = 0.0,
) -> Timeline:
    """Run the sequences; `seconds(stage, operation)` is how long one takes, `send_s` what a border adds.

    Raises RuntimeError where the orders wait for each other in a circle.
    """
    stages = len(sequences)
    ends: dict[tuple[int, Operation], float] = {}
    done = [0] * stages
    free = [0.0] * stages
    played: list[list[tuple[Operation, float, float]]] = [[] for _ in range(stages)]
    last_chunk = max(o.chunk for s in sequences for o in s)
    left = sum(map(len, sequences))
    while left:
        moved = False
        for i in range(stages):
            while done[i] < len(sequences[i]):
                operation = sequences[i][done[i]]
                needs = _needs(i, operation, stages, last_chunk)
                if any(n not in ends for n in needs):
                    break
                ready = max([ends[n] + (send_s if n[0] != i else 0.0) for n in needs], default=0.0)
                start = max(free[i], ready)
                free[i] = ends[i, operation] = start + seconds(i, operation)
                played[i].append((operation, start, free[i]))
                done[i] += 1
                left -= 1
                moved = True
        if not moved:
            raise RuntimeError("the orders of the stages wait for each other")
    return Timeline(tuple(map(tuple, played)))


def _needs(stage: int, o: Operation, stages: int, last_chunk: int) -> list[tuple[int, Operation]]:
    """(stage, operation) pairs that must be over."""
    if o.kind == "W":
        return [(stage, o._replace(kind="B"))]
    if o.kind == "F":
        if stage:
            return [(stage - 1, o)]
        return [(stages - 1, o._replace(chunk=o.chunk - 1))] if o.chunk else []
    own = (stage, o._replace(kind="F"))
    if stage < stages - 1:
        return [own, (stage + 1, o)]
    return [own, (0, o._replace(chunk=o.chunk + 1))] if o.chunk < last_chunk else [own]


def _gpipe(stage: int, stages: int, m: int, chunks: int) -> list[Operation]:
    return [Operation("F", k) for k in range(m)] + [Operation("B", k) for k in range(m)]


def _one_f_one_b(stage: int, stages: int, m: int, chunks: int) -> list[Operation]:
    return _alternating(
        [Operation("F", k) for k in range(m)], [Operation("B", k) for k in range(m)], stages - stage - 1
    )


def _interleaved(stage: int, stages: int, m: int, chunks: int) -> list[Operation]:
    """Groups of `stages` micro-batches go through one chunk after the other (m is a multiple of the stages)."""
    total = m * chunks

    def number(k: int, backward: bool) -> Operation:
        group, rest = divmod(k, stages * chunks)
        chunk, inside = divmod(rest, stages)
        chunk = chunks - 1 - chunk if backward else chunk
        return Operation("B" if backward else "F", group * stages + inside, chunk)

    forward = [number(k, False) for k in range(total)]
    backward = [number(k, True) for k in range(total)]
    return _alternating(forward, backward, 2 * (stages - stage - 1) + (chunks - 1) * stages)


def _alternating(forward: list[Operation], backward: list[Operation], ahead: int) -> list[Operation]:
    """`ahead` forward passes, then one of each in turn, then the backward passes that are left."""
    ahead = min(ahead, len(forward))
    order = forward[:ahead]
    for f, b in zip(forward[ahead:], backward, strict=False):
        order += [f, b]
    return order + backward[len(forward) - ahead :]


def _zero_bubble(
    lead: Callable[[int, int], int], delay: Callable[[int], int]
) -> Callable[[int, int, int, int], list[Operation]]:
    """`lead` forward passes first; then backward and forward in turn, weights left until `delay` of them wait."""

    def order(stage: int, stages: int, m: int, chunks: int) -> list[Operation]:
        first = min(m, lead(stage, stages))
        found = [Operation("F", k) for k in range(first)]
        forward, weight = first, 0
        for k in range(m):
            found.append(Operation("B", k))
            if k >= delay(stage):
                found.append(Operation("W", weight))
                weight += 1
            if forward < m:
                found.append(Operation("F", forward))
                forward += 1
        return found + [Operation("W", k) for k in range(weight, m)]

    return order


_ORDERS: Mapping[str, Callable[[int, int, int, int], list[Operation]]] = {
    "gpipe": _gpipe,
    "1f1b": _one_f_one_b,
    "interleaved": _interleaved,
    "zb_h1": _zero_bubble(lambda i, p: p - i, lambda i: i),
    "zb_h2": _zero_bubble(lambda i, p: 2 * (p - i) - 1, lambda i: 2 * i),
}
