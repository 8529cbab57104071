"""The commands `sweep` and `pareto`: many points as one table, and the best of it as tables and pictures."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmodel.errors import InputError

if TYPE_CHECKING:
    from dfmodel.studies.study import Study
    from dfmodel.studies.sweep import Rules, Sweep

AddCommon = Callable[[argparse.ArgumentParser, Callable[[argparse.Namespace], int]], None]

#: Command line of a sweep that a script runs again: options that only start it, with the number of their values.
_ONLY_HERE = {"--emit": 1, "--force": 0, "--resume": 0, "--jobs": 1, "-j": 1, "--out": 1, "--quiet": 0, "-q": 0}


def add_studies(commands: Any, add_common: AddCommon) -> None:
    """Add both commands to a parser's."""
    _add_sweep(commands, add_common)
    _add_pareto(commands, add_common)


def _add_sweep(commands: Any, add_common: AddCommon) -> None:
    p = commands.add_parser(
        "sweep",
        help="optimise every point of a study; one table",
        description="Optimise every combination of the axes of STUDY.yaml, of --grid, --range and --zip. Every point "
        "is stored as soon as it is finished; docs/sweeps.md describes the study file and the table.",
    )
    p.add_argument("study", metavar="STUDY.yaml", nargs="?", help="axes, zip, scenarios, where, and a run's sections")
    asked = p.add_argument_group("points")
    many: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    asked.add_argument("--grid", metavar="KEY=A,B", help="values of an axis: system.chip=h100_sxm,b200_sxm", **many)
    asked.add_argument("--range", metavar="KEY=FROM:TO:STEP", help="system.nodes=8:512:*2, or a step to add", **many)
    asked.add_argument("--zip", metavar="KEY=A,B", help="axes that walk together", **many)
    asked.add_argument("--where", metavar="CONDITION", action="append", default=[], help="keep these combinations only")
    asked.add_argument("--scenario", metavar="NAME", help="of the study's, these (default: all)", **many)
    asked.add_argument("--set", metavar="KEY=VALUE", help="settings of every point, under the axes", **many)
    asked.add_argument("--workload", metavar="NAME", help="as for optimize")
    asked.add_argument("--system", metavar="NAME", help="as for optimize")
    asked.add_argument("--assumptions", metavar="NAME", help="as for optimize")
    asked.add_argument("--time-limit", metavar="S", type=float, help="seconds of one point")
    asked.add_argument("--gap", type=float, default=0.0, help="relative gap at which a program may stop (default 0)")
    kept = p.add_argument_group("results")
    kept.add_argument("--out", metavar="DIR", type=Path, help="folder of results.csv (default: sweeps/NAME)")
    kept.add_argument("--cache", metavar="DIR", type=Path, help="store points there; sweeps may share it")
    kept.add_argument("--resume", action="store_true", help="continue: compute what is missing or was changed")
    kept.add_argument("--retry-failed", action="store_true", help="compute points again that failed")
    kept.add_argument("--force", action="store_true", help="drop the results in DIR and start over")
    kept.add_argument("--parquet", action="store_true", help="write results.parquet too (extra: parquet)")
    work = p.add_argument_group("work")
    work.add_argument("--jobs", "-j", metavar="N", type=int, default=2, help="processes (default 2; 0: none but this)")
    work.add_argument("--executor", metavar="URL", help="dask://HOST:PORT, ray://HOST:PORT, dask://local, ray://local")
    work.add_argument("--emit", choices=("slurm",), help="write a job array and a merge step instead of computing")
    work.add_argument("--shard", metavar="I/N", help="every N-th point from the I-th on (what a job array's tasks do)")
    work.add_argument("--collect", action="store_true", help="write results from what is stored, compute nothing")
    work.add_argument("--prune", action="store_true", help="skip points whose bounds show that they are dominated")
    _add_goals(work)
    work.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")
    add_common(p, _sweep)


def _add_goals(parser: Any) -> None:
    for name in ("minimise", "maximise"):
        parser.add_argument(f"--{name}", metavar="METRIC", nargs="+", action="extend", default=[], help="a column")


def _add_pareto(commands: Any, add_common: AddCommon) -> None:
    p = commands.add_parser("pareto", help="the non-dominated points of a sweep; heat maps and lines")
    p.add_argument("results", metavar="RESULTS", type=Path, help="results.csv, results.parquet or a sweep's folder")
    _add_goals(p)
    p.add_argument("--out", metavar="DIR", type=Path, help="write each table as CSV and each picture as PNG and SVG")
    p.add_argument("--heatmap", metavar=("X", "Y", "METRIC"), nargs=3, action="append", default=[])
    p.add_argument("--lines", metavar=("X", "METRIC"), nargs=2, action="append", default=[])
    p.add_argument("--by", metavar="COLUMN", help="a line, or a colour, per value of this column")
    p.add_argument("--select", metavar="COLUMN=VALUE", nargs="+", action="extend", default=[], help="these rows only")
    add_common(p, _pareto)


def _sweep(arguments: argparse.Namespace) -> int:
    from dfmodel.studies.run import finish, opened

    rules = _rules(arguments)
    study = _study(arguments)
    out: Path = arguments.out or Path("sweeps") / study.name
    running = opened(study, rules, out, arguments.cache, arguments.resume, arguments.force, arguments.catalog)
    running.prepare()
    if arguments.emit:
        return _emit(out, running)
    from dfmodel.studies.engines import local, open_engine

    engine = local(0) if rules.collect else open_engine(arguments.executor, arguments.jobs)
    path = finish(running, engine, out, arguments.parquet)
    rows = running.rows()
    counts = Counter(row["status"] for row in rows)
    failed = _show(arguments, rows, counts, path)
    return 5 if failed else 0


def _show(arguments: argparse.Namespace, rows: list[dict[str, Any]], counts: Counter[str], path: Path | None) -> int:
    """Print what a sweep found; how many points have no answer."""
    from dfmodel.studies.solve_point import FAILED

    failed = sum(counts[s] for s in (*FAILED, "not computed"))
    if arguments.json:
        print(json.dumps({"schema_version": 1, "results": str(path), "statuses": counts, "rows": rows}, default=str))
        return failed
    print(f"{len(rows):,} points: {', '.join(f'{n:,} {s}' for s, n in counts.most_common())}")
    reasons = Counter(str(row["error"]).splitlines()[0] for row in rows if row["status"] in FAILED)
    for reason, n in reasons.most_common(5):
        print(f"  {n:,} x {reason}")
    if any(counts[s] for s in FAILED):
        print("  failed points are kept; --resume --retry-failed computes them again")
    if path is not None:
        print(f"results: {path}")
    return failed


def _rules(arguments: argparse.Namespace) -> Rules:
    """How to run, from options that need no study. Raises InputError with every fault."""
    from dfmodel.studies.pareto import goals_of
    from dfmodel.studies.points import Options
    from dfmodel.studies.sweep import Rules

    problems = []
    if arguments.jobs < 0:
        problems.append(f"--jobs: must be 0 or more, got {arguments.jobs}")
    if not 0 <= arguments.gap < 1:
        problems.append(f"--gap: must be at least 0 and below 1, got {arguments.gap}")
    if arguments.time_limit is not None and not arguments.time_limit > 0:
        problems.append(f"--time-limit: must be above 0 seconds, got {arguments.time_limit}")
    if (arguments.minimise or arguments.maximise) and not arguments.prune:
        problems.append("--minimise, --maximise: only with --prune; `dfmodel pareto` finds a front of results")
    shard = None
    if arguments.shard is not None:
        number, _, count = arguments.shard.partition("/")
        if number.isdecimal() and count.isdecimal() and int(number) < int(count):
            shard = int(number), int(count)
        else:
            problems.append(f"--shard {arguments.shard}: expected I/N with I from 0 to N - 1")
        if arguments.prune:
            problems.append("--shard: not with --prune, which compares all points")
    if problems:
        raise InputError(problems)
    goals = goals_of(arguments.minimise, arguments.maximise) if arguments.prune else ()
    options = Options(arguments.time_limit, arguments.gap)
    return Rules(options, arguments.retry_failed, arguments.prune, goals, shard, arguments.collect, arguments.quiet)


def _study(arguments: argparse.Namespace) -> Study:
    from dfmodel.config import parse_settings
    from dfmodel.studies.axes import parse_grids, parse_ranges
    from dfmodel.studies.run import named
    from dfmodel.studies.study import changed, read_study

    names = (arguments.workload, arguments.system, arguments.assumptions)
    return changed(
        read_study(arguments.study, arguments.catalog),
        product={**parse_grids(arguments.grid), **parse_ranges(arguments.range)},
        zipped=parse_grids(arguments.zip, "--zip"),
        settings=named(parse_settings(arguments.set), *names),
        scenarios=arguments.scenario,
        where=arguments.where,
    )


def _emit(out: Path, running: Sweep) -> int:
    from dfmodel.studies.slurm import emit

    command = [sys.executable, "-m", "dfmodel", *_again(sys.argv[1:]), "--out", str(out.resolve())]
    array, merge = emit(out, running.study.name, len(running.points), command)
    print(f"{len(running.points):,} points\njob array: {array}\nmerge step: {merge}")
    print(f"start both: job=$(sbatch --parsable {array}) && sbatch --dependency=afterany:$job {merge}")
    return 0


def _again(words: Sequence[str]) -> list[str]:
    """A sweep's command line without the options that belong to this run of it."""
    kept, skip = [], 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skip:
            skip -= 1
        elif name in _ONLY_HERE:
            skip = 0 if equals else _ONLY_HERE[name]
        else:
            kept.append(word)
    return kept


def _pareto(arguments: argparse.Namespace) -> int:
    from dfmodel.studies.pareto import front, goals_of
    from dfmodel.studies.results import read_results
    from dfmodel.studies.tables import front_columns, render_front, selected

    frame = selected(read_results(arguments.results), arguments.select)
    pictures = bool(arguments.heatmap or arguments.lines)
    if pictures and arguments.out is None:
        raise InputError("--heatmap, --lines: give --out DIR for the pictures and their tables")
    written: list[Path] = []
    goals = (
        ()
        if pictures and not (arguments.minimise or arguments.maximise)
        else goals_of(arguments.minimise, arguments.maximise)
    )
    if goals:
        found = front(frame, goals)
        shown = found[front_columns(found, goals)]
        if arguments.json:
            print(json.dumps({"schema_version": 1, "front": json.loads(found.to_json(orient="records"))}))
        else:
            print(render_front(frame, shown, goals))
    if arguments.out is not None:
        from dfmodel.reporting.study_plots import write_front, write_heatmap, write_lines

        if goals:
            written += write_front(frame, found, goals, arguments.out, arguments.by)
        for x, y, metric in arguments.heatmap:
            written += write_heatmap(frame, x, y, metric, arguments.out)
        for x, metric in arguments.lines:
            written += write_lines(frame, x, metric, arguments.by, arguments.out)
    for path in written:
        print(path, file=sys.stderr if arguments.json else sys.stdout)
    return 0
