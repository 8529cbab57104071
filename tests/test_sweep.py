"""Sweeps end to end: the table, resuming after every kind of stop, keys by content, engines, pruning."""

from __future__ import annotations

import concurrent.futures as futures
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from sweep_helpers import CHEAP, CHEAP_WORDS, die_of, die_once

import dfmodel
from dfmodel.catalog_files import packaged_catalogs
from dfmodel.cli import main
from dfmodel.errors import InputError
from dfmodel.studies import solve_point as solving
from dfmodel.studies.engines import compute, local
from dfmodel.studies.journal import Journal, StoreFullError
from dfmodel.studies.pareto import front, goals_of
from dfmodel.studies.points import Options, points_of
from dfmodel.studies.study import changed, read_study

BATCHES = {"workload.batch": [4, 8, 16]}


def _sweep(*words: str) -> int:
    return main(["sweep", *words, "--jobs", "0", "--quiet", "--set", *CHEAP_WORDS])


def _stored(folder: Path) -> int:
    return sum(1 for key in Journal(folder, "points") if not key.startswith("bound:"))


def test_a_row_is_what_optimize_gives() -> None:
    """Inputs, metrics, bound and versions of a point are those of the same question asked alone."""
    frame = dfmodel.sweep(grid=BATCHES, settings=CHEAP, jobs=0)
    assert list(frame["workload.batch"]) == [4, 8, 16]
    for _, row in frame.iterrows():
        alone = dfmodel.optimize(settings={**CHEAP, "workload.batch": row["workload.batch"]})
        assert row["status"] == alone.status == "optimal"
        assert row["iteration_s"] == alone.metrics["iteration_s"]
        assert row["tokens_per_s"] == alone.metrics["tokens_per_s"]
        assert (row["bound_s"], row["gap"], row["plan_tensor"]) == (alone.bound, alone.gap, alone.plan["tensor"])
        assert row["version_highspy"] == alone.versions["highspy"]


def test_sub_problems_solved_before_change_nothing() -> None:
    """A sharded block is looked up the second time; every figure is that of a run without the store."""
    settings = {"workload.layers": 4, "workload.hidden": 1024, "workload.heads": 16, "workload.ffn": 4096}
    solving._programs.clear()
    frame = dfmodel.sweep(grid={"system.nodes": [1, 2]}, settings=settings, jobs=0)
    (store,) = solving._programs.values()
    solved = len(store)
    again = dfmodel.sweep(grid={"workload.batch": [1536], "system.nodes": [1, 2]}, settings=settings, jobs=0)
    assert 0 < solved == len(store)
    for nodes, first, second in zip((1, 2), frame["iteration_s"], again["iteration_s"], strict=True):
        assert first == second == dfmodel.optimize(settings={**settings, "system.nodes": nodes}).objective


def test_a_damaged_sub_problem_is_not_believed() -> None:
    """A stored choice that does not cost what it says is solved again."""
    settings = {"workload.layers": 4, "workload.hidden": 1024, "workload.heads": 16, "workload.ffn": 4096}
    asked = {"grid": {"system.nodes": [1]}, "settings": settings, "jobs": 0}
    solving._programs.clear()
    expected = dfmodel.sweep(**asked)["iteration_s"][0]
    (store,) = solving._programs.values()
    for key, entry in store.items():
        store[key] = {**entry, "choice": {k: (0 if v else 1) for k, v in entry["choice"].items()}}
    assert dfmodel.sweep(**asked)["iteration_s"][0] == expected
    solving._programs.clear()


def test_product_zip_scenarios_conditions_and_units(tmp_path: Path) -> None:
    """One study file with all of it gives the combinations it says, in order, under the settings it says."""
    study = tmp_path / "all.yaml"
    study.write_text(
        """
name: all
workload: {name: llm, layers: 2}
axes:
  system.nodes: {range: "1:8:*2"}
  system.chip.memory.bandwidth: [1 TB/s, 2000 GB/s]
zip:
  - {workload.batch: [8, 16], plan.micro_batch: [1, 2]}
scenarios:
  short: {workload.sequence: 1024}
  long: {workload.sequence: 4096}
where:
  - "nodes * batch <= 32 and (scenario == 'short' or bandwidth > '1 TB/s')"
"""
    )
    found = list(changed(read_study(str(study))).combinations())
    assert len(found) == 5 + 10 - 0  # long: 5 of one bandwidth; short: 5 of both
    assert {(r["workload.batch"], r["plan.micro_batch"]) for r in found} == {(8, 1), (16, 2)}
    assert all(r["system.chip.memory.bandwidth"] != "1 TB/s" for r in found if r["scenario"] == "long")
    only = changed(read_study(str(study)), scenarios=["long"], product={"system.nodes": (1,)})
    points = points_of(only, Options())
    assert [p.config.workload_overrides for p in points] == [
        {"layers": 2, "sequence": 4096, "batch": b} for b in (8, 16)
    ]
    assert [p.config.plan["micro_batch"] for p in points] == [1, 2]


def test_keys_follow_what_a_point_depends_on(tmp_path: Path) -> None:
    """A changed catalog file changes the keys of the points that reach it, through references too, and no others."""
    chips, links = tmp_path / "chips", tmp_path / "links"
    chips.mkdir()
    links.mkdir()
    packaged = packaged_catalogs()
    for kind, name in (("chips", "h200_sxm"), ("links", "nvlink5")):
        (tmp_path / kind / f"{name}.yaml").write_text((packaged / kind / f"{name}.yaml").read_text())
    study = changed(
        read_study(None),
        product={"system.chip": ("h100_sxm", "h200_sxm"), "system": ("dgx", "dgx_b200")},
        settings={"system.nodes": 1},
    )

    def keys() -> list[str]:
        return [p.key for p in points_of(study, Options(), [tmp_path])]

    before = keys()
    assert len(set(before)) == 4
    assert before == keys()
    (chips / "h200_sxm.yaml").write_text((chips / "h200_sxm.yaml").read_text() + "# a comment\n")
    assert [a != b for a, b in zip(before, keys(), strict=True)] == [False, False, True, True]
    before = keys()
    (links / "nvlink5.yaml").write_text((links / "nvlink5.yaml").read_text() + "# a comment\n")
    assert [a != b for a, b in zip(before, keys(), strict=True)] == [False, True, False, True]


def test_resume_computes_only_what_is_new(tmp_path: Path) -> None:
    """Another value of an axis adds its points; known ones are taken as they are, by sweeps sharing the cache too."""
    out, cache = tmp_path / "out", tmp_path / "cache"
    words = ["--out", str(out), "--cache", str(cache)]
    assert _sweep("--grid", "workload.batch=4,8", *words) == 0
    before = (cache / "points.jsonl").read_bytes()
    named = tmp_path / "named.yaml"
    named.write_text("name: named\naxes: {workload.batch: [8, 16]}\n")
    assert _sweep(str(named), "--out", str(tmp_path / "other"), "--cache", str(cache)) == 0
    after = (cache / "points.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 1
    named.write_text("name: named\naxes: {workload.batch: [8, 16, 4]}\n")
    assert _sweep(str(named), "--out", str(tmp_path / "other"), "--cache", str(cache), "--resume") == 0
    assert (cache / "points.jsonl").read_bytes() == after
    assert list(pd.read_csv(tmp_path / "other" / "results.csv")["workload.batch"]) == [8, 16, 4]


def test_kill_9_loses_only_points_in_flight(tmp_path: Path) -> None:
    """After SIGKILL every stored line is whole, no worker outlives the sweep, and --resume completes the table."""
    words = ["--set", *CHEAP_WORDS, "--range", "workload.batch=1:60:1", "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "dfmodel", "sweep", "--jobs", "1", "--quiet", *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    points = tmp_path / "out" / "points.jsonl"
    deadline = time.monotonic() + 120
    while not points.exists() or points.read_bytes().count(b"\n") < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    workers = _children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = points.read_bytes()
    assert all(json.loads(line)["record"]["status"] == "optimal" for line in kept.splitlines())
    while any(_runs(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert main(["sweep", "--jobs", "0", "--quiet", *words, "--resume"]) == 0
    assert points.read_bytes().startswith(kept)
    frame = pd.read_csv(tmp_path / "out" / "results.csv")
    assert list(frame["workload.batch"]) == list(range(1, 61))
    assert set(frame["status"]) == {"optimal"}
    assert _stored(tmp_path / "out") == 60


def _children(pid: int) -> list[int]:
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_torn_line_is_skipped_and_closed_off(tmp_path: Path) -> None:
    """What a crash left of a record is no record, and does not spoil the next."""
    (tmp_path / "points.jsonl").write_text('{"key":"a","record":{"status":"optimal"}}\n{"key":"b","rec')
    journal = Journal(tmp_path, "points")
    assert list(journal) == ["a"]
    journal["c"] = {"status": "optimal"}
    again = Journal(tmp_path, "points")
    assert (list(again), again.torn) == (["a", "c"], 1)


def test_writers_of_one_store_see_each_other(tmp_path: Path) -> None:
    first, second = Journal(tmp_path, "points"), Journal(tmp_path, "points", "1")
    first["a"] = {"n": 1}
    second["b"] = {"n": 2}
    first.refresh()
    second.refresh()
    assert set(first) == set(second) == {"a", "b"}


def test_a_full_disk_stops_the_sweep_and_keeps_what_is_there(tmp_path: Path) -> None:
    """With a limit on file size, which a full disk resembles: a record cut short is taken back, the message says how to
    go on, exit 5, and the rest is computed once there is room."""
    out = tmp_path / "out"
    words = ["--set", *CHEAP_WORDS, "--range", "workload.batch=1:8:1", "--out", str(out)]
    assert main(["sweep", "--jobs", "0", "--quiet", *words[:-2], "--out", str(tmp_path / "whole")]) == 0
    size = (tmp_path / "whole" / "points.jsonl").stat().st_size
    code = (
        "import resource, sys\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size * 5 // 8 - 100}, {resource.RLIM_INFINITY}))\n"
        "from dfmodel.cli import main\n"
        f"sys.exit(main(['sweep', '--jobs', '0', '--quiet', *{words!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 5, done.stderr
    assert "the disk is full" in done.stderr and "--resume" in done.stderr and "Traceback" not in done.stderr
    lines = (out / "points.jsonl").read_bytes()
    assert lines.endswith(b"\n") and _stored(out) == lines.count(b"\n") == 4
    assert main(["sweep", "--jobs", "0", "--quiet", *words, "--resume"]) == 0
    assert (out / "points.jsonl").read_bytes().startswith(lines)
    assert _stored(out) == 8


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "points")
    journal.path.mkdir()
    with pytest.raises(StoreFullError, match="cannot be written"):
        journal["a"] = {}


def test_failed_points_are_rows_and_tried_again_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in one point leaves the others alone; its row carries the text; --resume keeps it, --retry-failed not.
    An infeasible point is an answer."""
    out = tmp_path / "out"
    words = ["--grid", "workload.batch=4,8", "system.chip.memory.capacity=1 MB,80 GB", "--out", str(out)]
    whole = solving.row_of
    broken = {8: RuntimeError("no luck")}

    def row_of(result: dfmodel.api.Result) -> dict[str, object]:
        if result.workload["batch"] in broken:
            raise broken[result.workload["batch"]]
        return whole(result)

    monkeypatch.setattr(solving, "row_of", row_of)
    assert _sweep(*words) == 5
    frame = pd.read_csv(out / "results.csv")
    assert list(frame["status"]) == ["infeasible", "optimal", "infeasible", "error"]
    assert "short of memory" in frame["error"][0]
    assert "no luck" in frame["error"][3]
    broken.clear()
    assert _sweep(*words, "--resume") == 5
    assert list(pd.read_csv(out / "results.csv")["status"])[3] == "error"
    assert _sweep(*words, "--resume", "--retry-failed") == 0
    assert list(pd.read_csv(out / "results.csv")["status"]) == ["infeasible", "optimal", "infeasible", "optimal"]


@pytest.mark.parametrize("function,died", [(die_of, {3}), (die_once, set())])
def test_a_dying_process_takes_no_point_with_it(function: object, died: set[int], tmp_path: Path) -> None:
    """The pool breaks: what was waiting is computed in a new one, and only a point that kills it alone is given up."""
    engine = local(2)
    try:
        found = list(compute(engine, ((n, (n, str(tmp_path))) for n in range(12)), function))  # type: ignore[arg-type]
    finally:
        engine.close()
    assert sorted(job for job, _, _ in found) == list(range(12))
    assert {job for job, _, why in found if why} == died
    assert all(value == job for job, value, why in found if not why)


def test_parquet_holds_the_same_table(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    out = tmp_path / "out"
    assert _sweep("--grid", "workload.batch=4,8", "--parquet", "--out", str(out)) == 0
    text, columns = pd.read_csv(out / "results.csv"), pd.read_parquet(out / "results.parquet")
    assert list(text.columns) == list(columns.columns)
    assert list(text["iteration_s"]) == list(columns["iteration_s"])


def test_any_standard_executor_computes() -> None:
    with futures.ThreadPoolExecutor(1) as pool:
        frame = dfmodel.sweep(grid=BATCHES, settings=CHEAP, executor=pool)
    assert list(frame["status"]) == ["optimal"] * 3


def test_two_processes_give_what_this_one_gives() -> None:
    expected = dfmodel.sweep(grid=BATCHES, settings=CHEAP, jobs=0)
    frame = dfmodel.sweep(grid=BATCHES, settings=CHEAP, jobs=2)
    pd.testing.assert_frame_equal(frame.drop(columns="solve_s"), expected.drop(columns="solve_s"))


PRUNED = {
    "default": ("llm", {"layers": 2, "hidden": 8192, "heads": 64, "ffn": 32768, "batch": 128}),
    "paper": ("gpt_forward_backward", {"layers": 8, "hidden": 8192, "heads": 64, "batch": 64}),
}


@pytest.mark.parametrize("preset", PRUNED)
def test_pruning_keeps_the_front(preset: str) -> None:
    """Skipped points are dominated, their rows say by what; no answer is better than its bound; the front is that of
    all points."""
    workload, small = PRUNED[preset]
    settings = {f"workload.{k}": v for k, v in small.items()}
    asked = {
        "grid": {
            "system.chip": ["h100_dfmodel", "a100_dfmodel"],
            "system.y": [1, 2],
            "system.chip.price": ["20000 USD", "30000 USD"],
        },
        "settings": {**settings, "system.link": "nvlink_dse", "system.memory": "hbm_dse"},
        "workload": workload,
        "system": "dse_2d_torus",
        "assumptions": preset,
    }
    goals = {"minimise": ["cost_usd"], "maximise": ["samples_per_s"]}
    everything = dfmodel.sweep(**asked, jobs=0)
    pruned = dfmodel.sweep(**asked, jobs=0, prune=True, **goals)
    skipped = pruned[pruned["status"] == "pruned"]
    assert 0 < len(skipped) < len(pruned)
    assert skipped["error"].str.contains("is better whatever the answer").all()
    expected, found = (front(f, goals_of(**goals)) for f in (everything, pruned))
    assert list(found["key"]) == list(expected["key"])
    for _, row in everything.iterrows():
        bounds = solving.solve_point(_job(row, asked))["row"]
        assert bounds["samples_per_s"] >= row["samples_per_s"] * (1 - 1e-9)
        assert bounds["iteration_s"] <= row["iteration_s"] * (1 + 1e-9)
        assert bounds["cost_usd"] == row["cost_usd"]


def _job(row: pd.Series, asked: dict[str, object]) -> dict[str, object]:
    study = changed(
        read_study(None),
        product={k: (row[k],) for k in asked["grid"]},  # type: ignore[attr-defined]
        settings={**asked["settings"], **{k: asked[k] for k in ("workload", "system", "assumptions")}},  # type: ignore[dict-item]
    )
    (point,) = points_of(study, Options())
    return solving.payload(point.config, Options(), [], None, True)


def test_a_job_array_and_its_merge_give_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The scripts that --emit writes, run as Slurm would: each task its share, then the merge; a task that never ran
    leaves rows that say so, and --resume computes them."""
    monkeypatch.setattr(sys, "argv", ["dfmodel", "sweep", "--set", *CHEAP_WORDS, "--range", "workload.batch=1:41:1"])
    out = tmp_path / "out"
    assert main([*sys.argv[1:], "--emit", "slurm", "--out", str(out)]) == 0
    text = (out / "array.sh").read_text()
    assert "#SBATCH --array=0-2" in text
    for task in ("0", "2"):
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": task}
        subprocess.run(["bash", str(out / "array.sh")], check=True, env=environment, capture_output=True)
    merged = subprocess.run(["bash", str(out / "merge.sh")], capture_output=True, text=True)
    frame = pd.read_csv(out / "results.csv")
    assert merged.returncode == 5 and "14 not computed" in merged.stdout
    assert (frame["status"] == "not computed").sum() == 14
    assert main([*sys.argv[1:], "--jobs", "0", "--quiet", "--resume", "--out", str(out)]) == 0
    frame = pd.read_csv(out / "results.csv")
    assert set(frame["status"]) == {"optimal"} and list(frame["workload.batch"]) == list(range(1, 42))
    capsys.readouterr()


BAD = [
    (["--grid", "system.nodess=1,2"], "did you mean 'nodes'"),
    (["--grid", "sytem.nodes=1,2"], "did you mean 'system'"),
    (["--grid", "workload.btch=1"], "did you mean 'batch'"),
    (["--grid", "plan.tensr=1"], "unknown key"),
    (["--grid", "assumptions.partitions.cout=1"], "did you mean 'count'"),
    (["--grid", "system.chip=h100_sxm,h200sxm"], "did you mean 'h200_sxm'"),
    (["--grid", "workload=llm,lllm"], "did you mean 'llm'"),
    (["--grid", "system.nodes="], "no values"),
    (["--grid", "system.nodes"], "expected key=value"),
    ([], "the grid is empty"),
    (["--grid", "system.nodes=1,2", "--where", "nodes > 2"], "the grid is empty"),
    (["--grid", "system.nodes=1,2", "--where", "nodse > 2"], "is no axis"),
    (["--grid", "system.nodes=1,2", "--where", "nodes >"], "cannot be read"),
    (["--grid", "system.nodes=1,2", "--where", "__import__('os')"], "are understood"),
    (["--grid", "system.nodes=1,2", "--where", "nodes < 'a'"], "not supported"),
    (["--range", "system.nodes=8:512:*1"], "never ends"),
    (["--range", "system.nodes=8:512:0"], "never ends"),
    (["--range", "system.nodes=8:512:-1"], "never ends"),
    (["--range", "system.nodes=8:inf:1"], "never ends"),
    (["--range", "system.nodes=0:512:*2"], "above 0"),
    (["--range", "system.nodes=1:1e12:1"], "use a larger step"),
    (["--range", "system.nodes=1:2"], "expected FROM:TO:STEP"),
    (["--range", "system.chip.sram=1 MB:2 TB/s:1 MB"], "same unit"),
    (["--range", "workload.batch=1:2000:1", "system.nodes=1:2000:1"], "a sweep takes at most 1,000,000"),
    (["--zip", "system.nodes=1,2", "workload.batch=1,2,3"], "as long as each other"),
    (["--grid", "system.nodes=1", "--scenario", "x"], "the study has none"),
    (["--grid", "system.nodes=1", "--prune"], "no metric"),
    (["--grid", "system.nodes=1", "--minimise", "cost_usd"], "only with --prune"),
    (["--grid", "system.nodes=1", "--executor", "slurm://x"], "expected dask://"),
    (["--grid", "system.nodes=1", "--shard", "3/3"], "expected I/N"),
    (["--grid", "system.nodes=1", "--jobs", "-1"], "--jobs"),
    (["nothing.yaml"], "no such file"),
]


@pytest.mark.parametrize("words,message", BAD, ids=[" ".join(w)[:60] or "nothing" for w, _ in BAD])
def test_bad_input(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit 3 with the reason, before anything is computed and without a table that looks like results."""
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "--jobs", "0", *words]) == 3
    out = capsys.readouterr()
    assert message in out.err
    assert not out.out
    assert not list(tmp_path.rglob("results.csv"))


def test_a_study_file_says_all_its_faults(tmp_path: Path) -> None:
    study = tmp_path / "bad.yaml"
    study.write_text("axs: {system.nodes: [1]}\nworkload: 3\nzip: {a: 1}\n")
    with pytest.raises(InputError) as found:
        read_study(str(study))
    assert "did you mean 'axes'" in str(found.value)
    assert "workload: must be a name" in str(found.value) and "zip: must be a list" in str(found.value)


def test_a_folder_of_another_study_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results are not mixed: another study's, a folder of something else, or results not asked to be continued."""
    out = tmp_path / "out"
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("axes: {workload.batch: [4]}\n")
    second.write_text("axes: {workload.batch: [4]}\n")
    assert _sweep(str(first), "--out", str(out)) == 0
    before = {p: p.read_bytes() for p in out.iterdir()}
    assert _sweep(str(second), "--out", str(out), "--resume") == 3
    assert "another study (study 'first' instead of 'second')" in capsys.readouterr().err
    assert _sweep(str(first), "--out", str(out)) == 3
    assert "--resume continues" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in out.iterdir()} == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert _sweep(str(first), "--out", str(other)) == 3
    assert "is no sweep's folder" in capsys.readouterr().err
