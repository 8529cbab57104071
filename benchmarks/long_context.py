"""Attention, Mamba and Hyena over sequence length on one system: `python benchmarks/long_context.py`.

Training time per token, for models of about the same size and the same number of tokens in a batch at every length;
each point is the best mapping found. Attention may use context parallelism, the others not: on more chips than a node
few long sequences leave them pipelines with bubbles. `--scan` compares the ways to scan.
"""

from __future__ import annotations

import argparse
import time

import dfmodel
from dfmodel.errors import DfmodelError

LENGTHS = (8192, 32768, 131072, 262144, 524288, 1048576)

#: Name shown, workload, further settings: a model of 1.3 to 1.6 billion parameters each.
MODELS: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("attention", "gpt3_1_5b", {"workload.positions": "none", "workload.dropout": False}),
    ("Mamba", "mamba", {"workload.layers": 48, "workload.hidden": 2048}),
    ("Hyena", "hyena", {}),
)
SCANS: tuple[tuple[str, str, dict[str, object]], ...] = tuple(
    (f"scan {scan}", "mamba", {**MODELS[1][2], "workload.scan": scan}) for scan in ("serial", "hardware", "parallel")
)


def row(
    name: str, workload: str, settings: dict[str, object], system: str, nodes: int | None, length: int, tokens: int
) -> str:
    """One point as a line: microseconds of one chip per token, and the plan that takes it."""
    changed = {**settings, "workload.sequence": length, "workload.batch": max(1, tokens // length)}
    if nodes is not None:
        changed["system.nodes"] = nodes
    began = time.perf_counter()
    try:
        r = dfmodel.optimize(workload, system, settings=changed, time_limit_s=120)
    except DfmodelError as error:
        return f"{length:>9,}  {name:<14} {str(error).splitlines()[0][:90]}"
    p, chips = r.plan, r.plan["chips_used"]
    return (
        f"{length:>9,}  {name:<14} {1e6 * chips * r.objective / (r.plan['batch'] * length):12.2f} chip-us/token  "
        f"{r.metrics['tokens_per_s']:14,.0f} tokens/s  MFU {r.metrics['mfu']:6.1%}  TP{p['tensor']} CP{p['context']} "
        f"PP{p['pipeline']} DP{p['data']} {p['recompute']}, {chips} chips  ({time.perf_counter() - began:.1f} s)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--system", default="dgx")
    parser.add_argument("--nodes", type=int, help="nodes of the system (default: 1 of dgx, else the file's)")
    parser.add_argument("--tokens", type=int, default=8 * 2**20, help="tokens of a batch")
    parser.add_argument("--scan", action="store_true", help="compare the ways to scan instead")
    arguments = parser.parse_args()
    nodes = 1 if arguments.nodes is None and arguments.system == "dgx" else arguments.nodes
    for length in LENGTHS:
        for name, workload, settings in SCANS if arguments.scan else MODELS:
            print(row(name, workload, settings, arguments.system, nodes, length, arguments.tokens), flush=True)


if __name__ == "__main__":
    main()
