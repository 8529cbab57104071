"""The folder a run leaves: written beside its place under another name, then renamed, so it is whole or absent."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from dfmodel.errors import InputError
from dfmodel.mapping.result import Result
from dfmodel.mapping.unit_costs import cost_rows
from dfmodel.reporting.plot_worker import PlotWorker
from dfmodel.reporting.plots import write_plots
from dfmodel.reporting.tables import breakdown_rows, kernel_rows, partition_rows, write_csv


def write_run(
    result: Result,
    config: Mapping[str, Any],
    out: Path | None = None,
    force: bool = False,
    log_text: str = "",
    worker: PlotWorker | None = None,
) -> Path:
    """Write config.yaml, result.json, mapping.csv, partitions.csv, breakdown.csv, cost.csv, solver.log and plots/.

    Without `out` the folder is runs/<UTC time>-<workload>-<system>-<hash of the configuration>. Raises InputError
    where the place is taken (and not `force`) or cannot be written.
    """
    target = out if out is not None else _default_name(result, config)
    taken = target.exists() and (not target.is_dir() or any(target.iterdir()))
    if taken and not force:
        raise InputError(f"--out {target}: exists and is not empty; use --force to replace it")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise InputError(
            f"{target.parent}: cannot write here ({error.strerror}); choose another place with --out"
        ) from error
    try:
        _fill(scratch, result, config, log_text, worker)
        scratch.chmod(0o755)
        if target.exists():
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        scratch.rename(target)
    except OSError as error:
        raise InputError(f"{target}: could not be written ({error.strerror}); nothing was left there") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _fill(folder: Path, result: Result, config: Mapping[str, Any], log_text: str, worker: PlotWorker | None) -> None:
    if worker is not None:
        worker.start(result, folder / "plots")
    (folder / "config.yaml").write_text(yaml.safe_dump(_plain(config), sort_keys=False))
    (folder / "result.json").write_text(json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n")
    write_csv(kernel_rows(result), folder / "mapping.csv")
    write_csv(partition_rows(result), folder / "partitions.csv")
    write_csv(breakdown_rows(result), folder / "breakdown.csv")
    write_csv(cost_rows(result.cost, result.metrics), folder / "cost.csv")
    (folder / "solver.log").write_text(log_text)
    if worker is not None:
        worker.finish(result, folder / "plots")
    else:
        write_plots(result, folder / "plots")


def _plain(value: Any) -> Any:
    """Mappings and sequences as YAML's own."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _default_name(result: Result, config: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:8]
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    stem = f"{stamp}-{result.workload['name']}-{result.system['name']}-{digest}"
    candidate, number = Path("runs") / stem, 2
    while candidate.exists():
        candidate, number = Path("runs") / f"{stem}-{number}", number + 1
    return candidate
