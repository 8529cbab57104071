"""The LP text of every constraint function on a tiny instance. `python tests/golden_lp.py` writes them anew."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyomo.environ as pyo
from pyomo.repn.plugins.lp_writer import LPWriter

from dfmodel.mapping import partitioning, path_mip, sharding_mip, stage_mip
from dfmodel.mapping.lattice import solve_lattice
from dfmodel.mapping.problem import PartitionProblem, TensorUse, TotalLimit
from dfmodel.mapping.sharding import ShardingProblem, ShardingRules, sharding_problem
from dfmodel.mapping.stages import Run
from dfmodel.workloads.graph import Block, Kernel, Operand, Tensor

FOLDER = Path(__file__).parent / "golden"


def partition_problem() -> PartitionProblem:
    """Three kernels (one backward, one too large for SRAM), a shared tensor that leaves, and a block input."""
    return PartitionProblem(
        kernels=("a", "b", "c"),
        phase=(0, 0, 1),
        compute_s=(1e-3, 2e-3, 3e-3),
        network_s=(0.0, 5e-4, 0.0),
        memory_bytes=(1e6, 0.0, 0.0),
        weight_bytes=(4e6, 0.0, 30e6),
        passes=(1, 1, 2),
        tensors=(
            TensorUse("t", 0, (1, 2), 8e6, 2e6, (2, 3), leaves=True),
            TensorUse("u", 1, (2,), 6e6, 1e6, (2,)),
            TensorUse("x", None, (0,), 4e6, 1e6, (1,)),
        ),
        sram_bytes=20e6,
        memory_bytes_per_s=1e10,
        overlap="full",
        traffic_per="tensor",
        boundary_buffers=2,
        maximum=2,
        halves=True,
        reconfiguration_s=1e-4,
        pinned=((1, 0),),
        limits=(TotalLimit("traffic", 0.0, 1.0, 50e6), TotalLimit("energy", 300.0, 3e-11, 2.0)),
    )


def sharded_problem() -> ShardingProblem:
    """One GEMM with two consumers that may want its result in different layouts."""
    tensors = {
        "x": Tensor("x", {"k": 4}, "bf16"),
        "w": Tensor("w", {"n": 4, "k": 4}, "bf16", "weight"),
        "y": Tensor("y", {"n": 4}, "bf16"),
        "p": Tensor("p", {"n": 4}, "bf16"),
        "q": Tensor("q", {"n": 4}, "bf16"),
    }
    gemm = Kernel(
        "gemm",
        {"n": 4, "k": 4},
        (Operand("x", ("k",)), Operand("w", ("n", "k"))),
        (Operand("y", ("n",)),),
        "matrix",
        2.0,
    )
    users = tuple(
        Kernel(f"use_{t}", {"n": 4}, (Operand("y", ("n",)),), (Operand(t, ("n",)),), "vector", 1.0) for t in ("p", "q")
    )
    block = Block("tiny", (gemm, *users), tensors)
    prices = {"replicated": 4.0, "n": 2.0, "k": 3.0}
    return sharding_problem(
        block, 2, ShardingRules(pinned={"use_q": "replicated"}), lambda k, s: prices[s.name], lambda op, size: size
    )


#: Functions whose variables another one needs first.
_BEFORE: dict[str, tuple[Callable[..., None], ...]] = {
    "add_sram": (partitioning.add_crossings,),
    "add_times": (partitioning.add_crossings,),
    "add_limits": (partitioning.add_crossings, partitioning.add_times, partitioning.add_used),
    "add_shared_conversions": (sharding_mip.add_flow_marginals,),
}


def _text(m: pyo.ConcreteModel) -> str:
    """The model's rows as LP text, its fixed variables as comments."""
    m.objective = pyo.Objective(expr=sum(v for v in m.component_data_objects(pyo.Var) if not v.fixed))
    stream = io.StringIO()
    LPWriter().write(m, stream, symbolic_solver_labels=True)
    fixed = sorted(f"{v.name} = {v.value}" for v in m.component_data_objects(pyo.Var) if v.fixed)
    return stream.getvalue() + "".join(f"\\* fixed: {text} *\\\n" for text in fixed)


def texts() -> dict[str, str]:
    """Name of the constraint function -> LP text of a model that holds its rows only."""
    found = {}
    for module, problem, first in (
        (partitioning, partition_problem(), partitioning.add_assignment),
        (sharding_mip, sharded_problem(), sharding_mip.add_choice),
    ):
        for add in module.CONSTRAINTS:
            m = pyo.ConcreteModel(name=add.__name__)
            needed = () if add is first else (first, *_BEFORE.get(add.__name__, ()))
            for earlier in needed:
                earlier(m, problem)
            for rows in m.component_objects(pyo.Constraint):
                rows.deactivate()
            add(m, problem)
            found[add.__name__] = _text(m)
    return {**found, **_path_texts(), **_stage_texts()}


def _path_texts() -> dict[str, str]:
    """The path program's functions on the same instance without its pin, all arcs kept."""
    p = replace(partition_problem(), pinned=())
    lattice = solve_lattice(p)
    found = {}
    for add in path_mip.CONSTRAINTS:
        m = pyo.ConcreteModel(name=f"path {add.__name__}")
        m.use = pyo.Var(range(len(lattice.columns.seconds)), domain=pyo.Binary)
        add(m, lattice.columns, lattice.ideals, p)
        found[f"path_{add.__name__}"] = _text(m)
    return found


def _stage_texts() -> dict[str, str]:
    """Two runs of blocks on two stages with a message and memory that decreases from stage to stage."""
    runs = [Run(1, 1e-3, (30e6, 20e6)), Run(3, 2e-3, (20e6, 10e6))]
    found = {}
    for add in stage_mip.CONSTRAINTS:
        m = pyo.ConcreteModel(name=f"stages {add.__name__}")
        m.n = pyo.Var(range(2), range(2), domain=pyo.NonNegativeIntegers)
        m.T = pyo.Var(domain=pyo.NonNegativeReals)
        add(m, runs, 2, [5e-4, 5e-4], 60e6)
        found[f"stage_{add.__name__}"] = _text(m)
    return found


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / f"{name}.lp").write_text(text)
        sys.stdout.write(f"{name}: {len(text.splitlines())} lines\n")
