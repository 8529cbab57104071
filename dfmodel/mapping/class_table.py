"""The classes of a plan space as arrays: how many plans each has, and what none of them can beat.

A class is bounded by all chips that may be used being busy all the time: with seconds T of a micro-batch over all
stages, t tensor and c context parallel chips and N chips in all, m micro-batches on p stages and d data parallel groups
take at least m T / p for d m b samples, and t c d p is at most N.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from dfmodel.mapping.least_cost import LeastCosts, Message
from dfmodel.mapping.space import PlanClass, PlanSpace


class ClassTable:
    """Classes of a space; a number stands for the class with and the one without sequence sharding.

    `least` holds what every block costs at least, under the recomputation that repeats least; `messages` what each
    gathers over a context parallel group, empty where that may hide behind other work. With `may_dominate` classes are
    marked that cannot be better than another class of the space.
    """

    def __init__(
        self,
        space: PlanSpace,
        least: Sequence[LeastCosts],
        messages: Sequence[Sequence[Message]],
        weight: Callable[[np.ndarray], np.ndarray],
        may_dominate: bool,
    ) -> None:
        self.space, self._weight = space, weight
        self._inner = space.inner()
        self._repeats = [n for _, n in space.workload.blocks]
        batches = np.array(space.micro_batches)
        self._tensor, self._context = self._inner.tensor.prod(axis=1), self._inner.context.prod(axis=1)
        self._plans = self._counted()
        pairs, which = np.unique(np.stack([self._tensor, self._context], axis=1), axis=0, return_inverse=True)
        self._choices = np.array([len(space.sequences(int(t), int(c))) for t, c in pairs], dtype=np.int64)[
            which.reshape(-1)
        ]
        seconds = self._least_s(pairs, least)[which.reshape(-1)]
        gathered = self._gathered_bytes(messages)
        if gathered:
            rates = space.gather_rates(self._inner.context, self._inner.tensor)
            seconds = seconds + (gathered * rates / self._tensor)[:, None] * batches[None, :]
        chips = self._tensor * self._context
        self._floors = seconds * (chips / space.chips)[:, None] / batches[None, :] * self._all_weight
        self._dominated = np.gcd(self._context[:, None], batches[None, :]) > 1
        if not (may_dominate and self._leaves_room):
            self._dominated[:] = False

    @property
    def _all_weight(self) -> float:
        """The weight of all chips: that of fewer is in proportion, or the same."""
        return float(self._weight(np.array([self.space.chips]))[0])

    @property
    def _leaves_room(self) -> bool:
        """Whether the class that dominates another is part of the space: with c context parallel chips and b sequences
        in a micro-batch that share a factor g, c/g and b/g with g times the data parallel chips do the same, with
        less gathered."""
        r = self.space.request
        fixed = (r.context, r.data, r.micro_batch)
        placed = set(r.placement or {}) & {"context", "data"}
        return all(x is None for x in fixed) and not placed and r.best in (None, 1)

    def _counted(self) -> np.ndarray:
        """Plans of one of a number's classes: [n, micro-batches]."""
        taken = self._inner.tensor * self._inner.context
        kinds = np.concatenate([taken, np.minimum(self._context, 2)[:, None]], axis=1)
        unique, which = np.unique(kinds, axis=0, return_inverse=True)
        counts = [self.space.plans_in(tuple(row[:-1]), row[-1]) for row in unique.tolist()]
        if not counts:
            return np.zeros((0, len(self.space.micro_batches)), dtype=np.int64)
        return np.array(counts)[which.reshape(-1)]

    def _least_s(self, pairs: np.ndarray, least: Sequence[LeastCosts]) -> np.ndarray:
        """Least seconds of a micro-batch over all stages: [pairs of degrees, micro-batches]."""
        found = np.zeros((len(pairs), len(self.space.micro_batches)))
        for i, (tensor, context) in enumerate(pairs.tolist()):
            for j, batch in enumerate(self.space.micro_batches):
                costs = (each.at(tensor, batch, context) for each in least)
                found[i, j] = sum(c.seconds * n for c, n in zip(costs, self._repeats, strict=True))
        return found

    def _gathered_bytes(self, messages: Sequence[Sequence[Message]]) -> float:
        return sum(n * sum(m.bytes for m in own) for n, own in zip(self._repeats, messages, strict=True))

    @property
    def plans(self) -> int:
        return int((self._plans * self._choices[:, None]).sum())

    @property
    def dominated(self) -> int:
        """Plans of dominated classes."""
        return int((self._plans * self._choices[:, None])[self._dominated].sum())

    @property
    def classes(self) -> int:
        return int(((self._plans > 0) * self._choices[:, None]).sum())

    def by_floor(self, dominated: bool) -> Iterator[tuple[float, int]]:
        """Floors and numbers of the classes with plans, least floor first; those that are `dominated` too, or not."""
        shown = self._plans > 0 if dominated else (self._plans > 0) & ~self._dominated
        numbers = np.nonzero(shown.reshape(-1))[0]
        floors = self._floors.reshape(-1)[numbers]
        for i in np.argsort(floors, kind="stable"):
            yield float(floors[i]), int(numbers[i])

    def classes_at(self, number: int) -> list[tuple[PlanClass, int]]:
        """The classes of a number, and how many plans each has."""
        row, batch = divmod(number, len(self.space.micro_batches))
        tensor, context = (tuple(x[row].tolist()) for x in (self._inner.tensor, self._inner.context))
        plans = int(self._plans[row, batch])
        return [
            (PlanClass(tensor, context, sequence, self.space.micro_batches[batch]), plans)
            for sequence in self.space.sequences(int(self._tensor[row]), int(self._context[row]))
        ]
