"""Language models: parameter counts to a source's printed digit, FLOPs, saved bytes, and the registry."""

from decimal import Decimal

import pytest
import yaml

from dfmodel.catalog_files import list_names
from dfmodel.errors import InputError, UnknownNameError
from dfmodel.workloads.differentiate import saved_for_backward
from dfmodel.workloads.llm import LlmModel, llm_workload, load_model
from dfmodel.workloads.registry import build_workload, model_kind

MODELS = [name for name in list_names("models") if model_kind(name) == "llm"]

#: What the sources print, held here apart from the catalog so that an edited file is noticed.
PRINTED = {
    "gpt3_1_5b": "1,557,611,200",
    "gpt3_13b": "13 B",
    "gpt3_175b": "174.6 B",
    "gpt3_1t": "1008.0 B",
    "megatron_22b": "22 B",
    "megatron_530b": "529.6 B",
    "megatron_1t": "1008.0 B",
    "llama2_7b": "6,738,415,616",
    "llama2_70b": "68,976,648,192",
    "llama3_8b": "8,030,261,248",
    "llama3_70b": "70,553,706,496",
    "llama3_405b": "405,853,388,800",
}

TINY = {
    "name": "tiny", "layers": 2, "hidden": 8, "heads": 4, "ffn": 32, "vocabulary": 50, "max_sequence": 16,
    "dropout": True,
}  # fmt: skip


def as_printed(count, printed):
    """`count` rounded to the last digit that `printed` shows."""
    number, _, unit = printed.replace(",", "").partition(" ")
    scale = Decimal(10**9 if unit == "B" else 1)
    return (Decimal(count) / scale).quantize(Decimal(number)), Decimal(number)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_equal_the_cited_source_to_its_printed_digit(name):
    model = load_model(name)
    workload = llm_workload(model, sequence=model.default_sequence, batch=1)
    assert model.parameters is not None and model.parameters.printed == PRINTED[name]
    counted, printed = as_printed(workload.parameters, PRINTED[name])
    assert counted == printed
    assert model.parameters.source and model.sources


def test_every_model_file_has_a_printed_count_here():
    assert set(MODELS) == set(PRINTED)


@pytest.mark.parametrize("name", ["gpt3_175b", "llama3_70b"])
def test_flops_follow_the_closed_form(name):
    """Matrix FLOP per sample: 6 per linear weight and token, and 12 s^2 a d per layer of attention."""
    m = load_model(name)
    s = m.default_sequence
    workload = build_workload(name)
    halves = 3 if m.gated_ffn else 2
    linear = m.hidden * m.head_dim * (2 * m.heads + 2 * m.kv_heads) + halves * m.hidden * m.ffn
    per_layer = 6 * s * linear + 12 * s * s * m.heads * m.head_dim
    assert workload.flops_per_sample("matrix") == m.layers * per_layer + 6 * s * m.hidden * m.vocabulary


def test_gpt3_flops_are_narayanan_s():
    """SC'21 equation 3 without recomputation: 72 B s l h^2 (1 + s/(6h) + V/(12 l h))."""
    s, layers, h, v = 2048, 96, 12288, 51200
    expected = 72 * s * layers * h**2 * (1 + s / (6 * h) + v / (12 * layers * h))
    assert build_workload("llm").flops_per_sample("matrix") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["gpt3_1_5b", "gpt3_175b", "megatron_530b"])
@pytest.mark.parametrize("batch", [1, 4])
def test_saved_activations_of_a_gpt_layer_are_korthikanti_s(name, batch):
    """34 s b h + 5 a s^2 b bytes per layer without recomputation (arXiv 2205.05198, equation 1)."""
    m = load_model(name)
    s = m.default_sequence
    layer = llm_workload(m, sequence=s, batch=1).blocks[1][0].at_batch(batch)
    saved = sum(layer.tensors[t].bytes for t in saved_for_backward(layer))
    assert saved == 34 * s * batch * m.hidden + 5 * m.heads * s * s * batch


def test_saved_activations_of_the_head_are_korthikanti_s():
    """4 s b h (1 + v/h): input of the norm and of the logits in 16 bits, logits in 32 (section 4.3)."""
    m = load_model("gpt3_175b")
    head = llm_workload(m, sequence=2048, batch=1).blocks[2][0]
    floats = [t for t in saved_for_backward(head) if head.tensors[t].dtype != "int32"]
    assert sum(head.tensors[t].bytes for t in floats) == 4 * 2048 * (m.hidden + m.vocabulary)


def test_grouped_query_attention_reads_keys_by_group():
    layer = build_workload("llama3_70b").blocks[1][0]
    assert layer.tensors["k_out"].dims == {"batch": 1, "group": 8, "token": 8192, "feature": 128}
    scores = layer.by_name["scores"]
    assert scores.dims["rep"] == 8 and scores.contracted == ("feature",)
    assert scores.inputs[1].dims == ("batch", "group", "key", "feature")
    assert layer.by_name["softmax"].unsplittable == {"key"}
    assert layer.by_name["activation_backward"].inputs[1:] == layer.by_name["activation"].inputs


def test_backward_of_the_decoder_has_the_gradients_that_megatron_reduces():
    """The input gradient of Q, K, V is one linear sum of three, the FFN's comes from one dgrad."""
    layer = build_workload("llm").blocks[1][0]
    total = layer.by_name["sum_d_norm1_out"]
    assert total.linear and len(total.inputs) == 3
    assert layer.producer["d_norm2_out"] == "ffn_up_dgrad"
    assert {"d_x", "residual2_out"} <= set(layer.outputs)
    assert all(k.tiling == "token" for k in layer.kernels)


def test_forward_mode_has_no_backward_no_dropout_and_no_loss():
    workload = build_workload("llm", {"mode": "forward"})
    kernels = [k for b, _ in workload.blocks for k in b.kernels]
    assert not workload.training
    assert {k.phase for k in kernels} == {"forward"}
    assert not [k for k in kernels if k.op in ("dropout", "cross_entropy")]
    assert workload.flops_per_sample("matrix") * 3 == build_workload("llm").flops_per_sample("matrix")


def test_default_workload_is_the_documented_one():
    w = build_workload("llm")
    assert (w.batch, w.units_per_sample, w.dtype, w.training, w.layers) == (1536, 2048, "bf16", True, 96)
    assert w.facts["model"] == "gpt3_175b" and w.facts["vocabulary"] == 51200


def test_overrides_reach_workload_and_model():
    given = {"model": "llama3_8b", "sequence": "4096", "batch": "32", "layers": 4, "dtype": "fp8"}
    w = build_workload("llm", given)
    assert (w.units_per_sample, w.batch, w.layers, w.dtype) == (4096, 32, 4, "fp8")
    assert "layers=4" in w.title
    assert build_workload("llama3_8b").parameters == 8_030_261_248


def test_a_user_s_own_model_file(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    for w in (build_workload("llm", {"model": str(path)}), build_workload(str(path))):
        # 12 h^2 + 13 h per layer, token and position tables, final norm
        assert w.parameters == 2 * (12 * 64 + 13 * 8) + (50 + 16) * 8 + 16
        assert w.units_per_sample == 16
    folder = tmp_path / "cat" / "models"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(yaml.safe_dump(TINY))
    assert build_workload("mine", dirs=[tmp_path / "cat"]).layers == 2


def test_every_problem_of_a_model_file_at_once(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**TINY, "layers": -1, "hiden": 4, "heads": 3, "norm": "batchnorm"}))
    with pytest.raises(InputError) as error:
        load_model(str(path))
    text = str(error.value)
    assert f"{path}: hiden: unknown key (did you mean 'hidden'?)" in text
    assert f"{path}: layers: " in text and "got -1" in text
    assert f"{path}: head_dim: " in text and "8 / 3" in text
    assert f"{path}: norm: " in text and "'rmsnorm'" in text
    assert len(error.value.problems) == 4


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sequense": 3}, r"workload\.sequense: unknown key \(did you mean 'sequence'\?\)"),
        ({"layrs": 3}, r"workload\.layrs: unknown key \(did you mean 'layers'\?\)"),
        ({"batch": 0}, r"workload: batch: .*got 0"),
        ({"batch": "nan"}, r"workload: batch: .*'nan'"),
        ({"mode": "train"}, r"workload\.mode: must be one of training, forward, got 'train'"),
        ({"sequence": 4096}, r"workload\.sequence: 4096 is longer than the 2048 learned positions"),
        ({"dtype": "bf61"}, r"workload\.dtype: unknown number format 'bf61' \(did you mean 'bf16'\?\)"),
        ({"model": "lama3_8b"}, r"unknown model 'lama3_8b' \(did you mean 'llama3_8b'\?\)"),
        ({"model": "./missing.yaml"}, r"\./missing\.yaml: no such file"),
        ({"model": "llama3_8b", "kv_heads": 5}, r"heads = 32 must be a multiple of kv_heads = 5"),
    ],
)
def test_bad_settings_are_named_with_the_mend(overrides, message):
    with pytest.raises(InputError, match=message):
        build_workload("llm", overrides)


def test_unknown_workload_names_the_nearest():
    with pytest.raises(UnknownNameError, match=r"unknown workload 'gpt_foward' .*'gpt_forward'"):
        build_workload("gpt_foward")


def test_tied_embeddings_count_once():
    tied = llm_workload(LlmModel(**TINY), sequence=16, batch=1)
    untied = llm_workload(LlmModel(**{**TINY, "tied_embeddings": False}), sequence=16, batch=1)
    assert untied.parameters - tied.parameters == 50 * 8
