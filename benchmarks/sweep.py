"""What a sweep costs beside its points: two processes against one, points from the store, 10,000 points, a resume.

    python benchmarks/sweep.py [--points 10000] [--limit-factor 1]

Runs the command as a user does and prints wall and processor seconds of each; on a machine that others use, processor
seconds are what to read. Exits with 1 where a limit (times --limit-factor) is missed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

#: A point that is one search: four layers on up to two nodes.
SEARCH = ["workload.layers=4", "workload.hidden=1024", "workload.heads=16", "workload.ffn=4096"]

#: A point that is one evaluation of a given plan on one chip, the cheapest there is.
CHEAP = [
    "workload.layers=1",
    "workload.hidden=512",
    "workload.heads=8",
    "workload.ffn=2048",
    "system.nodes=1",
    "system.topology.nvlink.size=1",
    *(f"plan.{k}=1" for k in ("tensor", "context", "pipeline", "data", "micro_batch")),
    "plan.recompute=none",
]


@dataclass(frozen=True)
class Run:
    """Seconds of a command with its workers, and bytes of the largest of them."""

    wall_s: float
    cpu_s: float
    largest_bytes: float


def run(*words: str) -> Run:
    """Run `dfmodel sweep` and measure it."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "dfmodel", "sweep", "--quiet", *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"dfmodel sweep {' '.join(words)}: exit {process.returncode}")
    return Run(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def two_processes(folder: Path) -> float:
    """How many times faster two processes are than one on 200 points, everything included."""
    words = ["--set", *SEARCH, "--grid", "system.nodes=1,2", "--range", "workload.batch=16:1600:16"]
    found = {}
    for jobs in (1, 2):
        found[jobs] = run(*words, "--jobs", str(jobs), "--out", str(folder / f"jobs{jobs}"))
        print(
            f"200 points, {jobs} processes: {found[jobs].wall_s:.1f} s wall, {found[jobs].cpu_s:.1f} s processor, "
            f"{found[jobs].cpu_s / found[jobs].wall_s:.2f} processors kept busy"
        )
    return found[1].wall_s / found[2].wall_s


def many(folder: Path, points: int) -> tuple[Run, Run]:
    """A sweep of cheap points, and the same again with every point stored."""
    words = ["--set", *CHEAP, "--range", f"workload.batch=1:{points}:1", "--out", str(folder / "many")]
    return run(*words), run(*words, "--resume")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--limit-factor", type=float, default=1.0)
    parser.add_argument("--skip-speedup", action="store_true", help="on a machine without two idle cores")
    arguments = parser.parse_args()
    missed = []

    def held(what: str, value: float, most: float, unit: str) -> None:
        within = value <= most * arguments.limit_factor
        print(f"{what}: {value:.3g} {unit} (limit {most:g}){'' if within else '  MISSED'}")
        if not within:
            missed.append(what)

    with tempfile.TemporaryDirectory(prefix="dfmodel-sweep-") as scratch:
        folder = Path(scratch)
        if not arguments.skip_speedup:
            speedup = two_processes(folder)
            held("one process over two", 1 / speedup, 1 / 1.7, f"of the time ({speedup:.2f}x faster)")
        first, again = many(folder, arguments.points)
        share = arguments.points / 10_000
        each_ms = first.cpu_s / arguments.points * 1e3
        print(f"{arguments.points:,} cheap points: {first.cpu_s:.0f} s processor, {each_ms:.1f} ms each")
        held(f"{arguments.points:,} cheap points", first.wall_s, 600 * share, "s")
        held("memory of the sweep and two workers, at most", 3 * first.largest_bytes / 1e9, 1.0, "GB")
        held("resume of the finished sweep", again.wall_s, 5, "s")
        held("overhead of a stored point", again.wall_s / arguments.points * 1e3, 5, "ms")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
