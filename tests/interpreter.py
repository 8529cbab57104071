"""A tiny executor of blocks for tests: einsum, sum, multiply and multiply_backward in numpy."""

import numpy as np

from dfmodel.workloads.graph import Block, Kernel, Operand


def run(block: Block, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors of `block`, given its inputs and weights."""
    found = dict(values)
    for name in block.topological_order:
        kernel = block.by_name[name]
        results = _KERNELS[kernel.op](kernel, [found[o.tensor] for o in kernel.inputs])
        for operand, result in zip(kernel.outputs, results, strict=True):
            assert result.shape == tuple(block.tensors[operand.tensor].dims.values())
            found[operand.tensor] = result
    return found


def _product(kernel: Kernel, factors: list[tuple[Operand, np.ndarray]], out: Operand) -> np.ndarray:
    """einsum; a vector of ones stands for output dimensions that no factor has."""
    letter = {d: chr(97 + i) for i, d in enumerate(kernel.dims)}
    terms = ["".join(letter[d] for d in o.dims) for o, _ in factors]
    arrays = [a for _, a in factors]
    for d in out.dims:
        if all(d not in o.dims for o, _ in factors):
            terms.append(letter[d])
            arrays.append(np.ones(kernel.dims[d]))
    return np.einsum(f"{','.join(terms)}->{''.join(letter[d] for d in out.dims)}", *arrays)


def _einsum(kernel, arrays):
    pairs = list(zip(kernel.inputs, arrays, strict=True))
    out = kernel.outputs[0]
    result = _product(kernel, [p for p in pairs if p[0].tensor not in kernel.added], out)
    return [result + sum(_product(kernel, [p], out) for p in pairs if p[0].tensor in kernel.added)]


def _sum(kernel, arrays):
    out = kernel.outputs[0]
    return [sum(_product(kernel, [p], out) for p in zip(kernel.inputs, arrays, strict=True))]


def _multiply(kernel, arrays):
    return [_product(kernel, list(zip(kernel.inputs, arrays, strict=True)), kernel.outputs[0])]


def _multiply_backward(kernel, arrays):
    dy, a, b = zip(kernel.inputs, arrays, strict=True)
    return [_product(kernel, [dy, b], kernel.outputs[0]), _product(kernel, [dy, a], kernel.outputs[1])]


_KERNELS = {
    "einsum": _einsum,
    "sum": _sum,
    "multiply": _multiply,
    "multiply_backward": _multiply_backward,
}
