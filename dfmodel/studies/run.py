"""What the command `sweep` and `dfmodel.sweep` call: a study from its parts, run and written."""

from __future__ import annotations

import concurrent.futures as futures
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmodel.catalog_files import Dirs
from dfmodel.errors import DfmodelError
from dfmodel.studies.axes import axis_values
from dfmodel.studies.engines import Engine, given, local, open_engine
from dfmodel.studies.journal import Journal
from dfmodel.studies.pareto import goals_of
from dfmodel.studies.points import Options
from dfmodel.studies.results import columns_of, open_folder, write_results
from dfmodel.studies.study import Study, changed, read_study
from dfmodel.studies.sweep import Rules, Sweep

#: Name of the store of points in a folder.
POINTS = "points"


def sweep(
    study: str | None = None,
    *,
    grid: Mapping[str, Any] | None = None,
    zipped: Mapping[str, Any] | None = None,
    where: Sequence[str] = (),
    scenarios: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    workload: str | None = None,
    system: str | None = None,
    assumptions: str | None = None,
    catalogs: Dirs = (),
    jobs: int = 2,
    executor: futures.Executor | str | None = None,
    out: str | Path | None = None,
    cache: str | Path | None = None,
    resume: bool = False,
    force: bool = False,
    retry_failed: bool = False,
    prune: bool = False,
    minimise: Sequence[str] = (),
    maximise: Sequence[str] = (),
    time_limit_s: float | None = None,
    gap: float = 0.0,
    quiet: bool = True,
) -> Any:
    """Every point of a study as a pandas frame, a row each: inputs, metrics with units in their names, status, error.

    `study` is a file; `grid` maps dotted settings (or workload, system, assumptions) to lists of values or to
    {"range": "8:512:*2"}, `zipped` to lists that walk together; `where` are conditions, `settings` hold for all points.
    `jobs` processes of this machine compute (0: this one), or `executor`: any of concurrent.futures, or a text such as
    "dask://HOST:PORT". With `out` results.csv is written there and every point is stored as it is finished; `cache` is
    a folder that sweeps share. With more than 0 jobs a script needs the usual `if __name__ == "__main__":`.
    Raises InputError for a study that cannot be used; a point that cannot be computed is a row.
    """
    found = changed(
        read_study(study, catalogs),
        product={k: axis_values(v, f"grid.{k}") for k, v in (grid or {}).items()},
        zipped={k: axis_values(v, f"zipped.{k}") for k, v in (zipped or {}).items()},
        settings=named(settings, workload, system, assumptions),
        scenarios=scenarios,
        where=where,
    )
    goals = goals_of(minimise, maximise) if prune else ()
    rules = Rules(Options(time_limit_s, gap), retry_failed, prune, goals, quiet=quiet)
    running = opened(found, rules, None if out is None else Path(out), cache, resume, force, catalogs)
    running.prepare()
    if isinstance(executor, futures.Executor):
        engine = given(executor)
    else:
        engine = local(jobs) if executor is None else open_engine(executor, jobs)
    finish(running, engine, None if out is None else Path(out))
    import pandas as pd

    rows = running.rows()
    return pd.DataFrame(rows, columns=columns_of(rows, found.keys))


def named(
    settings: Mapping[str, Any] | None, workload: str | None, system: str | None, assumptions: str | None
) -> dict[str, Any]:
    """Settings with the names that stand beside them."""
    names = {"workload": workload, "system": system, "assumptions": assumptions}
    return {**(settings or {}), **{k: v for k, v in names.items() if v is not None}}


def opened(
    study: Study,
    rules: Rules,
    out: Path | None,
    cache: str | Path | None,
    resume: bool,
    force: bool,
    catalogs: Dirs,
) -> Sweep:
    """A sweep with its store: of `cache`, else of `out`, else in memory. Raises InputError (see `open_folder`)."""
    if out is not None and rules.shard is None:
        open_folder(out, study, resume, force)
    folder = Path(cache) if cache is not None else out
    if folder is None:
        return Sweep(study, rules, {}, None, catalogs)
    part = "" if rules.shard is None else f"{rules.shard[0]}"
    return Sweep(study, rules, Journal(folder, POINTS, part), folder, catalogs)


def finish(running: Sweep, engine: Engine, out: Path | None, parquet: bool = False) -> Path | None:
    """Run a prepared sweep and write its results, however it ends; the engine is closed."""
    stopped = True
    try:
        running.run(engine)
        stopped = False
    finally:
        engine.close(at_once=stopped)
        path = None
        if out is not None and running.rules.shard is None:
            path = _written(running, out, parquet, stopped)
    return path


def _written(running: Sweep, out: Path, parquet: bool, stopped: bool) -> Path | None:
    """results.csv; what stopped the sweep is the error to show, also where this fails after it."""
    try:
        return write_results(running.rows(), running.study.keys, out, parquet)
    except DfmodelError:
        if stopped:
            return None
        raise
