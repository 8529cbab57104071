"""SRAM traded against compute on one die: the original's 3D-memory study with what the die costs.

A share f of the die is compute: 2080 f tiles and 1,090,519,040 (1 - f) bytes of SRAM (DFModel artifact,
github.com/fengqian-ayce/DFModel, LLM/3d_memory, commit f9cda5e), the shares its own. Area, yield and price follow from
catalogs/processes/n5.yaml, all of it assumed, with half of the die repairable.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dfmodel

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)

#: Memory -> catalog file and bandwidth of the study.
MEMORIES = {"ddr": ("ddr_dse", "100 GB/s"), "hbm": ("hbm_dse", "1024 GB/s"), "stacked": ("stacked_dfmodel", "100 TB/s")}

#: Workload -> changes of the study `memory_3d_08`, whose own is the first.
WORKLOADS: dict[str, dict[str, Any]] = {
    "GPT 100T, kernel by kernel": {},
    "GPT-3 175B, dataflow": {
        "workload.hidden": 12288,
        "workload.heads": 96,
        "workload.layers": 96,
        "workload.samples": 1152,
        "plan.sharding": None,
        "system.chip.execution": "dataflow",
    },
}


def point(workload: str, memory: str, share: float) -> dict[str, Any]:
    """One row: the die, its price, and what a sample takes and costs on eight of them."""
    name, bandwidth = MEMORIES[memory]
    tiles, sram = round(2080 * share), round(1_090_519_040 * (1 - share))
    r = dfmodel.optimize(
        study="memory_3d_08",
        settings={
            "system.chip.price": None,
            "system.chip.silicon.process": "n5",
            "system.chip.silicon.repairable": 0.5,
            "system.chip.tiles.count": tiles,
            "system.chip.sram": f"{sram} B",
            "system.chip.memory": name,
            "system.chip.memory.bandwidth": bandwidth,
            "system.chip.memory.capacity": "unlimited",
            **WORKLOADS[workload],
        },
    )
    die = r.cost["silicon"]
    return {
        "workload": workload,
        "memory": memory,
        "compute_share": share,
        "tiles": tiles,
        "sram_mib": sram / 2**20,
        "die_mm2": die["die_mm2"],
        "die_yield": die["die_yield"],
        "chip_usd": die["price_usd"],
        "system_usd": r.cost["total"],
        "layer_ms": 1e3 * (r.metrics["layer_s"] or 0.0),
        "usd_per_sample": r.metrics["usd_per_sample"],
        "j_per_sample": r.metrics["j_per_sample"],
        "status": r.status,
    }


def points() -> Iterator[dict[str, Any]]:
    """Every row of the study."""
    for workload in WORKLOADS:
        for memory in MEMORIES:
            for share in SHARES:
                yield point(workload, memory, share)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    rows = []
    for row in points():
        rows.append(row)
        print(
            f"{row['workload']:28} {row['memory']:8} f {row['compute_share']:.2f}  {row['sram_mib']:6.0f} MiB  "
            f"{row['die_mm2']:4.0f} mm2  {row['chip_usd']:6.0f} USD  {row['layer_ms']:10.4f} ms/layer  "
            f"{row['usd_per_sample']:.4g} USD/sample  {row['j_per_sample']:.4g} J/sample"
        )
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.10g}" if isinstance(v, float) else v for k, v in r.items()} for r in rows)


if __name__ == "__main__":
    main()
