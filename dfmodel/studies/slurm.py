"""A sweep as a Slurm job array: a script whose tasks each take every n-th point, and one that merges them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from dfmodel.errors import InputError

#: Points an array task takes, where that gives no more than MOST_TASKS tasks.
POINTS_PER_TASK = 20
MOST_TASKS = 1000

_ARRAY = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=1
#SBATCH --output={folder}/slurm-%a.log
# {points} points, every {tasks}th from its own number on. A task that is started again takes up what it had not
# finished. Set partition, time and memory here or on sbatch's command line.
set -euo pipefail
cd {here}
{command} --jobs 1 --shard "${{SLURM_ARRAY_TASK_ID}}/{tasks}" --resume --quiet
"""

_MERGE = """#!/bin/bash
#SBATCH --job-name={name}-merge
#SBATCH --ntasks=1
#SBATCH --output={folder}/slurm-merge.log
# Writes {folder}/results.csv from what the tasks stored; computes nothing: what is missing is a row that says so.
# Start both: job=$(sbatch --parsable {array}) && sbatch --dependency=afterany:$job {merge}
set -euo pipefail
cd {here}
{command} --collect --resume
"""


def emit(folder: Path, name: str, points: int, command: Sequence[str]) -> tuple[Path, Path]:
    """Write array.sh and merge.sh into `folder`; `command` is the sweep's own, with --out. Raises InputError."""
    tasks = min(MOST_TASKS, -(-points // POINTS_PER_TASK))
    array, merge = folder / "array.sh", folder / "merge.sh"
    facts = {
        "name": shlex.quote(name),
        "points": f"{points:,}",
        "tasks": tasks,
        "last": tasks - 1,
        "folder": folder.resolve(),
        "here": shlex.quote(str(Path.cwd())),
        "command": shlex.join(command),
        "array": shlex.quote(str(array.resolve())),
        "merge": shlex.quote(str(merge.resolve())),
    }
    try:
        for path, text in ((array, _ARRAY), (merge, _MERGE)):
            path.write_text(text.format(**facts))
            path.chmod(0o755)
    except OSError as error:
        raise InputError(f"{folder}: cannot write the scripts here ({error.strerror})") from error
    return array, merge
