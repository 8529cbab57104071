"""Catalogs: every file loads and states its sources, and a wrong file is explained whole."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dfmodel.assumptions import Assumptions
from dfmodel.catalog_files import packaged_catalogs
from dfmodel.errors import InputError, UnknownNameError
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import (
    list_names,
    load_chip,
    load_efficiency,
    load_link,
    load_memory,
    load_system,
    load_yaml,
)
from dfmodel.systems.merge import number_paths, unsourced_values

LOADERS = {
    "chips": load_chip,
    "memories": load_memory,
    "links": load_link,
    "efficiency": load_efficiency,
    "systems": load_system,
}
FILES = [(kind, name) for kind in LOADERS for name in list_names(kind)]


@pytest.mark.parametrize(("kind", "name"), FILES)
def test_every_file_loads_and_every_number_has_a_source(kind, name):
    assert LOADERS[kind](name).name
    data = load_yaml(packaged_catalogs() / kind / f"{name}.yaml")
    assert unsourced_values(data) == []


def test_the_source_check_sees_numbers():
    data = {
        "peak": {"matrix": {"bf16": "1 TFLOP/s"}},
        "sram": "1 MiB",
        "memory": "3d_stack",
        "power": "7 W",
        "sources": {"peak": "a document"},
        "status": {"power": "assumed"},
    }
    assert list(number_paths(data)) == ["peak.matrix.bf16", "sram", "power"]
    assert unsourced_values(data) == ["sram"]


# ---------------------------------------------------------------- values that must not drift


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("h100_dfmodel", 993.2),
        ("tpuv4_dfmodel", 275.3),
        ("sn30_dfmodel", 614.4),
        ("wse2_dfmodel", 7513.2),
        ("sn10_dfmodel", 307.2),
        ("sn40l_dfmodel", 639.0),
        ("a100_dfmodel", 311.9),
        ("a100_fp32_dfmodel", 19.49),
        ("v100_fp64_dfmodel", 7.07),
        ("h100_fp64_dfmodel", 25.6),
        ("a100_fp64_dfmodel", 9.746),
        ("mem3d_dfmodel", 0.8 * 1278),
    ],
)
def test_tiles_give_the_peaks_of_the_original_study(name, teraflops):
    """Its setups state tiles; the peaks are those its documents print."""
    chip = load_chip(name)
    assert chip.tiles is not None
    peak = next(iter(chip.matrix_flops_per_s.values()))
    assert peak == pytest.approx(teraflops * 1e12, rel=1e-3)
    assert peak == 2 * chip.tiles.count * chip.tiles.lanes * chip.tiles.stages * chip.tiles.clock_hz


def test_dgx_is_dgx_h100_with_450_and_50_gigabytes_per_second_per_chip():
    system = load_system("dgx")
    assert system == load_system("dgx_h100")
    nvlink, infiniband = system.dimensions
    assert (nvlink.kind, nvlink.size, nvlink.links_per_chip) == ("switch", 8, 18)
    assert nvlink.links_per_chip * nvlink.link.bytes_per_s == 450e9
    assert (infiniband.size, infiniband.links_per_chip, infiniband.link.bytes_per_s) == (32, 1, 50e9)
    assert system.chips == 256 and system.facts["nodes"] == 32


def test_bandwidth_per_chip_is_divided_by_the_links_that_share_it():
    per_link = load_system("tpu_v5e").dimensions[0].link.bytes_per_s
    assert per_link == 50e9  # 200 GB/s over four links, two of them in each dimension
    dragonfly = load_system("dragonfly").dimensions[0]
    assert dragonfly.link.bytes_per_s * (dragonfly.size - 1) == pytest.approx(25e9)


# ---------------------------------------------------------------- overrides


def test_overrides_reach_parameters_names_and_single_values():
    system = load_system(
        "dgx",
        {
            "nodes": "64",
            "chip": "a100_sxm_80",
            "chip.memory.bandwidth": "3 TB/s",
            "topology.nvlink.size": 16,
            "topology.1.link.latency": "5 us",
        },
    )
    assert [d.size for d in system.dimensions] == [16, 64]
    assert system.chip.name == "a100_sxm_80"
    assert system.chip.memories[0].bytes_per_s == 3e12
    assert system.chip.memories[0].capacity_bytes == 80 * 2**30
    assert system.dimensions[1].link.latency_s == 5e-6
    assert system.dimensions[1].link.bytes_per_s == 50e9
    assert load_system("dgx").dimensions[1].link.latency_s != 5e-6


def test_overrides_of_one_memory_of_several_and_of_a_shared_link():
    chip = load_system("sn30_rack", {"chip": "sn40l", "chip.memory.1.bandwidth": "250 GB/s"}).chip
    assert [m.bytes_per_s for m in chip.memories] == [2e12, 250e9]
    torus = load_system("dse_3d_torus", {"topology.z.link.bandwidth": "10 GB/s"})
    assert [d.link.bytes_per_s for d in torus.dimensions] == [50e9, 50e9, 10e9]


def test_one_value_of_the_kinds_efficiency_curve_can_be_changed():
    curve = load_system("dgx", {"chip.efficiency.matrix_max": 0.5}).chip.efficiency
    assert (curve.matrix_max, curve.memory_max) == (0.5, load_efficiency("gpu").memory_max)
    assert (curve.status, curve.source) == ("assumed", "changed by the user")


def test_users_override_wins_over_a_variants():
    system = load_system("hpl_circe", {"topology.x.link": "nvlink_dse", "x": 4})
    assert system.name == "hpl_circe"
    assert [(d.size, d.link.bytes_per_s) for d in system.dimensions] == [(4, 450e9), (24, 12.5e9)]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"node": 4}, "unknown key (did you mean 'nodes'?)"),
        ({"topology.9.size": 4}, "no item '9'"),
        ({"topology.nvlnk.size": 4}, "did you mean 'nvlink'?"),
        ({"topology.0.sise": 4}, "did you mean 'size'?"),
        ({"chip": "h100_sxn"}, "unknown chip 'h100_sxn' (did you mean 'h100_sxm'?)"),
        ({"chip.prise": "1 USD"}, "chip.prise: unknown key (did you mean 'price'?)"),
        ({"chip.price": 3}, "chip.price: a number without a unit"),
        ({"link": "nvlink_dse"}, "every dimension names its own link"),
        ({"memory.bandwidth": "1 GB/s"}, "set chip.memory.bandwidth instead"),
        ({"efficiency.matrix_max": 0.5}, "set chip.efficiency.matrix_max instead"),
        ({"nodes": 0}, "nodes"),
        ({"nodes.x": 1}, "nodes"),
        ({"topology.0.size": "ndes"}, "no parameter 'ndes' (did you mean 'nodes'?)"),
        ({"topology.0.links_per_chip": 0}, "topology.0.links_per_chip"),
        ({"topology.0.pod_size": 4}, "topology.0: dimension nvlink: pod_size"),
        ({"copies": 3}, "3 does not divide 256 chips"),
        ({"chip.memory.5.bandwidth": "1 GB/s"}, "memory"),
    ],
)
def test_wrong_overrides_are_explained(overrides, words):
    with pytest.raises(InputError) as caught:
        load_system("dgx", overrides)
    assert words in str(caught.value).replace("chip: chip.", "chip.").replace("chip: ", "chip.")


def test_all_wrong_overrides_are_reported_together():
    with pytest.raises(InputError) as caught:
        load_system("dgx", {"node": 4, "chp": "x", "topology.7.size": 2})
    assert len(caught.value.problems) == 3
    with pytest.raises(InputError) as caught:
        load_system("dgx", {"topology.0.link": "nvlnk4", "topology.1.kind": "torus", "chip.prise": "1 USD"})
    assert len(caught.value.problems) == 3


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(["", "x", "1 GB/s", "base"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["base", "name", "0", "link", "size", "sources", "status"]), inner, max_size=2
        )
    ),
    max_leaves=4,
)
KEYS = st.sampled_from(
    [
        *LOADERS,
        "chip",
        "memory",
        "efficiency",
        "link",
        "parameters",
        "topology",
        "copies",
        "nodes",
        "bandwidth",
    ]
) | st.sampled_from(["price", "status", "sources", "base", "0", "7", "nvlink", "size", "peak", "bf16", "name"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.lists(KEYS, min_size=1, max_size=4).map(".".join), VALUES, min_size=1, max_size=3))
def test_any_override_gives_a_system_or_an_explanation(overrides):
    try:
        load_system("dgx", overrides)
    except InputError as error:
        assert all(error.problems)


# ---------------------------------------------------------------- files of users


CHIP = """
name: mine
kind: gpu
execution: kernel_by_kernel
peak: {matrix: {bf16: 1 PFLOP/s}, vector: {fp32: 50 TFLOP/s}}
sram: 50 MiB
memory: {capacity: 80 GB, bandwidth: 4 TB/s, convention: "peak, read plus write"}
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_users_folder_comes_first_and_paths_are_relative_to_the_file(tmp_path):
    write(tmp_path / "chips" / "mine.yaml", CHIP)
    write(tmp_path / "chips" / "h100_sxm.yaml", CHIP.replace("name: mine\n", ""))
    system = write(
        tmp_path / "s.yaml",
        "chip: ./chips/mine.yaml\ntopology: [{name: a, kind: ring, size: 2, link: pcie5}]\n",
    )
    assert load_chip("mine", dirs=[tmp_path]).memories[0].bytes_per_s == 4e12
    assert load_system("dgx", dirs=[tmp_path]).chip.matrix_peak("bf16") == 1e15
    assert load_system(str(system)).chip.name == "mine"
    assert set(load_chip("mine", dirs=[tmp_path]).assumed) >= {"peak.matrix.bf16", "sram"}


def test_every_problem_of_a_chip_is_reported_at_once(tmp_path):
    path = write(
        tmp_path / "bad.yaml",
        """
kind: gpu
execution: kernel_by_kernl
peak: {matrix: {bf17: 1 PFLOP/s}, vector: {fp32: 50}}
srm: 50 MiB
power: 700 GB
memory: {capacity: 80 GB, bandwith: 4 TB/s, convention: "per chip"}
""",
    )
    with pytest.raises(InputError) as caught:
        load_chip(str(path))
    text = str(caught.value)
    assert all(p.startswith(f"{path}: ") for p in caught.value.problems)
    for words in (
        "execution: ",
        "bf17",
        "peak.vector.fp32: a number without a unit",
        "srm: unknown key (did you mean 'sram'?)",
        "sram: missing",
        "power: 'GB' is a unit of size; expected a power such as '700 W', got '700 GB'",
        "bandwith: unknown key (did you mean 'bandwidth'?)",
        "bandwidth: missing",
        "convention: input should be 'peak, read plus write'",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("peak: {matrix: {bf16: 1 PFLOP/s}, vector: {fp32: 50 TFLOP/s}}", ""), "no matrix peak"),
        (("vector: {fp32: 50 TFLOP/s}", "vector: {}"), "no vector peak"),
        (
            ("sram", "tiles: {count: 1, lanes: 1, stages: 1, clock: 1 GHz, dtypes: [bf16]}\nsram"),
            "bf16 in both tiles.dtypes and peak",
        ),
        (("name: mine", "name: other"), "differs from the file's name"),
        (("kind: gpu", "kind: gpuu"), "unknown efficiency 'gpuu' (did you mean 'gpu'?)"),
        (("capacity: 80 GB", "capacity: 0 GB"), "memory.capacity"),
    ],
)
def test_inconsistent_chips_are_refused(tmp_path, change, words):
    path = write(tmp_path / "mine.yaml", CHIP.replace(*change))
    with pytest.raises(InputError) as caught:
        load_chip(str(path))
    assert words in str(caught.value).replace("memory: ", "memory.")


def test_links_state_their_convention(tmp_path):
    path = write(tmp_path / "l.yaml", "bandwidth: 100 GB/s\n")
    with pytest.raises(InputError, match="convention: missing"):
        load_link(str(path))
    path.write_text("bandwidth: 100 GB/s\nconvention: per chip and direction\n")
    with pytest.raises(InputError, match="links: missing"):
        load_link(str(path))
    path.write_text("bandwidth: 100 GB/s\nconvention: per chip and direction\nlinks: 4\n")
    assert load_link(str(path)).bytes_per_s == 25e9


def test_aliases_in_circles_and_bases_of_bases_are_refused(tmp_path):
    write(tmp_path / "systems" / "a.yaml", "alias_of: b\n")
    write(tmp_path / "systems" / "b.yaml", "alias_of: a\n")
    with pytest.raises(InputError, match="more than 10 aliases"):
        load_system("a", dirs=[tmp_path])
    write(tmp_path / "memories" / "m.yaml", "base: m\n")
    chip = write(
        tmp_path / "chip.yaml",
        CHIP.replace('{capacity: 80 GB, bandwidth: 4 TB/s, convention: "peak, read plus write"}', "{base: m}"),
    )
    with pytest.raises(InputError):
        load_chip(str(chip), dirs=[tmp_path])


def test_unknown_names_name_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'dgx_h100'"):
        load_system("dgx_h10")
    with pytest.raises(UnknownNameError, match="unknown memory 'hbm3_h10'"):
        load_memory("hbm3_h10")


# ---------------------------------------------------------------- presets of assumptions


def test_default_preset_writes_out_the_schemas_defaults():
    assert load_assumptions() == Assumptions()


def test_paper_preset_differs_where_it_says():
    paper = load_assumptions("paper", {"partitions.count": "6", "partitions.overlap": "full"})
    assert paper.name == "paper"
    assert (paper.compute.model, paper.traffic.per, paper.network.all_reduce_factor) == ("flat", "edge", 2)
    assert (paper.partitions.count, paper.partitions.overlap) == (6, "full")
    assert not paper.traffic.weights and paper.partitions.halves


def test_presets_extend_one_another(tmp_path):
    mine = write(tmp_path / "mine.yaml", "extends: paper\npartitions: {count: 5}\n")
    assert load_assumptions(str(mine)) == load_assumptions("paper", {"partitions.count": 5}).model_copy(
        update={"name": "mine"}
    )
    assert load_assumptions({"extends": str(mine), "traffic": {"per": "tensor"}}).traffic.per == "tensor"
    loop = write(tmp_path / "loop.yaml", f"extends: {tmp_path / 'loop.yaml'}\n")
    with pytest.raises(InputError, match="more than 10 presets"):
        load_assumptions(str(loop))


def test_wrong_assumptions_are_all_reported_with_the_nearest_key(tmp_path):
    bad = write(tmp_path / "bad.yaml", "partitons: {count: 5}\ncompute: {model: flatt}\n")
    with pytest.raises(InputError) as caught:
        load_assumptions(str(bad), {"traffic.pr": "edge", "memory.gradient": "x"})
    text = str(caught.value)
    for words in (
        f"{bad}: partitons: unknown key (did you mean 'partitions'?)",
        "compute.model: input should be",
        "traffic.pr: unknown key (did you mean 'per'?)",
        "memory.gradient: input should be",
    ):
        assert words in text
