"""The commands `validate` and `calibrate`: how accurate the model is, whether catalogs are sound, and where constants
come from."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfmodel.errors import InputError

AddCommon = Callable[[argparse.ArgumentParser, Callable[[argparse.Namespace], int]], None]

SUITE_NAMES = ("llm-training", "llm-serving", "dlrm", "hpl", "fft", "collectives", "gemm", "paper", "all")


def add_validation(commands: Any, add_common: AddCommon) -> None:
    """Add both commands to a parser's."""
    p = commands.add_parser("validate", help="predict published measurements and print the errors, or check catalogs")
    p.add_argument(
        "what",
        nargs="?",
        choices=("catalog",),
        help="check catalog files instead: units, ranges, dense peaks, GB or GiB, sources; prints what is assumed",
    )
    p.add_argument("folders", nargs="*", metavar="DIR", type=Path, help="catalogs to check (default: all searched)")
    p.add_argument("--suite", metavar="NAME", default="all", help=f"one of {', '.join(SUITE_NAMES)} (default all)")
    p.add_argument("--data", metavar="DIR", type=Path, help="measurements of your own: CSV files with the same columns")
    p.add_argument("--out", metavar="DIR", type=Path, help="write rows.csv, tables.csv and scatter.png there")
    add_common(p, _validate)
    c = commands.add_parser("calibrate", help="derive the constants that measurements set, beside those in use")
    c.add_argument("--check", action="store_true", help="exit with 3 where a constant in use is not the derived one")
    add_common(c, _calibrate)


def _validate(arguments: argparse.Namespace) -> int:
    if arguments.what == "catalog":
        return _validate_catalog(arguments)
    from dfmodel.validation.suites import as_json, run_suites

    comparisons = run_suites(arguments.suite, arguments.data)
    if arguments.out is not None:
        from dfmodel.reporting.validation_report import write_validation

        try:
            write_validation(comparisons, arguments.out)
        except OSError as error:
            raise InputError(f"--out {arguments.out}: cannot be written ({error.strerror})") from error
    if arguments.json:
        print(json.dumps(as_json(comparisons), allow_nan=False))
    else:
        from dfmodel.reporting.validation_report import render_validation

        print(render_validation(comparisons))
    return 0


def _validate_catalog(arguments: argparse.Namespace) -> int:
    from dfmodel.systems.lint import lint_catalogs

    missing = [f"{folder}: no such folder" for folder in arguments.folders if not folder.is_dir()]
    if missing:
        raise InputError(missing)
    reports = lint_catalogs(arguments.folders or None, arguments.catalog)
    problems = [p for r in reports for p in r.problems]
    if arguments.json:
        print(json.dumps([vars(r) for r in reports], default=str))
    else:
        assuming = [r for r in reports if r.assumed]
        print(f"assumed: {sum(len(r.assumed) for r in assuming)} values of {len(assuming)} files")
        for r in assuming:
            print(f"  {r.path.parent.parent / r.kind / r.path.stem}: {', '.join(r.assumed)}")
        for r in reports:
            if r.hidden_by is not None:
                print(f"hidden: {r.path}: '{r.path.stem}' is taken from {r.hidden_by}, which comes first")
        counts = Counter(r.kind for r in reports)
        print(f"checked: {', '.join(f'{n} {kind}' for kind, n in counts.items())}; {len(problems)} problems")
    if problems:
        raise InputError(problems)
    return 0


def _calibrate(arguments: argparse.Namespace) -> int:
    from dfmodel.reporting.tables import text_table
    from dfmodel.validation.constants import derived_constants

    constants = derived_constants()
    differing = [c for c in constants if not c.agrees]
    if arguments.json:
        print(json.dumps([{**vars(c), "agrees": c.agrees} for c in constants], allow_nan=False))
    else:
        print(
            text_table(
                {
                    "file": [c.file for c in constants],
                    "constant": [c.name for c in constants],
                    "derived": [f"{c.derived:g}" for c in constants],
                    "in use": ["-" if c.in_use is None else f"{c.in_use:g}" for c in constants],
                    "rows": [str(c.rows) for c in constants],
                    "": ["" if c.agrees else "differs" for c in constants],
                }
            )
        )
    return 3 if differing and arguments.check else 0
