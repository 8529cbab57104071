"""The graph contract and graph files: counts from declarations, faults found at once, round trips."""

import pytest
import yaml

from dfmodel.errors import InputError
from dfmodel.workloads.graph import Block, Kernel, Operand, Tensor
from dfmodel.workloads.io import dump_graph, graph_workload, load_graph
from dfmodel.workloads.registry import build_workload

MLP = """
name: mlp
parameters: {hidden: 8, ffn: 4*hidden}
dims: {batch: 1, token: 16, hidden: hidden, ffn: ffn}
tensors:
  x: {dims: [batch, token, hidden]}
  w: {dims: [hidden, ffn], role: weight}
kernels:
  up:
    inputs: {x: [batch, token, hidden], w: [hidden, ffn]}
    outputs: {u: [batch, token, ffn]}
    unit: matrix
    tiling: token
  square:
    inputs: [{u: [batch, token, ffn]}, {u: [batch, token, ffn]}]
    outputs: {y: [batch, token, ffn]}
    unit: vector
    op: multiply
outputs: [y]
batch: 4
repeat: 3
"""


def mlp(**changes):
    return {**yaml.safe_load(MLP), **changes}


def test_counts_follow_from_the_declaration():
    w = graph_workload(mlp(), "mlp.yaml", {})
    ((block, repeat),) = w.blocks
    assert (repeat, w.batch, w.training) == (3, 4, False)
    assert block.flops("matrix") == 2 * 16 * 8 * 32 and block.flops("vector") == 16 * 32
    assert block.by_name["up"].contracted == ("hidden",)
    assert block.inputs == ("x",) and block.weights == ("w",) and w.parameters == 3 * 8 * 32
    assert block.tensors["u"].dims == {"batch": 1, "token": 16, "ffn": 32}
    assert block.tensors["u"].bytes_in("token", 5) == 4 * 32 * 2, "ceil(16 / 5) rows of bf16"
    assert block.consumers["u"] == ("square",) and len(block.edges) == 1


def test_micro_batches_rescale_only_what_counts_sequences():
    layer = build_workload("gpt3_13b").blocks[1][0]
    four = layer.at_batch(4)
    assert four.flops() == 4 * layer.flops() and four.parameters == layer.parameters
    assert four.at_batch(1) == layer


def test_backward_kernels_come_after_every_forward_one():
    layer = build_workload("gpt3_13b").blocks[1][0]
    phases = [layer.by_name[k].phase for k in layer.topological_order]
    assert phases == sorted(phases, reverse=True) and set(phases) == {"forward", "backward"}
    position = {k: i for i, k in enumerate(layer.topological_order)}
    assert all(position[e.producer] < position[e.consumer] for e in layer.edges)


def test_parameters_of_a_file_can_be_replaced():
    w = graph_workload(mlp(), "mlp.yaml", {"hidden": 16, "batch": 2, "repeat": 5})
    assert w.blocks[0][0].tensors["w"].dims == {"hidden": 16, "ffn": 64}
    assert (w.batch, w.layers) == (2, 5)


def test_a_file_can_ask_for_its_backward():
    w = graph_workload(mlp(derive_backward=True), "mlp.yaml", {})
    assert w.training
    assert w.blocks[0][0].flops("matrix") == 3 * 2 * 16 * 8 * 32


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("llm", {"model": "gpt3_1_5b"}),
        ("llama3_8b", {"mode": "forward"}),
        ("gpt_forward_backward", {}),
        ("gpt_decode", {}),
    ],
)
def test_a_written_workload_reads_back_equal(name, overrides, tmp_path):
    workload = build_workload(name, overrides)
    path = tmp_path / "graph.yaml"
    path.write_text(dump_graph(workload))
    assert load_graph(path) == workload
    assert build_workload(str(path)) == workload


def test_every_problem_of_a_file_at_once():
    data = mlp(dtype="bf61", outputs=["z"])
    data["kernels"]["up"]["inputs"]["ww"] = ["hidden", "fn"]
    data["kernels"]["square"]["tiling"] = "tokn"
    data["tensors"]["x"]["dims"] = {"batch": 1, "token": "sixteen", "hidden": 8}
    with pytest.raises(InputError) as error:
        graph_workload(data, "mlp.yaml", {})
    text = str(error.value)
    for part in (
        "mlp.yaml: dtype: unknown number format 'bf61' (did you mean 'bf16'?)",
        "mlp.yaml: outputs: unknown tensor 'z'",
        "mlp.yaml: kernels.up: dimension 'fn' has no extent in dims (did you mean 'ffn'?)",
        "mlp.yaml: kernels.up.inputs: unknown tensor 'ww'",
        "mlp.yaml: kernels.square.tiling: unknown dimension 'tokn' (did you mean 'token'?)",
        "mlp.yaml: tensors.x.dims.token: 'sixteen': unknown name 'sixteen'",
    ):
        assert part in text


def test_schema_problems_name_file_and_key():
    data = mlp(repeet=2)
    data["kernels"]["up"]["flops_per_point"] = float("nan")
    data["kernels"]["up"]["unitt"] = "matrix"
    data["tensors"]["w"]["role"] = "wait"
    data["dims"]["token"] = 1.5
    with pytest.raises(InputError) as error:
        graph_workload(data, "mlp.yaml", {})
    problems = error.value.problems
    assert len(problems) == 5
    for part in (
        "mlp.yaml: repeet: unknown key (did you mean 'repeat'?)",
        "mlp.yaml: kernels.up.unitt: unknown key (did you mean 'unit'?)",
        "mlp.yaml: kernels.up.flops_per_point: ",
        "mlp.yaml: tensors.w.role: ",
        "mlp.yaml: dims.token: must be a whole number or an expression",
    ):
        assert any(p.startswith(part) for p in problems), part


def test_extents_must_agree_and_be_positive():
    data = mlp()
    data["tensors"]["w"]["dims"] = {"rows": 9, "ffn": "ffn"}
    with pytest.raises(InputError, match=r"mlp\.yaml: kernel 'up': dimension 'hidden' is 8, but 'rows' .* is 9"):
        graph_workload(data, "mlp.yaml", {})
    with pytest.raises(InputError, match=r"dims\.token: must be a whole number of at least 1, got -3"):
        graph_workload(mlp(dims={**mlp()["dims"], "token": -3}), "mlp.yaml", {})
    with pytest.raises(InputError, match=r"workload\.hidden: must be positive, got 0"):
        graph_workload(mlp(), "mlp.yaml", {"hidden": 0})


def test_a_cycle_names_its_kernels():
    dims = {"n": 4}
    tensors = {t: Tensor(t, dims, "bf16") for t in "ab"}

    def step(name, source, target):
        return Kernel(name, dims, (Operand(source, ("n",)),), (Operand(target, ("n",)),), "vector", 1.0)

    with pytest.raises(InputError, match=r"cycle: (there -> back -> there|back -> there -> back)"):
        Block("loop", (step("there", "a", "b"), step("back", "b", "a")), tensors)


@pytest.mark.parametrize("text", ["2**99", "open('x')", "hidden.real", "1 if 1 else 2", "hidden//2", "(", "1/0", "-1"])
def test_sizes_are_arithmetic_only(text):
    with pytest.raises(InputError, match=r"mlp\.yaml: dims\.token: "):
        graph_workload(mlp(dims={**mlp()["dims"], "token": text}), "mlp.yaml", {})
