"""Pictures of a result: time breakdown, roofline, dataflow graph by partition, memory occupancy. PNG, no display."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfmodel.mapping.result import Result
from dfmodel.units import format_quantity

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Okabe and Ito's palette, distinct to the colour-blind; hatches tell bars apart in print.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "oo", "--")

#: Of a PNG file: lines and flat colours need little, and time counts.
COMPRESSION = 3


def write_plots(result: Result, folder: Path, names: Sequence[str] = ()) -> list[Path]:
    """The plots `names` of a run, or every one; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = tuple(names) or tuple(PLOTS)
    for name in wanted:
        figure = PLOTS[name](result)
        figure.savefig(folder / name, dpi=130, metadata={"Software": None}, pil_kwargs={"compress_level": COMPRESSION})
    return [folder / name for name in wanted]


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure as New

    figure = New(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def time_breakdown(result: Result) -> Figure:
    """Seconds of one iteration by category, one bar each."""
    parts = [(name, s) for name, s in result.breakdown_s.items() if s > 0]
    figure, axes = _figure(8, 0.5 * len(parts) + 1.6)
    total = sum(s for _, s in parts)
    for i, (_, seconds) in enumerate(parts):
        axes.barh(i, seconds, color=COLOURS[i % len(COLOURS)], edgecolor="black", linewidth=0.6)
        axes.annotate(f" {format_quantity(seconds, 'time')} ({100 * seconds / total:.1f} %)", (seconds, i), va="center")
    axes.set_yticks(range(len(parts)), [name for name, _ in parts])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.28 * max(s for _, s in parts))
    axes.set_xlabel(f"time of one {result.workload.get('iteration', 'iteration')} (s)")
    axes.set_title(
        f"{result.workload['title']} on {result.system['chips']:,} {result.system['chip_title']}", fontsize=10
    )
    return figure


def roofline(result: Result) -> Figure:
    """Each kernel's achieved FLOP/s against its FLOP per byte of memory traffic, under the chip's ceilings."""
    figure, axes = _figure(8, 5.4)
    bandwidth = result.system["memory_bytes_per_s"]
    ceilings = (
        ("matrix", result.system["matrix_flops_per_s"], "-"),
        ("vector", result.system["vector_flops_per_s"], "--"),
    )
    points = [k for k in result.kernels if k.flops > 0 and k.memory_bytes > 0]
    intensities = [k.flops / k.memory_bytes for k in points] or [1.0]
    low, high = min(intensities) / 3, max([*intensities, ceilings[0][1] / bandwidth]) * 3
    for name, peak, style in ceilings:
        knee = peak / bandwidth
        axes.plot(
            [low, max(low, knee), high],
            [min(peak, low * bandwidth), peak, peak],
            style,
            color="black",
            linewidth=1.2,
            label=f"{name} peak {format_quantity(peak, 'flop_rate', 3)}",
        )
    for colour, marker, unit in ((COLOURS[0], "o", "matrix"), (COLOURS[1], "^", "vector")):
        own = [k for k in points if k.unit == unit]
        # a fused kernel moves less than it would alone, and would stand above the roof by the time it then takes
        seconds = [max(k.compute_s, k.memory_s, k.memory_bytes / bandwidth) for k in own]
        axes.scatter(
            [k.flops / k.memory_bytes for k in own],
            [k.flops / s for k, s in zip(own, seconds, strict=True)],
            color=colour,
            marker=marker,
            edgecolor="black",
            linewidth=0.5,
            s=34,
            label=f"{unit} kernels",
            zorder=3,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    # plain text, which is read and drawn faster than powers of ten
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: format_quantity(value, "flop_rate", 3))
    axes.minorticks_off()
    axes.set_xlim(low, high)
    axes.set_xlabel("arithmetic intensity (FLOP per byte of memory traffic, kernel run alone)")
    axes.set_ylabel("FLOP/s on one chip")
    axes.set_title(
        f"Roofline of one {result.system['chip_title']}, memory {format_quantity(bandwidth, 'bandwidth', 3)}",
        fontsize=10,
    )
    axes.grid(True, which="major", color="0.85", linewidth=0.6)
    axes.legend(loc="lower right", fontsize=8)
    return figure


def memory_occupancy(result: Result) -> Figure:
    """Bytes of the fullest chip by category against the capacity."""
    figure, axes = _figure(8, 2.8)
    left = 0.0
    for i, (name, size) in enumerate((n, b) for n, b in result.memory_bytes.items() if b > 0):
        axes.barh(
            0,
            size / 2**30,
            left=left,
            color=COLOURS[i],
            hatch=HATCHES[i],
            edgecolor="black",
            linewidth=0.6,
            label=f"{name} {format_quantity(size, 'bytes', 3)}",
        )
        left += size / 2**30
    capacity = result.memory_capacity_bytes / 2**30
    if math.isfinite(capacity):
        axes.axvline(capacity, color="black", linewidth=2, label=f"capacity {capacity:.4g} GiB")
        axes.set_xlim(0, 1.05 * max(capacity, left))
    axes.set_yticks([])
    axes.set_xlabel("memory of the fullest chip (GiB)")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def dataflow_graph(result: Result) -> Figure:
    """The most repeated block: kernels left to right by depth, coloured by partition (or by what bounds them)."""
    from matplotlib.patches import FancyArrowPatch

    block = max(result.partitions, key=lambda p: p.repeats).block
    kernels = [k for k in result.kernels if k.block == block]
    edges = [(a, b) for name, a, b in result.edges if name == block]
    place = _layout([k.kernel for k in kernels], edges)
    dataflow = result.system["execution"] == "dataflow"
    bounds = {name: p.bound_by for p in result.partitions if p.block == block for name in p.kernels}
    label = {k.kernel: f"partition {k.partition}" if dataflow else f"bound by {bounds[k.kernel]}" for k in kernels}
    groups = sorted(set(label.values()), key=lambda g: (len(g), g))
    columns = 1 + max(x for x, _ in place.values())
    rows = 1 + max(y for _, y in place.values())
    figure, axes = _figure(max(8.0, 1.25 * rows + 1.5), max(5.0, 0.42 * columns + 1.2))
    for a, b in edges:
        (xa, ya), (xb, yb) = place[a], place[b]
        arrow = FancyArrowPatch(
            (ya, -xa - 0.2),
            (yb, -xb + 0.2),
            arrowstyle="-|>",
            mutation_scale=8,
            color="0.55",
            linewidth=0.6,
            connectionstyle=f"arc3,rad={0.12 if yb == ya and xb - xa > 1 else 0}",
        )
        arrow.set_in_layout(False)
        axes.add_artist(arrow)
    for k in kernels:
        x, y = place[k.kernel]
        group = groups.index(label[k.kernel])
        colour = COLOURS[group % len(COLOURS)]
        text = axes.text(
            y,
            -x,
            k.kernel,
            ha="center",
            va="center",
            fontsize=6.5,
            color="black",
            bbox={
                "boxstyle": "round,pad=0.25" if k.unit == "matrix" else "square,pad=0.25",
                "facecolor": _pale(colour),
                "edgecolor": colour,
                "linewidth": 1.4 if k.unit == "matrix" else 0.8,
            },
        )
        text.set_in_layout(False)
    for i, name in enumerate(groups):
        axes.scatter(
            [],
            [],
            marker="s",
            color=_pale(COLOURS[i % len(COLOURS)]),
            edgecolor=COLOURS[i % len(COLOURS)],
            label=name,
        )
    axes.set_xlim(-0.8, rows - 0.2)
    axes.set_ylim(-columns + 0.2, 0.8)
    axes.set_axis_off()
    axes.legend(loc="upper right", fontsize=8, title="round boxes: matrix units; square: vector", title_fontsize=7)
    what = "whole run" if result.summary else "one micro-batch"
    axes.set_title(f"Block '{block}', {what}, data flows downwards", fontsize=10)
    return figure


#: File and picture of every plot of a run.
PLOTS: dict[str, Callable[[Result], Figure]] = {
    "time_breakdown.png": time_breakdown,
    "dataflow.png": dataflow_graph,
    "roofline.png": roofline,
    "memory.png": memory_occupancy,
}


def _layout(kernels: list[str], edges: list[tuple[str, str]]) -> dict[str, tuple[int, int]]:
    """(depth, lane) of every kernel: depth is the longest path to it, lanes fill in order of the parents' lanes."""
    parents: dict[str, list[str]] = {k: [] for k in kernels}
    for a, b in edges:
        parents[b].append(a)
    depth: dict[str, int] = {}

    def of(k: str) -> int:
        if k not in depth:
            depth[k] = max((of(p) + 1 for p in parents[k]), default=0)
        return depth[k]

    lanes: dict[str, int] = {}
    used: dict[int, set[int]] = {}
    for k in sorted(kernels, key=of):
        wished = [lanes[p] for p in parents[k] if depth[p] == depth[k] - 1]
        lane = min(wished, default=0)
        while lane in used.setdefault(depth[k], set()):
            lane += 1
        used[depth[k]].add(lane)
        lanes[k] = lane
    return {k: (depth[k], lanes[k]) for k in kernels}


def _pale(colour: str) -> tuple[float, float, float]:
    """The colour mixed with white, so that black text on it is readable."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return (0.6 + 0.4 * red, 0.6 + 0.4 * green, 0.6 + 0.4 * blue)
