"""Points that are solved in a moment, and what sweeps of them share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

#: One layer on one chip: a plan is given, so that a point is one evaluation.
CHEAP = {
    "workload.layers": 1,
    "workload.hidden": 512,
    "workload.heads": 8,
    "workload.ffn": 2048,
    "system.nodes": 1,
    "system.topology.nvlink.size": 1,
    "plan.tensor": 1,
    "plan.context": 1,
    "plan.pipeline": 1,
    "plan.data": 1,
    "plan.micro_batch": 1,
    "plan.recompute": "none",
}

CHEAP_WORDS = [f"{key}={value}" for key, value in CHEAP.items()]


def die_of(argument: tuple[int, str]) -> int:
    """The number, unless it is 3: then the process is killed, as if out of memory."""
    number, _ = argument
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def die_once(argument: tuple[int, str]) -> int:
    """The number; the first process to meet 3 is killed, later ones are not."""
    number, folder = argument
    mark = Path(folder) / "died"
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number
