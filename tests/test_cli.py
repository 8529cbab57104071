"""The command line end to end: one JSON object, run folders, exit codes, and one clear message per bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from dfmodel.cli import main
from dfmodel.workloads.io import dump_graph
from dfmodel.workloads.registry import build_workload

SMALL = [
    "workload.layers=4",
    "workload.hidden=1024",
    "workload.heads=16",
    "workload.ffn=4096",
    "workload.batch=64",
    "system.nodes=1",
]


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        code = main(arguments)
    except SystemExit as usage:
        code = int(usage.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_json_is_one_complete_object(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Scripts rely on these keys, on nothing else being on stdout, and on units in metric names."""
    code, out, _ = _run(capsys, "optimize", "--json", "--out", str(tmp_path / "run"), "--set", *SMALL)
    result = json.loads(out)
    assert code == 0
    for key in (
        "schema_version",
        "status",
        "objective",
        "bound",
        "gap",
        "plan",
        "metrics",
        "partitions",
        "certificate",
        "assumptions",
        "versions",
        "wall_s",
    ):
        assert key in result
    assert {"tensor", "pipeline", "data", "placement", "micro_batch", "chips_used", "chips_idle"} <= set(result["plan"])
    assert {"iteration_s", "tokens_per_s", "mfu", "hfu"} <= set(result["metrics"])
    assert all(m["status"] == "optimal" for m in result["certificate"]["mips"])
    assert result["certificate"]["not_covered"]
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result


def test_run_folder_is_whole_and_runs_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file is there, twice in a row, and config.yaml gives the same answer as the command that made it."""
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        code, out, _ = _run(capsys, "optimize", "--set", *SMALL)
        assert code == 0
        assert "efficiency curve 'h100': matrix work calibrated" in out
    first, second = sorted((tmp_path / "runs").iterdir())
    for name in (
        "config.yaml",
        "result.json",
        "mapping.csv",
        "partitions.csv",
        "breakdown.csv",
        "solver.log",
        "plots/time_breakdown.png",
        "plots/roofline.png",
        "plots/dataflow.png",
        "plots/memory.png",
    ):
        assert (first / name).stat().st_size > 0
        if name.endswith((".csv", ".yaml", ".png")):
            assert (first / name).read_bytes() == (second / name).read_bytes()
    code, out, _ = _run(capsys, "optimize", "--no-save", "--json", "--study", str(first / "config.yaml"))
    assert code == 0
    assert json.loads(out)["objective"] == json.loads((first / "result.json").read_text())["objective"]


def test_tables_say_what_an_architect_asks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = _run(capsys, "optimize", "--no-save", "--study", "readme_gpt3_1t_1024_sn30")
    assert code == 0
    for word in ("bound by", "FFN0", "tensor 8", "MFU", "Certificate", "not covered", "optimal", "capacity"):
        assert word in out


BAD = [
    (["optimize", "--workload", "lllm"], "did you mean 'llm'"),
    (["optimize", "--system", "dgxx"], "did you mean 'dgx'"),
    (["optimize", "--assumptions", "papr"], "did you mean 'paper'"),
    (["optimize", "--study", "nope"], "unknown case 'nope'"),
    (["optimize", "--set", "system.chip=h100sxm"], "did you mean 'h100_sxm'"),
    (["optimize", "--set", "workload.btch=3"], "did you mean 'batch'"),
    (["optimize", "--set", "system.nodess=3"], "did you mean 'nodes'"),
    (["optimize", "--set", "system.chip.sram=50"], "without a unit"),
    (["optimize", "--set", "system.chip.sram=-5 MB"], "sram"),
    (["optimize", "--set", "system.chip.memory.bandwidth=3 TB"], "bandwidth"),
    (["optimize", "--set", "workload.batch=-1"], "got -1"),
    (["optimize", "--set", "workload.batch=0"], "got 0"),
    (["optimize", "--set", "workload.batch=.nan"], "got nan"),
    (["optimize", "--set", "workload.hidden=1.5"], "hidden"),
    (["optimize", "--set", "system.nodes=0"], "got 0"),
    (["optimize", "--set", "system.nodes=1e308"], "1e308"),
    (["optimize", "--set", "system.nodes=1000000000000000000000"], "at most 10,000,000"),
    (["optimize", "--set", "workload.batch=1537", "plan.data=8"], "no plan divides a batch of 1537"),
    (["optimize", "--set", "plan.tensor=512"], "tensor 512 needs 512 chips, the system has 256"),
    (["optimize", "--set", "plan.pipeline=8", "workload.layers=4"], "more pipeline stages"),
    (["optimize", "--set", "plan.tensor=0"], "plan.tensor"),
    (["optimize", "--set", "plan.recompute=some"], "none, selective, full"),
    (["optimize", "--set", "plan.bogus=1"], "unknown key"),
    (["optimize", "--set", "plan.sharding={ffn_upp: x}"], "did you mean 'ffn_up'"),
    (["optimize", "--set", "plan.placement.tensor.nvlnk=8"], "did you mean 'nvlink'"),
    (["optimize", "--set", "foo"], "expected section.key=value"),
    (["optimize", "--set", "foo.bar=1"], "must start with a section"),
    (["optimize", "--set", "assumptions.partitions.cout=3"], "did you mean 'count'"),
    (["optimize", "--set", "assumptions.compute.model=x"], "'efficiency', 'flat' or 'tiles'"),
    (["optimize", "--set", "workload.dtype=fp8", "system.chip=a100_sxm_80"], "it supports bf16"),
    (["optimize", "--gap", "2"], "--gap"),
    (["optimize", "--time-limit", "-1"], "--time-limit"),
    (["show", "chip", "h100_sx"], "did you mean 'h100_sxm'"),
    (["show", "foo", "bar"], "unknown kind 'foo'"),
]


@pytest.mark.parametrize("arguments,message", BAD, ids=[" ".join(a[1:])[:50] for a, _ in BAD])
def test_bad_input(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit 3, the reason on stderr in a few lines, nothing on stdout, no traceback, no run folder."""
    monkeypatch.chdir(tmp_path)
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (3, "")
    assert message in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) <= 3
    assert not list(tmp_path.iterdir())


def test_every_problem_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Workload, system, plan and assumptions are all checked before the first message is printed."""
    bad = ["workload.batch=0", "system.nodess=1", "plan.tensor=0", "assumptions.traffic.per=x"]
    code, _, err = _run(capsys, "optimize", "--no-save", "--set", *bad)
    assert code == 3
    assert all(word in err for word in ("batch", "nodess", "plan.tensor", "traffic.per"))


def test_usage_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(capsys)[0] == 2
    assert _run(capsys, "optimize", "--frobnicate")[0] == 2
    assert _run(capsys, "list", "foo")[0] == 2


def test_a_model_that_fits_nowhere(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 4 with the memory, the shortfall in units and the number of chips."""
    code, _, err = _run(capsys, "optimize", "--no-save", "-q", "--workload", "megatron_1t", "--set", "system.nodes=1")
    assert code == 4
    assert "on 8 chips" in err
    assert "hbm3_h100" in err
    assert "TiB per chip" in err


@pytest.mark.parametrize(
    "settings,code,texts",
    [
        ([f"plan.partition.{k}=0" for k in ("FFN0", "FFN1", "Q", "K")], 4, ["pinned kernels in 6", "SRAM needs"]),
        (["assumptions.partitions.count=2"], 4, ["2 partitions; 6 would", "partitions.count"]),
        (["system.chip.sram=100 MB"], 4, ["no partitioning fits", "21 would"]),
        (["plan.partition.FFN1=0", "plan.partition.FFN0=1"], 3, ["needs what 'FFN0' makes", "pin it to 1 or later"]),
        (["plan.partition.FFN1=1", "plan.partition.Q_bwd=1"], 3, ["forward kernels come before", "2 or later"]),
        (["plan.partition.FFN1=9"], 3, ["numbered 0 to 5", "count=10"]),
        (["plan.partition.FFN1=-1"], 3, ["plan.partition.FFN1", "at least 0"]),
        (["assumptions.partitions.tiles=0"], 3, ["partitions.tiles", "greater than or equal to 1"]),
    ],
)
def test_partitionings_that_cannot_be(
    capsys: pytest.CaptureFixture[str], settings: list[str], code: int, texts: list[str]
) -> None:
    """What is asked of a dataflow chip's partitions and cannot be had: exit code, reason and mend."""
    study = ["--study", "readme_gpt3_1t_1024_sn30"]
    found, _, err = _run(capsys, "optimize", "--no-save", *study, "--set", *settings)
    assert (found, [t for t in texts if t not in err]) == (code, []), err


def test_a_kernel_that_does_not_fit_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """The kernel, how much it lacks, and what would fit."""
    small = ["workload.layers=4", "system.nodes=1", "plan.tensor=1", "plan.micro_batch=1", "system.chip.sram=1 MB"]
    code, _, err = _run(
        capsys, "optimize", "--no-save", "--workload", "gpt3_13b", "--system", "sn30_rack", "--set", *small
    )
    assert code == 4
    assert all(text in err for text in ("needs", "alone", "more than there is", "it would fit")), err


def test_no_time_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    """A time limit of 0 ends at once, with a message that says so."""
    code, _, err = _run(capsys, "optimize", "--no-save", "--study", "readme_gpt3_1t_1024_sn30", "--time-limit", "0")
    assert code != 0
    assert "time" in err


def test_files_with_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A syntax error gives file and line; a system file all its faults; a cycle the kernels in it."""
    (tmp_path / "bad.yaml").write_text("name: bad\nlayers: [1, 2\n")
    code, _, err = _run(capsys, "optimize", "--no-save", "--workload", str(tmp_path / "bad.yaml"))
    assert (code, "bad.yaml" in err, "line" in err) == (3, True, True)
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nchip: h100_sxm\nbogus: 1\ntopology:\n"
        "  - {name: a, kind: swich, size: 8, link: nvlink4}\n  - {name: b, kind: ring, size: 0, link: nvlink4}\n"
    )
    code, _, err = _run(capsys, "optimize", "--no-save", "--system", str(tmp_path / "mine.yaml"))
    assert code == 3
    assert all(word in err for word in ("swich", "bogus", "size"))
    graph = yaml.safe_load(dump_graph(build_workload("llm", {"layers": 2, "mode": "forward"})))
    block = graph["blocks"][1]
    first = next(iter(block["kernels"]))
    last_output = list(block["tensors"])[-1]
    block["kernels"][first]["inputs"] = {last_output: list(block["tensors"][last_output]["dims"])}
    (tmp_path / "loop.yaml").write_text(yaml.safe_dump(graph, sort_keys=False))
    code, _, err = _run(capsys, "optimize", "--no-save", "--workload", str(tmp_path / "loop.yaml"))
    assert code == 3
    assert "cycle" in err
    assert "->" in err


def test_a_dumped_graph_gives_the_same_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A user's own graph file runs like a catalog workload: the default model written out and read back."""
    small = {"layers": 4, "hidden": 1024, "heads": 16, "ffn": 4096, "batch": 64, "attention": "fused"}
    (tmp_path / "graph.yaml").write_text(dump_graph(build_workload("llm", small)))
    rest = ["--no-save", "--json", "--set", "system.nodes=1"]
    _, own, _ = _run(capsys, "optimize", "--workload", str(tmp_path / "graph.yaml"), *rest)
    _, named, _ = _run(capsys, "optimize", *rest, *SMALL[:-1])
    assert json.loads(own)["objective"] == pytest.approx(json.loads(named)["objective"], rel=1e-12)


def test_an_awkward_number_of_nodes_is_used_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Seven nodes: a plan is found, and it uses all 56 chips."""
    code, out, _ = _run(
        capsys, "optimize", "--no-save", "--json", "--set", *SMALL[:-2], "workload.batch=56", "system.nodes=7"
    )
    assert code == 0
    assert json.loads(out)["plan"]["chips_used"] == 56


def test_a_time_limit_returns_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 5 with the best plan so far and no claim of a bound."""
    code, out, _ = _run(capsys, "optimize", "--no-save", "--json", "-q", "--time-limit", "0.001")
    assert code in (5, 6)
    if code == 5:
        assert json.loads(out)["status"] == "limit"
        assert json.loads(out)["bound"] is None


def test_existing_folder_needs_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kept.txt").write_text("mine")
    code, _, err = _run(capsys, "optimize", "--out", str(tmp_path), "--set", *SMALL)
    assert code == 3
    assert "--force" in err
    assert (tmp_path / "kept.txt").read_text() == "mine"


def test_list_and_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert "h100_sxm" in _run(capsys, "list", "chips")[1].split()
    assert json.loads(_run(capsys, "list", "--json")[1])["workloads"][0] == "llm"
    assert "3.35 TB/s" in _run(capsys, "show", "memory", "hbm3_h100")[1]
    assert "all_reduce_factor = 2.0" in _run(capsys, "show", "assumptions", "paper")[1]


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    """`dfmodel --help` under 150 ms (best of five), without the packages that cost most to import."""
    best = 1.0
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "dfmodel", "--help"], capture_output=True, text=True, check=True
        )
        best = min(best, time.perf_counter() - began)
    for heavy in ("pyomo", "pandas", "matplotlib", "highspy", "numpy", "pydantic", "yaml"):
        assert f"| {heavy}" not in done.stderr.replace("  ", "")
    assert best < 0.15


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_an_interrupt_leaves_no_half_written_folder(tmp_path: Path) -> None:
    """Ctrl-C ends with 130: the best plan so far, whole, or nothing."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dfmodel", "optimize", "-q", "--no-prune", "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(4)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    left = list(tmp_path.iterdir())
    assert left == [] or (left[0] / "result.json").exists()


def test_a_time_limit_gives_the_best_so_far_and_an_honest_gap(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 5 once a plan is known and time is up; the bound is not above the true optimum."""
    from dfmodel.mapping.search import Search

    arguments = ["optimize", "-q", "--no-save", "--json", "--set", "workload.layers=12"]
    _, out, _ = _run(capsys, *arguments)
    optimum = json.loads(out)["objective"]
    monkeypatch.setattr(Search, "late", lambda self: bool(self.best_plans))
    code, out, _ = _run(capsys, *arguments)
    found = json.loads(out)
    assert (code, found["status"]) == (5, "limit")
    assert any("time limit" in text for text in found["certificate"]["not_covered"])
    assert 0 < found["bound"] <= optimum * (1 + 1e-9) <= found["objective"] * (1 + 1e-9)


def test_show_collective(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The chosen algorithm, its phases and time; as JSON the same; a sweep over message sizes as CSV."""
    asked = ["show", "collective", "--system", "dgx", "--op", "all-reduce", "--bytes", "1GiB"]
    code, out, _ = _run(capsys, *asked)
    assert code == 0
    assert all(t in out for t in ("all_reduce of 1 GiB per chip", "256 chips", "pipelined", "infiniband", "every way"))
    table = tmp_path / "sweep.csv"
    code, out, _ = _run(capsys, *asked, "--group", "nvlink=8", "--json", "--sweep", str(table))
    found = json.loads(out)
    assert (code, found["chips"], found["algorithm"]) == (0, 8, "in_network")
    assert found["seconds"] == min(found["algorithms_s"].values())
    assert len(table.read_text().splitlines()) == 26


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["--op", "all-reduse"], "did you mean 'all_reduce'"),
        (["--algorithm", "rign"], "did you mean 'ring'"),
        (["--algorithm", "bruck"], "cannot do all_reduce"),
        (["--bytes", "1 GX"], "unknown unit"),
        (["--bytes=-1 GiB"], "negative"),
        (["--group", "nvlink=16"], "larger than the dimension; at most 8"),
        (["--group", "nvlnk=2"], "did you mean 'nvlink'"),
        (["--group", "nvlink"], "expected dimension=chips"),
        (["--group", "nvlink=0"], "must be 1 or more"),
        (["--set", "plan.tensor=8"], "only system.*"),
        (["--set", "system.chips=100"], "8 (nvlink) x 32 (infiniband) = 256"),
        (["--set", "system.nodes=0"], "greater than or equal to 1"),
        (["--set", "system.topology.infiniband.link={bandwidth: 50 GB/s}"], "convention: missing"),
        (["--set", "system.topology.infiniband.link={base: ib_ndr, latency: -1 us}"], "latency: negative"),
        (["--set", "system.topology.nvlink.kind=tree"], "'fat_tree'"),
    ],
)
def test_collectives_that_cannot_be(capsys: pytest.CaptureFixture[str], arguments: list[str], text: str) -> None:
    code, out, err = _run(capsys, "show", "collective", *arguments)
    assert (code, out) == (3, "")
    assert text in err
