"""The command line: parse, call the API, print. Heavy packages are imported by the command that needs them."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmodel import __version__
from dfmodel.cli_studies import add_studies
from dfmodel.cli_validation import add_validation
from dfmodel.errors import DfmodelError, InputError, UnknownNameError

if TYPE_CHECKING:
    from dfmodel.config import RunConfig
    from dfmodel.reporting.plot_worker import PlotWorker

#: Kinds `list` and `show` know, as a user types them -> catalog folder.
KINDS = {
    "workloads": "workloads",
    "systems": "systems",
    "chips": "chips",
    "memories": "memories",
    "links": "links",
    "models": "models",
    "graphs": "graphs",
    "efficiency": "efficiency",
    "assumptions": "assumptions",
    "costs": "costs",
    "processes": "processes",
    "studies": "cases",
}

EPILOG = """exit codes: 0 optimal or inside the asked gap, 2 usage, 3 bad input, 4 proved infeasible,
5 limit hit with a solution, 6 limit hit without one, 130 interrupted, 1 a bug"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    # programs are built of many small objects that live until the command ends: looking for garbage among them every
    # 700 allocations took a tenth of the time
    gc.set_threshold(100_000, 50, 50)
    arguments = _parser().parse_args(argv)
    try:
        code: int = arguments.run(arguments)
    except DfmodelError as error:
        return _failed(error, arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader of our output has gone; nothing is left to say, not even while Python closes stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if arguments.debug:
            raise
        print(f"dfmodel: internal error: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
        return 1
    return code


def _failed(error: DfmodelError, arguments: argparse.Namespace) -> int:
    if arguments.debug:
        raise error
    print(f"dfmodel: {error}", file=sys.stderr)
    return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dfmodel",
        description="Find, prove and explain the best mapping of a workload on a system.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dfmodel {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_optimize(commands)
    _add_list(commands)
    _add_show(commands)
    add_studies(commands, _add_common)
    add_validation(commands, _add_common)
    return parser


def _add_common(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]) -> None:
    parser.add_argument("--catalog", metavar="DIR", action="append", default=[], help="look for names here first")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(run=run)


def _add_optimize(commands: Any) -> None:
    p = commands.add_parser("optimize", help="search all plans and print the best mapping", epilog=EPILOG)
    p.add_argument("--workload", metavar="NAME", help="workload, model, graph, or file (default: llm)")
    p.add_argument("--system", metavar="NAME", help="system or file (default: dgx)")
    p.add_argument("--study", metavar="NAME", help="a file that fixes workload, system, plan and assumptions")
    p.add_argument("--assumptions", metavar="NAME", help="preset of modelling choices: default or paper, or a file")
    p.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        nargs="+",
        default=[],
        help="override workload.*, system.*, plan.*, assumptions.*, cost.*, for example system.nodes=64",
    )
    p.add_argument("--out", metavar="DIR", type=Path, help="run folder (default: runs/TIME-WORKLOAD-SYSTEM-HASH)")
    p.add_argument("--force", action="store_true", help="replace an existing run folder")
    p.add_argument("--no-save", action="store_true", help="write no run folder")
    p.add_argument("--gap", type=float, default=0.0, help="relative gap at which a program may stop (default 0)")
    p.add_argument(
        "--certify-all",
        action="store_true",
        help="prove the sharding of every plan, not only of the winner (slower)",
    )
    p.add_argument("--no-prune", action="store_true", help="evaluate every plan instead of cutting by bounds (slow)")
    p.add_argument("--best", type=int, metavar="K", help="the K best distinct plans (with --within a margin)")
    p.add_argument("--within", type=float, metavar="X", help="only plans within this share of the optimum, e.g. 0.05")
    p.add_argument("--time-limit", type=float, metavar="S", help="seconds after which the best plan so far is returned")
    p.add_argument("--quiet", "-q", action="store_true", help="no progress on stderr")
    _add_common(p, _optimize)


def _add_list(commands: Any) -> None:
    p = commands.add_parser("list", help="names in the catalogs")
    p.add_argument("kind", nargs="?", choices=sorted(KINDS), help="one kind only")
    _add_common(p, _list)


def _add_show(commands: Any) -> None:
    p = commands.add_parser("show", help="one catalog entry, every assumption explained, or what a collective costs")
    p.add_argument(
        "kind", help="chip, memory, link, system, model, graph, study, efficiency, assumptions, or collective"
    )
    p.add_argument("name", nargs="?", help="its name (assumptions: a preset)")
    c = p.add_argument_group("show collective")
    c.add_argument("--system", default="dgx", help="the system whose links it uses (default dgx)")
    c.add_argument("--op", default="all-reduce", help="all-reduce, all-gather, reduce-scatter, all-to-all, ...")
    c.add_argument("--bytes", default="1 GiB", help="message per chip, for example 64MiB (default 1 GiB)")
    c.add_argument("--group", help="factors of dimensions, for example nvlink=8,infiniband=4 (default: every chip)")
    c.add_argument("--algorithm", help="one by name instead of the cheapest")
    c.add_argument("--set", nargs="+", action="append", default=[], metavar="system.KEY=VALUE")
    c.add_argument("--sweep", type=Path, metavar="FILE.csv", help="write time and bandwidth by message size")
    _add_common(p, _show)


def _optimize(arguments: argparse.Namespace) -> int:
    _check_limits(arguments)
    from dfmodel.config import build_config, parse_settings

    settings = parse_settings([pair for group in arguments.set for pair in group])
    settings |= {f"plan.{k}": v for k in ("best", "within") if (v := getattr(arguments, k)) is not None}
    config = build_config(
        arguments.workload,
        arguments.system,
        arguments.assumptions,
        settings,
        arguments.study,
        arguments.catalog,
    )
    if arguments.no_save:
        return _run_and_report(arguments, config, None)
    from dfmodel.reporting.plot_worker import PlotWorker

    worker = PlotWorker()
    try:
        return _run_and_report(arguments, config, worker)
    finally:
        worker.close()


def _run_and_report(arguments: argparse.Namespace, config: RunConfig, worker: PlotWorker | None) -> int:
    import tempfile

    from dfmodel.api import run

    with tempfile.TemporaryDirectory(prefix="dfmodel-") as scratch:
        log = Path(scratch) / "solver.log"
        result = run(
            config,
            arguments.catalog,
            time_limit_s=arguments.time_limit,
            gap=arguments.gap,
            certify_all=arguments.certify_all,
            prune=not arguments.no_prune,
            log=log,
            progress=_progress(arguments),
        )
        log_text = log.read_text() if log.exists() else ""
    folder = None
    if not arguments.no_save:
        from dfmodel.reporting.run_folder import write_run

        folder = write_run(result, config.to_dict(), arguments.out, arguments.force, log_text, worker)
    if arguments.json:
        print(json.dumps(result.to_dict(), allow_nan=False))
    else:
        from dfmodel.reporting.tables import render

        print(render(result))
    if folder is not None:
        print(
            f"\nrun folder: {folder}" if not arguments.json else f"run folder: {folder}",
            file=sys.stdout if not arguments.json else sys.stderr,
        )
    return {"optimal": 0, "interrupted": 130}.get(result.status, 5)


def _check_limits(arguments: argparse.Namespace) -> None:
    problems = []
    if not 0 <= arguments.gap < 1:
        problems.append(f"--gap: must be at least 0 and below 1, got {arguments.gap}")
    if arguments.time_limit is not None and not arguments.time_limit >= 0:
        problems.append(f"--time-limit: must be 0 or more seconds, got {arguments.time_limit}")
    if arguments.out is not None and arguments.out.exists() and not arguments.force:
        occupied = not arguments.out.is_dir() or any(arguments.out.iterdir())
        if occupied:
            problems.append(f"--out {arguments.out}: exists and is not empty; use --force to replace it")
    if problems:
        raise InputError(problems)


def _progress(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Progress lines on stderr, from the first second on and at most five a second."""
    began = time.perf_counter()
    last = [began + 0.8]

    def show(text: str) -> None:
        now = time.perf_counter()
        if not arguments.quiet and now - last[0] >= 0.2:
            last[0] = now
            print(f"{now - began:5.1f} s  {text}", file=sys.stderr)

    return show


def _list(arguments: argparse.Namespace) -> int:
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    found = {kind: _names(kind, arguments.catalog) for kind in kinds}
    if arguments.json:
        print(json.dumps(found))
        return 0
    for kind, names in found.items():
        print(f"{kind}: {', '.join(names)}" if len(kinds) > 1 else "\n".join(names))
    return 0


def _names(kind: str, dirs: list[str]) -> list[str]:
    from dfmodel.catalog_files import list_names

    if kind == "workloads":
        from dfmodel.workloads.families import FAMILIES

        return ["llm", "mamba", "hyena", *FAMILIES, *list_names("graphs", dirs), *list_names("models", dirs)]
    return list_names(KINDS[kind], dirs)


def _show(arguments: argparse.Namespace) -> int:
    if arguments.kind in ("collective", "collectives"):
        return _show_collective(arguments)
    kind = _kind(arguments.kind)
    if kind == "assumptions":
        return _show_assumptions(arguments)
    if arguments.name is None:
        raise InputError(f"show {arguments.kind}: give a name; `dfmodel list {kind}` lists them")
    from dfmodel.catalog_files import find, follow_alias, holders, load_yaml

    path = find(KINDS[kind], arguments.name, arguments.catalog)
    if arguments.json:
        print(json.dumps(load_yaml(follow_alias(KINDS[kind], path, arguments.catalog)), default=str))
        return 0
    hidden = [other for other in holders(KINDS[kind], arguments.name, arguments.catalog) if other != path]
    print("\n".join([f"# {path}", *(f"# comes before {other}" for other in hidden), path.read_text().rstrip()]))
    target = follow_alias(KINDS[kind], path, arguments.catalog)
    if target != path:
        print(f"\n# {target}\n{target.read_text().rstrip()}")
    return 0


def _show_collective(arguments: argparse.Namespace) -> int:
    from dfmodel.config import parse_settings
    from dfmodel.reporting import collective_report as report
    from dfmodel.systems.catalog import load_system
    from dfmodel.units import parse

    settings = parse_settings([pair for group in arguments.set for pair in group])
    strange = [k for k in settings if not k.startswith("system.")]
    if strange:
        raise InputError([f"--set {k}: only system.* changes what a collective costs" for k in strange])
    changed = {k.removeprefix("system."): v for k, v in settings.items()}
    system = load_system(arguments.system, changed, arguments.catalog)
    op, size = arguments.op.replace("-", "_"), parse(arguments.bytes, "bytes", "--bytes")
    group = report.parse_group(arguments.group, system)
    efficiency = system.chip.efficiency.link_max
    found = report.describe(op, size, group, efficiency, arguments.algorithm)
    print(json.dumps(found) if arguments.json else report.render(found, report.link_lines(group, efficiency)))
    if arguments.sweep is not None:
        report.sweep(op, group, efficiency, arguments.algorithm).to_csv(arguments.sweep, index=False)
    return 0


def _kind(word: str) -> str:
    """`chip` and `chips` both mean chips."""
    for kind in KINDS:
        singular = {"memories": "memory", "studies": "study", "processes": "process"}.get(kind, kind.removesuffix("s"))
        if word in (kind, singular):
            return kind
    raise UnknownNameError("kind", word, KINDS)


def _show_assumptions(arguments: argparse.Namespace) -> int:
    from dfmodel.presets import load_assumptions

    chosen = load_assumptions(arguments.name or "default", dirs=arguments.catalog)
    if arguments.json:
        print(json.dumps(chosen.model_dump()))
        return 0
    for section in type(chosen).model_fields:
        value = getattr(chosen, section)
        if isinstance(value, str):
            print(f"{section}: {value}")
            continue
        for key, info in type(value).model_fields.items():
            print(f"{section}.{key} = {getattr(value, key)}\n    {info.description or ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
