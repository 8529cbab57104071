"""Decoder-only language models as workloads: embedding, decoder layers, head, with their backward pass.

Layer structure: Vaswani et al. 2017 with pre-normalisation (GPT-2/3; Megatron-LM, arXiv 1909.08053) and, as
data of the model file, grouped-query attention (arXiv 2305.13245), gated FFN (arXiv 2002.05202), RMSNorm and
rotary positions (Llama). Attention covers the full sequence x sequence square.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dfmodel.catalog_files import Dirs, find, load_yaml, validated
from dfmodel.errors import InputError
from dfmodel.workloads import layers
from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.differentiate import with_backward
from dfmodel.workloads.graph import BATCH, Block, Workload
from dfmodel.workloads.layers import HIDDEN, VECTOR_FLOPS
from dfmodel.workloads.model_file import PositiveInt, PrintedCount, is_count, run_problems

#: Sequence length of a model file that states no `max_sequence`.
DEFAULT_SEQUENCE = 2048


class LlmModel(BaseModel):
    """A decoder-only model. Sizes are counts; `ffn` is the inner width (of each half when gated)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt = Field(description="key/value heads; default: heads")
    head_dim: PositiveInt = Field(description="width of one head; default: hidden / heads")
    ffn: PositiveInt
    gated_ffn: bool = False
    activation: Literal["gelu", "silu"] = "gelu"
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    biases: bool = Field(True, description="biases on every linear layer but the logits")
    positions: Literal["learned", "rope", "none"] = "learned"
    vocabulary: PositiveInt
    max_sequence: PositiveInt | None = Field(
        None, description="sequence length of training; learned positions have one row for each token of it"
    )
    tied_embeddings: bool = Field(True, description="the logits use the embedding table")
    dropout: bool = Field(False, description="dropout after embedding, softmax, attention and FFN in training")
    parameters: PrintedCount | None = None
    sources: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _fill_head_defaults(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        filled = dict(data)
        heads, hidden = filled.get("heads"), filled.get("hidden")
        # 1 stands in where `heads` or `hidden` itself is at fault, so that only that fault is reported
        filled.setdefault("kv_heads", heads if is_count(heads) else 1)
        if "head_dim" not in filled:
            filled["head_dim"] = _head_dim(hidden, heads)
        return filled

    @model_validator(mode="after")
    def _check_heads_and_positions(self) -> LlmModel:
        if self.heads % self.kv_heads:
            raise ValueError(f"heads = {self.heads} must be a multiple of kv_heads = {self.kv_heads}")
        if self.positions == "learned" and self.max_sequence is None:
            raise ValueError("max_sequence is missing; learned positions need it")
        return self

    @property
    def default_sequence(self) -> int:
        return self.max_sequence or DEFAULT_SEQUENCE


def _head_dim(hidden: object, heads: object) -> int | str:
    """hidden / heads, or a text that the schema refuses and shows when that is no whole number."""
    if not (is_count(hidden) and is_count(heads)):
        return 1
    return hidden // heads if hidden % heads == 0 else f"hidden / heads = {hidden} / {heads}; give head_dim"


def load_model(name: str, dirs: Dirs = (), overrides: Mapping[str, object] | None = None) -> LlmModel:
    """The model of catalog name or path `name`, with fields replaced by `overrides`.

    Raises InputError with every problem of the file at once, UnknownNameError for an unknown name.
    """
    path = find("models", name, dirs)
    return validated(LlmModel, {**load_yaml(path), **(overrides or {})}, str(path))


def llm_workload(
    model: LlmModel,
    *,
    sequence: int,
    batch: int,
    training: bool = True,
    dtype: str = "bf16",
    fused_attention: bool = False,
    separate_loss: bool = False,
) -> Workload:
    """Training (forward + backward) or a forward pass of `model` on `batch` sequences of `sequence` tokens.

    Blocks are per micro-batch of one sequence. A forward-only workload has no dropout and ends at the logits.
    `fused_attention` makes scores, softmax, dropout and context one kernel that keeps scores on chip and computes them
    again in the backward pass (Dao et al., arXiv 2205.14135). `separate_loss` computes log-probabilities and the loss
    as two kernels, as frameworks do without a fused one. Raises InputError naming every setting that does not fit.
    """
    problems = run_problems(sequence, batch, dtype)
    if not problems and model.positions == "learned" and sequence > (model.max_sequence or 0):
        problems.append(
            f"workload.sequence: {sequence} is longer than the {model.max_sequence} learned positions of "
            f"'{model.name}'; raise workload.max_sequence too"
        )
    if problems:
        raise InputError(problems)

    layer = _LlmGraph(model, sequence, dtype, training, fused_attention, separate_loss)
    blocks = [(layer.embedding(), 1), (layer.decoder(), model.layers), (layer.head(), 1)]
    if training:
        blocks = [(with_backward(block), count) for block, count in blocks]
    table = model.vocabulary * model.hidden
    return Workload(
        name="llm",
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
            "attention": "fused" if fused_attention else "separate",
            **model.model_dump(exclude={"name", "title", "parameters", "sources"}),
        },
        shared_parameters=table if model.tied_embeddings else 0,
    )


class _LlmGraph:
    """Builds the blocks of one model; a new `_Blocks` collects kernels and tensors of each."""

    def __init__(
        self,
        model: LlmModel,
        sequence: int,
        dtype: str,
        training: bool,
        fused_attention: bool,
        separate_loss: bool,
    ) -> None:
        self.model = model
        self.separate_loss = separate_loss
        self.fused_attention = fused_attention
        self.dtype = dtype
        self.training = training
        self.extents = {
            BATCH: 1,
            "token": sequence,
            "key": sequence,
            "hidden": model.hidden,
            "group": model.kv_heads,
            "rep": model.heads // model.kv_heads,
            "feature": model.head_dim,
            "ffn": model.ffn,
            "vocabulary": model.vocabulary,
            "position": model.max_sequence or sequence,
        }

    def embedding(self) -> Block:
        """Rows of the token table, plus rows of the position table when positions are learned."""
        g = BlockBuilder("embedding", self.extents, self.dtype)
        embedded = layers.embedding(g, learned_positions=self.model.positions == "learned")
        return g.block(self._dropout(g, "embedding_dropout", embedded, HIDDEN))

    def decoder(self) -> Block:
        """One decoder layer: attention and FFN, each with its norm before and its residual add after."""
        g = BlockBuilder("decoder", self.extents, self.dtype)
        g.input("x", HIDDEN)
        self._norm(g, "norm1", "x")
        self._attention(g, "norm1_out")
        attended = self._dropout(g, "projection_dropout", "projected", HIDDEN)
        layers.residual(g, "residual1", "x", attended)
        self._norm(g, "norm2", "residual1_out")
        self._ffn(g, "norm2_out")
        fed = self._dropout(g, "ffn_dropout", "ffn_out", HIDDEN)
        layers.residual(g, "residual2", "residual1_out", fed)
        return g.block("residual2_out")

    def head(self) -> Block:
        """Final norm and logits; in training also the loss of every token."""
        g = BlockBuilder("head", self.extents, self.dtype)
        return layers.head(g, self.model.norm, self.training, self.separate_loss)

    def _attention(self, g: BlockBuilder, source: str) -> None:
        """Projections, scores, softmax, context and output projection; heads are (group, rep) pairs."""
        q, kv, square = (
            "batch group rep token feature",
            "batch group token feature",
            "batch group rep token key",
        )
        keys = "batch group key feature"
        self._linear(g, "q", source, HIDDEN, "hidden group rep feature", q)
        self._linear(g, "k", source, HIDDEN, "hidden group feature", kv)
        self._linear(g, "v", source, HIDDEN, "hidden group feature", kv)
        query, key = "q_out", "k_out"
        if self.model.positions == "rope":
            query, key = self._rope(g, "rope_q", query, q), self._rope(g, "rope_k", key, kv)
        if self.fused_attention:
            self._fused(g, {query: q, key: keys, "v_out": keys}, q)
        else:
            self._separate(g, query, key, q, keys, square)
        self._linear(g, "projection", "context_out", q, "group rep feature hidden", HIDDEN, output="projected")

    def _fused(self, g: BlockBuilder, inputs: Mapping[str, str], q: str) -> None:
        """Attention as one kernel: two products forward; five backward, one of them the scores again.

        It keeps a statistic per query and the seed of its dropout, not the scores or their mask; its softmax is hidden
        behind the products.
        """
        g.kernel(
            "attention",
            inputs,
            {"context_out": q, "attention_statistics": "batch group rep token"},
            "matrix",
            4.0,
            op="attention",
            dtypes={"attention_statistics": "fp32"},
            unsplittable=frozenset({"key", "feature"}),
            saves="both",
            backward_flops_per_point=10.0,
            backward_repeated_flops_per_point=2.0,
        )

    def _separate(self, g: BlockBuilder, query: str, key: str, q: str, keys: str, square: str) -> None:
        """Attention as its products, softmax and dropout, each a kernel of its own."""
        g.kernel("scores", {query: q, key: keys}, {"scores_out": square}, "matrix", 2.0)
        g.kernel(
            "softmax",
            {"scores_out": square},
            {"softmax_out": square},
            "vector",
            VECTOR_FLOPS["softmax"],
            op="softmax",
            unsplittable=frozenset({"key"}),
            saves="output",
        )
        weights = self._dropout(g, "softmax_dropout", "softmax_out", square)
        g.kernel("context", {weights: square, "v_out": keys}, {"context_out": q}, "matrix", 2.0)

    def _ffn(self, g: BlockBuilder, source: str) -> None:
        inner = "batch token ffn"
        activation = self.model.activation
        self._linear(g, "ffn_up", source, HIDDEN, "hidden ffn", inner)
        if self.model.gated_ffn:
            self._linear(g, "ffn_gate", source, HIDDEN, "hidden ffn", inner)
            g.kernel(
                "activation",
                {"ffn_gate_out": inner, "ffn_up_out": inner},
                {"activation_out": inner},
                "vector",
                VECTOR_FLOPS[activation] + VECTOR_FLOPS["gate"],
                op=f"{activation}_gate",
            )
        else:
            g.kernel(
                "activation",
                {"ffn_up_out": inner},
                {"activation_out": inner},
                "vector",
                VECTOR_FLOPS[activation],
                op=activation,
            )
        self._linear(g, "ffn_down", "activation_out", inner, "ffn hidden", HIDDEN, output="ffn_out")

    def _linear(
        self, g: BlockBuilder, name: str, source: str, walk: str, weight: str, result: str, output: str = ""
    ) -> None:
        layers.linear(g, name, source, walk, weight, result, output, bias=self.model.biases)

    def _norm(self, g: BlockBuilder, name: str, source: str) -> None:
        layers.norm(g, name, source, self.model.norm)

    def _rope(self, g: BlockBuilder, name: str, source: str, walk: str) -> str:
        """Rotation of pairs of features by known angles; the backward pass rotates back, nothing is saved."""
        g.kernel(
            name,
            {source: walk},
            {f"{name}_out": walk},
            "vector",
            VECTOR_FLOPS["rope"],
            op="rope",
            unsplittable=frozenset({"feature"}),
            saves="nothing",
            backward_flops_per_point=VECTOR_FLOPS["rope"],
        )
        return f"{name}_out"

    def _dropout(self, g: BlockBuilder, name: str, source: str, walk: str) -> str:
        """Dropout with a one-byte mask kept for the backward pass; nothing when the model has none."""
        if not (self.model.dropout and self.training):
            return source
        g.kernel(
            name,
            {source: walk},
            {f"{name}_out": walk, f"{name}_mask": walk},
            "vector",
            VECTOR_FLOPS["dropout"],
            op="dropout",
            saves="mask",
            backward_flops_per_point=1.0,
            dtypes={f"{name}_mask": "uint8"},
        )
        return f"{name}_out"
