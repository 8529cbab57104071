"""Share of the fp64 matrix peak that each chip reaches in HPL, fitted to the `calibrate` rows of hpl.csv alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dfmodel.validation import hpl
from dfmodel.validation.files import CannotModelError, load_rules, read_table
from dfmodel.validation.fit_compute import rounded

FORMAT = "fp64"

#: Where a fit begins, whatever the catalog has; it ends at a mean logarithm of predicted over measured this small.
START = 0.7
CLOSE = 1e-4
MOST_STEPS = 12


def fit_shares(folder: Path | None = None) -> dict[str, tuple[float, int]]:
    """Chip -> (share, number of rows it is fitted to)."""
    by_chip: dict[str, list[hpl.Case]] = {}
    rules = load_rules(hpl.TABLE)
    for row in read_table(hpl.TABLE, folder, hpl.COLUMNS):
        if row["use"] != "calibrate":
            continue
        try:
            case = hpl.case_of(row, rules)
        except CannotModelError:
            continue
        by_chip.setdefault(case.system.chip.name, []).append(case)
    return {chip: (rounded({FORMAT: fit(cases)})[FORMAT], len(cases)) for chip, cases in by_chip.items()}


def fit(cases: Sequence[hpl.Case]) -> float:
    """The share, at most 1, that meets the rows in the mean of logarithms. Rates grow nearly in proportion to it."""
    share = START
    for _ in range(MOST_STEPS):
        ratios = [math.log(c.with_share(share).rmax_tflops() / c.measured) for c in cases]
        off = sum(ratios) / len(ratios)
        if abs(off) < CLOSE:
            break
        share = min(1.0, share * math.exp(-off))
    return share
