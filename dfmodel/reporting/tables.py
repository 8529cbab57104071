"""Tables of a result: rows with units in their column names, and the text a terminal shows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dfmodel.mapping.result import PartitionRow, Result
from dfmodel.units import format_quantity

#: Rows of a kernel or partition table on the terminal; the CSV files hold all.
SHOWN_ROWS = 25


def breakdown_rows(result: Result) -> list[dict[str, Any]]:
    """Seconds of one iteration by category, with their share; they add up to the iteration."""
    total = result.metrics["iteration_s"] or 1.0
    return [{"category": name, "seconds": s, "percent": 100.0 * s / total} for name, s in result.breakdown_s.items()]


def kernel_rows(result: Result) -> list[dict[str, Any]]:
    """One row per kernel, on one chip and for one micro-batch."""
    return [dict(vars(k)) for k in result.kernels]


def partition_rows(result: Result) -> list[dict[str, Any]]:
    """One row per partition, on one chip and for one micro-batch."""
    return [{**vars(p), "kernels": " ".join(p.kernels)} for p in result.partitions]


def write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows of equal keys as a CSV file. The standard writer: pandas takes longer to load than a search does."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def render(result: Result) -> str:
    """The whole answer as text: summary, breakdown, memory, partitions, kernels, certificate, what is assumed."""
    parts = [
        _headline(result),
        section("Summary", _pairs(_summary(result))),
        section(f"Time of one {_iteration(result)}", _breakdown(result)),
        section("Memory of the fullest chip", _memory(result)),
        section(*_partitions(result)),
        section(*_kernels(result)),
        section("Beside it", _beside(result)),
        section("Certificate", _pairs(_certificate(result))),
        section("Assumed, not measured", "\n".join(f"- {text}" for text in _assumed(result))),
    ]
    return "\n\n".join(parts)


def _headline(result: Result) -> str:
    bound = "none" if result.bound is None else format_quantity(result.bound, "time", 6)
    gap = "" if result.gap is None else f", gap {100 * result.gap:.4g} %"
    return (
        f"{result.status}: {format_quantity(result.objective, 'time', 6)} per {_iteration(result)} (bound {bound}{gap})"
    )


def _iteration(result: Result) -> str:
    """What one iteration is called; a family may have its own word."""
    return str(result.workload.get("iteration", "iteration"))


def scope(result: Result) -> str:
    """What rows of kernels and partitions stand for."""
    return "one chip, whole run" if result.summary else "one chip, one micro-batch"


def section(title: str, body: str) -> str:
    return f"{title}\n{'-' * len(title)}\n{body}"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    listed = list(pairs)
    width = max(len(name) for name, _ in listed)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in listed)


def _summary(result: Result) -> list[tuple[str, str]]:
    w, s = result.workload, result.system
    shape = " x ".join(f"{d['size']} {d['kind']} ({d['name']})" for d in s["dimensions"])
    batch = "" if result.summary else f", batch {w['batch']:,}, {w['parameters']:,} parameters"
    return [
        ("workload", f"{w['title']}{batch}, {w['dtype']}"),
        ("system", f"{s['title']}: {s['chips']:,} x {s['chip_title']}"),
        ("topology", shape),
        *(result.summary or _degrees(result)),
        *_money("cost", result.cost, "money"),
        *_money("power", result.power, "power"),
        *_per_unit(result, w["unit"]),
    ]


def _degrees(result: Result) -> list[tuple[str, str]]:
    """Plan, throughput and utilisation of a layered model."""
    w, s, p, m = result.workload, result.system, result.plan, result.metrics
    unit = w["unit"]
    return [
        (
            "parallelism",
            f"tensor {p['tensor']} x "
            + (f"context {p['context']} x " if p["context"] > 1 else "")
            + f"data {p['data']} x pipeline {p['pipeline']}"
            + (", sequence sharding" if p["sequence_sharding"] else "")
            + (f", ZeRO {p['zero']}" if p["zero"] else ""),
        ),
        *[(f"  {name} on", where) for name, where in p["placement"].items() if name != "context" or p["context"] > 1],
        (
            "micro-batch",
            f"{p['micro_batch']} sequences, {p['micro_batches']:,} per iteration and pipeline, "
            f"schedule {p['schedule']}"
            + (f" of {p['chunks']} chunks" if p["chunks"] > 1 else "")
            + f", recomputation {p['recompute']}",
        ),
        *([("stages", _stages(p))] if p["pipeline"] > 1 else []),
        ("chips", f"{p['chips_used']:,} used, {p['chips_idle']:,} idle"),
        ("throughput", f"{m[f'{unit}s_per_s']:,.0f} {unit}s/s, {m['samples_per_s']:,.4g} samples/s"),
        (
            "utilisation",
            f"MFU {100 * (m['mfu'] or 0):.2f} %, HFU {100 * (m['hfu'] or 0):.2f} % of dense {s['matrix_dtype']} peak",
        ),
    ]


def _per_unit(result: Result, unit: str) -> list[tuple[str, str]]:
    """How the chip is made, where that is modelled; what a unit of work costs and takes."""
    rows = []
    made = result.cost["silicon"]
    if made is not None:
        rows.append(
            (
                "silicon",
                f"{made['dies']} x {made['die_mm2']:,.0f} mm2 on {made['process']}, "
                f"yield {100 * made['die_yield']:.1f} %, package {made['package_usd']:,.0f} USD, "
                f"price {made['price_usd']:,.0f} USD",
            )
        )
    usd = result.metrics[f"usd_per_M{unit}"]
    parts = ((n, result.cost[f"usd_per_{unit}_{k}"]) for n, k in (("price", "written_off"), ("electricity",) * 2))
    if usd is not None:
        # small units by the million, solves one by one
        many, what = (1e6, f"million {unit}s") if usd < 1e4 else (1.0, unit)
        usd *= many / 1e6
        shown = ", ".join(f"{name} {many * value:.4g}" for name, value in parts if value is not None)
        rows.append(("cost of work", f"{usd:.4g} USD per {what} ({shown})"))
    joules, moved = result.metrics[f"j_per_{unit}"], result.metrics[f"bottom_up_j_per_{unit}"]
    told = []
    if joules is not None:
        told.append(f"{format_quantity(joules, 'energy')} per {unit} at stated power")
    if moved is not None:
        told.append(f"{format_quantity(moved, 'energy')} for computing and moving alone")
    if told:
        rows.append(("energy", f"{', '.join(told)}; PUE {result.energy['pue']:.4g}"))
    return rows


def _stages(plan: Mapping[str, Any]) -> str:
    """How many layers the stages hold, and which is slowest and which fullest (counted from 1)."""
    layers = [max(row) for row in plan["layers_per_stage"]]
    spread = f"{min(layers)}" if min(layers) == max(layers) else f"{min(layers)} to {max(layers)}"
    return (
        f"{spread} layers each; slowest is stage {plan['slowest_stage'] + 1}, "
        f"fullest stage {plan['fullest_stage'] + 1} of {plan['pipeline']}"
    )


def _money(name: str, figures: Mapping[str, Any], dimension: str) -> list[tuple[str, str]]:
    if figures.get("total") is None:
        return [(name, f"unknown: no {', '.join(figures.get('missing', []))}")]
    uncounted = figures.get("uncounted") or []
    without = f" without {len(uncounted)} unpriced items" if uncounted else ""
    assumed = len(figures.get("assumed") or [])
    how = f" ({assumed} of its inputs assumed, listed below)" if assumed else ""
    return [(name, f"{format_quantity(figures['total'], dimension)}{without}{how}")]


def _breakdown(result: Result) -> str:
    total = result.metrics["iteration_s"] or 1.0
    hidden = {name: seconds for name, seconds in result.hidden_s.items() if seconds > 1e-9 * total}
    return _pairs(
        (
            name,
            f"{format_quantity(seconds, 'time'):>12}  {100 * seconds / total:6.2f} %"
            + (f"  ({format_quantity(hidden[name], 'time')} more is hidden)" if hidden.get(name) else ""),
        )
        for name, seconds in result.breakdown_s.items()
        if seconds or hidden.get(name)
    )


def _memory(result: Result) -> str:
    capacity = result.memory_capacity_bytes
    rows = [
        (name, f"{format_quantity(size, 'bytes'):>12}  {100 * size / capacity:6.2f} %")
        for name, size in result.memory_bytes.items()
        if size
    ]
    rows.append(("capacity", f"{format_quantity(capacity, 'bytes'):>12}"))
    if len(result.memory_tiers) > 1:
        for tier, held in result.memory_tiers.items():
            shown = ", ".join(f"{name} {format_quantity(size, 'bytes')}" for name, size in held.items())
            rows.append((f"in {tier}", shown or "nothing"))
    return _pairs(rows)


def _main_block(result: Result) -> str:
    return max(result.partitions, key=lambda p: p.repeats).block


def _partitions(result: Result) -> tuple[str, str]:
    if result.system["execution"] == "dataflow":
        shown = [p for p in result.partitions if p.block == _main_block(result)]
        return f"Partitions of block '{_main_block(result)}' ({scope(result)})", text_table(
            {
                "#": [p.index for p in shown],
                "phase": [p.phase for p in shown],
                "compute": [_s(p.compute_s) for p in shown],
                "memory": [_s(p.memory_s) for p in shown],
                "network": [_s(p.network_s) for p in shown],
                "total": [_s(p.seconds) for p in shown],
                "bound by": [p.bound_by for p in shown],
                "SRAM": [format_quantity(p.sram_bytes, "bytes", 3) for p in shown],
                "kernels": [_kernel_list(p) for p in shown],
            }
        )
    totals: dict[tuple[str, int, str, str], list[float]] = {}
    for p in result.partitions:
        entry = totals.setdefault((p.block, p.repeats, p.phase, p.bound_by), [0, 0.0])
        entry[0] += 1
        entry[1] += p.seconds
    return f"Kernel by kernel: time by what bounds it ({scope(result)})", text_table(
        {
            "block": [f"{b} x{n}" for b, n, _, _ in totals],
            "phase": [phase for _, _, phase, _ in totals],
            "bound by": [bound for *_, bound in totals],
            "kernels": [int(v[0]) for v in totals.values()],
            "time": [_s(v[1]) for v in totals.values()],
        }
    )


def _kernel_list(p: PartitionRow) -> str:
    text = " ".join(p.kernels)
    return text if len(text) <= 60 else f"{text[:50]}... ({len(p.kernels)})"


def _kernels(result: Result) -> tuple[str, str]:
    main = _main_block(result)
    rows = [k for k in result.kernels if k.block == main]
    longest = sorted(rows, key=lambda k: -(max(k.compute_s, k.memory_s) + k.network_s))[:SHOWN_ROWS]
    kept = {k.kernel for k in longest}
    shown = [k for k in rows if k.kernel in kept]
    rest = len(result.kernels) - len(shown)
    title = f"Kernels of block '{main}' (the {len(shown)} longest; {rest} more in mapping.csv)"
    return title, text_table(
        {
            "kernel": [k.kernel for k in shown],
            "part": [k.partition for k in shown],
            "sharded": [k.sharding for k in shown],
            "compute": [_s(k.compute_s) for k in shown],
            "memory": [_s(k.memory_s) for k in shown],
            "network": [_s(k.network_s) for k in shown],
            "communication": [k.communication for k in shown],
        }
    )


def _certificate(result: Result) -> list[tuple[str, str]]:
    c = result.certificate
    rows = [
        ("kind", c.kind),
        ("space", c.space),
        (
            "plans",
            f"{c.plans_counted:,} counted, {c.plans_evaluated:,} evaluated, {c.plans_infeasible:,} do not fit, "
            f"{c.plans_settled_by_bound:,} settled by a bound",
        ),
        *[("", f"{plans:,} cut by {what}") for what, plans in c.cut_by.items() if plans],
        *(
            [
                (
                    "mappings",
                    f"{c.classes:,} placements of tensor and context degrees with sequence choice and micro-batch, "
                    f"{c.classes_opened:,} mapped",
                )
            ]
            if c.classes
            else []
        ),
        ("programs solved", f"{c.mips_solved:,} in all; of the winner:"),
    ]
    for m in c.mips:
        gap = "" if m["gap"] is None else f", gap {100 * m['gap']:.2g} %"
        rows.append(
            (
                "",
                f"{m['level']} of {m['block']}: {m['status']}{gap}, {m['columns']} columns ({m['integers']} integer), "
                f"{m['rows']} rows, {m['wall_s']:.3f} s",
            )
        )
    rows += [("not covered", text) for text in c.not_covered]
    return rows


def _beside(result: Result) -> str:
    """Plans a user would have tried, and the runners-up, beside the optimum."""
    rows: list[dict[str, Any]] = []
    for b in result.baselines:
        rows.append({"plan": b["name"], **_plan_columns(result, b["plan"]), "s/iteration": _seconds(b["seconds"]),
                     "of optimum": "-" if b["share"] is None else f"{b['share']:.3f}x", "": b["why_not"]})  # fmt: skip
    for i, a in enumerate(result.alternatives):
        share = a["of_optimum"] if "of_optimum" in a else _per_sample(a) / (result.objective / result.plan["batch"])
        name = "optimum" if i == 0 else f"number {i + 1}" if a["rank"] else "also evaluated"
        rows.append({"plan": name, **_plan_columns(result, a),
                     "s/iteration": _seconds(a["iteration_s"]), "of optimum": f"{share:.3f}x", "": ""})  # fmt: skip
    return text_table({name: [r[name] for r in rows] for name in rows[0]}) if rows else "none"


def _per_sample(plan: Mapping[str, Any]) -> float:
    return float(plan["iteration_s"] / plan["batch"])


def _plan_columns(result: Result, plan: Mapping[str, Any] | None) -> dict[str, str]:
    """What tells plans apart: of a family with plans of its own, what its alternatives state."""
    degrees = ("tensor", "context", "data", "pipeline", "chunks", "micro_batch", "zero", "recompute")
    own = [k for k in (result.alternatives or ({},))[0] if k not in ("iteration_s", "rank", "of_optimum")]
    return {k: "-" if plan is None else str(plan[k]) for k in (own if result.summary else degrees)}


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _assumed(result: Result) -> list[str]:
    return list(result.assumed) or ["nothing"]


def text_table(columns: Mapping[str, list[Any]]) -> str:
    """Columns of text under their names, each as wide as its widest cell."""
    cells = {name: [str(value) for value in values] for name, values in columns.items()}
    widths = {name: max(map(len, [name, *values])) for name, values in cells.items()}
    lines = [list(cells), *zip(*cells.values(), strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths.values(), strict=True)).rstrip()
        for line in lines
    )


def _s(seconds: float) -> str:
    return format_quantity(seconds, "time", 4) if seconds else "-"
