"""What is worth more on a dataflow chip, memory bandwidth or SRAM? A heat map of throughput over both.

python examples/bandwidth_sram_map.py [FOLDER]
"""

import sys
from pathlib import Path

import dfmodel
from dfmodel.reporting.study_plots import write_heatmap

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "bandwidth_sram_map")

if __name__ == "__main__":
    frame = dfmodel.sweep(
        workload="gpt3_13b",
        system="sn10_ring",
        grid={
            "system.chip.memory.bandwidth": {"range": "100 GB/s:800 GB/s:*2"},
            "system.chip.sram": ["120 MB", "160 MB", "320 MB"],
        },
        # one plan, so that the map shows the chip and not a change of plan
        settings={"workload.batch": 64, "plan.tensor": 8, "plan.micro_batch": 1, "plan.recompute": "full"},
        out=folder,
        resume=True,
    )
    axes = ("system.chip.memory.bandwidth", "system.chip.sram")
    print(frame[[*axes, "status", "tokens_per_s", "largest_share"]].to_string())
    for path in write_heatmap(frame, *axes, "tokens_per_s", folder):
        print(path)
