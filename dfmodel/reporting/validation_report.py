"""The accuracy of the model as text, CSV and a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from dfmodel.reporting.plots import COLOURS
from dfmodel.reporting.tables import section, text_table, write_csv
from dfmodel.validation.files import Comparison
from dfmodel.validation.suites import TableErrors, is_judged, table_errors, tables_of


def render_validation(comparisons: Sequence[Comparison]) -> str:
    """Row by row, then table by table, then what could not be modelled and why."""
    shown = [c for c in comparisons if c.predicted is not None]
    missing = [c for c in comparisons if c.predicted is None]
    parts = []
    if shown:
        parts.append(section("Rows", _rows(shown)))
    if missing:
        parts.append(section("Not modelled", _missing(missing)))
    errors = table_errors(comparisons)
    if errors:
        parts.append(section("Errors on rows that only judge, percent of what was measured", tables_text(errors)))
    return "\n\n".join(parts)


def _rows(shown: Sequence[Comparison]) -> str:
    return text_table(
        {
            "row": [c.id for c in shown],
            "use": [c.use for c in shown],
            "predicted": [f"{c.predicted:.4g}" for c in shown],
            "measured": [f"{c.measured:.4g}" for c in shown],
            "unit": [c.unit for c in shown],
            "error %": [f"{c.error_pct:+.1f}" for c in shown],
            "filled in or assumed": ["; ".join(c.assumed) for c in shown],
        }
    )


def _missing(missing: Sequence[Comparison]) -> str:
    by_reason: dict[tuple[str, str], list[str]] = {}
    for c in missing:
        by_reason.setdefault((tables_of(c)[-1], c.why_not), []).append(c.id)
    return text_table(
        {
            "table": [table for table, _ in by_reason],
            "rows": [str(len(ids)) for ids in by_reason.values()],
            "first": [ids[0] for ids in by_reason.values()],
            "why": [why for _, why in by_reason],
        }
    )


def tables_text(errors: Sequence[TableErrors]) -> str:
    """The errors of tables as columns of text."""
    columns = {
        "table": [e.name for e in errors],
        "rows": [str(e.rows) for e in errors],
        "modelled": [str(e.modelled) for e in errors],
        "filled in": [str(e.filled) for e in errors],
    }
    for title, name in (
        ("mean", "mean_abs_pct"), ("signed", "signed_mean_pct"), ("std", "std_pct"), ("median", "median_abs_pct"),
        ("90th", "p90_abs_pct"), ("largest", "max_abs_pct"), ("mean, all stated", "stated_mean_abs_pct"),
    ):  # fmt: skip
        values = [getattr(e, name) for e in errors]
        columns[title] = ["-" if v is None else f"{v:.1f}" for v in values]
    return text_table(columns)


def write_validation(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """rows.csv, tables.csv and scatter.png; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": c.id, "table": c.table, "publication": tables_of(c)[-1], "use": c.use, "predicted": c.predicted,
            "measured": c.measured, "unit": c.unit, "error_pct": c.error_pct, "assumed": "; ".join(c.assumed),
            "why_not": c.why_not,
        }
        for c in comparisons
    ]  # fmt: skip
    write_csv(rows, folder / "rows.csv")
    write_csv([dict(vars(e)) for e in table_errors(comparisons)], folder / "tables.csv")
    _scatter(comparisons, folder / "scatter.png")
    return [folder / name for name in ("rows.csv", "tables.csv", "scatter.png")]


def _scatter(comparisons: Sequence[Comparison], path: Path) -> None:
    """Predicted over measured against measured, one marker per table, rows that only judge."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    by_table: dict[str, list[Comparison]] = {}
    for c in comparisons:
        if is_judged(c) and c.predicted is not None:
            by_table.setdefault(tables_of(c)[-1], []).append(c)
    for i, (name, rows) in enumerate(by_table.items()):
        ratios = [float(c.predicted or math.nan) / c.measured for c in rows]
        axes.scatter(
            [c.measured for c in rows],
            ratios,
            color=COLOURS[i % len(COLOURS)],
            marker="os^Dv<>pP*X"[i % 11],
            edgecolor="black",
            linewidth=0.4,
            s=26,
            label=f"{name} ({len(rows)})",
        )
    for level, style in ((1.0, "-"), (1.1, ":"), (0.9, ":")):
        axes.axhline(level, color="black", linewidth=0.8, linestyle=style)
    axes.set_xscale("log")
    axes.set_xlabel("measured (unit of the row: s, ms, TFLOP/s per chip, GB/s)")
    axes.set_ylabel("predicted / measured (dotted: 10 % off)")
    axes.legend(fontsize=7, loc="best")
    figure.savefig(path, dpi=130, metadata={"Software": None})
