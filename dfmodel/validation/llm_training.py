"""Training of language models beside its measurements: every row of llm_training.csv with its own configuration.

What a row leaves empty (micro-batch, interleaving, parallel degrees) is filled in by the search under the row's stack
and said so. A row is compared in its own convention: step time where that was measured, else the rate it states.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dfmodel.assumptions import Assumptions
from dfmodel.catalog_files import Dirs
from dfmodel.errors import DfmodelError
from dfmodel.mapping.map_block import SolverSettings
from dfmodel.mapping.plan import PlanRequest, plan_request
from dfmodel.mapping.search import Evaluated, Search
from dfmodel.presets import load_assumptions
from dfmodel.systems.catalog import load_system
from dfmodel.systems.system import System
from dfmodel.validation.files import CannotModelError, Comparison, load_rules, number, read_table
from dfmodel.workloads.graph import Workload
from dfmodel.workloads.llm import LlmModel, llm_workload

TABLE = "llm_training"
COLUMNS = (
    "model", "layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "seq_len", "chip", "n_chips", "precision",
    "tp", "pp", "vp", "cp", "dp", "fsdp", "mp_mode", "gbs_seqs", "mbs_seqs", "recompute", "model_tflops_per_chip",
    "mfu_pct", "hfu_pct", "step_time_s", "tokens_per_s_per_chip", "note",
)  # fmt: skip

#: Chunks per stage up to which a row's interleaving is searched.
MOST_CHUNKS = 48

#: Memory that rows with every setting stated are not held to: they ran.
ENOUGH_BYTES = 1e15


@dataclass(frozen=True)
class Case:
    """A row as the model takes it: what is asked of the plan, and what of the row was filled in."""

    id: str
    use: str
    table: str
    era: str
    chip: str
    precision: str
    workload: Workload
    system: System
    assumptions: Assumptions
    request: PlanRequest
    measured: float
    unit: str
    filled: tuple[str, ...] = ()
    repeats_forward: bool = False
    #: The same row under other batches, where it states none: the best one counts.
    others: tuple[Case, ...] = ()

    def solved(self) -> Evaluated:
        """The plan of the row, or the best one of what it leaves open. Raises InfeasibleError where none fits."""
        search = Search(self.workload, self.system, self.assumptions, self.request, SolverSettings(), lambda text: None)
        return search.best_of_space()

    def with_curve(self, **changes: Any) -> Case:
        """The same on a chip whose efficiency curve is changed."""
        chip = self.system.chip
        curve = replace(chip.efficiency, **changes)
        others = tuple(other.with_curve(**changes) for other in self.others)
        return replace(self, system=replace(self.system, chip=replace(chip, efficiency=curve)), others=others)

    def best(self) -> tuple[float, Evaluated]:
        """The figure of the row and the plan behind it. Raises InfeasibleError where none fits."""
        found: list[tuple[float, Evaluated]] = []
        refused: DfmodelError | None = None
        for case in (self, *self.others):
            try:
                solved = case.solved()
            except DfmodelError as error:
                refused = error
                continue
            found.append((case.figure(solved), solved))
        if not found:
            assert refused is not None
            raise refused
        return min(found, key=lambda f: f[0]) if self.unit == "s" else max(found, key=lambda f: f[0])

    def figure(self, found: Evaluated) -> float:
        """What the row states, of a prediction: seconds of a step, or TFLOP/s per chip in the row's convention."""
        if self.unit == "s":
            return found.iteration.seconds
        flops = (
            self.workload.model_flops_per_sample("matrix") * found.plan.batch * (4 / 3 if self.repeats_forward else 1)
        )
        return flops / found.iteration.seconds / found.plan.chips / 1e12


def stack_of(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry for a row. Raises CannotModelError where no entry matches, or it says why rows cannot be modelled."""
    stack = _listed(row, rules)
    if stack is not None:
        for pattern, why in (stack.get("why_not") or {}).items():
            if fnmatch.fnmatch(row["id"], pattern):
                raise CannotModelError(why)
        return stack
    for other in rules["others"]:
        if all(row.get(c) is not None and fnmatch.fnmatch(str(row[c]), p) for c, p in other["when"].items()):
            named = next(s for s in rules["stacks"] if s["name"] == other["stack"])
            return {**named, "table": TABLE, "guessed": True}
    raise CannotModelError("no software stack is known for the row's chip and settings")


def _listed(row: Mapping[str, Any], rules: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first entry whose patterns a row's id matches."""
    return next((s for s in rules["stacks"] if any(fnmatch.fnmatch(row["id"], p) for p in s["rows"])), None)


def case_of(row: Mapping[str, Any], rules: Mapping[str, Any], dirs: Dirs = ()) -> Case:
    """A row as a case. Raises CannotModelError where the row does not say enough or names what no catalog has."""
    stack = stack_of(row, rules)
    row, scaled = _scaled(row, stack)
    if row["gbs_seqs"] is None and "batch_per_chip" in stack:
        chips = _count(row, "n_chips")
        cases = [case_of({**row, "gbs_seqs": n * chips}, rules, dirs) for n in stack["batch_per_chip"]]
        assumed = (*scaled, "sequences per chip by the search", *cases[0].filled)
        return replace(cases[0], filled=assumed, others=tuple(cases[1:]))
    stated = {**(stack.get("missing") or {}), **{k: v for k, v in row.items() if v is not None}}
    filled = [f"{k} {v}" for k, v in (stack.get("missing") or {}).items() if row.get(k) is None]
    if stack.get("guessed"):
        filled.append(f"software stack {stack['name']}, by the row's columns")
    model = _model(stated, stack)
    sequence = _count(stated, "seq_len")
    batch = stated.get("gbs_seqs")
    if batch is None:
        raise CannotModelError("the row states no batch")
    dtype = "bf16" if row["precision"] in ("bf16", "fp8") else str(row["precision"])
    workload = llm_workload(
        model,
        sequence=sequence,
        batch=int(batch),
        dtype=dtype,
        fused_attention=stack["attention"] == "fused",
        separate_loss=stack.get("loss") == "separate",
    )
    system = _system(stated, stack, rules, dirs)
    request, more = _request(stated, stack, system)
    overrides = {"compute.stack": stack["era"], **(stack.get("assumptions") or {})}
    if row["precision"] == "fp8":
        overrides["compute.products"] = "fp8"
    if row["mp_mode"] == "PURE":
        overrides["memory.gradient"] = "bf16"
    measured, unit, repeats = _measured(row)
    return Case(
        row["id"], row["use"], stack["table"], stack["era"], str(row["chip"]), str(row["precision"]),
        workload, system, load_assumptions("default", overrides), request, measured, unit, (*filled, *more), repeats,
    )  # fmt: skip


def _scaled(row: Mapping[str, Any], stack: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """A row with the sizes its note's global_parameter_scale stands for, on one of its slices; unchanged where the
    stack has no such scale or the row states its sizes.

    Of every three doublings of the scale the first doubles heads and FFN, the second the hidden width, and all three
    the layers (MaxText, pyconfig.get_individual_scales).
    """
    if "scaled_from" not in stack or row["hidden"] is not None:
        return dict(row), []
    found = re.search(r"global_parameter_scale=(\d+)", row["note"] or "")
    if found is None:
        raise CannotModelError("the row states neither sizes nor a scale")
    thirds, rest = divmod(int(math.log2(int(found.group(1)))), 3)
    base = stack["scaled_from"]
    wide, deep = 2 ** (thirds + (rest > 0)), 2**thirds
    slices = re.search(r"_(\d+)x", row["id"])
    pieces = int(slices.group(1)) if slices else 1
    sizes = {
        "hidden": base["hidden"] * 2 ** (thirds + (rest > 1)), "heads": base["heads"] * wide,
        "ffn_hidden": base["ffn"] * wide, "layers": base["layers"] * deep, "vocab": base["vocabulary"],
        "seq_len": row["seq_len"] or base["sequence"], "n_chips": _count(row, "n_chips") // pieces,
        "head_dim": base["head_dim"],
    }  # fmt: skip
    return {**row, **sizes}, [f"traffic between {pieces} slices hidden"] if pieces > 1 else []


def _count(stated: Mapping[str, Any], column: str) -> int:
    if stated.get(column) is None:
        raise CannotModelError(f"the row states no {column}")
    return int(float(stated[column]))


def _model(stated: Mapping[str, Any], stack: Mapping[str, Any]) -> LlmModel:
    hidden, heads = _count(stated, "hidden"), _count(stated, "heads")
    options = {"max_sequence": _count(stated, "seq_len"), **(stack.get("model") or {})}
    width = stated.get("head_dim") or hidden // heads
    if hidden % heads and not stated.get("head_dim"):
        raise CannotModelError(f"hidden {hidden} does not divide into {heads} heads")
    return LlmModel(
        name="row", title=str(stated["model"]), layers=_count(stated, "layers"), hidden=hidden, heads=heads,
        kv_heads=_count(stated, "kv_heads") if stated.get("kv_heads") else heads, head_dim=int(width),
        ffn=_count(stated, "ffn_hidden"), vocabulary=_count(stated, "vocab"), **options,
    )  # fmt: skip


def _system(stated: Mapping[str, Any], stack: Mapping[str, Any], rules: Mapping[str, Any], dirs: Dirs) -> System:
    known = next((s for chip, s in rules["systems"].items() if fnmatch.fnmatch(str(stated["chip"]), chip)), None)
    if known is None:
        raise CannotModelError(f"no system of the catalog has chip '{stated['chip']}'")
    chips = _count(stated, "n_chips")
    if "shapes" in known:
        if chips not in known["shapes"]:
            raise CannotModelError(f"no slice of {chips} chips is known")
        return load_system(known["system"], known["shapes"][chips], dirs)
    node = int(known["node"])
    overrides = {**known.get("set", {}), **(stack.get("system") or {}), "nodes": -(-chips // node)}
    if chips < node:
        overrides["topology.0.size"] = chips
    system = load_system(known["system"], overrides, dirs)
    if "fusions" in stack:
        system = replace(system, chip=replace(system.chip, fusions=tuple(stack["fusions"])))
    if stack.get("keeps_memory"):
        return system
    memories = tuple(replace(m, capacity_bytes=ENOUGH_BYTES) for m in system.chip.memories)
    return replace(system, chip=replace(system.chip, memories=memories))


def _request(stated: Mapping[str, Any], stack: Mapping[str, Any], system: System) -> tuple[PlanRequest, list[str]]:
    """What a row fixes of the plan, and the names of what the search fills in."""
    plan = dict(stack.get("plan") or {})
    for key, column in (("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"), ("micro_batch", "mbs_seqs")):
        if stated.get(column) is not None:
            plan[key] = int(stated[column])
    if stated.get("vp") is not None and int(stated["vp"]) > 1:
        plan |= {"schedule": "interleaved", "chunks": int(stated["vp"])}
    elif stated.get("vp") is not None:
        plan |= {"schedule": "1f1b"}
    plan |= _recomputation(stated.get("recompute"), stack, plan.get("tensor", 2))
    if stated.get("fsdp") in ("FULL_SHARD", "FSDP"):
        plan["zero"] = 3
    elif stated.get("fsdp") == "SHARD_GRAD_OP":
        plan["zero"] = 2
    plan.setdefault("context", 1)
    if plan.get("tensor", 1) > 1:
        first = system.dimensions[0]
        plan["placement"] = {"tensor": {first.name: min(int(plan["tensor"]), first.size)}}
    names = {"tensor": "tp", "pipeline": "pp", "micro_batch": "mbs_seqs", "recompute": "recompute"}
    filled = [f"{column} by the search" for key, column in names.items() if key not in plan]
    if "schedule" not in plan and plan.get("pipeline", 2) > 1:
        filled.append("vp by the search")
    plan |= {"use_all_chips": True, "most_chunks": MOST_CHUNKS}
    return plan_request(plan), filled


def _recomputation(text: str | None, stack: Mapping[str, Any], tensor: int) -> dict[str, Any]:
    if text is None:
        return {}
    if text == "full":
        return {"recompute": stack.get("full_recompute", "full"), "sequence_sharding": False}
    if text.startswith("selective"):
        return {"recompute": "selective", "sequence_sharding": "seqpar" in text and tensor > 1}
    if text == "none":
        return {"recompute": "none"}
    return {}


def _measured(row: Mapping[str, Any]) -> tuple[float, str, bool]:
    """The figure that judges a row, its unit, and whether it counts the repeated forward pass."""
    seconds, model = number(row, "step_time_s"), number(row, "model_tflops_per_chip")
    if seconds is not None:
        return seconds, "s", False
    if model is not None:
        return model, "TFLOP/s per chip", False
    peak = number(row, "peak_tflops_used")
    for column, repeats in (("mfu_pct", False), ("hfu_pct", True)):
        share = number(row, column)
        if share is not None and peak is not None:
            return share / 100 * peak, "TFLOP/s per chip", repeats
    raise CannotModelError("the row states no step time, rate or utilisation")


def predict(case: Case) -> tuple[float | None, str, tuple[str, ...]]:
    """The figure of a row, or why there is none, and what the prediction rests on besides the row."""
    try:
        value, found = case.best()
    except DfmodelError as error:
        return None, str(error), ()
    p = found.plan.describe()
    shown = []
    if case.filled:
        shown = [f"tp {p['tensor']} pp {p['pipeline']} vp {p['chunks']} mbs {p['micro_batch']} {p['recompute']}"]
    return value, "", (*case.filled, *shown)


def compare(folder: Path | None = None, dirs: Dirs = ()) -> list[Comparison]:
    """Every row of llm_training.csv with what the model predicts."""
    rules = load_rules(TABLE)
    found = []
    for row in read_table(TABLE, folder, COLUMNS):
        try:
            case = case_of(row, rules, dirs)
        except DfmodelError as error:
            found.append(_unmodelled(row, rules, str(error)))
            continue
        value, why_not, assumed = predict(case)
        facts = {"table": case.table, "era": case.era, "filled": bool(case.filled)}
        found.append(Comparison(row["id"], TABLE, row["use"], case.measured, value, case.unit, assumed, why_not, facts))
    return found


def _unmodelled(row: Mapping[str, Any], rules: Mapping[str, Any], why_not: str) -> Comparison:
    stack = _listed(row, rules)
    table = "other" if stack is None else stack["table"]
    measured = number(row, "step_time_s") or number(row, "mfu_pct") or math.nan
    return Comparison(row["id"], TABLE, row["use"], measured, None, "", (), why_not, {"table": table, "filled": False})
