"""What does throughput cost? The front of price against tokens per second, points that cannot be on it skipped.

python examples/cost_throughput_front.py [FOLDER]
"""

import sys
from pathlib import Path

import dfmodel
from dfmodel.reporting.study_plots import write_front
from dfmodel.studies.pareto import front, goals_of

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "cost_throughput_front")

if __name__ == "__main__":
    goals = goals_of(minimise=["cost_usd"], maximise=["tokens_per_s"])
    frame = dfmodel.sweep(
        workload="llama2_7b",
        system="dse_2d_torus",
        grid={
            "system.chip": ["h100_dfmodel", "a100_dfmodel"],
            "system.link": ["pcie_dse", "nvlink_dse"],
            "system.y": [1, 2, 4],
        },
        settings={"workload.batch": 256, "system.memory": "hbm_dse"},
        out=folder,
        resume=True,
        prune=True,
        minimise=["cost_usd"],
        maximise=["tokens_per_s"],
    )
    inputs = ["system.chip", "system.link", "system.y"]
    print(frame[[*inputs, "status", "cost_usd", "tokens_per_s"]].to_string())
    best = front(frame, goals)
    print("\nnot dominated:\n", best[[*inputs, "cost_usd", "tokens_per_s"]].to_string())
    for path in write_front(frame, best, goals, folder, by="system.chip"):
        print(path)
