"""Graphs given as matrix products with a fixed table of shardings, the form the original DFModel uses.

A kernel is outer x M x K x N: its output is a matrix of outer*M rows and N columns, a GEMM contracts K, an
elementwise kernel has no K. The way a kernel is divided over a tensor parallel group fixes the layout it
gives its output and needs its inputs in, by the tables below (DFModel, arXiv 2412.16432; artifact
kosho2013/DFModel, src/inter_chip.py), so these kernels carry explicit strategies. Kernels without an incoming
edge read nothing and outputs without an outgoing one are outputs of the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from dfmodel.catalog_files import validated
from dfmodel.errors import InputError, did_you_mean
from dfmodel.workloads.expressions import Extent, count, evaluate, parameter_values
from dfmodel.workloads.graph import (
    DTYPE_BYTES,
    REPLICATED,
    Block,
    Kernel,
    Layout,
    Operand,
    Strategy,
    Tensor,
    Unit,
    Workload,
)

Division = Literal["outer", "m", "k", "n", "none"]
Kind = Literal["gemm_weight", "gemm", "elementwise"]

ROW: Layout = "row"
COL: Layout = "col"

#: Layout of a kernel's output by how the kernel is divided (K: after the all-reduce charged to the kernel).
PRODUCED: dict[Division, Layout] = {"outer": ROW, "m": ROW, "k": REPLICATED, "n": COL, "none": REPLICATED}

#: Layout a kernel needs an input in, by the part the input plays and how the kernel is divided.
CONSUMED: dict[str, dict[Division, Layout]] = {
    "weight_update": {"outer": ROW, "m": ROW, "k": COL, "n": ROW, "none": REPLICATED},
    "elementwise": {"outer": ROW, "m": ROW, "k": REPLICATED, "n": COL, "none": REPLICATED},
    "gemm_input_1": {"outer": ROW, "m": REPLICATED, "k": ROW, "n": COL, "none": REPLICATED},
    "gemm_input_2": {"outer": ROW, "m": ROW, "k": COL, "n": REPLICATED, "none": REPLICATED},
}

#: Layout of a weight matrix of outer*M rows and K columns.
WEIGHT: dict[Division, Layout] = {"outer": ROW, "m": ROW, "k": COL, "n": REPLICATED}

#: Dimension of the kernel that a division divides; `outer` is folded into `m`.
_SPLIT: dict[Division, str | None] = {"outer": "m", "m": "m", "k": "k", "n": "n", "none": None}

_UNIT: dict[Kind, Unit] = {"gemm_weight": "matrix", "gemm": "matrix", "elementwise": "vector"}


class MatrixKernel(BaseModel):
    """One kernel of a file. `tiling` is the dimension streamed in tiles, which may not be divided over chips;
    `periodic` marks a weight gradient, reduced over data parallel copies once per batch; `extra_bytes` are
    memory traffic beyond the tensors."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Kind
    outer: Extent = 1
    m: Extent
    k: Extent = 1
    n: Extent
    tiling: Literal["n", "k", "none"] = "none"
    phase: Literal["forward", "backward"] = "forward"
    periodic: bool = False
    extra_bytes: Extent = 0
    unit: Unit | None = None


class MatrixGraph(BaseModel):
    """A file of this form: sizes are expressions of `parameters`; `edges` are [producer, consumer] pairs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: str = ""
    form: Literal["matrix"]
    sources: tuple[str, ...] = ()
    dtype: str = "fp16"
    parameters: dict[str, Extent] = {}
    repeat: Extent = 1
    batch: Extent = 1
    unit: str = "sample"
    units_per_sample: Extent = 1
    kernels: dict[str, MatrixKernel]
    edges: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class _Sized:
    """A kernel with its numbers."""

    name: str
    spec: MatrixKernel
    outer: int
    m: int
    k: int
    n: int
    extra_bytes: float

    @property
    def rows(self) -> int:
        return self.outer * self.m

    @property
    def output(self) -> str:
        return f"{self.name}.out"

    @property
    def weight(self) -> str:
        return f"{self.name}.weight"


def matrix_workload(data: Mapping[str, Any], where: str, overrides: Mapping[str, object]) -> Workload:
    """The workload of a file in matrix form; `overrides` replaces parameters, `batch`, `repeat` and `dtype`.

    Raises InputError with every problem of the file that can be found at once.
    """
    top = {k: v for k, v in overrides.items() if k in OVERRIDABLE}
    graph = validated(MatrixGraph, {**data, **top}, where)
    unknown = [k for k in overrides if k not in OVERRIDABLE and k not in graph.parameters]
    if unknown:
        valid = (*OVERRIDABLE, *graph.parameters)
        raise InputError(f"workload.{k}: unknown key{did_you_mean(k, valid)}" for k in unknown)
    values = parameter_values(graph.parameters, overrides, where)
    block = _block(graph, values, where)
    repeat = count(graph.repeat, values, f"{where}: repeat")
    return Workload(
        name=graph.name,
        title=graph.title or graph.name,
        blocks=((block, repeat),),
        batch=count(graph.batch, values, f"{where}: batch"),
        unit=graph.unit,
        units_per_sample=count(graph.units_per_sample, values, f"{where}: units_per_sample"),
        training=any(k.phase == "backward" for k in block.kernels),
        dtype=graph.dtype,
        facts={k: int(v) if v.denominator == 1 else float(v) for k, v in values.items()},
        shared_parameters=repeat * _backward_weights(block),
    )


def _backward_weights(block: Block) -> int:
    """Elements of the weights of backward GEMMs: the forward ones again (transposed), drawn a second time."""
    return sum(
        block.tensors[o.tensor].elements
        for k in block.kernels
        if k.phase == "backward"
        for o in k.inputs
        if block.tensors[o.tensor].role == "weight"
    )


#: Keys of a graph file, beside its parameters, that a run may replace.
OVERRIDABLE = ("batch", "repeat", "dtype")


def _block(graph: MatrixGraph, values: Mapping[str, Fraction], where: str) -> Block:
    problems = (
        []
        if graph.dtype in DTYPE_BYTES
        else [f"{where}: dtype: unknown number format '{graph.dtype}'{did_you_mean(graph.dtype, DTYPE_BYTES)}"]
    )
    sized: dict[str, _Sized] = {}
    for name, spec in graph.kernels.items():
        try:
            sized[name] = _sized(name, spec, values, f"{where}: kernels.{name}")
        except InputError as error:
            problems += error.problems
    problems += _edge_problems(graph, where)
    if problems:
        raise InputError(problems)

    tensors: dict[str, Tensor] = {}
    for k in sized.values():
        if k.spec.kind == "gemm_weight":
            tensors[k.weight] = Tensor(k.weight, {ROW: k.rows, COL: k.k}, graph.dtype, "weight")
        role: Literal["gradient", "activation"] = "gradient" if k.spec.periodic else "activation"
        tensors[k.output] = Tensor(k.output, {ROW: k.rows, COL: k.n}, graph.dtype, role)
    kernels = []
    for k in sized.values():
        read = [tensors[sized[p].output] for p, c in graph.edges if c == k.name]
        kernels.append(_kernel(k, read, f"{where}: kernels.{k.name}"))
    producers = {p for p, _ in graph.edges}
    outputs = tuple(k.output for k in sized.values() if k.name not in producers)
    return Block(graph.name, tuple(kernels), tensors, outputs, where)


def _sized(name: str, spec: MatrixKernel, values: Mapping[str, Fraction], where: str) -> _Sized:
    sizes: dict[str, int] = {}
    problems = []
    for key in ("outer", "m", "k", "n"):
        try:
            sizes[key] = count(getattr(spec, key), values, f"{where}.{key}")
        except InputError as error:
            problems += error.problems
    try:
        extra = float(evaluate(spec.extra_bytes, values, f"{where}.extra_bytes"))
    except InputError as error:
        problems += error.problems
    if spec.kind == "elementwise" and "k" in spec.model_fields_set:
        problems.append(f"{where}.k: an elementwise kernel has no k")
    if spec.tiling == "k" and spec.kind == "elementwise":
        problems.append(f"{where}.tiling: an elementwise kernel has no k to tile along; use n or none")
    if problems:
        raise InputError(problems)
    return _Sized(name, spec, **sizes, extra_bytes=extra)


def _edge_problems(graph: MatrixGraph, where: str) -> Iterator[str]:
    seen = set()
    for i, edge in enumerate(graph.edges):
        for name in edge:
            if name not in graph.kernels:
                yield f"{where}: edges.{i}: unknown kernel '{name}'{did_you_mean(name, graph.kernels)}"
        if edge in seen:
            yield f"{where}: edges.{i}: {edge[0]} -> {edge[1]} is given twice"
        seen.add(edge)


def _kernel(k: _Sized, read: list[Tensor], where: str) -> Kernel:
    dims = {"m": k.rows, "k": k.k, "n": k.n} if k.spec.kind != "elementwise" else {"m": k.rows, "n": k.n}
    gathered: set[str] = set()
    inputs = []
    for i, tensor in enumerate(read):
        walk = _walk(k, tensor, dims)
        if walk is None:
            # a reshaped input: dimensions of its own, outside the space of the product
            walk = (f"row_{i + 1}", f"col_{i + 1}")
            dims |= dict(zip(walk, tensor.dims.values(), strict=True))
            gathered.update(walk)
        inputs.append(Operand(tensor.name, walk))
    if k.spec.kind == "gemm_weight":
        inputs.append(Operand(k.weight, ("m", "k")))
    return Kernel(
        name=k.name,
        dims=dims,
        inputs=tuple(inputs),
        outputs=(Operand(k.output, ("m", "n")),),
        unit=k.spec.unit or _UNIT[k.spec.kind],
        flops_per_point=1.0 if k.spec.kind == "elementwise" else 2.0,
        op=k.spec.kind,
        phase=k.spec.phase,
        gathered=frozenset(gathered),
        tiling=None if k.spec.tiling == "none" else k.spec.tiling,
        strategies=tuple(_strategies(k, read, where)),
        extra_bytes=k.extra_bytes,
    )


def _walk(k: _Sized, tensor: Tensor, dims: Mapping[str, int]) -> tuple[str, str] | None:
    """The kernel dimensions that run over an input's rows and columns, None where its shape fits none."""
    if k.spec.kind == "elementwise":
        pairs = [("m", "n")]
    elif k.spec.kind == "gemm_weight":
        pairs = [("k", "n")]
    else:
        pairs = [("k", "n"), ("n", "k"), ("m", "k")]
    shape = tuple(tensor.dims.values())
    return next((p for p in pairs if (dims[p[0]], dims[p[1]]) == shape), None)


def _strategies(k: _Sized, read: list[Tensor], where: str) -> Iterator[Strategy]:
    divisions = list(_divisions(k))
    if not divisions:
        raise InputError(f"{where}: no dimension can be divided over chips; change its tiling or sizes")
    for d in divisions:
        needs = tuple(CONSUMED[_part(k, tensor)][d] for tensor in read)
        if k.spec.kind == "gemm_weight":
            needs += (WEIGHT[d],)
        yield Strategy(d, _SPLIT[d], needs, (PRODUCED[d],), reduce_outputs=d == "k")


def _divisions(k: _Sized) -> Iterator[Division]:
    """A kernel with `outer` > 1 is divided there; one with a weight must be divided; never along its tiling
    dimension or one of extent 1."""
    if k.outer > 1:
        yield "outer"
        return
    sizes: dict[Division, int] = {"m": k.m, "k": k.k, "n": k.n}
    for d, size in sizes.items():
        if size > 1 and d != k.spec.tiling:
            yield d
    if k.spec.kind != "gemm_weight":
        yield "none"


def _part(k: _Sized, tensor: Tensor) -> str:
    """The row of CONSUMED for an input. Of two activations, one with the size of K x N is input 1."""
    if k.spec.tiling == "k":
        return "weight_update"
    if k.spec.kind == "elementwise":
        return "elementwise"
    if k.spec.kind == "gemm_weight" or tensor.elements == k.outer * k.k * k.n:
        return "gemm_input_1"
    return "gemm_input_2"
