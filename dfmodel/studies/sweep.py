"""A sweep: points that are not known yet computed by an engine, each stored as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dfmodel.api import read_inputs
from dfmodel.catalog_files import Dirs, catalog_dirs, packaged_catalogs
from dfmodel.errors import InputError, did_you_mean
from dfmodel.studies.engines import AHEAD, Engine, check_workers, compute
from dfmodel.studies.journal import Journal
from dfmodel.studies.pareto import Front, Goal
from dfmodel.studies.points import Options, Point, points_of
from dfmodel.studies.progress import Progress
from dfmodel.studies.results import result_rows
from dfmodel.studies.solve_point import FAILED, SOLVED, payload, solve_point
from dfmodel.studies.study import Study

#: Most values of an axis that are read before anything is computed, the first and the last among them.
CHECKED_VALUES = 32

Records = MutableMapping[str, Any]


@dataclass(frozen=True)
class Rules:
    """How a sweep treats its points: `retry_failed` computes failed ones again; `goals` with `prune` skip points whose
    bounds show that they are dominated; `shard` (i, n) takes every n-th point from the i-th (0 to n - 1) on; `collect`
    computes nothing."""

    options: Options = field(default_factory=Options)
    retry_failed: bool = False
    prune: bool = False
    goals: tuple[Goal, ...] = ()
    shard: tuple[int, int] | None = None
    collect: bool = False
    quiet: bool = False


@dataclass
class Sweep:
    """One sweep over `study`. `records` keeps what was computed, `cache` is the folder it lies in (None: memory)."""

    study: Study
    rules: Rules
    records: Records
    cache: Path | None = None
    dirs: Dirs = ()
    points: list[Point] = field(default_factory=list)
    #: Points skipped, by key, as records of their own: they depend on other points, so they are not stored.
    pruned: dict[str, Any] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make the points, and read the inputs of some that are new: a study that names an unknown key is refused here.

        Raises InputError with every problem.
        """
        self.dirs = tuple(self.dirs)
        self.points = points_of(self.study, self.rules.options, self.dirs)
        if self.rules.shard is not None:
            number, count = self.rules.shard
            self.points = self.points[number::count]
        problems: dict[str, None] = {}
        for point in self._to_check():
            try:
                read_inputs(point.config, self.dirs)
            except InputError as error:
                problems |= dict.fromkeys(error.problems)
        if problems:
            raise InputError(problems)

    def _to_check(self) -> list[Point]:
        """One new point per value of every axis (of many values some, the first and the last among them)."""
        new = [p for p in self.points if p.key not in self.records]
        chosen: dict[int, Point] = {}
        for key in self.study.keys:
            first: dict[str, Point] = {}
            for point in new:
                first.setdefault(repr(point.inputs[key]), point)
            of_value = list(first.values())
            step = max(1, len(of_value) // CHECKED_VALUES)
            chosen |= {p.number: p for p in (*of_value[::step], *of_value[-1:])}
        return list(chosen.values())

    def run(self, engine: Engine) -> None:
        """Compute what is missing. Raises StoreFullError or EngineLostError; what was finished by then is kept."""
        if self.rules.collect:
            return
        todo = self._missing()
        if engine.foreign and todo:
            check_workers(engine)
        if self.rules.prune:
            todo = self._bounded(engine, todo)
            # what is handed out cannot be skipped any more
            engine.in_flight = max(1, engine.in_flight // AHEAD)
        self._compute(engine, todo)

    def _missing(self) -> list[Point]:
        """Points without a record, or with a failed one that is to be tried again; of equal points the first."""
        again = FAILED if self.rules.retry_failed else ()
        found: dict[str, Point] = {}
        for point in self.points:
            record = self.records.get(point.key)
            if record is None or record["status"] in again:
                found.setdefault(point.key, point)
        return list(found.values())

    def _compute(self, engine: Engine, todo: list[Point]) -> None:
        progress = Progress(len(self.points), len(self.points) - len(todo), quiet=self.rules.quiet)
        front = Front(self.rules.goals)
        if self.rules.prune:
            for point in self.points:
                self._note(front, point)
        for point, record, died in compute(engine, self._jobs(engine, todo, front, progress), solve_point):
            if died is not None:
                record = {"status": "worker died", "row": {}, "error": died}
            self.records[point.key] = record
            self._note(front, point)
            progress.finished(record["status"])
        progress.end()

    def _jobs(
        self, engine: Engine, todo: list[Point], front: Front, progress: Progress
    ) -> Iterator[tuple[Point, dict[str, Any]]]:
        """What is still to do when its turn comes: others may have stored it, or shown it to be dominated."""
        began_with = {p.key: self.records.get(p.key) for p in todo}
        for point in todo:
            if isinstance(self.records, Journal):
                self.records.refresh()
            if self.records.get(point.key) is not began_with[point.key]:
                progress.finished(self.records[point.key]["status"])
                continue
            better = front.dominating(self._bounds(point)) if self.rules.prune else None
            if better is not None:
                self.pruned[point.key] = self._skipped(point, better)
                progress.finished("pruned")
                continue
            yield point, self._payload(point, False)

    def _payload(self, point: Point, bound_only: bool) -> dict[str, Any]:
        own = [str(d.resolve()) for d in catalog_dirs(self.dirs) if d != packaged_catalogs()]
        programs = None if self.cache is None else str(self.cache.resolve())
        return payload(point.config, self.rules.options, own, programs, bound_only)

    def _note(self, front: Front, point: Point) -> None:
        record = self.records.get(point.key)
        if record is not None and record["status"] in SOLVED:
            front.add(record["row"], f"point {point.number}")

    def _bounded(self, engine: Engine, todo: list[Point]) -> list[Point]:
        """`todo` with bounds stored for every point, the most promising first. Raises InputError where no point has a
        bound for a metric asked."""
        missing = [p for p in todo if _bound_key(p) not in self.records]
        progress = Progress(len(todo), len(todo) - len(missing), "bounds", self.rules.quiet)
        jobs = ((p, self._payload(p, True)) for p in missing)
        for point, record, died in compute(engine, jobs, solve_point):
            self.records[_bound_key(point)] = record or {"status": "worker died", "row": {}, "error": died}
            progress.finished("bounded")
        known = {m for p in todo for m in self._bounds(p)} - {"solve_s"}
        unknown = [g.metric for g in self.rules.goals if g.metric not in known]
        if unknown and known:
            raise InputError([f"--prune: {m} has no bound{did_you_mean(m, known)}" for m in unknown])
        front = Front(self.rules.goals)
        return sorted(todo, key=lambda p: front.sort_key(self._bounds(p)))

    def _bounds(self, point: Point) -> dict[str, Any]:
        record = self.records.get(_bound_key(point))
        return dict(record["row"]) if record is not None and record["status"] == "bounded" else {}

    def _skipped(self, point: Point, better: str) -> dict[str, Any]:
        bounds = self._bounds(point)
        shown = ", ".join(
            f"{g.metric} {'at least' if g.minimise else 'at most'} {bounds[g.metric]:.6g}" for g in self.rules.goals
        )
        return {"status": "pruned", "row": {}, "error": f"{better} is better whatever the answer: {shown}"}

    def rows(self) -> list[dict[str, Any]]:
        """A row per point, computed or not."""
        return result_rows(self.points, {**self.records, **self.pruned})


def _bound_key(point: Point) -> str:
    return f"bound:{point.key}"
