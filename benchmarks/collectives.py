"""Collectives against measurements: `python benchmarks/collectives.py [--out DIR] [--fit]`.

Prints every row of validation/data/collectives.csv beside the prediction and the errors by use; `--out` writes the
table as CSV and a plot of bus bandwidth over message size; `--fit` derives the constants of the link files anew.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from matplotlib.figure import Figure

from dfmodel.reporting.collective_report import SWEEP_BYTES
from dfmodel.reporting.plots import COLOURS
from dfmodel.systems.collectives import bus_bytes_per_s, collective
from dfmodel.validation.collectives import TABLE, compare, is_large, setup_of
from dfmodel.validation.files import load_rules, read_table
from dfmodel.validation.fit_collectives import catalog_entry, fit_all

#: Sweeps of the plot: how their ids begin, their label.
SWEEPS = (
    ("nccl_A100x8_ar_", "8 x A100, NVSwitch"),
    ("llmcompass_A100x4_ar_", "4 x A100, fully connected"),
    ("bench_H200x8_ar_", "8 x H200, in-network above 1 MiB"),
)


def frame() -> pd.DataFrame:
    rows = [
        {
            "id": c.id,
            "use": c.use,
            **c.facts,
            "measured_GB_per_s": round(c.measured, 3),
            "predicted_GB_per_s": None if c.predicted is None else round(c.predicted, 3),
            "error_pct": None if c.error_pct is None else round(c.error_pct, 2),
            "above_1_MB": is_large(c),
            "assumed": "; ".join(c.assumed),
            "why_not": c.why_not,
        }
        for c in compare()
    ]
    return pd.DataFrame(rows)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """Rows, rows modelled and errors (percent of bus bandwidth) above 1 MB, by use."""
    large = table[table["above_1_MB"]]
    found = []
    for use in ("calibrate", "validate"):
        rows = large[large["use"] == use]
        errors = rows["error_pct"].dropna().astype(float)
        found.append(
            {
                "use": use,
                "rows": len(rows),
                "modelled": len(errors),
                "mean_abs_pct": errors.abs().mean(),
                "signed_mean_pct": errors.mean(),
                "median_abs_pct": errors.abs().median(),
                "max_abs_pct": errors.abs().max(),
            }
        )
    return pd.DataFrame(found).round(2)


def plot(table: pd.DataFrame, path: Path) -> None:
    """Bus bandwidth over message size: measurements as marks (filled: judge, hollow: calibrate), the model as lines."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    rules = load_rules(TABLE)
    by_id = {r["id"]: r for r in read_table("collectives")}
    for i, (prefix, label) in enumerate(SWEEPS):
        rows = table[table["id"].str.startswith(prefix)]
        setup = setup_of(by_id[rows["id"].iloc[0]], rules)
        model = [
            bus_bytes_per_s(setup.op, m, setup.group.size, collective(setup.op, m, setup.group).seconds) / 1e9
            for m in SWEEP_BYTES
        ]
        axes.plot(SWEEP_BYTES, model, color=COLOURS[i], linestyle=("-", "--", "-.")[i], label=f"{label}: model")
        for use, filled in (("calibrate", "none"), ("validate", COLOURS[i])):
            own = rows[rows["use"] == use]
            if len(own):
                axes.plot(
                    own["msg_bytes"].astype(float), own["measured_GB_per_s"], "os^"[i], color=COLOURS[i],
                    markerfacecolor=filled, label=f"{label}: measured ({use})",
                )  # fmt: skip
    axes.set_xscale("log", base=2)
    ticks = SWEEP_BYTES[::4]
    axes.set_xticks(ticks, ["1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB", "16 GiB"][: len(ticks)])
    axes.set_xlim(SWEEP_BYTES[0], 1.5 * SWEEP_BYTES[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message per chip")
    axes.set_ylabel("bus bandwidth of an all-reduce (GB/s)")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", action="store_true")
    arguments = parser.parse_args()
    if arguments.fit:
        for fit, values, rows in fit_all():
            print(f"# {fit.link}")
            print(yaml.safe_dump([catalog_entry(values, rows)], sort_keys=False, default_flow_style=None, width=118))
        return
    table = frame()
    print(table.drop(columns=["system", "fabric", "above_1_MB"]).to_string(index=False, max_colwidth=60))
    print()
    print(summary(table).to_string(index=False))
    both = table[table["above_1_MB"] & table["use"].isin(["calibrate", "validate"])]["error_pct"].dropna()
    print(f"\nboth together: {len(both)} rows, mean absolute error {np.abs(both.astype(float)).mean():.2f} %")
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        table.to_csv(arguments.out / "results.csv", index=False)
        summary(table).to_csv(arguments.out / "summary.csv", index=False)
        plot(table, arguments.out / "bus_bandwidth.png")


if __name__ == "__main__":
    main()
