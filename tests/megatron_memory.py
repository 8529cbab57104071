"""Korthikanti et al. (MLSys 2023, arXiv 2205.05198): their models, closed forms, and the same bytes from our graphs."""

from __future__ import annotations

from dataclasses import dataclass

from dfmodel.assumptions import MemoryAssumptions
from dfmodel.mapping.block_costs import BlockCosts, block_costs
from dfmodel.mapping.build import build_sharding_problem, fused_assignment
from dfmodel.mapping.context import Context
from dfmodel.mapping.evaluate import BlockEvaluator
from dfmodel.mapping.footprint import stage_footprint, tiers_of
from dfmodel.mapping.mapper import strategies_of
from dfmodel.mapping.plan import Plan
from dfmodel.mapping.sharding_mip import solve_sharding
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.network import place
from dfmodel.workloads.registry import build_workload

GIB = 2**30


@dataclass(frozen=True)
class Case:
    """A model on tensor x pipeline stages with chunks, micro-batch, and what the paper states, in GiB."""

    model: str
    heads: int
    hidden: int
    layers: int
    micro_batch: int
    pipeline: int
    chunks: int
    state: float
    none: float
    selective: float

    tensor: int = 8
    sequence: int = 2048

    @property
    def name(self) -> str:
        return self.model

    @property
    def factor(self) -> float:
        """Layers in flight on the first stage, over the layers of the model."""
        return 1 + (self.pipeline - 1) / (self.pipeline * self.chunks) if self.chunks > 1 else 1.0

    def closed_state(self) -> float:
        """18 bytes of 12 h^2 parameters per layer."""
        return 18 * 12 * self.hidden**2 * self.layers / (self.tensor * self.pipeline) / GIB

    def closed_activations(self, mode: str, sequence_parallel: bool) -> float:
        """Equations 2 to 6 of the paper, first stage."""
        t, sbh = self.tensor, self.sequence * self.micro_batch * self.hidden
        core = 5 * self.heads * self.sequence / self.hidden if mode == "none" else 0.0
        if mode == "full":
            per_layer = sbh * 2.0
        elif sequence_parallel:
            per_layer = sbh / t * (34 + core)
        else:
            per_layer = sbh * (10 + 24 / t + core / t)
        return per_layer * self.layers * self.factor / GIB


CASES = (
    Case("megatron_22b", 64, 6144, 48, 4, 1, 1, 45.5625, 59.25, 9.5625),
    Case("gpt3_175b", 96, 12288, 96, 1, 8, 3, 45.5625, 66.84375, 12.3515625),
    Case("megatron_530b", 128, 20480, 105, 1, 35, 3, 31.640625, 114.0234375, 23.076171875),
    Case("megatron_1t", 160, 25600, 128, 1, 64, 1, 32.958984375, 131.25, 26.5625),
)


def costs_of(case: Case, mode: str, sequence_parallel: bool) -> list[BlockCosts]:
    """Embedding, layer and head under Megatron's sharding: elementwise work whole, or divided along the sequence."""
    system = load_system("dgx_a100")
    workload = build_workload("llm", {"model": case.model, "sequence": case.sequence, "dropout": True})
    group = place([("tensor", (case.tensor, 1))], system.dimensions)["tensor"]
    context = Context(
        system, load_assumptions("default", {"sharding.objective": "bytes"}), "bf16", group, sequence_parallel
    )
    found = []
    for block, _ in workload.blocks:
        own = block.at_batch(case.micro_batch)
        divided = [k for k in own.kernels if k.unit == "vector" and {"hidden", "token"} <= set(k.dims)]
        pins = {k.name: "token" for k in divided} if sequence_parallel and own.name == "decoder" else {}
        if own.name == "embedding":
            pins = {"embedding": "vocabulary", "embedding_backward": "vocabulary"}
        sharding, _ = solve_sharding(build_sharding_problem(own, context, pins))
        evaluator = BlockEvaluator(own, strategies_of(sharding), context)
        evaluation = evaluator.evaluate(fused_assignment(evaluator))
        found.append(block_costs(evaluator, evaluation, mode, True))
    return found


def first_stage(case: Case, mode: str, sequence_parallel: bool, with_embedding: bool) -> dict[str, float]:
    """Bytes of the first stage by category, the embedding counted or not."""
    costs = costs_of(case, mode, sequence_parallel)
    system = load_system("dgx_a100", {"nodes": case.pipeline})
    factors = ((case.tensor, 1), (1, 1), (1, 1), (1, case.pipeline))
    schedule = "interleaved" if case.chunks > 1 else "1f1b"
    plan = Plan(system, factors, sequence_parallel, case.micro_batch, 8 * case.pipeline, mode, schedule, case.chunks)
    counts = [int(with_embedding), case.layers // case.pipeline, 0]
    memory = MemoryAssumptions()
    held = stage_footprint(costs, counts, 0, plan, memory, tiers_of(system.chip, 1.0, 0.0), True)
    return held.categories
