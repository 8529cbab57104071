"""results.csv of a sweep: a row per point, inputs and metrics side by side, and the note that says whose it is."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dfmodel.errors import InputError
from dfmodel.studies.points import Point, versions
from dfmodel.studies.study import Study

#: Of the note beside a sweep's results.
FORMAT = 1

NOTE = "sweep.json"
RESULTS = "results.csv"

#: Columns that open and close every row, around inputs and metrics.
_FIRST = ("point",)
_OPENING = ("workload", "system", "status", "bound_s", "gap")
_CLOSING = ("error", "solve_s", "key")


def result_rows(points: Iterable[Point], records: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row per point; those without a record have the status "not computed". Names of metrics carry units."""
    version = {f"version_{k}": v for k, v in versions().items()}
    rows = []
    for point in points:
        record = records.get(point.key) or {"status": "not computed", "row": {}, "error": None}
        rows.append(
            {
                "point": point.number,
                "workload": point.config.workload,
                "system": point.config.system,
                **record["row"],
                **point.inputs,
                "status": record["status"],
                "error": record["error"],
                "key": point.key,
                **version,
            }
        )
    return rows


def columns_of(rows: Sequence[Mapping[str, Any]], inputs: Sequence[str]) -> list[str]:
    """Every column of `rows`: number, inputs, status and bound, metrics, error, versions."""
    found = dict.fromkeys(k for row in rows for k in row)
    closing = [*_CLOSING, *(k for k in found if k.startswith("version_"))]
    opening = [*_FIRST, *inputs, *(k for k in _OPENING if k not in inputs)]
    middle = [k for k in found if k not in opening and k not in closing]
    return [k for k in (*opening, *middle, *closing) if k in found]


def write_results(rows: Sequence[Mapping[str, Any]], inputs: Sequence[str], folder: Path, parquet: bool) -> Path:
    """Write results.csv (and results.parquet), whole or not at all. Raises InputError where that fails."""
    columns = columns_of(rows, inputs)
    path = folder / RESULTS

    def as_csv(file: IO[str]) -> None:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)

    replace_whole(path, as_csv)
    if parquet:
        import pandas as pd

        # an axis may mix numbers and texts, which a column of a table cannot
        frame = pd.DataFrame(rows, columns=columns)
        mixed = [c for c in columns if frame[c].dropna().map(type).nunique() > 1]
        frame[mixed] = frame[mixed].map(lambda v: v if v is None else str(v))
        try:
            frame.to_parquet(folder / "results.parquet", index=False)
        except ImportError:
            raise InputError("--parquet: pyarrow is not installed; pip install 'dfmodel[parquet]'") from None
    return path


def replace_whole(path: Path, write: Callable[[IO[str]], None]) -> None:
    """Write a text file under another name, then rename it. Raises InputError, leaving the old one, where it fails."""
    scratch = ""
    try:
        descriptor, scratch = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        with os.fdopen(descriptor, "w", newline="", encoding="utf-8") as file:
            write(file)
        Path(scratch).chmod(0o644)
        Path(scratch).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(scratch).unlink()
        raise InputError(
            f"{path}: could not be written ({error.strerror}); computed points are kept, make room and use --resume"
        ) from error


def open_folder(folder: Path, study: Study, resume: bool, force: bool) -> None:
    """Take a folder for a study's results: a new one, or with `resume` this study's own.

    A study is the same while its name and its axes are; values may change. Raises InputError for a folder that holds
    something else, or results that neither `resume` nor `force` speaks for.
    """
    note = {"format": FORMAT, "study": study.name, "axes": sorted(study.keys)}
    path = folder / NOTE
    if path.exists():
        held = _note(path)
        if resume and held != note:
            changes = [f"{k} {held.get(k)!r} instead of {note[k]!r}" for k in note if held.get(k) != note[k]]
            raise InputError(
                f"{folder}: holds the results of another study ({'; '.join(changes)}); choose another place with "
                "--out, or --force to start over there"
            )
        if not resume and not force:
            raise InputError(f"{folder}: holds results already; --resume continues, --force starts over")
    elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not force:
        raise InputError(f"{folder}: exists and is no sweep's folder; choose another place with --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if force and not resume:
            for old in (path, folder / RESULTS, *folder.glob("points*.jsonl"), *folder.glob("programs*.jsonl")):
                old.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be used ({error.strerror}); choose another place with --out") from error
    replace_whole(path, lambda file: json.dump(note, file, indent=1))


def _note(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}); choose another place with --out") from None
    if not isinstance(held, dict) or held.get("format") != FORMAT:
        raise InputError(f"{path}: not written by this version of dfmodel; choose another place with --out")
    return held


def read_results(path: Path) -> Any:
    """results.csv (or .parquet, or the folder of a sweep) as a pandas frame. Raises InputError for any other file."""
    import pandas as pd

    file = path / RESULTS if path.is_dir() else path
    try:
        frame = pd.read_parquet(file) if file.suffix == ".parquet" else pd.read_csv(file, low_memory=False)
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{file}: cannot be read as results of a sweep ({error})") from None
    missing = [c for c in ("point", "status", "key") if c not in frame]
    if missing:
        raise InputError(f"{file}: no results of a sweep: it has no column {', '.join(missing)}")
    return frame
