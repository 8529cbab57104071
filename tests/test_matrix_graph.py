"""The original DFModel's graphs as catalog files: counts, shardings, differences from the derived graph."""

import pytest

from dfmodel.errors import InputError
from dfmodel.workloads.graph import REPLICATED
from dfmodel.workloads.matrix_graph import matrix_workload
from dfmodel.workloads.registry import build_workload


def layer(name, **overrides):
    return build_workload(name, overrides).blocks[0][0]


@pytest.mark.parametrize(
    ("name", "kernels", "edges"),
    [("gpt_forward", 18, 21), ("gpt_forward_backward", 41, 53), ("gpt_decode", 20, 23)],
)
def test_kernel_and_edge_counts(name, kernels, edges):
    block = layer(name)
    assert (len(block.kernels), len(block.edges)) == (kernels, edges)


def test_flop_of_the_reference_layer():
    """Hidden 25600, sequence 2048, 160 heads; times 128 layers and 3,072 samples as the original logs it."""
    workload = build_workload("gpt_forward_backward", {"hidden": 25600, "sequence": 2048, "heads": 160})
    assert workload.blocks[0][0].flops() == 97_928_934_850_560
    total = workload.flops_per_sample() * workload.batch
    assert total == pytest.approx(3.85072240462e19, rel=1e-11)
    assert workload.training and workload.layers == 128 and workload.batch == 3072


def test_backward_weights_are_not_counted_as_parameters_again():
    w = build_workload("gpt_forward_backward")
    assert w.parameters == build_workload("gpt_forward").parameters == 128 * 12 * 25600**2


def test_parameters_of_the_file_can_be_replaced():
    block = layer("gpt_forward", hidden=12288, heads=96, sequence=1024)
    assert block.tensors["Q.weight"].dims == {"row": 12288, "col": 12288}
    assert block.tensors["Softmax.out"].dims == {"row": 96 * 1024, "col": 1024}
    assert build_workload("gpt_forward", {"layers": 5, "batch": 7, "dtype": "bf16"}).batch == 7
    with pytest.raises(InputError, match=r"workload\.hiden: unknown key \(did you mean 'hidden'\?\)"):
        build_workload("gpt_forward", {"hiden": 1})
    with pytest.raises(InputError, match=r"kernels\.Q\.m: must be a whole number .*'head_dim' = 3657\.14"):
        build_workload("gpt_forward", {"heads": 7})


def test_buffer_depth_level_of_the_reference():
    """FFN1's weight update reads GeLU's output 13 levels down (depth of its on-chip buffer)."""
    levels = layer("gpt_forward_backward").levels
    assert levels["FFN1_wu"] == 13 and levels["GeLU"] == 12 and levels["Loss_bwd"] == 0


def test_weight_gradients_are_the_six_updates():
    block = layer("gpt_forward_backward")
    gradients = {t for t, x in block.tensors.items() if x.role == "gradient"}
    assert gradients == {f"{k}_wu.out" for k in ("FFN1", "FFN0", "PROJ", "V", "K", "Q")}
    assert all(block.by_name[t.removesuffix(".out")].tiling == "k" for t in gradients)


def test_legal_divisions():
    """Heads must be divided where there are any, weights always, tiling dimensions never."""
    block = layer("gpt_forward_backward")
    names = {k.name: [s.name for s in k.strategies] for k in block.kernels}
    assert names["Q"] == names["Softmax"] == names["MHA_GEMM_2_bwd1"] == ["outer"]
    assert names["FFN0"] == names["V_bwd"] == ["m", "k"]
    assert names["GeLU"] == ["m", "none"]
    assert names["FFN1_wu"] == ["m", "n", "none"]


def communicated_bytes(block, chosen):
    """Bytes under an assignment kernel -> division: reductions of nodes plus changes of layout on edges."""
    strategy = {k.name: next(s for s in k.strategies if s.name == chosen[k.name]) for k in block.kernels}
    total = 0.0
    for k in block.kernels:
        if strategy[k.name].reduce_outputs:
            total += block.tensors[k.outputs[0].tensor].bytes
    for e in block.edges:
        consumer = block.by_name[e.consumer]
        position = [o.tensor for o in consumer.inputs].index(e.tensor)
        given, needed = strategy[e.producer].gives[0], strategy[e.consumer].needs[position]
        if given != needed and given != REPLICATED:
            total += block.tensors[e.tensor].bytes
    return total


def megatron(block):
    """The sharding the original's solver logs: heads, columns then rows of the FFN, hidden kept whole."""
    chosen = {}
    for k in block.kernels:
        legal = [s.name for s in k.strategies]
        if legal == ["outer"]:
            chosen[k.name] = "outer"
        elif k.name in ("PROJ", "FFN1", "FFN0_bwd", "V_bwd"):
            chosen[k.name] = "k"
        elif k.name in ("FFN0", "GeLU", "FFN1_bwd", "GeLU_bwd", "PROJ_bwd") or k.name.endswith("_wu"):
            chosen[k.name] = "m"
        else:
            chosen[k.name] = "none"
    return chosen


@pytest.mark.parametrize(
    ("name", "sizes", "expected"),
    [
        ("gpt_forward_backward", {}, 419_430_400),
        ("gpt_forward", {"hidden": 12288, "heads": 96, "sequence": 2048}, 100_663_296),
    ],
)
def test_megatron_sharding_costs_what_the_original_logs(name, sizes, expected):
    block = layer(name, **sizes)
    assert communicated_bytes(block, megatron(block)) == expected


def test_one_changed_division_never_beats_megatron():
    """The logged optimum is at least a local one under the tables (ties exist)."""
    block = layer("gpt_forward_backward")
    chosen = megatron(block)
    best = communicated_bytes(block, chosen)
    for k in block.kernels:
        for s in k.strategies:
            assert communicated_bytes(block, {**chosen, k.name: s.name}) >= best


#: Kernel of the derived graph -> kernel of the catalog graph that does the same work.
SAME_WORK = {
    "norm1": "LayerNorm_1", "q": "Q", "k": "K", "v": "V", "scores": "MHA_GEMM_1", "softmax": "Softmax",
    "softmax_dropout": "DropOut_1", "context": "MHA_GEMM_2", "projection": "PROJ",
    "projection_dropout": "DropOut_2", "residual1": "Add_1", "norm2": "LayerNorm_2", "ffn_up": "FFN0",
    "activation": "GeLU", "ffn_down": "FFN1", "ffn_dropout": "DropOut_3", "residual2": "Add_2",
    "ffn_dropout_backward": "DropOut_3_bwd", "ffn_down_dgrad": "FFN1_bwd", "activation_backward": "GeLU_bwd",
    "ffn_up_dgrad": "FFN0_bwd", "norm2_backward": "LayerNorm_2_bwd",
    "projection_dropout_backward": "DropOut_2_bwd", "projection_dgrad": "PROJ_bwd",
    "context_dgrad_softmax_dropout_out": "MHA_GEMM_2_bwd1", "context_dgrad_v_out": "MHA_GEMM_2_bwd2",
    "v_dgrad": "V_bwd", "softmax_dropout_backward": "DropOut_1_bwd", "softmax_backward": "Softmax_bwd",
    "scores_dgrad_q_out": "MHA_GEMM_1_bwd1", "scores_dgrad_k_out": "MHA_GEMM_1_bwd2", "q_dgrad": "Q_bwd",
    "k_dgrad": "K_bwd", "ffn_down_wgrad": "FFN1_wu", "ffn_up_wgrad": "FFN0_wu", "projection_wgrad": "PROJ_wu",
    "v_wgrad": "V_wu", "k_wgrad": "K_wu", "q_wgrad": "Q_wu",
}  # fmt: skip


def test_differences_from_what_differentiation_gives():
    """The catalog graph leaves out gradients and saved operands that the rule derives; this is the list."""
    catalog = layer("gpt_forward_backward", hidden=64, heads=4, sequence=8)
    sizes = {"layers": 1, "hidden": 64, "heads": 4, "ffn": 256, "vocabulary": 32, "max_sequence": 8}
    derived = build_workload("llm", {"model": "gpt3_1t", **sizes}).blocks[1][0]

    assert {k.name for k in derived.kernels} - SAME_WORK.keys() == {
        "sum_d_residual1_out", "sum_d_norm1_out", "norm1_backward", "sum_d_x",
    }  # fmt: skip
    assert {k.name for k in catalog.kernels} - set(SAME_WORK.values()) == {"Add_Prev", "Loss_bwd"}

    ours = {
        (SAME_WORK[e.producer], SAME_WORK[e.consumer])
        for e in derived.edges
        if e.producer in SAME_WORK and e.consumer in SAME_WORK
    }
    theirs = {(e.producer, e.consumer) for e in catalog.edges}
    outside = {"Add_Prev", "Loss_bwd"}
    assert {e for e in theirs - ours if not outside & set(e)} == {
        ("LayerNorm_2_bwd", "DropOut_2_bwd"),  # without the residual's share of the gradient
    }
    assert ours - theirs == {
        ("FFN0", "GeLU_bwd"), ("Add_1", "LayerNorm_2_bwd"), ("Softmax", "Softmax_bwd"),  # saved operands
        # masks
        ("DropOut_1", "DropOut_1_bwd"), ("DropOut_2", "DropOut_2_bwd"), ("DropOut_3", "DropOut_3_bwd"),
    }  # fmt: skip
    # no gradient of the sum of Q, K and V: their backward kernels are sinks
    assert {"Q_bwd.out", "K_bwd.out", "V_bwd.out"} <= set(catalog.outputs)
    # Q and K stay per head, V is the true dgrad over all heads; the loss reads no forward output
    assert [s.name for s in catalog.by_name["Q_bwd"].strategies] == ["outer"]
    assert [s.name for s in catalog.by_name["V_bwd"].strategies] == ["m", "k"]
    assert catalog.by_name["Loss_bwd"].inputs == () and "Add_2.out" in catalog.outputs
    # the GEMM work is the same
    assert catalog.flops("matrix") == derived.flops("matrix")


def test_decode_graph_streams_weights_and_caches():
    block = layer("gpt_decode", hidden=4096, heads=32, window=1024, tp=2)
    assert block.by_name["Q"].extra_bytes == 2 * 4096 * 4096 / 2
    assert block.by_name["K_cache"].extra_bytes == 2 * 4096 * 1024 / 2
    assert block.by_name["K_cache"].unit == "matrix"
    assert block.tensors["MHA_GEMM_1.out"].dims == {"row": 32, "col": 1025}


def test_every_problem_of_a_file_at_once():
    data = {
        "name": "bad", "form": "matrix", "dtype": "fp17", "parameters": {"n": 4},
        "kernels": {
            "a": {"kind": "elementwise", "m": "2*x", "n": "n", "k": 3},
            "b": {"kind": "gemm_weight", "m": "n/3", "k": "__import__('os')", "n": "n"},
        },
        "edges": [["a", "c"], ["a", "b"], ["a", "b"]],
    }  # fmt: skip
    with pytest.raises(InputError) as error:
        matrix_workload(data, "bad.yaml", {})
    text = str(error.value)
    for part in (
        "bad.yaml: dtype: unknown number format 'fp17'",
        "bad.yaml: kernels.a.m: '2*x': unknown name 'x'",
        "bad.yaml: kernels.a.k: an elementwise kernel has no k",
        "bad.yaml: kernels.b.m: must be a whole number of at least 1, got 'n/3' = 1.33333",
        "only whole numbers, names and + - * /",
        "bad.yaml: edges.0: unknown kernel 'c'",
        "bad.yaml: edges.2: a -> b is given twice",
    ):
        assert part in text


def test_a_cycle_names_its_kernels():
    data = {
        "name": "loop", "form": "matrix",
        "kernels": {k: {"kind": "elementwise", "m": 2, "n": 2} for k in "abc"},
        "edges": [["a", "b"], ["b", "c"], ["c", "a"]],
    }  # fmt: skip
    with pytest.raises(InputError, match=r"cycle: .*a.*b.*c"):
        matrix_workload(data, "loop.yaml", {})


def test_a_kernel_that_cannot_be_divided_is_refused():
    data = {
        "name": "x",
        "form": "matrix",
        "kernels": {"w": {"kind": "gemm_weight", "m": 1, "k": 1, "n": 8, "tiling": "n"}},
    }
    with pytest.raises(InputError, match=r"kernels\.w: no dimension can be divided"):
        matrix_workload(data, "x.yaml", {})
