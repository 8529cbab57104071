"""The silicon model: yields and dies by hand, what must never fall, and clear words for what cannot be made."""

from __future__ import annotations

import csv
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dfmodel.catalog_files import load_yaml
from dfmodel.errors import InputError
from dfmodel.systems.catalog import find, list_names, load_process, load_system
from dfmodel.systems.merge import unsourced_values
from dfmodel.systems.silicon import YIELD_MODELS, Demand, Process, die_yield, dies_per_wafer, silicon

ROOT = Path(__file__).parent.parent
N5 = load_process("n5")

processes = st.builds(
    lambda name, model, density, clustering, bonding: replace(
        load_process(name), yield_model=model, defects_per_m2=density, clustering=clustering, bonding_yield=bonding
    ),
    st.sampled_from(list_names("processes")),
    st.sampled_from(YIELD_MODELS),
    st.floats(0, 1e4),
    st.floats(0.5, 10),
    st.floats(0.5, 1),
)
demands = st.builds(
    Demand,
    flops_per_s=st.floats(1e12, 5e14),
    sram_bytes=st.floats(0, 2e8),
    memory_bytes_per_s=st.dictionaries(st.sampled_from(["hbm3_x", "ddr5_x"]), st.floats(0, 1e12)),
    link_bytes_per_s=st.floats(0, 1e12),
    dies=st.integers(1, 4),
    stacks=st.integers(0, 8),
    repairable=st.floats(0, 1),
    stitched=st.just(True),
)


@given(processes, st.floats(0, 0.01), st.floats(0, 0.01))
def test_yield_is_a_share_that_never_rises_with_area(process: Process, area: float, more: float) -> None:
    small, large = die_yield(area, process), die_yield(area + more, process)
    assert 0 < large <= small * (1 + 1e-12) <= 1 + 1e-12
    assert die_yield(0.0, process) == 1.0


@given(processes, demands, st.floats(1, 2), st.sampled_from(["flops_per_s", "sram_bytes", "link_bytes_per_s"]))
def test_more_area_is_never_cheaper(process: Process, demand: Demand, factor: float, what: str) -> None:
    """More compute, SRAM or links on the same dies costs as much or more, down to the price."""
    try:
        larger = silicon(process, replace(demand, **{what: getattr(demand, what) * factor}))
    except InputError:
        assume(False)
        raise
    small = silicon(process, demand)
    assert larger.die_m2 >= small.die_m2 * (1 - 1e-12)
    assert larger.dies_per_wafer <= small.dies_per_wafer
    for key in ("die_usd", "package_usd", "price_usd"):
        assert getattr(larger, key) >= getattr(small, key) * (1 - 1e-9)


@given(processes, demands, st.floats(0, 1))
def test_defects_spares_and_stacks_move_the_price_their_way(process: Process, demand: Demand, more: float) -> None:
    try:
        base = silicon(process, demand).price_usd
    except InputError:
        assume(False)
        raise
    worse = replace(process, defects_per_m2=process.defects_per_m2 * (1 + more))
    assert silicon(worse, demand).price_usd >= base * (1 - 1e-9)
    assert silicon(process, replace(demand, stacks=demand.stacks + 1)).price_usd >= base
    spared = replace(demand, repairable=demand.repairable + (1 - demand.repairable) * more)
    assert silicon(process, spared).price_usd <= base * (1 + 1e-9)


def test_yields_and_dies_by_hand() -> None:
    """800 mm2 at 0.1 defects per cm2: 0.8 expected defects."""
    assert die_yield(8e-4, replace(N5, defects_per_m2=1000.0)) == pytest.approx((1 + 0.8 / 3) ** -3)
    poisson = replace(N5, defects_per_m2=1000.0, yield_model="poisson")
    assert die_yield(8e-4, poisson) == pytest.approx(math.exp(-0.8))
    murphy = replace(poisson, yield_model="murphy")
    assert die_yield(8e-4, murphy) == pytest.approx(((1 - math.exp(-0.8)) / 0.8) ** 2)
    bare = replace(N5, wafer_diameter_m=0.3, edge_exclusion_m=0.0, scribe_m=0.0)
    expected = math.pi * 150**2 / 100 - math.pi * 300 / math.sqrt(200)
    assert dies_per_wafer(1e-4, bare) == math.floor(expected) == 640


def test_a_package_by_hand() -> None:
    """Two dies and three stacks: dies, stacks, interposer, bonding of five pieces, test, margin."""
    demand = Demand(2e14, 50 * 2**20, dies=2, stacks=3)
    made = silicon(N5, demand)
    area = (200 * 0.5 + 50 * 0.44) / 0.75 / 2
    assert made.die_m2 * 1e6 == pytest.approx(area)
    die = 16988 / (made.dies_per_wafer * die_yield(area * 1e-6, N5))
    package = (2 * die + 3 * 300 + 0.2 * (2 * area + 3 * 110)) / 0.99**5 + 50
    assert (made.die_usd, made.package_usd) == (pytest.approx(die), pytest.approx(package))
    assert made.price_usd == pytest.approx(package / 0.4)


def test_smaller_dies_yield_better_and_the_reticle_bounds_one() -> None:
    demand = Demand(2e15, 80 * 2**20)
    with pytest.raises(InputError, match=r"larger than the reticle \(858 mm2\); divide it \(silicon.dies=2\)"):
        silicon(N5, demand)
    two, four = (silicon(N5, replace(demand, dies=n)) for n in (2, 4))
    assert four.die_yield > two.die_yield
    assert silicon(N5, replace(demand, stitched=True)).die_usd > 2 * two.die_usd
    with pytest.raises(InputError, match=r"no die of .* fits the wafer"):
        silicon(N5, replace(demand, flops_per_s=5e17, stitched=True))


@pytest.mark.parametrize("name", list_names("processes"))
def test_every_process_is_assumed_and_says_where_from(name: str) -> None:
    data = load_yaml(find("processes", name))
    assert not unsourced_values(data) and data["status"] == {"*": "assumed"}
    numbers = {k for k in data if k not in ("name", "title", "sources", "status")}
    assert numbers == set(data["sources"])
    load_process(name)


def test_a_chips_price_follows_from_its_silicon() -> None:
    """From a chip file or --set alike: more SRAM makes the same chip dearer, and its price is called assumed."""
    asked = {"chip.silicon.process": "n5", "chip.silicon.hbm_stacks": 5, "chip.silicon.repairable": 0.5}
    chip = load_system("dgx_h100", asked).chip
    more = load_system("dgx_h100", {**asked, "chip.sram": "150 MiB"}).chip
    assert chip.silicon is not None and chip.price_usd == chip.silicon.price_usd and "price" in chip.assumed
    assert more.price_usd is not None and more.price_usd > chip.price_usd
    stated = load_system("dgx_h100", {**asked, "chip.silicon.area": "814 mm2"}).chip.silicon
    assert stated is not None and stated.die_m2 == pytest.approx(814e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"process": "n6"}, "unknown process 'n6'"),
        ({"process.defect_density": "-0.1 /cm2"}, "defect_density: negative; expected a number per area"),
        ({"process.defect_density": "0.1 /cm"}, "defect_density: '/cm' is a unit of another dimension"),
        ({"process.bonding_yield": -0.5}, "bonding_yield: input should be greater than 0"),
        ({"process.bonding_yield": 1.5}, "bonding_yield: input should be less than or equal to 1"),
        ({"process.yield_model": "moore"}, "yield_model: input should be 'negative_binomial', 'poisson' or 'murphy'"),
        ({"process.wafer_price": "9000 EUR"}, "unknown currency 'EUR'"),
        ({"dies": 0}, "silicon.dies"),
        ({"dyes": 2}, "did you mean 'dies'"),
        ({"repairable": 2}, "silicon.repairable"),
    ],
)
def test_what_cannot_be_made_is_explained(changes: dict[str, object], words: str) -> None:
    overrides = {"chip.silicon.process": "n5", **{f"chip.silicon.{k}": v for k, v in changes.items()}}
    with pytest.raises(InputError) as raised:
        load_system("dgx_h100", overrides)
    assert words in str(raised.value)


def test_all_that_is_wrong_with_a_chips_silicon_is_said_at_once() -> None:
    bad = {"chip.silicon.process": "n5", "chip.silicon.process.wafer_price": "9000 EUR", "chip.silicon.dies": 0}
    with pytest.raises(InputError) as raised:
        load_system("dgx_h100", {**bad, "chip.silicon.process.defect_density": "-1 /cm2"})
    assert len(raised.value.problems) == 3


def test_price_and_silicon_are_not_both_given() -> None:
    """Neither a chip's price nor its stacks are counted twice."""
    with pytest.raises(InputError, match="price and silicon both give the price"):
        load_system("dgx_h100", {"chip.silicon.process": "n5", "chip.price": "30000 USD"})
    paid = {"chip.silicon.process": "n5", "chip.silicon.hbm_stacks": 5, "chip.memory.price": "1000 USD"}
    with pytest.raises(InputError, match="the stacks would be paid twice"):
        load_system("dgx_h100", paid)


def _study() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sram_study", ROOT / "benchmarks" / "sram_against_compute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_study_of_sram_against_compute_is_what_the_model_says() -> None:
    """Points on both sides of the turn: with DDR the dataflow's cheapest die is half SRAM; the original's own case
    takes what the cycle-level test holds it to."""
    study = _study()
    with (ROOT / "reports" / "sram_against_compute" / "results.csv").open() as file:
        rows = {(r["workload"], r["memory"], float(r["compute_share"])): r for r in csv.DictReader(file)}
    assert len(rows) == len(study.WORKLOADS) * len(study.MEMORIES) * len(study.SHARES)
    dataflow = "GPT-3 175B, dataflow"
    for key in ((dataflow, "ddr", 0.5), (dataflow, "ddr", 0.8), ("GPT 100T, kernel by kernel", "stacked", 0.8)):
        found = study.point(*key)
        for name in ("die_mm2", "die_yield", "chip_usd", "system_usd", "layer_ms", "usd_per_sample", "j_per_sample"):
            assert found[name] == pytest.approx(float(rows[key][name]), rel=1e-6), (key, name)
    cost = {f: float(rows[dataflow, "ddr", f]["usd_per_sample"]) for f in study.SHARES}
    assert min(cost, key=cost.__getitem__) == 0.5
    assert float(rows["GPT 100T, kernel by kernel", "stacked", 0.8]["layer_ms"]) == pytest.approx(409.271789, rel=1e-6)
