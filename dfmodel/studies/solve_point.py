"""One point solved in a worker: a pure function from plain data to plain data."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from dfmodel.errors import DfmodelError, InfeasibleError, InputError, LimitError

#: Statuses of a point whose row carries metrics.
SOLVED = ("optimal", "limit", "interrupted")

#: Statuses that another try may change: what --retry-failed computes again. "infeasible" is an answer.
FAILED = ("bad input", "no solution", "error", "worker died")

#: Fields of a RunConfig that make a point.
_CONFIG = (
    "workload",
    "system",
    "assumptions",
    "workload_overrides",
    "system_overrides",
    "plan",
    "assumption_overrides",
)

#: Sharding programs of this process, by folder of the cache.
_programs: dict[str | None, MutableMapping[str, Mapping[str, Any]]] = {}


def payload(config: Any, options: Any, catalogs: list[str], programs: str | None, bound_only: bool) -> dict[str, Any]:
    """What a worker needs of a point, as plain data; `programs` is a folder for solved sub-problems."""
    return {
        "config": {name: getattr(config, name) for name in _CONFIG},
        "time_limit_s": options.time_limit_s,
        "gap": options.gap,
        "catalogs": catalogs,
        "programs": programs,
        "bound_only": bound_only,
    }


def solve_point(job: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a point: {"status": ..., "row": metrics by name, "error": text or None}. Never raises.

    With `bound_only` the row holds what the point's metrics cannot be better than, by name.
    """
    began = time.perf_counter()
    try:
        status, row = _bounds(job) if job["bound_only"] else _solved(job)
        error = None
    except InfeasibleError as found:
        status, row, error = "infeasible", {}, str(found)
    except LimitError as found:
        status, row, error = "no solution", {}, str(found)
    except InputError as found:
        status, row, error = "bad input", {}, str(found)
    except DfmodelError as found:
        status, row, error = "error", {}, f"{type(found).__name__}: {found}"
    except Exception as found:
        place = traceback.extract_tb(found.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        status, row, error = "error", {}, f"internal error: {type(found).__name__}: {found} ({where})"
    return {"status": status, "row": {**row, "solve_s": round(time.perf_counter() - began, 4)}, "error": error}


def _config(job: Mapping[str, Any]) -> Any:
    from dfmodel.config import RunConfig

    return RunConfig(**job["config"])


def _solved(job: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    from dfmodel.api import run
    from dfmodel.mapping.reuse import reusing

    store = _store(job["programs"])
    with reusing(store) if store is not None else nullcontext():
        result = run(_config(job), job["catalogs"], time_limit_s=job["time_limit_s"], gap=job["gap"], compare=False)
    return result.status, row_of(result)


def _store(folder: str | None) -> MutableMapping[str, Mapping[str, Any]] | None:
    """Solved programs: of this process, and of `folder` where there is one; what cannot be written is kept here."""
    if folder not in _programs:
        _programs[folder] = {} if folder is None else _OnDisk(Path(folder))
    store = _programs[folder]
    if isinstance(store, _OnDisk):
        store.journal.refresh()
    return store


class _OnDisk(dict[str, Mapping[str, Any]]):
    """A dictionary over a journal: a program that cannot be written is solved again elsewhere, which is no failure."""

    def __init__(self, folder: Path) -> None:
        from dfmodel.studies.journal import Journal

        super().__init__()
        self.journal = Journal(folder, "programs")

    def get(self, key: str, default: Any = None) -> Any:
        return self.journal.get(key, default)

    def __setitem__(self, key: str, value: Mapping[str, Any]) -> None:
        from dfmodel.studies.journal import StoreFullError

        try:
            self.journal[key] = value
        except StoreFullError:
            super().__setitem__(key, value)


def row_of(result: Any) -> dict[str, Any]:
    """A result as one flat row; names carry units, unknown values are None."""
    breakdown = {k: s for k, s in result.breakdown_s.items() if s > 0}
    plan = result.plan
    row = {
        "batch": plan.get("batch", result.workload["batch"]),
        "chip": result.system["chip"],
        "chips": result.system["chips"],
        "chips_used": plan["chips_used"],
        "bound_s": result.bound,
        "gap": result.gap,
        **result.metrics,
        "cost_usd": result.cost["total"],
        "power_w": result.power["total"],
        "memory_bytes": sum(result.memory_bytes.values()),
        "memory_capacity_bytes": result.memory_capacity_bytes,
        "largest_share": max(breakdown, key=lambda k: breakdown[k], default=""),
        **{
            f"plan_{k}": plan.get(k)
            for k in ("tensor", "context", "data", "pipeline", "micro_batch", "chunks", "zero", "recompute")
        },
        "certificate": result.certificate.kind,
        "assumed": len(result.assumed),
    }
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _bounds(job: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """What no mapping of the point can do better, by metric: exact where the system alone decides."""
    from dfmodel.api import read_inputs
    from dfmodel.mapping.kernel_search import least_value
    from dfmodel.mapping.kernel_time import KernelTimer
    from dfmodel.mapping.map_block import SolverSettings
    from dfmodel.mapping.plan import check_space
    from dfmodel.mapping.search import Search
    from dfmodel.systems.cost import system_cost, system_power
    from dfmodel.workloads.families import LAYERS

    workload, system, assumptions, request = read_inputs(_config(job), job["catalogs"])
    usd, watts = system_cost(system).total_usd, system_power(system).total_w
    of_system: dict[str, float | None] = {"cost_usd": usd, "power_w": watts, "chips": system.chips}
    if workload.family != LAYERS:
        return "bounded", of_system
    flops = workload.flops_per_sample("matrix")
    # not the peak: attention that leaves out half of the square does more counted work than that
    least_s = flops * KernelTimer(system.chip, workload.dtype, assumptions).matrix_s_per_flop / system.chips
    search = Search(workload, system, assumptions, request, SolverSettings(), _silent, None)
    if search.as_arrays and request.objective in (None, "time"):
        check_space(workload, system, request)
        least_s = max(least_s, least_value(search))
    rate = workload.units_per_sample / least_s if least_s > 0 else None
    unit = workload.unit
    found: dict[str, float | None] = {
        f"{unit}s_per_s": rate,
        "samples_per_s": 1 / least_s if least_s > 0 else None,
        **of_system,
    }
    if request.batch_at_most is None:
        found["iteration_s"] = least_s * workload.batch
    if rate is not None and usd:
        found[f"{unit}s_per_s_per_usd"] = rate / usd
    if rate is not None and watts:
        found[f"{unit}s_per_s_per_w"] = rate / watts
        found[f"j_per_{unit}"] = watts / rate
    return "bounded", {k: v for k, v in found.items() if v is None or math.isfinite(v)}


_silent: Callable[[str], None] = lambda text: None  # noqa: E731
