"""Which points no other is better than: the Pareto front over any metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfmodel.errors import InputError, did_you_mean
from dfmodel.studies.solve_point import SOLVED


@dataclass(frozen=True)
class Goal:
    """A metric, and whether less or more of it is better."""

    metric: str
    minimise: bool

    @property
    def sign(self) -> float:
        return 1.0 if self.minimise else -1.0

    def __str__(self) -> str:
        return f"{'minimise' if self.minimise else 'maximise'} {self.metric}"


def goals_of(minimise: Sequence[str], maximise: Sequence[str]) -> tuple[Goal, ...]:
    """Goals of two lists of metrics. Raises InputError for none, or a metric in both."""
    both = sorted(set(minimise) & set(maximise))
    if both:
        raise InputError([f"{m}: minimised and maximised; choose one" for m in both])
    if not minimise and not maximise:
        raise InputError("no metric; give --minimise METRIC or --maximise METRIC")
    return (
        *(Goal(m, True) for m in dict.fromkeys(minimise)),
        *(Goal(m, False) for m in dict.fromkeys(maximise)),
    )


def non_dominated(values: np.ndarray) -> np.ndarray:
    """Rows of `values` ([points, metrics], less is better) that no row equals or beats in all and beats in one.

    Equal rows are all kept. Sorted by the first metric each row is compared with the front so far: a row that
    dominates another never sorts behind it.
    """
    kept = np.zeros(len(values), dtype=bool)
    front = np.empty((0, values.shape[1]))
    for i in np.lexsort(values.T[::-1]):
        row = values[i]
        if not bool(((front <= row).all(axis=1) & (front < row).any(axis=1)).any()):
            kept[i] = True
            front = np.vstack([front, row])
    return kept


def solved_rows(frame: Any, metrics: Sequence[str]) -> Any:
    """Rows with an answer and a number for every metric. Raises InputError for an unknown metric, or no such row."""
    import pandas as pd

    numeric = [c for c in frame.columns if pd.api.types.is_numeric_dtype(frame[c]) and c != "point"]
    problems = [
        f"{m}: {'holds no numbers' if m in frame else f'no such column{did_you_mean(m, numeric)}'}"
        for m in metrics
        if m not in numeric
    ]
    if problems:
        raise InputError(problems)
    found = frame[frame["status"].isin(SOLVED)].dropna(subset=list(metrics))
    if found.empty:
        counts = ", ".join(f"{n} {status}" for status, n in frame["status"].value_counts().items())
        raise InputError(f"no point has numbers for {', '.join(metrics)} ({counts})")
    return found


def front(frame: Any, goals: Sequence[Goal]) -> Any:
    """The non-dominated rows of a frame of results, best of the first goal first. Raises InputError."""
    rows = solved_rows(frame, [g.metric for g in goals])
    values = rows[[g.metric for g in goals]].to_numpy(dtype=float) * np.array([g.sign for g in goals])
    kept = rows[non_dominated(values)]
    return kept.sort_values([g.metric for g in goals], ascending=[g.minimise for g in goals], kind="stable")


#: Share by which a bound must be worse before a point counts as dominated: more than rounding.
_CLOSER = 1e-9


class Front:
    """The best of what is known while a sweep runs; tells which bounds cannot matter any more."""

    def __init__(self, goals: Sequence[Goal]) -> None:
        self.goals = tuple(goals)
        self._known: list[tuple[np.ndarray, str]] = []

    def add(self, row: Mapping[str, Any], name: str) -> None:
        """Note a solved point; one without a number for every metric is no use."""
        values = self._values(row)
        if values is not None:
            self._known.append((values, name))

    def dominating(self, bounds: Mapping[str, Any]) -> str | None:
        """The name of a point at least as good as `bounds` in every metric and better in one: the point with these
        bounds is dominated too, whatever its answer. None where there is none, or a metric has no bound."""
        least = self._values(bounds)
        if least is None:
            return None
        margin = _CLOSER * np.abs(least)
        for values, name in self._known:
            if bool((values <= least).all() and (values < least - margin).any()):
                return name
        return None

    def sort_key(self, bounds: Mapping[str, Any]) -> float:
        """Where a point stands among others, the most promising first: what is minimised over what is maximised, all
        multiplied (as a logarithm); without a bound above 0 for each at the end."""
        least = self._values(bounds)
        if least is None or bool((np.abs(least) == 0).any()):
            return float("inf")
        return float((np.sign(least) * np.log(np.abs(least))).sum())

    def _values(self, row: Mapping[str, Any]) -> np.ndarray | None:
        found = [row.get(g.metric) for g in self.goals]
        return None if any(v is None for v in found) else np.array(found, dtype=float) * [g.sign for g in self.goals]
