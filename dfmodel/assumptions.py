"""The modelling choices, typed and documented: presets are data files, formulas never ask for a preset."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ComputeAssumptions(_Section):
    model: Literal["efficiency", "flat", "tiles"] = Field(
        "efficiency",
        description="efficiency: the chip's curve by size; flat: one share of the matrix peak for all work; "
        "tiles: cycles of the chip's compute tiles, with ceilings, shared among a partition's kernels",
    )
    stack: str | None = Field(
        None,
        description="software stack whose share of the matrix rate is used, by the name the chip's efficiency file has "
        "for it; null, or a name it does not have: the stack its rate was fitted to",
    )
    products: Literal["fp8", "fp4", "int8"] | None = Field(
        None,
        description="narrower format of matrix products, where activations, messages and fused attention stay in the "
        "workload's dtype (training in 8 bits); null: the workload's dtype",
    )
    utilisation: float = Field(0.9, gt=0, le=1, description="share of peak under `flat`")
    vector_at_matrix_rate: bool = Field(
        False,
        description="charge elementwise work at the matrix rate (the original) instead of the vector rate",
    )


class TrafficAssumptions(_Section):
    per: Literal["tensor", "edge"] = Field(
        "tensor",
        description="tensor: written once, read once per later partition that uses it; "
        "edge: written and read once for every consumer in another partition",
    )
    weights: bool = Field(True, description="weights cost memory traffic when a partition starts")
    block_boundary: bool = Field(True, description="a block's input is read from and its output written to memory")


class PartitionAssumptions(_Section):
    overlap: Literal["none", "compute_memory", "full"] = Field(
        "full",
        description="none: compute + memory + network; compute_memory: max(compute, memory) + network; "
        "full: the largest of the three. For dataflow chips; kernel-by-kernel chips use kernel_overlap",
    )
    kernel_overlap: Literal["none", "compute_memory", "full"] = Field(
        "compute_memory", description="the same for chips that run kernel by kernel"
    )
    tensor_overlap: bool = Field(
        False,
        description="kernel-by-kernel chips run tensor-parallel collectives in as many pieces as the group has chips, "
        "all but one behind the matrix kernels beside them (Megatron-Core's --tp-comm-overlap)",
    )
    fusion: bool = Field(True, description="kernel-by-kernel chips run their allowed fusions as one kernel")
    boundary_buffers: int = Field(2, ge=1, description="tile buffers per tensor that enters or leaves a partition")
    maximum: int = Field(64, ge=1, description="most partitions per block; `count` fixes the number instead")
    count: int | None = Field(None, ge=1, description="number of partitions; null: free up to `maximum`")
    halves: bool = Field(
        False, description="forward kernels in the first half of the partitions, backward ones in the second"
    )
    mixed_phases: bool = Field(
        False, description="let forward and backward kernels share a partition (the original's single partition)"
    )
    same_runs: bool = Field(
        False, description="only kernels that run equally often share a partition (the original's rule)"
    )
    tiles: int | None = Field(
        None, ge=1, description="tiles a sequence is streamed in; null: one per position, the least SRAM"
    )
    tile_by: Literal["users", "producer"] = Field(
        "users",
        description="users: a tensor is streamed in tiles only where its producer and every consumer walk "
        "it along their tiling dimension, else held whole; producer: the producer's tiling alone decides",
    )


class ShardingAssumptions(_Section):
    objective: Literal["time", "bytes"] = Field("time", description="what the sharding level minimises")
    shared_conversions: bool = Field(
        True,
        description="a tensor is brought into a layout once for all its consumers (per phase), not once per edge",
    )
    weights: Literal["divided", "free"] = Field(
        "divided", description="divided: a matrix weight is never replicated inside a tensor parallel group"
    )


class NetworkAssumptions(_Section):
    collectives: Literal["physical", "one_direction"] = Field(
        "physical",
        description="physical: alpha-beta costs of the best algorithm with every link of a dimension; "
        "one_direction: the original's closed forms, one ring direction, no latency",
    )
    all_reduce_factor: float = Field(
        1.0,
        description="under one_direction: 1, or 2 when an all-reduce is a reduce-scatter and an all-gather",
    )


class IterationAssumptions(_Section):
    model: Literal["scheduled", "amortised"] = Field(
        "scheduled",
        description="scheduled: the plan's pipeline schedule, data-parallel communication and optimizer step apart; "
        "amortised: the original's (factor 1+(PP-1)/(nmb max(lps-1,1)), reduction amortised over micro-batches)",
    )
    flops: Literal["model", "graph"] = Field(
        "model", description="what utilisation counts: matrix FLOPs with the head, or every FLOP of the graph"
    )
    overlap_share: float = Field(
        0.9,
        ge=0,
        le=1,
        description="share of a forward or backward pass behind which data-parallel communication can hide; 0: none",
    )
    hide_sends: bool = Field(
        False,
        description="messages between interleaved pipeline stages run behind other chunks (Megatron-Core's default)",
    )
    bucket_parameters: float = Field(
        40e6, gt=0, description="parameters reduced together; the last bucket of a backward pass hides behind nothing"
    )
    host_s: float = Field(0.0, ge=0, description="seconds of the host once per iteration (data, logging)")


class MemoryAssumptions(_Section):
    gradient: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="format in which gradients are kept and reduced (4 or 2 bytes per parameter)"
    )
    optimizer_bytes_per_parameter: float = Field(12.0, ge=0, description="fp32 master weight and two Adam moments 12")
    tiers: Literal["placed", "mean", "first"] = Field(
        "placed",
        description="placed: state and activations lie in the tiers where they cost least; mean: one memory of all "
        "capacities with their capacity-weighted mean bandwidth (the original); first: the first tier alone",
    )
    reserved_fraction: float = Field(0.0, ge=0, lt=1, description="share of memory kept for the framework's workspace")


class Assumptions(_Section):
    """Every modelling choice of a run. `name` is the preset it started from."""

    name: str = "default"
    compute: ComputeAssumptions = ComputeAssumptions()
    traffic: TrafficAssumptions = TrafficAssumptions()
    partitions: PartitionAssumptions = PartitionAssumptions()
    sharding: ShardingAssumptions = ShardingAssumptions()
    network: NetworkAssumptions = NetworkAssumptions()
    iteration: IterationAssumptions = IterationAssumptions()
    memory: MemoryAssumptions = MemoryAssumptions()
