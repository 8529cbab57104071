"""Fronts and selections of results as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dfmodel.errors import InputError, did_you_mean
from dfmodel.studies.pareto import Goal


def selected(frame: Any, pairs: Sequence[str]) -> Any:
    """The rows with the values of `COLUMN=VALUE` texts. Raises InputError for an unknown column or no such row."""
    for pair in pairs:
        column, sign, text = pair.partition("=")
        if not sign or column not in frame:
            why = f"no such column{did_you_mean(column, frame.columns)}" if sign else "expected COLUMN=VALUE"
            raise InputError(f"--select {pair}: {why}")
        kept = frame[frame[column].astype(str).isin((text, f"{text}.0"))]
        if kept.empty:
            raise InputError(f"--select {pair}: no row has it{did_you_mean(text, set(frame[column].astype(str)))}")
        frame = kept
    return frame


def input_columns(frame: Any) -> list[str]:
    """Columns of the inputs: between the point's number and the first of the columns every sweep has."""
    columns = list(frame.columns)
    # a sweep over systems or workloads has them among its inputs, in front of the status too
    return [c for c in columns[1 : columns.index("status")] if frame[c].nunique(dropna=False) > 1]


def front_columns(frame: Any, goals: Sequence[Goal]) -> list[str]:
    """Number and inputs that differ, then the metrics asked."""
    return list(dict.fromkeys(["point", *input_columns(frame), *(g.metric for g in goals)]))


def render_front(frame: Any, shown: Any, goals: Sequence[Goal]) -> str:
    """The front as a table, with what it was found among."""
    counts = ", ".join(f"{n:,} {status}" for status, n in frame["status"].value_counts().items())
    title = f"{len(shown):,} of {len(frame):,} points ({counts}) are not dominated: {', '.join(map(str, goals))}"
    return f"{title}\n\n{shown.to_string(index=False, float_format=lambda v: f'{v:.6g}')}"
