"""The original DFModel's logged results beside ours under its own modelling choices, from paper.csv.

Columns: the study of the catalog, the figure, its value and the file and commit of the original's repository that
states it. `expect` says whether the log holds an optimum (equal) or its solver stopped early (not_worse).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from dfmodel.api import optimize
from dfmodel.errors import DfmodelError
from dfmodel.mapping.result import Result
from dfmodel.validation.files import Comparison, number, read_table

TABLE = "paper"
COLUMNS = ("case", "metric", "value", "unit", "expect")


def pipeline_factor(result: Result) -> float:
    """What pipelining multiplies the stages' seconds by; sending between stages comes on top."""
    parts = dict(result.breakdown_s)
    parts.pop("pipeline communication")
    bubble = parts.pop("pipeline bubble")
    return 1 + bubble / sum(parts.values())


def _known(value: float | None) -> float:
    return math.nan if value is None else float(value)


#: Figure of a row -> how it follows from a result.
METRICS: Mapping[str, Callable[[Result], float]] = {
    "final_s": lambda r: _known(r.metrics["iteration_s"]),
    "flops_util": lambda r: _known(r.metrics["utilisation"]),
    "total_cost": lambda r: _known(r.cost["total"]),
    "total_power": lambda r: _known(r.power["total"]),
    "sum_partition_ns": lambda r: _known(r.metrics["layer_s"]) * 1e9,
    "pipeline_factor": pipeline_factor,
    "p2p_ns": lambda r: r.breakdown_s["pipeline communication"] * 1e9,
}


def compare(folder: Path | None = None) -> list[Comparison]:
    """Every row with the study of its case run."""
    known: dict[str, Result | DfmodelError] = {}
    found = []
    for row in read_table(TABLE, folder, COLUMNS):
        case = str(row["case"])
        if case not in known:
            try:
                known[case] = optimize(study=case)
            except DfmodelError as error:
                known[case] = error
        result, measured = known[case], number(row, "value") or 0.0
        facts = {"table": TABLE, "filled": False}
        predicted, why_not = None, ""
        if isinstance(result, DfmodelError):
            why_not = str(result)
        elif row["metric"] not in METRICS:
            why_not = f"no figure '{row['metric']}'"
        else:
            predicted = METRICS[str(row["metric"])](result)
        found.append(
            Comparison(row["id"], TABLE, row["use"], measured, predicted, str(row["unit"]), (), why_not, facts)
        )
    return found
