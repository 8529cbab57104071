"""Optimum, bound, gap and time of the original's README example and two relatives.

    python benchmarks/readme_example.py [--limit-factor F]

The time is that of the whole optimize call: catalogs read, both programs built and solved, the answer evaluated
again. Exits 1 where an optimum is off by more than 1e-6, a gap is larger than 1e-6, or a call takes more than
F seconds. The original (Gurobi 10.0.3, 144 threads) took 262.7 s for the first row by its README; its log of the
third stops after 3,600 s at a gap of 26.46 % (Example/GPT3_1T_1024_SN30/log.txt, commit 04f93d5).
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import dfmodel
from dfmodel.mapping import solver  # noqa: F401  (loads Pyomo and HiGHS before the clock starts)

TOLERANCE = 1e-6
LIMIT_S = 1.0


@dataclass(frozen=True)
class Instance:
    """A study with settings, the optimum of its layer (ms), and what the original's solver needed."""

    title: str
    study: str
    settings: dict[str, object]
    optimum_ms: float
    original: str


INSTANCES = (
    Instance("README example", "readme_gpt3_1t_1024_sn30", {}, 24.525757630, "262.7 s, 144 threads"),
    Instance(
        "without overlap",
        "readme_gpt3_1t_1024_sn30",
        {"assumptions.partitions.overlap": "none"},
        44.228267141,
        "180 s limit, gap 11.0 %",
    ),
    Instance("450/50 GB/s, one all-reduce", "example_450_50", {}, 22.138266074, "3,600 s, 144 threads, gap 26.46 %"),
)


def measure(instance: Instance, limit_s: float) -> tuple[str, list[str]]:
    """The table row of one instance, and what is wrong with it."""
    began = time.perf_counter()
    result = dfmodel.optimize(study=instance.study, settings=instance.settings)
    wall_s = time.perf_counter() - began
    program = next(m for m in result.certificate.mips if m["level"] == "partitioning (assignment program)")
    solvers_s = sum(m["wall_s"] for m in result.certificate.mips)
    found_ms, bound_ms = program["objective"] * 1e3, program["bound"] * 1e3
    gap = max(program["gap"], result.gap if result.gap is not None else float("inf"))
    off = abs(found_ms / instance.optimum_ms - 1)
    faults = []
    if off > TOLERANCE:
        faults.append(f"{instance.title}: optimum {found_ms:.9f} ms, expected {instance.optimum_ms:.9f} ms")
    if gap > TOLERANCE:
        faults.append(f"{instance.title}: gap {gap:.2e}, allowed {TOLERANCE:.0e}")
    if wall_s > limit_s:
        faults.append(f"{instance.title}: {wall_s:.2f} s, allowed {limit_s:g} s")
    row = (
        f"{instance.title:<28} {found_ms:>12.6f} {bound_ms:>12.6f} {gap:>8.1e} {solvers_s:>9.3f} {wall_s:>8.3f} "
        f"{result.status:<8} {instance.original}"
    )
    return row, faults


def main() -> int:
    parser = argparse.ArgumentParser(description="Time the README example of the original DFModel.")
    parser.add_argument(
        "--limit-factor", type=float, default=1.0, metavar="F", help="multiply the 1 s limit per call (slow machines)"
    )
    limit_s = LIMIT_S * parser.parse_args().limit_factor
    print(
        f"{'instance':<28} {'optimum ms':>12} {'bound ms':>12} {'gap':>8} {'solver s':>9} {'total s':>8} "
        f"{'status':<8} original"
    )
    faults = []
    for instance in INSTANCES:
        row, wrong = measure(instance, limit_s)
        print(row)
        faults += wrong
    for fault in faults:
        print(f"FAILED {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
