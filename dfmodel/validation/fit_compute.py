"""Rates of matrix work, fitted to `calibrate` rows alone: shapes from gemm.csv, sustained rates from llm_training.csv.

Each fit has the least mean absolute logarithm of predicted over measured, which a few rows far off do not pull.
Training rates follow in order: a chip's rate from its reference stack, then what other stacks reach of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmodel.validation import gemm, llm_training
from dfmodel.validation.files import CannotModelError, load_rules, read_table
from dfmodel.validation.llm_training import Case
from dfmodel.validation.pattern_search import descend

#: Where the search of a GEMM curve begins, every combination, and the range of its values.
GEMM_STARTS = {
    "rate": (0.9,),
    "k_half": (60.0, 200.0),
    "tile_exponent": (0.05, 0.15),
    "blend": (3.0,),
    "memory": (0.85,),
    "start_us": (5.0, 25.0),
}
GEMM_RANGE = {
    "rate": (0.3, 1.0),
    "k_half": (16.0, 1000.0),
    "tile_exponent": (0.02, 0.5),
    "blend": (1.5, 8.0),
    "memory": (0.5, 0.95),
    "start_us": (1.0, 100.0),
}

#: Significant digits that are kept: the rows do not support more.
DIGITS = 3


def fit_gemm(
    series: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], rules: Mapping[str, Any]
) -> dict[str, float]:
    """The constants of one chip and format."""

    def misfit(point: Mapping[str, float]) -> float:
        if any(not low <= point[k] <= high for k, (low, high) in GEMM_RANGE.items()):
            return math.inf
        benches = (gemm.bench_of(r, rules, point) for r in rows)
        return _mean([abs(math.log(b.seconds() / b.measured_s)) for b in benches])

    starts = (dict(zip(GEMM_STARTS, values, strict=True)) for values in itertools.product(*GEMM_STARTS.values()))
    tried = [descend(misfit, start, first=1.5, last=1.01) for start in starts]
    return rounded(min(tried, key=lambda t: t[0])[1])


def gemm_rows(series: Mapping[str, Any], folder: Path | None = None) -> list[dict[str, Any]]:
    """The calibrate rows of one chip and format."""
    return [
        r
        for r in read_table(gemm.TABLE, folder, gemm.COLUMNS)
        if r["use"] == "calibrate" and (r["chip"], r["dtype"]) == (series["chip"], series["dtype"]) and r["m"]
    ]


@dataclass(frozen=True)
class TrainingFit:
    """Constants of one efficiency file, and the rows that set them: those of `eras` (stacks) on `chips` in a format.

    `changes` turns trial values into fields of the chip's curve, given those found before."""

    file: str
    chips: tuple[str, ...]
    eras: tuple[str, ...]
    fp8: bool
    start: Mapping[str, float]
    changes: Callable[[Case, Mapping[str, float]], dict[str, Any]]

    def takes(self, case: Case) -> bool:
        return case.chip in self.chips and case.era in self.eras and (case.precision == "fp8") == self.fp8


def _rate(case: Case, point: Mapping[str, float]) -> dict[str, Any]:
    return {"matrix_max": point["matrix_max"]}


def _of_stack(era: str, attention: bool) -> Callable[[Case, Mapping[str, float]], dict[str, Any]]:
    def changes(case: Case, point: Mapping[str, float]) -> dict[str, Any]:
        found: dict[str, Any] = {"stacks": {**case.system.chip.efficiency.stacks, era: point[f"stacks.{era}"]}}
        if attention:
            found |= {k: v for k, v in point.items() if k.startswith("attention")}
        return found

    return changes


#: The file whose attention (width of a head) the others take.
SHAPES_OF = "a100"

A100 = ("A100-SXM-80GB", "A100-SXM-40GB")
H100 = ("H100-SXM-80GB",)

#: In the order in which they are made.
TRAINING_FITS = (
    TrainingFit("a100", A100, ("megatron_2022",), False, {"matrix_max": 0.75}, _rate),
    TrainingFit(
        "a100", A100, ("megatron_2021",), False, {"stacks.megatron_2021": 0.9}, _of_stack("megatron_2021", False)
    ),
    TrainingFit(
        "a100", A100, ("fsdp",), False, {"stacks.fsdp": 0.8, "attention_max": 1.1, "attention_half": 50.0},
        _of_stack("fsdp", True),
    ),
    TrainingFit("h100", H100, ("megatron_core",), False, {"matrix_max": 0.6}, _rate),
    TrainingFit(
        "h100", H100, ("fsdp",), False, {"stacks.fsdp": 0.9, "attention_max": 0.55}, _of_stack("fsdp", True)
    ),
    TrainingFit("h100", H100, ("megatron_core",), True, {"matrix_max_of.fp8": 0.55}, lambda case, point: {
        "matrix_max_of": {"fp8": point["matrix_max_of.fp8"]}
    }),
    TrainingFit("tpu_v5p", ("TPU v5p",), ("maxtext",), False, {"matrix_max": 0.7}, _rate),
    TrainingFit("tpu_v5e", ("TPU v5e",), ("maxtext",), False, {"matrix_max": 0.8}, _rate),
)  # fmt: skip


def training_cases(folder: Path | None = None) -> list[Case]:
    """The calibrate rows of llm_training.csv that the model can take."""
    rules = load_rules(llm_training.TABLE)
    found = []
    for row in read_table(llm_training.TABLE, folder, llm_training.COLUMNS):
        if row["use"] != "calibrate":
            continue
        try:
            found.append(llm_training.case_of(row, rules))
        except CannotModelError:
            continue
    return found


def fit_training(cases: Sequence[Case]) -> dict[str, dict[str, float]]:
    """Constants by efficiency file. Every fit sees what the ones before it found, and of the later ones where they
    start: nothing of the catalog's own constants."""
    found: dict[str, dict[str, float]] = {}
    for fit in TRAINING_FITS:
        known = found.setdefault(fit.file, {})
        starts = {k: v for f in TRAINING_FITS if f.file == fit.file for k, v in f.start.items()}
        half = {k: v for k, v in found.get(SHAPES_OF, {}).items() if k == "attention_half"}
        own = [_with_known(c, {**starts, **half, **known}) for c in cases if fit.takes(c)]

        def misfit(point: Mapping[str, float], fit: TrainingFit = fit, own: Sequence[Case] = own) -> float:
            if any(v > 1 for k, v in point.items() if k.startswith("matrix_max")) or point.get("attention_max", 0) > 2:
                return math.inf
            errors = []
            for case in own:
                changed = case.with_curve(**fit.changes(case, point))
                errors.append(abs(math.log(changed.best()[0] / case.measured)))
            return _mean(errors)

        _, point = descend(misfit, fit.start, first=1.1, last=1.01)
        known |= rounded(point)
    return found


def _with_known(case: Case, known: Mapping[str, float]) -> Case:
    """A case on a chip with the constants found so far."""
    stacks = {k.partition(".")[2]: v for k, v in known.items() if k.startswith("stacks.")}
    changes: dict[str, Any] = {"stacks": stacks}
    for name in ("matrix_max", "attention_max", "attention_half"):
        if name in known:
            changes[name] = known[name]
    return case.with_curve(**changes)


def rounded(point: Mapping[str, float]) -> dict[str, float]:
    return {k: float(f"{v:.{DIGITS}g}") for k, v in point.items()}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
