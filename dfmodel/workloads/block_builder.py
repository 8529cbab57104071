"""A block written down kernel by kernel, its dims as words."""

from __future__ import annotations

from collections.abc import Mapping

from dfmodel.workloads.graph import Block, Kernel, Operand, Role, Tensor, Unit


class BlockBuilder:
    """Collects tensors and kernels whose dims are written as words ("batch token hidden")."""

    def __init__(self, name: str, extents: Mapping[str, int], dtype: str) -> None:
        self.name = name
        self.extents = extents
        self.dtype = dtype
        self.tensors: dict[str, Tensor] = {}
        self.kernels: list[Kernel] = []

    def input(self, name: str, dims: str, dtype: str = "") -> str:
        return self._tensor(name, dims, dtype or self.dtype, "activation")

    def weight(self, name: str, dims: str, role: Role = "weight") -> str:
        return self._tensor(name, dims, self.dtype, role)

    def constant(self, name: str, dims: str) -> str:
        """A tensor every chip has in any layout, without a gradient."""
        return self._tensor(name, dims, self.dtype, "cache")

    def kernel(
        self,
        name: str,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str],
        unit: Unit,
        flops_per_point: float,
        *,
        dtypes: Mapping[str, str] | None = None,
        op: str = "einsum",
        tiling: str = "token",
        **options: object,
    ) -> None:
        """Add a kernel streamed along `tiling`; its dims are those its operands walk, outputs' first."""
        for tensor, walk in outputs.items():
            self._tensor(tensor, walk, (dtypes or {}).get(tensor, self.dtype), "activation")
        words = " ".join((*outputs.values(), *inputs.values())).split()
        self.kernels.append(
            Kernel(
                name,
                {d: self.extents[d] for d in dict.fromkeys(words)},
                tuple(Operand(t, tuple(walk.split())) for t, walk in inputs.items()),
                tuple(Operand(t, tuple(walk.split())) for t, walk in outputs.items()),
                unit,
                flops_per_point,
                op=op,
                tiling=tiling,
                **options,  # type: ignore[arg-type]
            )
        )

    def block(self, *outputs: str) -> Block:
        return Block(self.name, tuple(self.kernels), self.tensors, outputs)

    def _tensor(self, name: str, dims: str, dtype: str, role: Role) -> str:
        self.tensors[name] = Tensor(name, {d: self.extents[d] for d in dims.split()}, dtype, role)
        return name
