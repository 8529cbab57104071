"""Every suite of measurements, and how far the model is from each of its tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dfmodel.errors import InputError, did_you_mean
from dfmodel.validation import collectives, fft, gemm, hpl, llm_training, paper
from dfmodel.validation.files import Comparison, number, packaged_measurements, read_table


@dataclass(frozen=True)
class TableErrors:
    """Errors of the rows of one table that only judge, in percent of what was measured."""

    name: str
    rows: int
    modelled: int
    #: Of the modelled ones, rows of which the search filled in settings.
    filled: int
    mean_abs_pct: float | None
    signed_mean_pct: float | None
    std_pct: float | None
    median_abs_pct: float | None
    p90_abs_pct: float | None
    max_abs_pct: float | None
    #: Mean over the rows that state every setting.
    stated_mean_abs_pct: float | None


def _later(table: str, why: str, measured: Sequence[str]) -> Callable[[Path | None], list[Comparison]]:
    """A suite whose workload the model does not have yet: its rows are listed with the reason."""

    def compare(folder: Path | None) -> list[Comparison]:
        found = []
        for row in read_table(table, folder):
            stated = next((number(row, c) for c in measured if row.get(c)), None)
            facts = {"table": table, "filled": False}
            found.append(
                Comparison(
                    row["id"], table, row["use"], stated if stated is not None else math.nan, None, "", (), why, facts
                )
            )
        return found

    return compare


#: Suite -> the file it reads and its comparison.
SUITES: Mapping[str, tuple[str, Callable[[Path | None], list[Comparison]]]] = {
    "llm-training": ("llm_training", llm_training.compare),
    "gemm": ("gemm", gemm.compare),
    "collectives": ("collectives", collectives.compare),
    "paper": ("paper", paper.compare),
    "llm-serving": ("llm_serving", _later("llm_serving", "serving of language models is not modelled yet", ("value",))),
    "dlrm": ("dlrm", _later("dlrm", "DLRM is not modelled yet", ("qps_samples_per_s", "latency_s"))),
    "hpl": ("hpl", hpl.compare),
    "fft": ("fft", fft.compare),
}


def run_suites(name: str = "all", folder: Path | None = None) -> list[Comparison]:
    """Comparisons of one suite or of all; of those whose file `folder` has, where it is given.

    Raises InputError for an unknown suite, or a folder with none of the files.
    """
    if name != "all" and name not in SUITES:
        raise InputError(f"--suite {name}: unknown suite{did_you_mean(name, [*SUITES, 'all'])}")
    if folder is not None and not folder.is_dir():
        raise InputError(f"--data {folder}: no such folder")
    chosen = SUITES if name == "all" else {name: SUITES[name]}
    where = folder or packaged_measurements() / "data"
    present = {k: v for k, v in chosen.items() if name != "all" or (where / f"{v[0]}.csv").is_file()}
    if not present:
        names = ", ".join(f"{table}.csv" for table, _ in chosen.values())
        raise InputError(f"--data {where}: none of {names} is there")
    return [c for _, compare in present.values() for c in compare(folder)]


def is_judged(c: Comparison) -> bool:
    """Whether a row counts in a table's errors: it only judges (by itself or relative to another), and its benchmark
    measures work rather than starts."""
    if c.use == "relative":
        return bool(c.facts.get("relative"))
    if c.use != "validate":
        return False
    if c.table == collectives.TABLE:
        return collectives.is_large(c)
    return bool(c.facts.get("large", True))


def tables_of(c: Comparison) -> tuple[str, ...]:
    """The tables a row belongs to: its file's, and the publication's."""
    own = str(c.facts.get("table", c.table))
    return (c.table,) if own == c.table else (c.table, own)


def table_errors(comparisons: Sequence[Comparison]) -> list[TableErrors]:
    """Errors of every table, in order of appearance."""
    by_table: dict[str, list[Comparison]] = {}
    for c in comparisons:
        for name in tables_of(c):
            by_table.setdefault(name, [])
            if is_judged(c):
                by_table[name].append(c)
    return [_errors(name, rows) for name, rows in by_table.items() if rows]


def _errors(name: str, rows: Sequence[Comparison]) -> TableErrors:
    known = [c for c in rows if c.error_pct is not None]
    filled = [c for c in known if c.facts.get("filled")]
    signed = np.array([float(c.error_pct or 0.0) for c in known])
    stated = np.array([abs(float(c.error_pct or 0.0)) for c in known if not c.facts.get("filled")])
    if not len(signed):
        return TableErrors(name, len(rows), 0, 0, None, None, None, None, None, None, None)
    absolute = np.abs(signed)
    return TableErrors(
        name, len(rows), len(known), len(filled), float(absolute.mean()), float(signed.mean()), float(signed.std()),
        float(np.median(absolute)), float(np.percentile(absolute, 90)), float(absolute.max()),
        float(stated.mean()) if len(stated) else None,
    )  # fmt: skip


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Tables and rows as `dfmodel validate --json` prints them."""
    return {
        "tables": {t.name: {k: v for k, v in vars(t).items() if k != "name"} for t in table_errors(comparisons)},
        "rows": [
            {
                "id": c.id,
                "table": c.table,
                "use": c.use,
                "predicted": c.predicted,
                "measured": None if math.isnan(c.measured) else c.measured,
                "unit": c.unit,
                "error_pct": c.error_pct,
                "assumed": list(c.assumed),
                "why_not": c.why_not or None,
            }
            for c in comparisons
        ],
    }
