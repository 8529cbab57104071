"""What software stacks hide, divide or leave unfused: each choice changes the one thing it says."""

from __future__ import annotations

import pytest

import dfmodel
from dfmodel.mapping.result import Result
from dfmodel.workloads.llm import llm_workload, load_model

SMALL = {
    "workload.layers": 8, "workload.hidden": 2048, "workload.heads": 16, "workload.ffn": 8192, "workload.batch": 32,
    "system.nodes": 2, "plan.tensor": 8, "plan.pipeline": 2, "plan.data": 1, "plan.micro_batch": 1,
    "plan.recompute": "none", "plan.zero": 0, "plan.placement": {"tensor": {"nvlink": 8}},
}  # fmt: skip


def _run(**settings: object) -> Result:
    return dfmodel.optimize(settings={**SMALL, **{k.replace("__", "."): v for k, v in settings.items()}})


def test_overlapped_tensor_communication_leaves_one_piece() -> None:
    """With the sharding pinned by both runs alike, eight pieces leave an eighth exposed."""
    plain = _run(plan__sequence_sharding=True)
    hidden = _run(plan__sequence_sharding=True, assumptions__partitions__tensor_overlap=True)
    assert hidden.objective < plain.objective
    shown = "tensor-parallel communication"
    assert hidden.breakdown_s[shown] <= plain.breakdown_s[shown] / 8 * 1.5


def test_sends_between_interleaved_stages_may_hide() -> None:
    chunks = {"plan__schedule": "interleaved", "plan__chunks": 2}
    plain, hidden = _run(**chunks), _run(**chunks, assumptions__iteration__hide_sends=True)
    assert plain.breakdown_s["pipeline communication"] > 0
    assert hidden.breakdown_s["pipeline communication"] == 0
    still = _run(plan__schedule="1f1b", assumptions__iteration__hide_sends=True)
    assert still.breakdown_s["pipeline communication"] > 0


def test_what_every_chip_holds_is_sent_in_shares() -> None:
    """Whole activations on eight chips: an eighth each over the slow link and a gather over the fast one, not all."""
    r = _run(plan__sequence_sharding=False, plan__schedule="1f1b")
    message = 2048 * 2048 * 2
    whole = 2 * 32 * message / 50e9
    assert 0 < r.breakdown_s["pipeline communication"] < 0.6 * whole


def test_a_separate_loss_moves_more() -> None:
    """Log-probabilities are one more tensor of the logits' size, in 32 bits, with a kernel in either pass."""
    model = load_model("gpt3_1_5b")
    fused, separate = (
        llm_workload(model, sequence=256, batch=1, separate_loss=own).blocks[2][0] for own in (False, True)
    )
    assert set(separate.by_name) - set(fused.by_name) == {"log_softmax", "log_softmax_backward"}
    assert separate.tensors["log_probabilities"].bytes == 256 * model.vocabulary * 4


@pytest.mark.parametrize("most,found", [(2, {1, 2}), (8, {1, 2, 4})])
def test_chunks_are_tried_up_to_a_limit(most: int, found: set[int]) -> None:
    """Eight layers on two stages: four chunks per stage at most, fewer where asked."""
    r = dfmodel.optimize(settings={**SMALL, "plan.most_chunks": most, "plan.best": 20})
    assert {a["chunks"] for a in r.alternatives} == found
