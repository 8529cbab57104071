"""Time of the plan search, cold, on eight study files and over the number of chips: `python benchmarks/plan_search.py`.

Each run is a process of its own; the time is that of the whole command, imports and plots included where it says so.
`--curve` adds the model of 10^12 parameters on 64 to 131,072 TPU v4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUDIES = Path(__file__).parent / "studies"

#: Study, whether plots are written, further settings.
RUNS = (
    ("gpt3_256_h100", True, ()),
    ("gpt3_256_h100", False, ()),
    ("turing_5128_a100", False, ()),
    ("gpt3_1024_a100", False, ()),
    ("gpt3_1t_131072_tpu", False, ()),
    ("gpt3_1t_131072_tpu", False, ("plan.use_all_chips=true",)),
    ("gpt3_1t_1024_sn30_300", False, ()),
    ("gpt3_1t_1024_sn30_2000", False, ()),
    ("mamba_256_h100", True, ()),
    ("hyena_256_h100", True, ()),
)

CURVE = ((4, 4, 4), (8, 8, 4), (8, 8, 16), (16, 16, 16), (32, 32, 16), (64, 32, 32), (64, 64, 32))


def run(study: str, plots: bool, settings: tuple[str, ...]) -> tuple[float, dict]:  # type: ignore[type-arg]
    """Wall seconds of one command and its result."""
    command = [sys.executable, "-m", "dfmodel", "optimize", "--study", str(STUDIES / f"{study}.yaml"), "--json", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--out", f"{folder}/run"] if plots else ["--no-save"]
        command += ["--set", *settings] if settings else []
        began = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wall = time.perf_counter() - began
    if done.returncode not in (0, 4):
        raise SystemExit(done.stderr)
    return wall, json.loads(done.stdout) if done.returncode == 0 else {}


def line(label: str, wall: float, result: dict) -> str:  # type: ignore[type-arg]
    if not result:
        return f"{label:<58}{wall:7.2f} s  fits no plan"
    c, p = result["certificate"], result["plan"]
    samples = result["metrics"]["samples_per_s"]
    return (
        f"{label:<58}{wall:7.2f} s  {c['plans_counted']:>11,} plans {c['plans_evaluated']:>4} evaluated "
        f"{c['classes_opened']:>4} of {c['classes']:>4} mapped  gap {result['gap']:.1e}  "
        f"TP{p['tensor']} PP{p['pipeline']}x{p['chunks']} DP{p['data']} Z{p['zero']} {samples:,.1f} samples/s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--curve", action="store_true")
    arguments = parser.parse_args()
    for study, plots, settings in RUNS:
        label = " ".join([study, *settings, "with plots" if plots else ""])
        wall, result = run(study, plots, settings)
        print(line(label, wall, result), flush=True)
        for b in result.get("baselines", ()):
            if b["share"] is not None:
                print(f"    {b['name']}: the optimum is {b['share']:.2f} times as fast")
    for x, y, z in CURVE if arguments.curve else ():
        wall, result = run("gpt3_1t_131072_tpu", False, (f"system.x={x}", f"system.y={y}", f"system.z={z}"))
        print(line(f"{x * y * z:,} chips", wall, result), flush=True)


if __name__ == "__main__":
    main()
