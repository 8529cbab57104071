"""Cost, power and energy of a run, end to end: what the command line prints and saves, and objectives and limits."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dfmodel
from dfmodel.cli import main
from dfmodel.config import build_config
from dfmodel.errors import InfeasibleError, InputError
from dfmodel.mapping.energy import sent_bytes
from dfmodel.mapping.objective import parse_per_unit, shown_per_unit
from dfmodel.systems.catalog import load_system
from dfmodel.systems.collectives import collective
from dfmodel.systems.network import Group, Part

SMALL = {
    "workload.layers": 4,
    "workload.hidden": 1024,
    "workload.heads": 16,
    "workload.ffn": 4096,
    "workload.batch": 64,
    "system.nodes": 2,
}


#: Small enough to evaluate every plan.
TINY = {
    "workload.hidden": 512,
    "workload.heads": 8,
    "workload.ffn": 2048,
    "workload.batch": 8,
    "workload.vocabulary": 1024,
    "system.topology.nvlink.size": 2,
    "plan.micro_batch": 1,
}


def _cli(capsys: pytest.CaptureFixture[str], settings: dict[str, Any], *more: str) -> tuple[int, str, str]:
    pairs = [f"{k}={v}" for k, v in {**SMALL, **settings}.items()]
    try:
        code = main(["optimize", "-q", *more, "--set", *pairs])
    except SystemExit as usage:
        code = int(usage.code or 0)
    out = capsys.readouterr()
    return code, out.out, out.err


def _json(capsys: pytest.CaptureFixture[str], **settings: Any) -> dict[str, Any]:
    code, out, err = _cli(capsys, settings, "--json", "--no-save")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_run_without_any_price_prints_cost_and_lists_every_assumption(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Summary, result.json and cost.csv state the same figures; nothing assumed is shown as if a source stated it."""
    code, out, _ = _cli(capsys, {}, "--out", str(tmp_path / "run"))
    assert code == 0
    assumed = out.partition("Assumed, not measured")[2]
    for text in (
        "price of chip 'h100_sxm': 33000 USD each",
        "PUE 1.3",
        "electricity 0.08 USD/kWh",
        "amortisation 4 years",
    ):
        assert text in assumed
    summary = {line[:14].strip(): line[15:] for line in out.partition("Time of one")[0].splitlines()}
    assert "inputs assumed, listed below" in summary["cost"]
    assert "USD per million tokens" in summary["cost of work"] and "PUE 1.3" in summary["energy"]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    with (tmp_path / "run" / "cost.csv").open() as file:
        rows = {r["figure"]: r for r in csv.DictReader(file)}
    for key in ("usd_per_Mtoken", "usd_per_sample", "j_per_token", "bottom_up_j_per_token", "kwh_per_iteration"):
        assert float(rows[key]["value"]) == pytest.approx(result["metrics"][key])
    assert (rows["price of chip 'h100_sxm'"]["status"], rows["power of chip 'h100_sxm'"]["status"]) == (
        "assumed",
        "stated",
    )
    total = sum(float(r["value"]) for f, r in rows.items() if f.startswith("price of") and r["unit"] == "USD")
    assert total == pytest.approx(result["cost"]["total"])
    assert result["status"] == "optimal" and result["plan"]["chips_used"] == 16, "time stays the default objective"


def test_cost_of_a_token_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """Price over its life and electricity of the chips used, at the inputs the user gives."""
    r = _json(
        capsys,
        **{
            "cost": "stated",
            "system.chip.price": "30000 USD",
            "cost.operation.pue": 1.5,
            "cost.operation.electricity": "0.1 USD/kWh",
            "cost.operation.amortisation": "5 years",
            "cost.operation.utilisation": 0.5,
            "plan.at_most_chips": 8,
        },
    )
    chips, seconds, tokens = r["plan"]["chips_used"], r["objective"], 64 * 2048
    joules = chips * 700 * seconds * 1.5
    usd = chips * 30000 * seconds / (5 * 365 * 86400 * 0.5) + joules * 0.1 / 3.6e6
    assert chips <= 8 and r["plan"]["chips_idle"] >= 8
    assert r["metrics"]["j_per_token"] == pytest.approx(joules / tokens)
    assert r["metrics"]["usd_per_token"] == pytest.approx(usd / tokens)
    assert r["metrics"]["usd_per_Mtoken"] == pytest.approx(usd / tokens * 1e6)
    assert r["metrics"]["usd_per_sample"] == pytest.approx(usd / 64)
    assert r["energy"]["bottom_up_j"] is None, "no coefficient is stated"


def test_pue_and_prices_scale_what_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    base = _json(capsys)["metrics"]
    twice = _json(capsys, **{"cost.operation.pue": 2.6})["metrics"]
    for key in ("j_per_token", "bottom_up_j_per_token"):
        assert twice[key] == pytest.approx(2 * base[key])
    dearer = _json(capsys, **{"cost.operation.amortisation": "2 years"})["metrics"]
    assert base["usd_per_token"] < dearer["usd_per_token"] < 2 * base["usd_per_token"]


def test_bottom_up_energy_counts_the_models_work() -> None:
    """Matrix FLOP of all chips are the workload's (twice the forward ones when recomputed in full), and each part is
    its amount times its coefficient; less than stated power takes."""
    settings = {**SMALL, "plan.zero": 0, "plan.recompute": "none"}
    r = dfmodel.optimize(settings=settings)
    again = dfmodel.optimize(settings={**settings, "plan.recompute": "full"})
    matrix, full = (x.energy["work"]["matrix_flop"] for x in (r, again))
    peak = r.system["matrix_flops_per_s"]
    for run, flops in ((r, matrix), (again, full)):
        assert flops == pytest.approx(
            (run.metrics["hfu"] or 0) * run.objective * run.plan["chips_used"] * peak, rel=1e-9
        )
    assert full > 1.2 * matrix
    parts, work = r.energy["bottom_up_parts_j"], r.energy["work"]
    assert parts["matrix work"] == pytest.approx(matrix * 0.3e-12)
    assert parts["memory hbm3_h100"] == pytest.approx(work["memory_bytes"] * 7.03e-12 * 8)
    assert r.energy["bottom_up_j"] == pytest.approx(sum(parts.values()) * 1.3)
    assert 0 < r.energy["bottom_up_j"] < r.energy["stated_power_j"]


def test_gradients_of_data_parallel_chips_cross_the_links_they_are_on() -> None:
    """Sixteen chips, data parallel: 4 bytes of each parameter (a table of each end), reduced in nodes and across."""
    plan = {
        "plan.tensor": 1,
        "plan.pipeline": 1,
        "plan.context": 1,
        "plan.data": 16,
        "plan.zero": 0,
        "plan.micro_batch": 1,
    }
    r = dfmodel.optimize(settings={**SMALL, **plan, "workload.tied_embeddings": False})
    m = r.workload["parameters"] * 4
    sent = r.energy["work"]["link_bytes"]
    assert sent["nvlink"] == pytest.approx(16 * 2 * m * 7 / 8, rel=0.02)
    assert sent["infiniband"] == pytest.approx(16 * 2 * (m / 8) * 1 / 2, rel=0.02)


@settings(deadline=None)
@given(st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]), st.integers(1, 8), st.integers(1, 4))
def test_collectives_send_the_least_that_they_must(operation: str, inner: int, outer: int) -> None:
    """(n - 1)/n of the message over all dimensions, twice in an all-reduce; no algorithm of the network model moves a
    gather or a scatter in less time than all links together need for that."""
    dimensions = load_system("dgx_h100", {"nodes": 4}).dimensions
    group = Group((Part(dimensions[0], inner), Part(dimensions[1], outer)))
    sent, n = sent_bytes(operation, 1e9, group), inner * outer
    assert sum(sent.values()) == pytest.approx(1e9 * (n - 1) / n * (2 if operation == "all_reduce" else 1))
    if operation != "all_reduce" and n > 1:
        together = sum(d.injection_bytes_per_s for d in dimensions if d.name in sent)
        assert collective(operation, 1e9, group).seconds >= sum(sent.values()) / together


def test_stages_send_over_the_dimension_in_which_they_differ() -> None:
    """Eight stages, two of a node's chips times four nodes: four of seven borders are inside a node."""
    dimensions = load_system("dgx_h100", {"nodes": 4}).dimensions
    group = Group((Part(dimensions[0], 2), Part(dimensions[1], 4)))
    assert sent_bytes("point_to_point", 7.0, group) == {"nvlink": pytest.approx(4), "infiniband": pytest.approx(3)}


@pytest.mark.parametrize("objective,key", [("cost", "usd_per_token"), ("energy", "j_per_token")])
def test_the_objective_is_least_in_its_own_figure(capsys: pytest.CaptureFixture[str], objective: str, key: str) -> None:
    """Pruned and exhaustive search agree, and no other objective finds less."""
    best = _json(capsys, **TINY, **{"plan.objective": objective})
    code, out, _ = _cli(capsys, {**TINY, "plan.objective": objective}, "--json", "--no-save", "--no-prune")
    whole = json.loads(out)
    assert code == 0 and best["metrics"][key] == pytest.approx(whole["metrics"][key], rel=1e-9)
    fastest = _json(capsys, **TINY)
    assert best["metrics"][key] < fastest["metrics"][key] and best["objective"] > fastest["objective"]
    told = any("stated power" in text for text in best["certificate"]["not_covered"])
    assert told == (objective == "energy")


@pytest.mark.parametrize(
    "limit,key,unit",
    [("at_most_unit_energy", "j_per_token", "J per token"), ("at_most_unit_cost", "usd_per_Mtoken", "USD per Mtoken")],
)
def test_a_limit_per_unit_of_work_is_kept_exactly(
    capsys: pytest.CaptureFixture[str], limit: str, key: str, unit: str
) -> None:
    """The fastest plan within the limit, the same without pruning; below the least possible the command says it."""
    least = _json(capsys, **TINY, **{"plan.objective": limit.rpartition("_")[2]})
    fastest = _json(capsys, **TINY)
    floor, free = least["metrics"][key], fastest["metrics"][key]
    between = (floor + free) / 2
    settings = {**TINY, f"plan.{limit}": f"{between:.12g} {unit}"}
    held = _json(capsys, **settings)
    assert held["metrics"][key] <= between * (1 + 1e-9)
    assert fastest["objective"] < held["objective"] <= least["objective"] * (1 + 1e-9)
    code, out, _ = _cli(capsys, settings, "--json", "--no-save", "--no-prune")
    assert code == 0 and json.loads(out)["objective"] == pytest.approx(held["objective"], rel=1e-9)
    code, _, err = _cli(capsys, {**TINY, f"plan.{limit}": f"{0.9 * floor:.12g} {unit}"}, "--no-save")
    assert code == 4
    assert f"no plan keeps plan.{limit}" in err and f"the least possible is {_first_digits(floor, unit)}" in err


def _first_digits(value: float, unit: str) -> str:
    kind, _, name = unit.partition(" per ")
    amount = parse_per_unit(f"{value:.12g} {kind} per {name}", "energy" if kind == "J" else "money", "")
    return shown_per_unit(amount, "energy" if kind == "J" else "money")


@pytest.mark.parametrize(
    "settings,code,words",
    [
        (
            {"cost": "stated", "plan.objective": "cost"},
            3,
            "plan.objective cost: the price of chip 'h100_sxm' is not stated",
        ),
        ({"cost": "stated", "plan.at_most_cost": "1 MUSD"}, 3, "plan.at_most_cost: the price of chip"),
        ({"cost": "stated", "plan.at_most_unit_cost": "1 USD/token"}, 3, "plan.at_most_unit_cost: the price of chip"),
        (
            {"cost": "stated", "system.chip.power": "null", "plan.objective": "energy"},
            3,
            "the power of chip 'h100_sxm'",
        ),
        (
            {"cost": "stated", "system.chip.power": "null", "plan.at_most_power": "1 kW"},
            3,
            "the power of chip 'h100_sxm'",
        ),
        ({"plan.at_most_unit_energy": "1 J per row"}, 3, "counted in samples or tokens, not in rows"),
        ({"plan.at_most_unit_energy": "1 J"}, 3, "such as '0.5 J per token'"),
        ({"plan.at_most_unit_cost": "1 EUR per Mtoken"}, 3, "unknown currency 'EUR'"),
        ({"plan.at_most_cost": "10 USD"}, 4, "not enough for a single chip, which takes"),
        ({"plan.at_most_power": "10 W"}, 4, "not enough for a single chip, which takes"),
        ({"cost": "nowhere"}, 3, "unknown cost 'nowhere'"),
        ({"cost.price.chip": "30000 EUR"}, 3, "cost: price.chip: unknown currency 'EUR'"),
        ({"cost": "5"}, 3, "--set cost"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    capsys: pytest.CaptureFixture[str], settings: dict[str, Any], code: int, words: str
) -> None:
    found, _, err = _cli(capsys, settings, "--no-save")
    assert found == code and words in err


def test_limits_on_chips_hold_under_the_originals_iteration_too() -> None:
    """Its plans use all chips, so a limit below their price or power is proved infeasible, not passed over."""
    study = "sn30_2d_torus_ddr_pcie"
    for limit in ({"plan.at_most_cost": "17 MUSD"}, {"plan.at_most_power": "500 kW"}, {"plan.at_most_chips": 512}):
        with pytest.raises(InfeasibleError, match=r"plans under .* use all; make the system smaller"):
            dfmodel.optimize(study=study, settings=limit)
    held = dfmodel.optimize(study=study, settings={"plan.at_most_cost": "17.8 MUSD", "plan.at_most_power": "512 kW"})
    assert held.cost["total"] == pytest.approx(17757184, rel=1e-6) and not held.cost["assumed"]
    with pytest.raises(InfeasibleError, match=r"no plan keeps plan\.at_most_unit_energy"):
        dfmodel.optimize(study=study, settings={"plan.at_most_unit_energy": "1 mJ per token"})


def test_silicon_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A chip priced by its silicon: printed, in result.json, and among what is assumed."""
    settings = {"system.chip.silicon.process": "n5", "system.chip.silicon.hbm_stacks": 5}
    code, out, _ = _cli(capsys, settings, "--no-save")
    assert code == 0 and "mm2 on n5, yield" in out and "areas, yield and prices of processes/n5" in out
    r = _json(capsys, **settings)
    assert r["cost"]["chips"] == pytest.approx(16 * r["cost"]["silicon"]["price_usd"])
    assert "price of chip 'h100_sxm'" in r["cost"]["assumed"]
    code, _, err = _cli(capsys, {**settings, "system.chip.silicon.process.defect_density": "-1 /cm2"}, "--no-save")
    assert code == 3 and "defect_density: negative" in err


def test_a_study_names_its_costs_and_its_config_runs_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """`cost:` in a study file, changed by --set, is saved with the run and gives the same figures again."""
    study = tmp_path / "study.yaml"
    study.write_text("workload: llm\nsystem: dgx\ncost: {extends: default, operation: {pue: 1.1}}\n")
    run = tmp_path / "run"
    settings = {"cost.price.chip": "20000 USD", "assumptions.iteration.host_s": 0.001}
    assert _cli(capsys, settings, "--study", str(study), "--out", str(run))[0] == 0
    first = json.loads((run / "result.json").read_text())
    assert first["cost"]["chips"] == 16 * 20000 and first["energy"]["pue"] == 1.1
    assert main(["optimize", "-q", "--json", "--no-save", "--study", str(run / "config.yaml")]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["metrics"] == first["metrics"]


def test_a_chosen_cost_file_replaces_the_studys() -> None:
    assert build_config(settings={"cost": "stated", "cost.operation.pue": 1.2}).to_dict()["cost"] == {
        "extends": "stated",
        "operation": {"pue": 1.2},
    }
    with pytest.raises(InputError, match="--set cost"):
        build_config(settings={"cost": 5})
