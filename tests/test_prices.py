"""Assumed prices and powers: what is filled, what is said of it, and that nothing stated is touched."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cost import LOGGED

from dfmodel.cli import main
from dfmodel.errors import InputError
from dfmodel.presets import load_costs
from dfmodel.systems.catalog import list_names, load_system
from dfmodel.systems.cost import cost_items, item_name, system_cost, system_power
from dfmodel.systems.merge import by_beginning
from dfmodel.systems.prices import priced

DEFAULT = load_costs()


@pytest.mark.parametrize("case", LOGGED)
def test_nothing_is_assumed_of_the_reference_cases(case: str) -> None:
    """What the original states stays as it is: its logged totals hold with every default in force."""
    name, overrides, usd, watts = LOGGED[case]
    system = priced(load_system(name, overrides), DEFAULT)
    assert system_cost(system).total_usd == pytest.approx(usd, rel=1e-6)
    assert not system_cost(system).assumed and not system_power(system).assumed
    if watts is not None:
        assert system_power(system).total_w == pytest.approx(watts, rel=1e-6)


@pytest.mark.parametrize("name", list_names("systems"))
def test_every_system_has_a_cost_and_a_power_whose_assumptions_are_listed(name: str) -> None:
    """Without any price of the user's, each line is stated, assumed or the chip's, and none is missing."""
    stated = load_system(name)
    system = priced(stated, DEFAULT)
    cost, power = system_cost(system), system_power(system)
    endless = [f"price of memory '{m.name}'" for m in system.chip.memories if math.isinf(m.capacity_bytes)]
    assert cost.total_usd and cost.total_usd > 0 and not cost.missing and set(cost.uncounted) <= set(endless)
    assert power.total_w and power.total_w > 0 and not power.missing and not power.uncounted
    for item, was in zip(cost_items(system), cost_items(stated), strict=True):
        if f"price of {item_name(item)}" in endless:
            continue
        for value, status, old in ((item.usd, item.usd_status, was.usd), (item.w, item.w_status, was.w)):
            assert status != "unknown"
            assert (status in ("assumed", "in the chip")) or value == old
            assert old is None or value == old


def test_memory_in_the_package_is_not_paid_twice() -> None:
    """An H100's price and board power hold its HBM; DDR beside an SN30 is paid for by capacity."""
    dgx = {i.part: i for i in cost_items(priced(load_system("dgx_h100"), DEFAULT))}
    assert (dgx["memory"].usd, dgx["memory"].usd_status, dgx["memory"].w) == (0.0, "in the chip", 0.0)
    sn30 = priced(load_system("sn30_rack"), DEFAULT)
    (memory,) = sn30.chip.memories
    assert memory.usd == pytest.approx(memory.capacity_bytes * 4e-9)
    assert memory.power_w == pytest.approx(memory.bytes_per_s * 20.31e-12 * 8)


def test_links_of_real_systems_are_one_per_chip() -> None:
    """32 nodes of 8 H100 with a network card each: 256 cards and ports of 50 GB/s, where the original counts 32."""
    system = load_system("dgx_h100", {"nodes": 32})
    links, ports = (
        next(i for i in cost_items(system) if i.part == part and i.name == "ib_ndr") for part in ("links", "switches")
    )
    assert links.amount == ports.amount == pytest.approx(256 * 50e9)
    grouped = dataclasses.replace(system, wiring="per group")
    assert next(i for i in cost_items(grouped) if i.name == "ib_ndr").amount == pytest.approx(32 * 50e9)


@given(st.dictionaries(st.text("abc", max_size=3), st.floats(0, 10), max_size=6), st.text("abc", max_size=4))
def test_the_longest_beginning_wins(table: dict[str, float], name: str) -> None:
    found = by_beginning(table, name)
    fits = [k for k in table if name.startswith(k)]
    assert found == (table[max(fits, key=len)] if fits else None)
    assert by_beginning({**table, "other": 7.0}, name) == (found if fits else 7.0)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"price.chip": "30000 EUR"}, "unknown currency 'EUR': prices are in USD"),
        ({"price.chip": 30000}, "a number without a unit"),
        ({"price.chp": "3 USD"}, "did you mean 'chip'"),
        ({"price.memory_per_capacity.hbm": "3 USD"}, "is a unit of price; expected a price of memory"),
        ({"operation.pue": 0.9}, "greater than or equal to 1"),
        ({"operation.utilisation": 1.5}, "less than or equal to 1"),
        ({"operation.electricity": "-1 USD/kWh"}, "negative"),
        ({"operation.amortisation": "0 years"}, "greater than 0"),
        ({"energy.matrix.bf17": "1 pJ/FLOP"}, "'bf16'"),
    ],
)
def test_wrong_cost_inputs_are_explained(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as raised:
        load_costs(overrides=overrides)
    assert words in str(raised.value) and str(raised.value).startswith("cost: ")


def test_all_wrong_cost_inputs_are_reported_together() -> None:
    with pytest.raises(InputError) as raised:
        load_costs(overrides={"price.chip": "3 EUR", "operation.pue": 0.9, "energy.vctor": "1 pJ/FLOP"})
    assert len(raised.value.problems) == 3


def test_a_users_file_extends_the_default_and_says_what_it_sources(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: default\nprice: {chip: 25000 USD}\noperation: {electricity: 0.05 USD/kWh}\n"
        "sources: {operation.electricity: our contract}\nstatus: {operation.electricity: measured}\n"
    )
    system = priced(load_system("dgx_h100"), load_costs(str(path)))
    assert system.chip.price_usd == 25000 and "price" in system.chip.assumed
    assert system.operation.usd_per_j == pytest.approx(0.05 / 3.6e6)
    assert "electricity" not in system.operation.assumed and "pue" in system.operation.assumed
    assert system.dimensions[0].link.usd_per_byte_per_s == pytest.approx(2e-9)


def test_costs_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "costs"]) == 0 and capsys.readouterr().out.split() == ["default", "stated"]
    assert main(["show", "cost", "default", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == {"*": "assumed"} and "electricity" in shown["operation"]
    assert main(["show", "process", "n5"]) == 0 and "defect_density" in capsys.readouterr().out
