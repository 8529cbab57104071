"""Sweeps on Dask and Ray, for real: two workers, one of them killed mid-sweep, and nothing lost.

Skipped by name where the extra is not installed (`pip install -e '.[dask,ray]'`).
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pandas as pd
import pytest

import dfmodel
from dfmodel.errors import InputError
from dfmodel.studies.clusters import open_dask, open_ray
from dfmodel.studies.engines import Engine, compute
from dfmodel.studies.journal import Journal

GRID = {"workload.batch": {"range": "16:256:16"}}
SETTINGS = {
    "workload.layers": 4,
    "workload.hidden": 1024,
    "workload.heads": 16,
    "workload.ffn": 4096,
    "system.nodes": 1,
}

# both start servers whose sockets and threads outlive a test by a moment
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def _swept(engine: Engine, out: Path) -> pd.DataFrame:
    """A sweep on an engine, one of whose workers is killed when the first points are there."""
    killed: list[int] = []

    def kill_one() -> None:
        while len(Journal(out, "points")) < 3:
            time.sleep(0.05)
        pid = engine.executor.submit(os.getpid).result(timeout=60)
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    out.mkdir()
    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    frame = dfmodel.sweep(grid=GRID, settings=SETTINGS, executor=engine.executor, cache=out)
    killer.join(timeout=60)
    assert killed and killed[0] != os.getpid()
    return frame


def _here(tmp_path: Path) -> pd.DataFrame:
    return dfmodel.sweep(grid=GRID, settings=SETTINGS, jobs=0, cache=tmp_path / "here")


@pytest.mark.parametrize("cluster", ["distributed", "ray"])
def test_a_killed_worker_loses_no_point(cluster: str, tmp_path: Path) -> None:
    """The cluster gives what this process gives, point by point, though a worker died on the way."""
    pytest.importorskip(cluster, reason=f"the extra that brings {cluster} is not installed")
    engine = open_dask("local", 2) if cluster == "distributed" else open_ray("local", 2)
    try:
        frame = _swept(engine, tmp_path / "there")
    finally:
        engine.close()
    expected = _here(tmp_path)
    assert list(frame["status"]) == ["optimal"] * 16
    assert list(frame["key"]) == list(expected["key"])
    pd.testing.assert_series_equal(frame["iteration_s"], expected["iteration_s"], rtol=1e-12)


@pytest.mark.parametrize("cluster", ["distributed", "ray"])
def test_a_point_that_kills_every_worker_fails_alone(cluster: str) -> None:
    pytest.importorskip(cluster, reason=f"the extra that brings {cluster} is not installed")

    def die(number: int) -> int:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    engine = open_dask("local", 2) if cluster == "distributed" else open_ray("local", 2)
    try:
        found = {job: (value, died) for job, value, died in compute(engine, ((n, n) for n in range(5)), die)}
    finally:
        engine.close()
    assert {n: v for n, (v, _) in found.items() if v is not None} == {n: n for n in range(5) if n != 2}
    assert "the worker failed" in str(found[2][1])


def test_an_address_where_nobody_answers_is_bad_input() -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    with pytest.raises(InputError, match="no scheduler answers"):
        open_dask("127.0.0.1:1", 2)
