"""Where points are computed: processes of this machine, or any executor with the standard interface.

An engine is an executor, how many points it holds at a time, and how to tell whether it still works. Scheduling is the
executor's: nothing here decides which worker takes what.
"""

from __future__ import annotations

import concurrent.futures as futures
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait as wait_for_any
from typing import Any, TypeVar

from dfmodel.errors import DfmodelError, InputError
from dfmodel.studies.points import code_version

#: Points handed out per worker at a time: one at work, others waiting so that none idles.
AHEAD = 3

#: Seconds a scheduler gets to answer when a point was lost, before it counts as gone.
PATIENCE_S = 60.0

Job = TypeVar("Job")


class EngineLostError(DfmodelError):
    """The workers cannot be reached any more; what was finished is kept."""


class InlineExecutor(futures.Executor):
    """Computes in this process, at once: for debugging, and where starting processes costs more than it saves."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


@dataclass
class Engine:
    """`executor` with up to `in_flight` points; `renew` makes another after workers died (None: it mends itself)."""

    executor: futures.Executor
    in_flight: int
    name: str
    renew: Callable[[int], futures.Executor] | None = None
    processes: int = 1
    #: Workers started by others, which may have another dfmodel.
    foreign: bool = False
    closing: list[Callable[[], None]] = field(default_factory=list)

    def close(self, at_once: bool = False) -> None:
        """End the workers this engine started; `at_once` without waiting for points at work."""
        if at_once:
            _kill_processes(self.executor)
        for close in self.closing:
            with contextlib.suppress(Exception):
                close()


def local(processes: int) -> Engine:
    """Worker processes of this machine, started fresh (spawn); 0 computes in this process."""
    if processes == 0:
        return Engine(InlineExecutor(), 1, "this process")
    engine = Engine(_pool(processes), AHEAD * processes, f"{processes} processes", _pool, processes)
    engine.closing.append(lambda: engine.executor.shutdown(wait=True, cancel_futures=True))
    return engine


def given(executor: futures.Executor, in_flight: int = 32) -> Engine:
    """Any executor of the standard interface, owned by the caller."""
    return Engine(executor, in_flight, type(executor).__name__, foreign=True)


def compute(
    engine: Engine, jobs: Iterable[tuple[Job, Any]], function: Callable[[Any], Any]
) -> Iterator[tuple[Job, Any, str | None]]:
    """(job, result, None) of every (job, argument) as they finish, or (job, None, why) where a worker died of it.

    When a pool breaks, nobody knows which of the points at work broke it: they are tried again one at a time in a new
    pool, and the one that breaks it alone is the one. Raises EngineLostError where the workers cannot be reached.
    """
    waiting: dict[futures.Future[Any], tuple[Job, Any]] = {}
    source = iter(jobs)
    exhausted = False
    while True:
        suspects: list[tuple[Job, Any]] = []
        while not exhausted and len(waiting) < engine.in_flight:
            entry = next(source, None)
            if entry is None:
                exhausted = True
                break
            future = _submitted(engine, function, entry[1])
            if future is None:
                suspects.append(entry)
                break
            waiting[future] = entry
        if not waiting and not suspects:
            return
        done, _ = futures.wait(waiting, return_when=futures.FIRST_COMPLETED) if waiting else (set(), None)
        for future in done:
            job, argument = waiting.pop(future)
            error = _error_of(future)
            if error is None:
                yield job, future.result(), None
            elif isinstance(error, futures.BrokenExecutor) and engine.renew is not None:
                suspects.append((job, argument))
            else:
                _check_alive(engine, error)
                yield job, None, f"the worker failed: {type(error).__name__}: {error}".strip()
        if suspects:
            # the whole pool is gone, and with it everything that was waiting
            suspects += waiting.values()
            waiting.clear()
            yield from _one_by_one(engine, suspects, function)


def _submitted(engine: Engine, function: Callable[[Any], Any], argument: Any) -> futures.Future[Any] | None:
    """The future of a point, or None where the pool broke before it could be handed over."""
    try:
        return engine.executor.submit(function, argument)
    except futures.BrokenExecutor:
        if engine.renew is None:
            raise EngineLostError(f"{engine.name}: its workers are gone; finished points are kept") from None
        return None


def _one_by_one(
    engine: Engine, suspects: list[tuple[Job, Any]], function: Callable[[Any], Any]
) -> Iterator[tuple[Job, Any, str | None]]:
    assert engine.renew is not None
    engine.executor.shutdown(wait=True, cancel_futures=True)
    alone = engine.renew(1)
    try:
        for job, argument in suspects:
            try:
                yield job, alone.submit(function, argument).result(), None
            except futures.BrokenExecutor:
                yield job, None, "the worker process died of this point (killed, out of memory, or crashed)"
                alone.shutdown(wait=True)
                alone = engine.renew(1)
    finally:
        alone.shutdown(wait=True)
    engine.executor = engine.renew(engine.processes)


def _error_of(future: futures.Future[Any]) -> BaseException | None:
    """What a future failed of; a cancelled one failed too."""
    try:
        return future.exception()
    except (futures.CancelledError, Exception) as error:
        return error


def _check_alive(engine: Engine, error: BaseException) -> None:
    """Raise EngineLostError unless the engine still computes: else every point left would look dead."""
    try:
        check_workers(engine)
    except DfmodelError as lost:
        raise EngineLostError(
            f"{engine.name}: {type(error).__name__}: {error}; then {lost}. Finished points are kept, continue with "
            "--resume"
        ) from lost


def check_workers(engine: Engine) -> None:
    """Raise EngineLostError unless a worker answers, InputError where its model is not this one's."""
    try:
        found = engine.executor.submit(code_version).result(timeout=PATIENCE_S)
    except Exception as lost:
        raise EngineLostError(
            f"{engine.name}: no worker answers ({type(lost).__name__}: {lost}); is dfmodel installed there?"
        ) from lost
    if found != code_version():
        raise InputError(
            f"{engine.name}: its workers have dfmodel {found}, here is {code_version()}; install the same on both"
        )


def _pool(processes: int) -> futures.ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return futures.ProcessPoolExecutor(processes, mp_context=context, initializer=prepare_worker)


def prepare_worker() -> None:
    """One thread per worker, no answer to Ctrl-C (the sweep ends its workers), and an end when the sweep dies."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    wait_for_any([sentinel])
    os._exit(1)


def _kill_processes(executor: futures.Executor) -> None:
    """End the processes of a pool, which offers no way to do so before Python 3.14."""
    for process in list((getattr(executor, "_processes", None) or {}).values()):
        process.terminate()


def open_engine(text: str | None, processes: int) -> Engine:
    """The engine of `--executor TEXT`: dask://ADDRESS, ray://ADDRESS, either with `local` for a cluster of
    `processes` workers on this machine; None is `local(processes)`. Raises InputError."""
    if text is None:
        return local(processes)
    scheme, sign, address = text.partition("://")
    if not sign or scheme not in ("dask", "ray"):
        raise InputError(f"--executor {text}: expected dask://HOST:PORT, ray://HOST:PORT, dask://local or ray://local")
    from dfmodel.studies import clusters

    return clusters.OPENERS[scheme](address, max(1, processes))
