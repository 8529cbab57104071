"""What Mamba and Hyena models have in common: model fields, the short convolution, embedding and head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field

from dfmodel.errors import InputError
from dfmodel.workloads import layers
from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.differentiate import with_backward
from dfmodel.workloads.graph import BATCH, Block, Workload
from dfmodel.workloads.layers import VECTOR_FLOPS
from dfmodel.workloads.model_file import PositiveInt, PrintedCount, run_problems

#: An activation of the inner width.
CHANNELS = "batch token channel"


class SequenceModel(BaseModel):
    """Fields of every model whose blocks mix tokens without attention; sizes are counts."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    layers: PositiveInt
    hidden: PositiveInt
    taps: PositiveInt = Field(description="width of the short causal convolution")
    vocabulary: PositiveInt
    max_sequence: PositiveInt = Field(2048, description="sequence length of training")
    tied_embeddings: bool = Field(True, description="the logits use the embedding table")
    parameters: PrintedCount | None = None
    sources: tuple[str, ...] = ()

    @property
    def default_sequence(self) -> int:
        return self.max_sequence


def sequence_workload(
    name: str,
    model: SequenceModel,
    norm: str,
    extents: Mapping[str, int],
    block: Callable[[BlockBuilder], Block],
    *,
    sequence: int,
    batch: int,
    training: bool,
    dtype: str,
    facts: Mapping[str, object],
) -> Workload:
    """Embedding, `model.layers` of `block` and head, with their backward pass in training.

    `extents` are those of the block's own dimensions. Raises InputError naming every setting that does not fit.
    """
    problems = run_problems(sequence, batch, dtype)
    if problems:
        raise InputError(problems)
    every = {BATCH: 1, "token": sequence, "hidden": model.hidden, "vocabulary": model.vocabulary, **extents}
    first = BlockBuilder("embedding", every, dtype)
    ends = first.block(layers.embedding(first, learned_positions=False))
    head = layers.head(BlockBuilder("head", every, dtype), norm, training)
    blocks = [(ends, 1), (block(BlockBuilder(name, every, dtype)), model.layers), (head, 1)]
    if training:
        blocks = [(with_backward(b), count) for b, count in blocks]
    return Workload(
        name=name,
        title=f"{model.title or model.name} {'training' if training else 'forward'}",
        blocks=tuple(blocks),
        batch=batch,
        unit="token",
        units_per_sample=sequence,
        training=training,
        dtype=dtype,
        facts={
            "model": model.name,
            "sequence": sequence,
            **facts,
            **model.model_dump(exclude={"name", "title", "kind", "parameters", "sources"}),
        },
        shared_parameters=model.vocabulary * model.hidden if model.tied_embeddings else 0,
    )


def short_convolution(
    g: BlockBuilder, name: str, source: str, results: Sequence[str], activation: str | None, branches: bool = False
) -> list[str]:
    """A causal convolution of each channel over `tap` tokens, with bias and activation; the names of its results.

    With `branches` the source has a dimension of that name, and each branch is a result of its own. The backward pass
    makes the gradients of data and taps, and what the activation had as operand again.
    """
    after = VECTOR_FLOPS[activation] if activation else 0.0
    taps = g.extents["tap"]
    again = 2.0 if activation else 0.0
    own = "branch channel" if branches else "channel"
    g.kernel(
        name,
        {
            source: f"batch token {own}",
            g.weight(f"w_{name}", f"{own} tap"): f"{own} tap",
            g.weight(f"b_{name}", own): own,
        },
        dict.fromkeys(results, CHANNELS),
        "vector",
        2.0 + (1.0 + after) / taps,
        op="convolution",
        unsplittable=frozenset({"token", "tap", "branch"} if branches else {"token", "tap"}),
        backward_flops_per_point=4.0 + again + (1.0 + 2.0 * after) / taps,
        backward_repeated_flops_per_point=again,
    )
    return list(results)
