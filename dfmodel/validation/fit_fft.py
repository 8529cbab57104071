"""Share of a network's bandwidth that all-to-alls between nodes reach, fitted to `calibrate` rows of fft.csv alone."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from pathlib import Path

from dfmodel.validation import fft
from dfmodel.validation.files import CannotModelError, load_rules, read_table
from dfmodel.validation.fit_compute import rounded

#: Halvings of the range of the share.
STEPS = 16


def fit_exchanges(folder: Path | None = None) -> dict[str, tuple[float, int]]:
    """Link -> (share of its bandwidth, number of rows it is fitted to)."""
    rules = load_rules(fft.TABLE)
    by_link: dict[str, list[fft.Case]] = {}
    for row in read_table(fft.TABLE, folder, fft.COLUMNS):
        links = [m["exchange_of"] for m in rules["machines"] if "exchange_of" in m and _named(row["id"], m["rows"])]
        if row["use"] != "calibrate" or not links:
            continue
        try:
            case = fft.case_of(row, rules)
        except CannotModelError:
            continue
        if case.nodes > 1 and case.measured_s is not None:
            by_link.setdefault(links[0], []).append(case)
    return {link: (rounded({link: fit(cases)})[link], len(cases)) for link, cases in by_link.items()}


def _named(row: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(row, p) for p in patterns)


def fit(cases: Sequence[fft.Case]) -> float:
    """The share at which the rows are met in the mean of logarithms: times fall as it grows."""
    low, high = 0.05, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        off = sum(math.log(c.with_exchange(middle).seconds() / (c.measured_s or math.nan)) for c in cases)
        low, high = (middle, high) if off > 0 else (low, middle)
    return (low + high) / 2
