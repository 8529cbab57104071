"""Dask and Ray as engines. Both restart what dead workers had at work; a point that keeps killing them fails alone."""

from __future__ import annotations

import concurrent.futures as futures
import importlib
import os
from collections.abc import Callable
from typing import Any

from dfmodel.errors import InputError
from dfmodel.studies.engines import AHEAD, Engine

#: Times a point is tried again after the worker that had it died.
RETRIES = 3


def open_dask(address: str, processes: int) -> Engine:
    """The Dask scheduler at HOST:PORT, or `local`: workers of one thread on this machine. Raises InputError."""
    distributed = _extra("distributed", "dask")
    closing: list[Callable[[], None]] = []
    try:
        if address in ("", "local"):
            cluster = distributed.LocalCluster(n_workers=processes, threads_per_worker=1, dashboard_address=None)
            closing.append(cluster.close)
            client = distributed.Client(cluster)
        else:
            client = distributed.Client(f"tcp://{address}", timeout="10s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"--executor dask://{address}: no scheduler answers there ({error})") from error
    workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
    executor = client.get_executor(pure=False, retries=0)
    return Engine(executor, AHEAD * workers, f"dask://{address}", None, workers, True, [client.close, *closing])


class RayExecutor(futures.Executor):
    """The standard interface over Ray tasks, each on one processor, tried again where its worker died."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._call = ray.remote(num_cpus=1, max_retries=RETRIES)(_called)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = self._call.remote(fn, args, kwargs).future()
        return future


def _called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)


def open_ray(address: str, processes: int) -> Engine:
    """The Ray cluster at HOST:PORT, or `local`: workers on this machine. Raises InputError."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray = _extra("ray", "ray")
    try:
        if address in ("", "local"):
            ray.init(num_cpus=processes, include_dashboard=False, log_to_driver=False, logging_level="error")
        else:
            ray.init(address=f"ray://{address}", log_to_driver=False, logging_level="error")
    except (ConnectionError, TimeoutError, ValueError, RuntimeError) as error:
        raise InputError(f"--executor ray://{address}: no cluster answers there ({error})") from error
    workers = max(1, int(ray.cluster_resources().get("CPU", processes)))
    return Engine(RayExecutor(ray), AHEAD * workers, f"ray://{address}", None, workers, True, [ray.shutdown])


def _extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"--executor {extra}://...: {module} is not installed; pip install 'dfmodel[{extra}]' "
            "here and on every worker"
        ) from None


#: Opener of a cluster, by the scheme of --executor.
OPENERS: dict[str, Callable[[str, int], Engine]] = {"dask": open_dask, "ray": open_ray}
