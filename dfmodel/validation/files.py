"""Where the measurements lie and how a table of them is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from dfmodel.catalog_files import load_yaml
from dfmodel.errors import DfmodelError, InputError

#: What a row may be for: set constants, judge, be compared with its like, bound, or only be shown.
USES = ("calibrate", "validate", "relative", "bound", "context")


def packaged_measurements() -> Path:
    """The folder with data/ and setups/: inside an installed package, beside it in a source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "validation_files"
    return inside if inside.is_dir() else package.parent / "validation"


class CannotModelError(DfmodelError):
    """A row that the model cannot predict; the text says why."""


def load_rules(table: str, folder: Path | None = None) -> Mapping[str, Any]:
    """How rows of a table are predicted: `table`.yaml in `folder` (default: the packaged setups)."""
    return load_yaml((folder or packaged_measurements() / "setups") / f"{table}.yaml")


def read_table(name: str, folder: Path | None = None, needed: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Rows of `name`.csv in `folder` (default: the packaged data), empty cells as None.

    Raises InputError for a file that is missing, columns that are, repeated ids and unknown uses.
    """
    path = (folder or packaged_measurements() / "data") / f"{name}.csv"
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    missing = [c for c in ("id", "use", *needed) if c not in frame.columns]
    if missing:
        raise InputError(f"{path}: missing columns: {', '.join(missing)}")
    rows: list[dict[str, Any]] = [{str(k): (v or None) for k, v in row.items()} for row in frame.to_dict("records")]
    problems = [f"{path}: {r['id']}: use '{r['use']}'; one of {', '.join(USES)}" for r in rows if r["use"] not in USES]
    twice = frame["id"][frame["id"].duplicated()]
    problems += [f"{path}: {i}: id is used twice" for i in twice]
    if problems:
        raise InputError(problems)
    return rows


@dataclass(frozen=True)
class Comparison:
    """A measured row and what the model says; `predicted` is None where it cannot, for the reason in `why_not`."""

    id: str
    table: str
    use: str
    measured: float
    predicted: float | None
    unit: str
    assumed: tuple[str, ...] = ()
    why_not: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error_pct(self) -> float | None:
        """Percent by which the prediction is above the measurement."""
        return None if self.predicted is None else 100 * (self.predicted / self.measured - 1)


def number(row: Mapping[str, Any], column: str) -> float | None:
    """A cell as a number. Raises InputError where it holds something else."""
    text = row.get(column)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{row['id']}: {column}: expected a number, got '{text}'") from None
