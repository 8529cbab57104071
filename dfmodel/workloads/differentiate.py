"""The backward pass of a block, derived from its forward kernels by rule.

The rules (reverse-mode differentiation, kernel by kernel; dY is the gradient of a kernel's output):

- `einsum`: for every activation operand one einsum over the same dims from dY and the other operands
  (dgrad), for every weight one more (wgrad). Each does the FLOP of the forward kernel.
- `sum` (residual adds): dY itself is the gradient of every operand, no kernel. Where an operand's dims differ
  from the output's, a `sum` kernel reduces or broadcasts dY.
- `gather` (embedding look-up): one `gather_backward` kernel adds rows of dY into the gradients of the tables.
- every other operation (elementwise, normalisation, softmax, loss): one vector kernel `<op>_backward` that
  reads dY, what the forward kernel `saves`, and its weights, and gives the gradients of all its operands.
- a tensor with several readers gets its gradient from a `sum` kernel (linear, so partial sums of several
  dgrads are added before one all-reduce).

Gradients of biases (`Kernel.added`) and of the weights of elementwise kernels (norm gains) are folded into
the backward kernel of their operation: no tensor of their own, being 1/hidden of the GEMMs' size; unless they are all
that depends on anything (networks of constants), when they are that kernel's results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from dfmodel.errors import InputError
from dfmodel.workloads.graph import DTYPE_BYTES, PARAMETER_ROLES, Block, Kernel, Operand, Role, Tensor

#: Cost of an elementwise backward kernel relative to its forward one, where the kernel does not say.
BACKWARD_FLOPS_FACTOR = 2.0

_FLOAT_DTYPES = frozenset(d for d in DTYPE_BYTES if "int" not in d)


@dataclass(frozen=True)
class Differentiated:
    """A block with its backward pass. `gradients` maps each forward tensor that has a gradient to the name
    of the tensor that holds it; through a sum that is the gradient of the sum itself."""

    block: Block
    gradients: Mapping[str, str]


def with_backward(block: Block, *, without_gradient: Collection[str] = ()) -> Block:
    """`block` followed by its backward kernels; see `differentiate`."""
    return differentiate(block, without_gradient=without_gradient).block


def differentiate(block: Block, *, without_gradient: Collection[str] = ()) -> Differentiated:
    """The forward kernels of `block` plus backward ones.

    Gradients of the block's outputs enter as block inputs `d_<output>`; gradients of its inputs and weights
    leave as outputs. Tensors of integer dtype, caches and those named in `without_gradient` get none.
    Raises InputError when the block already has backward kernels or kernels with explicit strategies.
    """
    problems = [f"{block.where or 'block ' + block.name}: {p}" for k in block.kernels for p in _obstacles(block, k)]
    if problems:
        raise InputError(problems)
    return _Backward(block, frozenset(without_gradient)).run()


def _obstacles(block: Block, kernel: Kernel) -> Iterator[str]:
    """Why no rule applies to a kernel."""
    name = f"kernel '{kernel.name}'"
    if kernel.phase != "forward":
        yield f"{name} is of phase {kernel.phase}; only forward blocks are differentiated"
    if kernel.strategies is not None:
        yield f"{name} has explicit strategies; its backward kernels must be given in the graph"
    if kernel.op in ("sum", "einsum") and len(kernel.outputs) != 1:
        yield f"{name} ({kernel.op}) must have exactly one output to be differentiated"
    for t in kernel.added:
        if block.tensors[t].role not in PARAMETER_ROLES:
            yield f"{name} adds '{t}', which is no weight; add it with a kernel of op sum"


def saved_for_backward(block: Block) -> tuple[str, ...]:
    """Tensors of the forward pass that a backward kernel reads, hence memory holds between the two.

    Block inputs that only backward kernels read (gradients from the next block) and parameters are not
    among them. Without recomputation their bytes are a layer's activation memory.
    """
    forward = {k.name for k in block.kernels if k.phase == "forward"}
    backward = {k.name for k in block.kernels if k.phase == "backward"}
    return tuple(
        t
        for t, tensor in block.tensors.items()
        if tensor.role not in PARAMETER_ROLES
        and backward.intersection(block.consumers[t])
        and (block.producer.get(t) in forward or forward.intersection(block.consumers[t]))
    )


@dataclass
class _Backward:
    """One differentiation under way: kernels and tensors added, gradients found so far."""

    block: Block
    excluded: frozenset[str]
    kernels: list[Kernel] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    #: Forward tensor -> gradients of it from each of its readers (and from outside the block).
    shares: dict[str, list[str]] = field(init=False)
    gradients: dict[str, str] = field(default_factory=dict)
    differentiable: frozenset[str] = field(init=False)
    readings: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.differentiable = self._differentiable()
        self.readings = self._readings()
        self.shares = {t: [] for t in self.block.tensors}

    def run(self) -> Differentiated:
        for t in self.block.outputs:
            if t in self.differentiable:
                self.shares[t].append(self._add_tensor(f"d_{t}", t))
        for name in reversed(self.block.topological_order):
            kernel = self.block.by_name[name]
            for o in kernel.outputs:
                self._collect(o.tensor, kernel)
            if any(o.tensor in self.gradients for o in kernel.outputs):
                self._backward_of(kernel)
        entering = [t for t in self.block.tensors if t not in self.block.producer]
        for t in entering:
            self._collect(t, None)
        leaving = [self.gradients[t] for t in entering if t in self.gradients]
        block = Block(
            self.block.name,
            (*self.block.kernels, *self.kernels),
            {**self.block.tensors, **self.tensors},
            tuple(dict.fromkeys((*self.block.outputs, *leaving))),
            self.block.where,
        )
        return Differentiated(block, dict(self.gradients))

    def _differentiable(self) -> frozenset[str]:
        """Forward tensors that depend smoothly on a weight or on a block input with a gradient."""

        def may(t: str) -> bool:
            tensor = self.block.tensors[t]
            return tensor.dtype in _FLOAT_DTYPES and tensor.role != "cache" and t not in self.excluded

        found = {t for t in self.block.tensors if t not in self.block.producer and may(t)}
        for name in self.block.topological_order:
            kernel = self.block.by_name[name]
            if any(o.tensor in found for o in kernel.inputs):
                found.update(o.tensor for o in kernel.outputs if may(o.tensor))
        return frozenset(found)

    def _readings(self) -> dict[str, int]:
        """How many operands, over all kernels, read each tensor (an output of the block counts one more)."""
        found = {t: int(t in self.block.outputs) for t in self.block.tensors}
        for k in self.block.kernels:
            for o in k.inputs:
                found[o.tensor] += 1
        return found

    def _add_tensor(self, name: str, of: str) -> str:
        """Declare gradient `name` (or the next free name) with the shape of forward tensor `of`."""
        source = self.block.tensors[of]
        wanted, n = name, 2
        while name in self.tensors or name in self.block.tensors:
            name, n = f"{wanted}.{n}", n + 1
        role: Role = "gradient" if source.role in PARAMETER_ROLES else "activation"
        self.tensors[name] = Tensor(name, source.dims, source.dtype, role)
        return name

    def _share(self, tensor: str, kernel: Kernel) -> str:
        """Declare and record the gradient of `tensor` that comes back from `kernel`."""
        name = f"d_{tensor}" if self.readings[tensor] == 1 else f"d_{tensor}.{kernel.name}"
        name = self._add_tensor(name, tensor)
        self.shares[tensor].append(name)
        return name

    def _collect(self, tensor: str, producer: Kernel | None) -> None:
        """Settle the gradient of `tensor` once every reader has given its share: add them if several."""
        shares = self.shares[tensor]
        if not shares:
            return
        if len(shares) == 1:
            self.gradients[tensor] = shares[0]
            return
        total = f"d_{tensor}" if f"d_{tensor}" not in self.tensors else f"d_{tensor}.total"
        dims = self.block.tensors[tensor].dims
        self.kernels.append(
            Kernel(
                name=f"sum_d_{tensor}",
                dims=dict(dims),
                inputs=tuple(Operand(s, tuple(dims)) for s in shares),
                outputs=(Operand(self._add_tensor(total, tensor), tuple(dims)),),
                unit="vector",
                flops_per_point=len(shares) - 1,
                op="sum",
                phase="backward",
                tiling=self._tiling_of(tensor, producer),
                linear=True,
            )
        )
        self.gradients[tensor] = total

    def _tiling_of(self, tensor: str, producer: Kernel | None) -> str | None:
        """The tensor's own dimension that the kernels around it stream along."""
        kernels = [producer] if producer else [self.block.by_name[c] for c in self.block.consumers[tensor]]
        for k in kernels:
            for o in (*k.outputs, *k.inputs):
                if o.tensor == tensor and k.tiling in o.dims:
                    return list(self.block.tensors[tensor].dims)[o.dims.index(k.tiling)]
        return None

    def _backward_of(self, kernel: Kernel) -> None:
        rule = {"einsum": self._einsum, "sum": self._sum, "gather": self._gather}.get(kernel.op, self._other)
        rule(kernel)

    def _gradient_operands(self, kernel: Kernel) -> tuple[Operand, ...]:
        """dY of every output that has one, walked as the forward kernel walks the output."""
        return tuple(Operand(self.gradients[o.tensor], o.dims) for o in kernel.outputs if o.tensor in self.gradients)

    def _einsum(self, kernel: Kernel) -> None:
        dy = self._gradient_operands(kernel)
        factors = [o for o in kernel.inputs if o.tensor not in kernel.added]
        # the data gradients first: they are what the previous kernels wait for
        ranked = sorted(enumerate(factors), key=lambda f: self._is_parameter(f[1].tensor))
        several = sum(not self._is_parameter(o.tensor) for o in factors) > 1
        for i, operand in ranked:
            if operand.tensor not in self.differentiable:
                continue
            others = tuple(o for j, o in enumerate(factors) if j != i)
            if self._is_parameter(operand.tensor):
                suffix = "wgrad"
            else:
                suffix = f"dgrad_{operand.tensor}" if several else "dgrad"
            self._append(
                replace(
                    kernel,
                    name=f"{kernel.name}_{suffix}",
                    inputs=dy + others,
                    outputs=(Operand(self._share(operand.tensor, kernel), operand.dims),),
                    phase="backward",
                    added=(),
                    extra_bytes=0.0,
                )
            )

    def _sum(self, kernel: Kernel) -> None:
        (dy,) = self._gradient_operands(kernel)
        for operand in kernel.inputs:
            if operand.tensor not in self.differentiable:
                continue
            if operand.dims == dy.dims:
                self.shares[operand.tensor].append(dy.tensor)
                continue
            dims = {d: n for d, n in kernel.dims.items() if d in dy.dims or d in operand.dims}
            self._append(
                replace(
                    kernel,
                    name=f"{kernel.name}_backward_{operand.tensor}",
                    dims=dims,
                    inputs=(dy,),
                    outputs=(Operand(self._share(operand.tensor, kernel), operand.dims),),
                    flops_per_point=1.0,
                    phase="backward",
                    tiling=kernel.tiling if kernel.tiling in dims else None,
                    extra_bytes=0.0,
                )
            )

    def _gather(self, kernel: Kernel) -> None:
        indices = tuple(o for o in kernel.inputs if not self._is_parameter(o.tensor))
        tables = [o for o in kernel.inputs if self._is_parameter(o.tensor) and o.tensor in self.differentiable]
        outputs = tuple(Operand(self._share(o.tensor, kernel), o.dims) for o in tables)
        self._append(self._vector_backward(kernel, self._gradient_operands(kernel) + indices, outputs))

    def _other(self, kernel: Kernel) -> None:
        data = tuple(o for o in kernel.inputs if not self._is_parameter(o.tensor))
        parameters = tuple(o for o in kernel.inputs if self._is_parameter(o.tensor))
        targets = [o for o in data if o.tensor in self.differentiable] or [
            o for o in parameters if o.tensor in self.differentiable
        ]
        saved: dict[str, tuple[Operand, ...]] = {
            "input": data,
            "output": kernel.outputs[:1],
            "both": (*data, *kernel.outputs),
            "mask": kernel.outputs[1:2],
            "nothing": (),
        }
        inputs = (*self._gradient_operands(kernel), *saved[kernel.saves], *parameters)
        outputs = tuple(Operand(self._share(o.tensor, kernel), o.dims) for o in targets)
        if outputs:
            self._append(self._vector_backward(kernel, inputs, outputs))

    def _vector_backward(self, kernel: Kernel, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> Kernel:
        flops = kernel.backward_flops_per_point
        return replace(
            kernel,
            name=f"{kernel.name}_backward",
            op=f"{kernel.op}_backward",
            inputs=inputs,
            outputs=outputs,
            flops_per_point=BACKWARD_FLOPS_FACTOR * kernel.flops_per_point if flops is None else flops,
            phase="backward",
            added=(),
            extra_bytes=0.0,
            repeated_flops_per_point=kernel.backward_repeated_flops_per_point,
        )

    def _append(self, kernel: Kernel) -> None:
        taken = self.block.by_name.keys() | {k.name for k in self.kernels}
        name, n = kernel.name, 2
        while name in taken:
            name, n = f"{kernel.name}_{n}", n + 1
        self.kernels.append(replace(kernel, name=name))

    def _is_parameter(self, tensor: str) -> bool:
        return self.block.tensors[tensor].role in PARAMETER_ROLES
