"""The accuracy table of the README: `python benchmarks/accuracy.py`, with `--write` also reports/accuracy/.

Errors on rows that only judge, by publication; matrix products of the A100, whose rows all calibrate, each predicted
from a fit to the other 19.

"""

from __future__ import annotations

import argparse
from pathlib import Path

from dfmodel.reporting.validation_report import tables_text, write_validation
from dfmodel.validation import gemm
from dfmodel.validation.files import load_rules
from dfmodel.validation.fit_compute import fit_gemm, gemm_rows
from dfmodel.validation.suites import run_suites, table_errors

REPORT = Path(__file__).parent.parent / "reports" / "accuracy"


def leave_one_out() -> list[float]:
    """Percent by which each A100 product is off when the fit does not see it."""
    rules = load_rules(gemm.TABLE)
    series = next(s for s in rules["series"] if s["chip"].startswith("A100"))
    rows = gemm_rows(series)
    found = []
    for row in rows:
        constants = fit_gemm(series, [r for r in rows if r is not row], rules)
        bench = gemm.bench_of(row, rules, constants)
        found.append(100 * (bench.seconds() / bench.measured_s - 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.name}/rows.csv, tables.csv, scatter.png")
    arguments = parser.parse_args()
    comparisons = run_suites()
    print(tables_text(table_errors(comparisons)))
    errors = [abs(e) for e in leave_one_out()]
    print(f"\nA100 matrix products, leave-one-out: {len(errors)} rows, mean {sum(errors) / len(errors):.1f} %, "
          f"largest {max(errors):.1f} %")  # fmt: skip
    if arguments.write:
        write_validation(comparisons, REPORT)


if __name__ == "__main__":
    main()
