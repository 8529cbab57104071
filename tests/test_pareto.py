"""Fronts, heat maps and lines of results; the examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmodel.cli import main
from dfmodel.reporting.study_plots import label_of, write_heatmap
from dfmodel.studies.pareto import Front, Goal, non_dominated

VALUES = st.integers(0, 4).map(float)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=30)))
def test_the_front_is_what_comparing_all_pairs_gives(points: list[tuple[float, ...]]) -> None:
    def dominated(p: tuple[float, ...]) -> bool:
        return any(all(a <= b for a, b in zip(q, p, strict=True)) and q != p for q in points)

    assert list(non_dominated(np.array(points))) == [not dominated(p) for p in points]


def test_a_bound_as_good_as_a_point_is_not_dominated() -> None:
    """A point that may tie, or has no bound for a metric, is computed."""
    known = Front([Goal("cost", True), Goal("rate", False)])
    known.add({"cost": 5.0, "rate": 10.0}, "point 1")
    known.add({"cost": 1.0, "rate": None}, "point 2")
    assert known.dominating({"cost": 5.0, "rate": 10.0}) is None
    assert known.dominating({"cost": 5.0, "rate": 10.0 * (1 - 1e-12)}) is None
    assert known.dominating({"cost": 4.0, "rate": 1.0}) is None
    assert known.dominating({"cost": 6.0}) is None
    assert known.dominating({"cost": 5.0, "rate": 9.0}) == "point 1"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    rows = [
        {
            "point": i,
            "a": a,
            "b": f"{b} TB/s",
            "status": "optimal",
            "rate_per_s": a * b,
            "cost_usd": a + b,
            "key": f"{i}",
        }
        for i, (a, b) in enumerate((a, b) for a in (1, 2, 4) for b in (1, 2))
    ]
    rows[0] |= {"status": "infeasible", "rate_per_s": None}
    path = tmp_path / "results.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def test_pictures_come_with_their_tables(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every picture is there as PNG and SVG beside a CSV with its numbers, and the front is printed."""
    out = results.parent / "pictures"
    words = ["--minimise", "cost_usd", "--maximise", "rate_per_s", "--heatmap", "a", "b", "rate_per_s"]
    assert main(["pareto", str(results), *words, "--lines", "a", "rate_per_s", "--by", "b", "--out", str(out)]) == 0
    assert "4 of 6 points (5 optimal, 1 infeasible) are not dominated" in capsys.readouterr().out
    for name in ("front", "heatmap_rate_per_s", "lines_rate_per_s"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (out / f"{name}.svg").read_text()
    assert sorted(pd.read_csv(out / "front.csv")["cost_usd"]) == [3, 3, 4, 6]
    heat = pd.read_csv(out / "heatmap_rate_per_s.csv")
    assert heat[heat["a"] == 4]["rate_per_s"].tolist() == [4, 8]
    assert heat["rate_per_s"].isna().sum() == 1


def test_axes_say_their_units() -> None:
    frame = pd.DataFrame(
        {"point": [1, 2], "x": ["40 MB", "80 MB"], "y": [1, 1], "status": "optimal", "tokens_per_s": [1.0, 2.0]}
    )
    assert label_of("tokens_per_s") == "throughput (tokens/s)"
    assert label_of("tokens_per_s_per_usd") == "throughput per price (tokens/s per USD)"
    assert label_of("iteration_s") == "iteration (s)"
    assert label_of("cost_usd") == "cost (USD)"
    with pytest.MonkeyPatch.context() as patch:
        drawn: list[object] = []
        patch.setattr("dfmodel.reporting.study_plots._written", lambda figure, *_: drawn.append(figure) or [])
        write_heatmap(frame, "x", "y", "tokens_per_s", Path())
    axes = drawn[0].axes  # type: ignore[attr-defined]
    assert axes[0].get_xlabel() == "x (MB)"
    assert [t.get_text() for t in axes[0].get_xticklabels()] == ["40", "80"]
    assert axes[1].get_ylabel() == "throughput (tokens/s)"


BAD = [
    (["--minimise", "cost"], "did you mean 'cost_usd'"),
    (["--minimise", "cost_usd", "--maximise", "cost_usd"], "minimised and maximised"),
    ([], "no metric"),
    (["--minimise", "b"], "holds no numbers"),
    (["--minimise", "cost_usd", "--select", "a=7"], "no row has it"),
    (["--minimise", "cost_usd", "--select", "aa=7"], "no such column"),
    (["--heatmap", "a", "b", "rate_per_s"], "give --out"),
    (["--heatmap", "a", "c", "rate_per_s", "--out", "x"], "c: no such column"),
    (["--lines", "a", "rate_per_s", "--out", "x"], "they differ in b"),
]


@pytest.mark.parametrize("words,message", BAD, ids=[" ".join(w) or "nothing" for w, _ in BAD])
def test_bad_input(words: list[str], message: str, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pareto", str(results), *words]) == 3
    assert message in capsys.readouterr().err


def test_another_table_is_no_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert main(["pareto", str(other), "--minimise", "a"]) == 3
    assert "no column point, status, key" in capsys.readouterr().err
    assert main(["pareto", str(tmp_path / "none.csv"), "--minimise", "a"]) == 3
    assert "cannot be read as results" in capsys.readouterr().err


EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name,table", [
    ("chip_comparison", "lines_tokens_per_s"),
    ("bandwidth_sram_map", "heatmap_tokens_per_s"),
    ("cost_throughput_front", "front"),
])  # fmt: skip
def test_examples_run(name: str, table: str, tmp_path: Path) -> None:
    """Each script runs as a user runs it and leaves its table and pictures."""
    script = EXAMPLES / f"{name}.py"
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "out")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not pd.read_csv(tmp_path / "out" / f"{table}.csv").empty
    assert (tmp_path / "out" / f"{table}.svg").stat().st_size > 0
    statuses = set(pd.read_csv(tmp_path / "out" / "results.csv")["status"])
    assert "optimal" in statuses and statuses <= {"optimal", "infeasible", "pruned"}


def test_every_example_is_tested() -> None:
    assert {p.stem for p in EXAMPLES.glob("*.py")} == {"chip_comparison", "bandwidth_sram_map", "cost_throughput_front"}
