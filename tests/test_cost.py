"""Cost, power and wiring: the original DFModel's own totals, from its published logs."""

import dataclasses

import pytest

from dfmodel.systems.catalog import load_system
from dfmodel.systems.cost import system_cost, system_power
from dfmodel.systems.network import Dimension, Link
from dfmodel.systems.wiring import wiring

HBM_NVLINK = {"memory": "hbm_dse", "topology.x.link": "nvlink_dse"}
ALL_NVLINK = {"memory": "hbm_dse", "link": "nvlink_dse"}

#: system, overrides, USD and W of the logs in github.com/fengqian-ayce/DFModel (floats of 32 bits there).
LOGGED = {
    "LLM/DSE/sn30/2d_torus_ddr_pcie": ("dse_2d_torus", {}, 17757184, 511325.01135492325),
    "LLM/DSE/sn30/dgx_2_hbm_nvlink": ("dse_dgx_2", HBM_NVLINK, 32211712, 661714.4189586639),
    "LLM/DSE/h100/2d_torus_ddr_pcie": (
        "dse_2d_torus",
        {"chip": "h100_dfmodel"},
        34630400,
        823945.8551049232,
    ),
    "LLM/DSE/h100/3d_torus_hbm_nvlink": (
        "dse_3d_torus",
        {"chip": "h100_dfmodel", **HBM_NVLINK},
        42096128,
        963768.862490654,
    ),
    "LLM/DSE/wse-2/dgx_2_hbm_nvlink": (
        "dse_dgx_2",
        {"chip": "wse2_dfmodel", **HBM_NVLINK},
        3113880064,
        20991613.262708664,
    ),
    "LLM/dataflow_mapping/dfmodel_4x2": ("sn10_4x2", {}, 148978, 3760.4336570501328),
    "LLM/dataflow_mapping/existing_8x1": ("sn10_ring", {}, 136178, None),
    "HPL/Compare_w_existing/GPU/Circe": ("hpl_circe", {}, 19719672, None),
    "HPL/Compare_w_existing/GPU/Eos": ("hpl_eos", {}, 268875044, None),
    "FFT/DSE/sn30/3d_torus_hbm_nvlink": (
        "dse_3d_torus",
        {"x": 8, "y": 8, "z": 16, **ALL_NVLINK},
        29741312,
        661647.8587856293,
    ),
    "DLRM/Compare_w_existing/A": ("zionex", {}, 3539040, None),
}


@pytest.mark.parametrize("case", LOGGED)
def test_totals_of_the_original_logs(case):
    name, overrides, usd, watts = LOGGED[case]
    system = load_system(name, overrides)
    cost = system_cost(system)
    assert cost.total_usd == pytest.approx(usd, rel=1e-6)
    assert not cost.missing and not cost.uncounted
    if watts is not None:
        assert system_power(system).total_w == pytest.approx(watts, rel=1e-6)


def test_parts_of_the_2d_torus_add_up_by_hand():
    """2 links per chip of 50 GB/s at 2 USD per GB/s; two ports per ring at 24 USD per GB/s."""
    cost = system_cost(load_system("dse_2d_torus"))
    assert cost.chips_usd == pytest.approx(1024 * 16522.25023)
    assert cost.memory_usd == pytest.approx(1024 * 300)
    assert cost.links_usd == pytest.approx(2 * 1024 * 50 * 2)
    assert cost.switches_usd == pytest.approx((2 * 128 + 2 * 8) * 50 * 24)


R, F, S = "ring", "fully_connected", "switch"
X, Y, Z = 8, 16, 32
TABLE = {
    (R,): ([X], [2]),
    (S,): ([X], [X]),
    (F,): ([X * (X - 1)], [0]),
    (R, R): ([X * Y, X * Y], [2 * Y, 2 * X]),
    (F, F): ([X * (X - 1) * Y, Y * (Y - 1)], [0, Y * Y]),
    (R, F): ([X * Y, Y * (Y - 1)], [2 * Y, Y * Y]),
    (R, S): ([X * Y, Y], [2 * Y, Y]),
    (S, S): ([X * Y, Y], [X * Y, Y]),
    (R, R, R): ([X * Y * Z] * 3, [2 * Y * Z, 2 * X * Z, 2 * X * Y]),
    (R, S, S): ([X * Y * Z, Y * Z, Z], [2 * Y * Z, Y * Z, Z]),
    (S, S, S): ([X * Y * Z, Y * Z, Z], [X * Y * Z, Y * Z, Z]),
}


def product(kinds, sizes, **changes):
    link = Link("l", 1e9)
    return [Dimension(k, k, s, link, **changes) for k, s in zip(kinds, sizes, strict=False)]


@pytest.mark.parametrize("kinds", TABLE, ids="_".join)
def test_one_rule_gives_all_eleven_topologies_of_the_original_table(kinds):
    counted = wiring(product(kinds, (X, Y, Z)))
    assert ([w.links for w in counted], [w.ports for w in counted]) == TABLE[kinds]


def test_small_systems():
    """One chip needs no link, up to four no switch, and a mesh saves the closing link of each ring."""
    assert [(w.links, w.ports) for w in wiring(product((R, S), (1, 1)))] == [(0, 0), (0, 0)]
    assert [(w.links, w.ports) for w in wiring(product((S,), (4,)))] == [(4, 0)]
    assert [(w.links, w.ports) for w in wiring(product((S,), (5,)))] == [(5, 5)]
    assert [(w.links, w.ports) for w in wiring(product(("mesh", R), (4, 3)))] == [(9, 0), (12, 8)]


def test_parallel_links_are_paid_for():
    priced = {
        "topology.nvlink.link.price_per_bandwidth": "2 USD per GB/s",
        "topology.nvlink.link.switch_price_per_bandwidth": "24 USD per GB/s",
    }
    cost = system_cost(load_system("dgx_h100", {"nodes": 1, **priced}))
    assert cost.links_usd == pytest.approx(8 * 450 * 2)
    assert cost.switches_usd == pytest.approx(8 * 450 * 24)


def test_unknown_prices_are_none_and_named():
    system = load_system("dgx")
    cost = system_cost(system)
    assert cost.chips_usd is None and cost.total_usd is None
    assert cost.missing == ("price of chip 'h100_sxm'",)
    assert {"price of link 'nvlink4'", "price of switch ports of 'nvlink4'"} < set(cost.uncounted)
    assert system_power(system).total_w == 256 * 700
    priced = dataclasses.replace(system, chip=dataclasses.replace(system.chip, price_usd=30000.0))
    assert system_cost(priced).total_usd == 256 * 30000


def test_a_price_the_user_sets_is_called_assumed():
    cost = system_cost(load_system("dgx", {"chip.price": "30000 USD"}))
    assert cost.total_usd == 256 * 30000
    assert cost.assumed == ("price of chip 'h100_sxm'",)
