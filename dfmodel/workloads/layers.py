"""Layers that several kinds of language models share: embedding, linear layers, norms, residual adds, head."""

from __future__ import annotations

from dfmodel.workloads.block_builder import BlockBuilder
from dfmodel.workloads.graph import Block

#: FLOP per element of the vector operations (exp, tanh and division counted as one each).
VECTOR_FLOPS: dict[str, float] = {
    "layernorm": 7.0,  # sum 1, centre 1, square and add 2, normalise 1, gain 1, shift 1
    "rmsnorm": 4.0,  # square and add 2, normalise 1, gain 1
    "softmax": 5.0,  # maximum 1, subtract 1, exp 1, sum 1, divide 1
    "gelu": 9.0,  # 0.5 x (1 + tanh(c (x + k x^3)))
    "silu": 3.0,  # exp 1, add 1, divide 1
    "gate": 1.0,  # product with the other half of a gated FFN
    "dropout": 2.0,  # compare 1, scale 1
    "rope": 3.0,  # two products and a sum per element
    "residual": 1.0,
    "cross_entropy": 4.0,  # maximum 1, subtract 1, exp 1, sum 1; per token work neglected
}

#: Dims of a hidden activation.
HIDDEN = "batch token hidden"


def embedding(g: BlockBuilder, learned_positions: bool) -> str:
    """Rows of the token table, plus rows of the position table when positions are learned; the result's name."""
    g.input("ids", "batch token", "int32")
    operands = {
        "ids": "batch token",
        g.weight("w_embedding", "vocabulary hidden", "table"): "vocabulary hidden",
    }
    gathered = {"vocabulary"}
    if learned_positions:
        operands[g.weight("w_positions", "position hidden", "table")] = "position hidden"
        gathered.add("position")
    g.kernel(
        "embedding",
        operands,
        {"embedded": HIDDEN},
        "vector",
        len(gathered) - 1.0,
        op="gather",
        gathered=frozenset(gathered),
        backward_flops_per_point=float(len(gathered)),
    )
    return "embedded"


def head(g: BlockBuilder, kind: str, training: bool, separate_loss: bool = False) -> Block:
    """Final norm (`kind`) and logits; in training also the loss of every token.

    Logits are kept in 32 bits (Korthikanti et al., arXiv 2205.05198, section 4.3).
    """
    g.input("x", HIDDEN)
    norm(g, "final_norm", "x", kind)
    w = g.weight("w_output", "hidden vocabulary")
    logits = "batch token vocabulary"
    g.kernel(
        "logits",
        {"final_norm_out": HIDDEN, w: "hidden vocabulary"},
        {"logits_out": logits},
        "matrix",
        2.0,
        dtypes={"logits_out": "fp32"},
    )
    if not training:
        return g.block("logits_out")
    scored = "logits_out"
    if separate_loss:
        scored = "log_probabilities"
        g.kernel(
            "log_softmax",
            {"logits_out": logits},
            {scored: logits},
            "vector",
            VECTOR_FLOPS["softmax"],
            op="softmax",
            unsplittable=frozenset({"vocabulary"}),
            saves="output",
            dtypes={scored: "fp32"},
        )
    g.input("labels", "batch token", "int32")
    g.kernel(
        "loss",
        {scored: logits, "labels": "batch token"},
        {"loss_out": "batch token"},
        "vector",
        VECTOR_FLOPS["cross_entropy"],
        op="cross_entropy",
        dtypes={"loss_out": "fp32"},
    )
    return g.block("loss_out")


def linear(
    g: BlockBuilder, name: str, source: str, walk: str, weight: str, result: str, output: str = "", bias: bool = False
) -> None:
    """A weight GEMM; its bias has the dims of the weight that the result keeps."""
    operands = {source: walk, g.weight(f"w_{name}", weight): weight}
    added: tuple[str, ...] = ()
    if bias:
        kept = " ".join(d for d in weight.split() if d in result.split())
        operands[g.weight(f"b_{name}", kept)] = kept
        added = (f"b_{name}",)
    g.kernel(name, operands, {output or f"{name}_out": result}, "matrix", 2.0, added=added)


def norm(g: BlockBuilder, name: str, source: str, kind: str) -> None:
    """A layernorm or rmsnorm of a hidden activation."""
    operands = {source: HIDDEN, g.weight(f"{name}_gain", "hidden"): "hidden"}
    if kind == "layernorm":
        operands[g.weight(f"{name}_shift", "hidden")] = "hidden"
    g.kernel(
        name,
        operands,
        {f"{name}_out": HIDDEN},
        "vector",
        VECTOR_FLOPS[kind],
        op=kind,
        unsplittable=frozenset({"hidden"}),
    )


def residual(g: BlockBuilder, name: str, carried: str, branch: str) -> None:
    g.kernel(
        name,
        {carried: HIDDEN, branch: HIDDEN},
        {f"{name}_out": HIDDEN},
        "vector",
        VECTOR_FLOPS["residual"],
        op="sum",
        linear=True,
    )
