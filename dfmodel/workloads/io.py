"""Graph files: a user's workload as YAML, read with every problem reported at once, and written back.

Two forms. `form: matrix` is the original DFModel's (see matrix_graph.py). The default form lists kernels as
einsums over named dimensions; sizes may be expressions of `parameters` ("4*hidden"):

    name: mlp
    parameters: {hidden: 512}
    dims: {batch: 1, token: 128, hidden: hidden, ffn: 4*hidden}
    tensors:
      x: {dims: [batch, token, hidden]}
      w: {dims: [hidden, ffn], role: weight}
    kernels:
      up:
        inputs: {x: [batch, token, hidden], w: [hidden, ffn]}
        outputs: {y: [batch, token, ffn]}
        unit: matrix
    outputs: [y]
    derive_backward: true

A tensor that a kernel makes need not be declared: it takes the dims it is written with. Several blocks go
under `blocks:` (each with name, repeat, tensors, kernels, outputs) in the order they run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from dfmodel.catalog_files import load_yaml, validated
from dfmodel.errors import InputError, did_you_mean
from dfmodel.workloads.differentiate import with_backward
from dfmodel.workloads.expressions import Extent, count, parameter_values
from dfmodel.workloads.graph import (
    DTYPE_BYTES,
    Block,
    Kernel,
    Operand,
    Phase,
    Role,
    Strategy,
    Tensor,
    Unit,
    Workload,
)
from dfmodel.workloads.matrix_graph import matrix_workload

#: Keys of a graph file, beside its parameters, that a run may replace.
OVERRIDABLE = ("batch", "repeat", "dtype")


def _listed(operands: object) -> object:
    """Operands as a list of one-tensor mappings; a single mapping is the short form."""
    if isinstance(operands, dict):
        return [{tensor: dims} for tensor, dims in operands.items()]
    if isinstance(operands, list) and any(isinstance(o, dict) and len(o) != 1 for o in operands):
        raise ValueError("each entry of the list must be one 'tensor: [dims]'")
    return operands


def _mapped(dims: object) -> object:
    """Dims as name -> extent; names alone take the file's extents (None here)."""
    if not isinstance(dims, list):
        return dims
    if len(set(map(str, dims))) < len(dims):
        raise ValueError("a dimension is named twice; give the tensor own names with extents")
    return dict.fromkeys(map(str, dims))


#: A kernel's operands: tensor -> the kernel dimensions that walk it; a list where one is read twice.
Operands = Annotated[list[dict[str, list[str]]], BeforeValidator(_listed)]

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FileTensor(_Part):
    """`dims` are names with an extent in the file, or own names with extents, in storage order."""

    dims: Annotated[dict[str, Extent | None], BeforeValidator(_mapped)] = {}
    dtype: str = ""
    role: Role = "activation"


class FileStrategy(_Part):
    name: str
    split: str | None = None
    needs: list[str]
    gives: list[str]
    reduce_outputs: bool = False


class FileKernel(_Part):
    """`flops_per_point` defaults to 2 (a multiply-add) on the matrix unit and 1 on the vector unit, `op` to
    einsum on the matrix unit and elementwise on the vector unit; `dims` overrides extents of the block."""

    dims: dict[str, Extent] = {}
    inputs: Operands = []
    outputs: Operands
    unit: Unit
    flops_per_point: Amount | None = None
    op: str | None = None
    phase: Phase = "forward"
    unsplittable: list[str] = []
    sequential: list[str] = []
    gathered: list[str] = []
    tiling: str | None = None
    linear: bool = False
    runs: Extent = 1
    run_bytes_per_point: Amount = 0.0
    saves: Literal["input", "output", "both", "mask", "nothing"] = "input"
    backward_flops_per_point: Amount | None = None
    repeated_flops_per_point: Amount = 0.0
    backward_repeated_flops_per_point: Amount = 0.0
    added: list[str] = []
    extra_bytes: Amount = 0.0
    strategies: list[FileStrategy] | None = None


class FileBlock(_Part):
    name: str
    repeat: Extent = 1
    dims: dict[str, Extent] = {}
    tensors: dict[str, FileTensor] = {}
    kernels: dict[str, FileKernel]
    outputs: list[str] = []


class FileGraph(_Part):
    """The whole file: one block's parts at the top, or `blocks`."""

    name: str
    title: str = ""
    form: Literal["einsum"] = "einsum"
    sources: list[str] = []
    dtype: str = "bf16"
    parameters: dict[str, Extent] = {}
    dims: dict[str, Extent] = {}
    batch: Extent = 1
    unit: str = "sample"
    units_per_sample: Extent = 1
    derive_backward: bool = False
    shared_parameters: Extent = 0
    facts: dict[str, Any] = {}
    repeat: Extent = 1
    tensors: dict[str, FileTensor] = {}
    kernels: dict[str, FileKernel] = {}
    outputs: list[str] = []
    blocks: list[FileBlock] = []


def load_graph(path: str | Path, overrides: Mapping[str, object] | None = None) -> Workload:
    """The workload in a graph file of either form; `overrides` replaces parameters, batch, repeat and dtype.

    Raises InputError with every problem that can be found at once, as "file: key: ...".
    """
    return graph_workload(load_yaml(path), str(path), overrides or {})


def graph_workload(data: Mapping[str, Any], where: str, overrides: Mapping[str, object]) -> Workload:
    """`load_graph` of data already read from `where`."""
    if data.get("form") == "matrix":
        return matrix_workload(data, where, overrides)
    top = {k: v for k, v in overrides.items() if k in OVERRIDABLE}
    graph = validated(FileGraph, {**data, **top}, where)
    valid = (*(k for k in OVERRIDABLE if k != "repeat" or not graph.blocks), *graph.parameters)
    problems = [f"workload.{k}: unknown key{did_you_mean(k, valid)}" for k in overrides if k not in valid]
    if bool(graph.kernels) == bool(graph.blocks):
        problems.append(f"{where}: give either kernels (one block) or blocks")
    if problems:
        raise InputError(problems)
    return _Reader(graph, parameter_values(graph.parameters, overrides, where), where).workload()


@dataclass
class _Reader:
    """Turns one validated file into a workload, collecting problems across its blocks."""

    graph: FileGraph
    values: Mapping[str, Fraction]
    where: str

    def workload(self) -> Workload:
        g = self.graph
        self.problems: list[str] = []
        self.dims = self._extents(g.dims, "dims")
        specs = g.blocks or [
            FileBlock(name=g.name, repeat=g.repeat, tensors=g.tensors, kernels=g.kernels, outputs=g.outputs)
        ]
        blocks = [(self._block(b), self._count(b.repeat, f"{b.name}: repeat")) for b in specs]
        batch = self._count(g.batch, "batch")
        units = self._count(g.units_per_sample, "units_per_sample")
        shared = self._count(g.shared_parameters, "shared_parameters", least=0)
        self._check_dtype(g.dtype, "dtype")
        if self.problems:
            raise InputError(dict.fromkeys(self.problems))
        built = tuple((b, n) for b, n in blocks if b is not None)
        return Workload(
            name=g.name,
            title=g.title or g.name,
            blocks=built,
            batch=batch,
            unit=g.unit,
            units_per_sample=units,
            training=any(k.phase == "backward" for b, _ in built for k in b.kernels),
            dtype=g.dtype,
            facts=g.facts or {k: int(v) if v.denominator == 1 else float(v) for k, v in self.values.items()},
            shared_parameters=shared,
        )

    def _count(self, extent: Extent, key: str, least: int = 1) -> int:
        try:
            return count(extent, self.values, f"{self.where}: {key}", least)
        except InputError as error:
            self.problems += error.problems
            return 1

    def _extents(self, dims: Mapping[str, Extent], key: str) -> dict[str, int]:
        return {d: self._count(n, f"{key}.{d}") for d, n in dims.items()}

    def _check_dtype(self, dtype: str, key: str) -> None:
        if dtype not in DTYPE_BYTES:
            near = did_you_mean(dtype, DTYPE_BYTES)
            self.problems.append(f"{self.where}: {key}: unknown number format '{dtype}'{near}")

    def _block(self, spec: FileBlock) -> Block | None:
        """The block, or None after noting what is wrong with it."""
        before = len(self.problems)
        prefix = f"{spec.name}: " if self.graph.blocks else ""
        known = {**self.dims, **self._extents(spec.dims, f"{prefix}dims")}
        tensors = {t: self._tensor(t, x, known, f"{prefix}tensors.{t}") for t, x in spec.tensors.items()}
        kernels = []
        for name, k in spec.kernels.items():
            kernel = self._kernel(name, k, known, f"{prefix}kernels.{name}")
            kernels.append(kernel)
            for o in kernel.outputs:
                if o.tensor not in tensors:
                    made = {d: kernel.dims[d] for d in o.dims}
                    tensors[o.tensor] = Tensor(o.tensor, made, self.graph.dtype)
        self.problems += self._unknown_tensors(spec, kernels, tensors, prefix)
        if len(self.problems) > before:
            return None
        try:
            block = Block(spec.name, tuple(kernels), tensors, tuple(spec.outputs), self.where)
            return with_backward(block) if self.graph.derive_backward else block
        except InputError as error:
            self.problems += error.problems
            return None

    def _unknown_tensors(
        self, spec: FileBlock, kernels: list[Kernel], tensors: Mapping[str, Tensor], prefix: str
    ) -> Iterator[str]:
        for k in kernels:
            for o in k.inputs:
                if o.tensor not in tensors:
                    near = did_you_mean(o.tensor, tensors)
                    yield f"{self.where}: {prefix}kernels.{k.name}.inputs: unknown tensor '{o.tensor}'{near}"
        for t in spec.outputs:
            if t not in tensors:
                yield f"{self.where}: {prefix}outputs: unknown tensor '{t}'{did_you_mean(t, tensors)}"

    def _tensor(self, name: str, spec: FileTensor, known: Mapping[str, int], key: str) -> Tensor:
        dims = {
            d: self._extent_of(d, known, f"{key}.dims") if n is None else self._count(n, f"{key}.dims.{d}")
            for d, n in spec.dims.items()
        }
        dtype = spec.dtype or self.graph.dtype
        self._check_dtype(dtype, f"{key}.dtype")
        return Tensor(name, dims, dtype, spec.role)

    def _kernel(self, name: str, spec: FileKernel, known: Mapping[str, int], key: str) -> Kernel:
        own = self._extents(spec.dims, f"{key}.dims")
        inputs, outputs = _operands(spec.inputs), _operands(spec.outputs)
        walked = dict.fromkeys(d for o in (*outputs, *inputs) for d in o.dims)
        dims = own | {d: self._extent_of(d, known, key) for d in walked if d not in own}
        matrix = spec.unit == "matrix"
        for option, names in (
            ("unsplittable", spec.unsplittable),
            ("sequential", spec.sequential),
            ("gathered", spec.gathered),
            ("tiling", [spec.tiling] if spec.tiling else []),
        ):
            for d in names:
                if d not in dims:
                    near = did_you_mean(d, dims)
                    self.problems.append(f"{self.where}: {key}.{option}: unknown dimension '{d}'{near}")
        return Kernel(
            name=name,
            dims=dims,
            inputs=inputs,
            outputs=outputs,
            unit=spec.unit,
            flops_per_point=(2.0 if matrix else 1.0) if spec.flops_per_point is None else spec.flops_per_point,
            op=spec.op or ("einsum" if matrix else "elementwise"),
            phase=spec.phase,
            unsplittable=frozenset(spec.unsplittable),
            sequential=frozenset(spec.sequential),
            gathered=frozenset(spec.gathered),
            tiling=spec.tiling,
            linear=spec.linear,
            runs=self._count(spec.runs, f"{key}.runs"),
            run_bytes_per_point=spec.run_bytes_per_point,
            saves=spec.saves,
            backward_flops_per_point=spec.backward_flops_per_point,
            repeated_flops_per_point=spec.repeated_flops_per_point,
            backward_repeated_flops_per_point=spec.backward_repeated_flops_per_point,
            strategies=None
            if spec.strategies is None
            else tuple(
                Strategy(s.name, s.split, tuple(s.needs), tuple(s.gives), s.reduce_outputs) for s in spec.strategies
            ),
            added=tuple(spec.added),
            extra_bytes=spec.extra_bytes,
        )

    def _extent_of(self, dim: str, known: Mapping[str, int], key: str) -> int:
        if dim not in known:
            near = did_you_mean(dim, known)
            self.problems.append(f"{self.where}: {key}: dimension '{dim}' has no extent in dims{near}")
            return 1
        return known[dim]


def _operands(entries: list[dict[str, list[str]]]) -> tuple[Operand, ...]:
    return tuple(Operand(t, tuple(dims)) for entry in entries for t, dims in entry.items())


def dump_graph(workload: Workload) -> str:
    """`workload` as the text of a graph file that reads back as an equal workload."""
    data = {
        "name": workload.name,
        "title": workload.title,
        "dtype": workload.dtype,
        "batch": workload.batch,
        "unit": workload.unit,
        "units_per_sample": workload.units_per_sample,
        "shared_parameters": workload.shared_parameters,
        "facts": dict(workload.facts),
        "blocks": [_dumped_block(b, n) for b, n in workload.blocks],
    }
    text: str = yaml.dump(data, Dumper=_PlainDumper, sort_keys=False, default_flow_style=None, width=110)
    return text


class _PlainDumper(yaml.SafeDumper):
    """Writes equal lists out again instead of as aliases, which files may not have."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dumped_block(block: Block, repeat: int) -> dict[str, Any]:
    return {
        "name": block.name,
        "repeat": repeat,
        "tensors": {t: {"dims": dict(x.dims), "dtype": x.dtype, "role": x.role} for t, x in block.tensors.items()},
        "kernels": {k.name: _dumped_kernel(k) for k in block.kernels},
        "outputs": list(block.outputs),
    }


def _dumped_kernel(k: Kernel) -> dict[str, Any]:
    """Every field of a kernel that differs from the default of the file format."""
    fields: dict[str, Any] = {
        "dims": dict(k.dims),
        "inputs": [{o.tensor: list(o.dims)} for o in k.inputs],
        "outputs": [{o.tensor: list(o.dims)} for o in k.outputs],
        "unit": k.unit,
        "flops_per_point": k.flops_per_point,
        "op": k.op,
        "phase": k.phase,
        "unsplittable": sorted(k.unsplittable),
        "sequential": sorted(k.sequential),
        "gathered": sorted(k.gathered),
        "tiling": k.tiling,
        "linear": k.linear,
        "runs": k.runs,
        "run_bytes_per_point": k.run_bytes_per_point,
        "saves": k.saves,
        "backward_flops_per_point": k.backward_flops_per_point,
        "repeated_flops_per_point": k.repeated_flops_per_point,
        "backward_repeated_flops_per_point": k.backward_repeated_flops_per_point,
        "added": list(k.added),
        "extra_bytes": k.extra_bytes,
        "strategies": None
        if k.strategies is None
        else [
            {
                "name": s.name,
                "split": s.split,
                "needs": list(s.needs),
                "gives": list(s.gives),
                "reduce_outputs": s.reduce_outputs,
            }
            for s in k.strategies
        ],
    }
    defaults = {name: f.default for name, f in FileKernel.model_fields.items() if not f.is_required()}
    return {key: v for key, v in fields.items() if key not in defaults or v != defaults[key]}
