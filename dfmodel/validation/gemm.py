"""Matrix products beside their measurements: every row of gemm.csv by its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfmodel.errors import DfmodelError
from dfmodel.systems.gemm import GemmCurve, GemmShape
from dfmodel.validation.files import CannotModelError, Comparison, load_rules, number, read_table
from dfmodel.workloads.graph import DTYPE_BYTES

TABLE = "gemm"
COLUMNS = ("chip", "dtype", "m", "n", "k", "time_ms", "tflops", "peak_tflops")

#: Products of more FLOP than this are judged; smaller ones measure the start.
LARGE_FLOPS = 10e9


@dataclass(frozen=True)
class Bench:
    """A product on a chip, and the constants of the benchmark that timed it."""

    shape: GemmShape
    curve: GemmCurve
    peak: float
    rate: float
    bytes: float
    bytes_per_s: float
    start_s: float
    measured_s: float

    def seconds(self) -> float:
        return self.curve.alone_s(self.shape, self.rate * self.peak, self.bytes, self.bytes_per_s) + self.start_s


def bench_of(row: Mapping[str, Any], rules: Mapping[str, Any], constants: Mapping[str, float] | None = None) -> Bench:
    """A row as a product, with fitted or other `constants`. Raises CannotModelError where the row or the catalog does
    not say enough."""
    series = next((s for s in rules["series"] if row["chip"] == s["chip"] and row["dtype"] == s["dtype"]), None)
    if series is None:
        raise CannotModelError(f"no curve is known for {row['chip']} in {row['dtype']}")
    if any(row[c] is None for c in ("m", "n", "k", "time_ms")):
        raise CannotModelError("the row states no shape or no time")
    c = {**series["constants"], **(constants or {})}
    shape = GemmShape(int(row["m"]), int(row["n"]), int(row["k"]))
    width = DTYPE_BYTES[series["format"]]
    moved = width * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n)
    curve = GemmCurve(int(series["units"]), c["k_half"], c["tile_exponent"], c["blend"])
    milliseconds = number(row, "time_ms")
    assert milliseconds is not None
    peak = float(series["peak_tflops"]) * 1e12
    bandwidth = float(series["memory_GBps"]) * 1e9 * c["memory"]
    return Bench(shape, curve, peak, c["rate"], moved, bandwidth, c["start_us"] * 1e-6, milliseconds / 1e3)


def compare(folder: Path | None = None) -> list[Comparison]:
    """Every row with its time as measured and as predicted, in milliseconds."""
    rules = load_rules(TABLE)
    found = []
    for row in read_table(TABLE, folder, COLUMNS):
        stated = number(row, "time_ms") or number(row, "tflops") or 0.0
        try:
            bench = bench_of(row, rules)
        except DfmodelError as error:
            facts = {"table": TABLE, "large": False, "filled": False}
            found.append(Comparison(row["id"], TABLE, row["use"], stated, None, "ms", (), str(error), facts))
            continue
        facts = {"table": TABLE, "large": bench.shape.flops > LARGE_FLOPS, "filled": False}
        found.append(
            Comparison(row["id"], TABLE, row["use"], 1e3 * bench.measured_s, 1e3 * bench.seconds(), "ms", (), "", facts)
        )
    return found
