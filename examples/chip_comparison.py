"""Which chip trains a 7-billion-parameter model fastest? Four chips in the same 64-chip system, sizes as lines.

python examples/chip_comparison.py [FOLDER]
"""

import sys
from pathlib import Path

import dfmodel
from dfmodel.reporting.study_plots import write_lines

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "chip_comparison")

if __name__ == "__main__":
    frame = dfmodel.sweep(
        workload="llama2_7b",
        system="dgx",
        grid={"system.chip": ["a100_sxm_80", "h100_sxm", "h200_sxm"], "system.nodes": [1, 2, 4]},
        settings={"workload.batch": 256},
        out=folder,
        resume=True,
    )
    print(frame[["system.chip", "system.nodes", "status", "tokens_per_s", "mfu", "largest_share"]].to_string())
    for path in write_lines(frame, "system.nodes", "tokens_per_s", "system.chip", folder):
        print(path)
