"""`dfmodel validate` and `calibrate`: what is printed, what is judged, and that constants come from calibrate rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dfmodel.cli import main
from dfmodel.errors import InputError
from dfmodel.validation.constants import derived_constants
from dfmodel.validation.files import USES, packaged_measurements, read_table
from dfmodel.validation.suites import SUITES, as_json, run_suites

GOLDEN = Path(__file__).parent / "golden" / "accuracy.json"

#: Columns that hold what was measured.
SPOILT = (
    "step_time_s",
    "time_ms",
    "time_us",
    "algbw_GBps",
    "mfu_pct",
    "model_tflops_per_chip",
    "rmax_tflops",
    "gflops",
)

#: Points of mean error that a table may move before it must be acknowledged: `python tests/test_validate.py` does.
DRIFT = 0.5


@pytest.fixture(scope="module")
def everything() -> Mapping[str, Any]:
    return as_json(run_suites())


def test_every_row_is_listed(everything: Mapping[str, Any]) -> None:
    """As many rows as the files have, each once, predicted or with a reason."""
    data = packaged_measurements() / "data"
    wanted = {r["id"] for name in data.glob("*.csv") for r in read_table(name.stem)}
    assert {r["id"] for r in everything["rows"]} == wanted
    assert len(everything["rows"]) == sum(len(read_table(p.stem)) for p in data.glob("*.csv"))
    for row in everything["rows"]:
        assert row["use"] in USES
        assert (row["predicted"] is None) == bool(row["why_not"])
        assert (row["predicted"] is None) == (row["error_pct"] is None)


def test_only_validate_rows_judge(everything: Mapping[str, Any]) -> None:
    table = everything["tables"]["Korthikanti Table 5"]
    own = [r for r in everything["rows"] if r["id"].startswith("seqsel") and r["use"] == "validate"]
    assert table["rows"] == table["modelled"] == len(own) == 8
    assert table["mean_abs_pct"] == pytest.approx(sum(abs(r["error_pct"]) for r in own) / 8)
    assert table["max_abs_pct"] == pytest.approx(max(abs(r["error_pct"]) for r in own))


def test_accuracy_has_not_drifted(everything: Mapping[str, Any]) -> None:
    """No table's mean error is half a point from what was acknowledged, and none lost rows."""
    golden = json.loads(GOLDEN.read_text())
    found = _summary(everything)
    assert set(found) == set(golden)
    for name, table in golden.items():
        assert found[name]["modelled"] == table["modelled"], name
        if table["mean_abs_pct"] is not None:
            assert abs(found[name]["mean_abs_pct"] - table["mean_abs_pct"]) <= DRIFT, name


def test_readme_shows_what_was_acknowledged() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    for name, table in json.loads(GOLDEN.read_text()).items():
        if table["mean_abs_pct"] is not None and name != "llm_training":
            line = next((x for x in readme.splitlines() if x.startswith(f"| {name} |")), None)
            assert line is not None, name
            cells = [c.strip() for c in line.split("|")]
            assert float(cells[4].removesuffix(" %")) == pytest.approx(table["mean_abs_pct"], abs=DRIFT), line


@pytest.mark.slow
def test_constants_come_from_calibrate_rows_alone(tmp_path: Path) -> None:
    """With every other row spoilt the derived constants are those in use."""
    for path in (packaged_measurements() / "data").glob("*.csv"):
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        for row in rows:
            if row["use"] != "calibrate":
                for column in SPOILT:
                    if row.get(column):
                        row[column] = str(7 * float(row[column]))
        with (tmp_path / path.name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    differing = [c for c in derived_constants(tmp_path) if not c.agrees]
    assert not differing, differing


def test_measurements_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows nobody has named are predicted from their columns, and the guess is said."""
    rows = [r for r in read_table("llm_training") if r["id"] == "foundry_7b_2048_A100-SXM-80GB_8_amp_bf16"] or [
        next(r for r in read_table("llm_training") if r["id"].startswith("foundry_7b") and r["use"] == "validate")
    ]
    mine = {**rows[0], "id": "mine"}
    with (tmp_path / "llm_training.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(mine))
        writer.writeheader()
        writer.writerow(mine)
    assert main(["validate", "--data", str(tmp_path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (row,) = shown["rows"]
    assert row["id"] == "mine" and row["predicted"] is not None
    assert any("by the row's columns" in text for text in row["assumed"])
    assert main(["validate", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"rows.csv", "tables.csv", "scatter.png"}


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'gemm'"):
        run_suites("gem")
    with pytest.raises(InputError, match="no such folder"):
        run_suites("all", tmp_path / "missing")
    with pytest.raises(InputError, match="none of"):
        run_suites("all", tmp_path)
    with pytest.raises(InputError, match="no such file"):
        run_suites("gemm", tmp_path)
    assert set(SUITES) >= {"llm-training", "gemm", "collectives", "dlrm", "hpl", "fft", "llm-serving"}


def _summary(found: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {n: {k: t[k] for k in ("modelled", "mean_abs_pct")} for n, t in found["tables"].items()}


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(_summary(as_json(run_suites())), indent=1) + "\n")
