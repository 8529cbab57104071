"""Pictures of a sweep: heat maps over two axes, lines over one, fronts; each as PNG and SVG with its CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dfmodel.errors import InputError, did_you_mean
from dfmodel.reporting.plots import COLOURS
from dfmodel.studies.axes import numbers
from dfmodel.studies.pareto import Goal, solved_rows
from dfmodel.studies.pareto import front as front_of
from dfmodel.studies.solve_point import SOLVED
from dfmodel.studies.tables import front_columns, input_columns
from dfmodel.units import format_quantity, unit_size

#: Markers of lines and groups, so that colour is not all that tells them apart.
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

#: Even in lightness, and read alike by the colour-blind.
COLOUR_MAP = "cividis"

#: Ends of metric names, what they mean and their units, the longest first.
_ENDS = (
    ("_per_s_per_usd", "throughput per price", "{}/s per USD"),
    ("_per_s_per_w", "throughput per power", "{}/s per W"),
    ("_per_s", "throughput", "{}/s"),
    ("_usd", "{}", "USD"),
    ("_bytes", "{}", "bytes"),
    ("_share", "{}", "share"),
    ("_s", "{}", "s"),
    ("_w", "{}", "W"),
)
_PLAIN = {"mfu": "share of peak", "hfu": "share of peak", "utilisation": "share of peak", "gap": "relative"}

#: Most cells that a heat map writes numbers into.
_WRITTEN_CELLS = 150


def label_of(metric: str) -> str:
    """The label of a metric's axis, with its unit: "tokens_per_s" is "throughput (tokens/s)"."""
    if metric in _PLAIN:
        return f"{metric.upper() if metric in ('mfu', 'hfu') else metric} ({_PLAIN[metric]})"
    if metric.startswith("j_per_"):
        return f"energy per {metric.removeprefix('j_per_')} (J)"
    for end, words, unit in _ENDS:
        if metric.endswith(end):
            what = metric.removesuffix(end).replace("_", " ")
            return f"{words.format(what)} ({unit.format(what)})"
    return metric.replace("_", " ")


def _number(value: float, _: object = None) -> str:
    """Four digits, thousands apart, without an exponent where it can be read without one."""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1e3 <= abs(rounded) < 1e7 else f"{rounded:.4g}"


def write_heatmap(frame: Any, x: str, y: str, metric: str, folder: Path) -> list[Path]:
    """`metric` over the axes `x` (columns) and `y` (rows): heatmap_METRIC.png, .svg, .csv; returns the files.

    Cells without an answer are hatched and say why. Raises InputError for an unknown column, or where another input
    gives a cell more than one value.
    """
    _check_columns(frame, (x, y))
    solved_rows(frame, [metric])
    _check_single(frame, (x, y))
    xs, ys = _values(frame[x]), _values(frame[y])
    cells = frame.set_index([y, x])
    grid = np.full((len(ys), len(xs)), np.nan)
    why: dict[tuple[int, int], str] = {}
    for i, row in enumerate(ys):
        for j, column in enumerate(xs):
            if (row, column) not in cells.index:
                why[i, j] = ""
            elif cells.loc[[(row, column)], "status"].iloc[0] in SOLVED:
                grid[i, j] = cells.loc[[(row, column)], metric].iloc[0]
            else:
                why[i, j] = str(cells.loc[[(row, column)], "status"].iloc[0])
    figure = _heatmap(grid, why, (xs, x), (ys, y), metric)
    long = pd.DataFrame(
        [(a, b, grid[i, j]) for i, b in enumerate(ys) for j, a in enumerate(xs)], columns=[x, y, metric]
    )
    return _written(figure, long, folder, f"heatmap_{metric}")


def _heatmap(
    grid: np.ndarray, why: dict[tuple[int, int], str], xs: tuple[list[Any], str], ys: tuple[list[Any], str], metric: str
) -> Figure:
    rows, columns = grid.shape
    figure = Figure(figsize=(max(5.0, 1.6 + 0.95 * columns), max(3.2, 1.4 + 0.55 * rows)), layout="constrained")
    axes = figure.add_subplot()
    drawn = axes.imshow(grid, aspect="auto", origin="lower", cmap=COLOUR_MAP)
    middle = (np.nanmin(grid) + np.nanmax(grid)) / 2
    for (i, j), reason in why.items():
        axes.fill_between((j - 0.5, j + 0.5), i - 0.5, i + 0.5, facecolor="0.92", edgecolor="0.6", hatch="///", lw=0)
        axes.text(j, i, reason, ha="center", va="center", fontsize=7, bbox={"facecolor": "white", "lw": 0, "pad": 1})
    if grid.size <= _WRITTEN_CELLS:
        for (i, j), value in np.ndenumerate(grid):
            if np.isfinite(value):
                shade = "white" if value < middle else "black"
                axes.text(j, i, _number(float(value)), ha="center", va="center", fontsize=8, color=shade)
    for values, name, axis in ((*xs, axes.xaxis), (*ys, axes.yaxis)):
        ticks, label = _ticks(values, name)
        step = max(1, len(ticks) // 24)
        axis.set_ticks(range(0, len(ticks), step), ticks[::step])
        axis.set_label_text(label)
    if max(map(len, _ticks(*xs)[0])) > 9:
        axes.tick_params(axis="x", rotation=30)
    figure.colorbar(drawn, ax=axes, label=label_of(metric), format=_number)
    return figure


def write_lines(frame: Any, x: str, metric: str, by: str | None, folder: Path) -> list[Path]:
    """`metric` over the axis `x`, a line per value of `by`: lines_METRIC.png, .svg, .csv; returns the files."""
    used = (x,) if by is None else (x, by)
    _check_columns(frame, used)
    rows = solved_rows(frame, [metric])
    _check_single(frame, used)
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.add_subplot()
    values = _values(rows[x])
    read = numbers(values)
    ticks, label = _ticks(values, x)
    places = read[0] if read else list(map(float, range(len(values))))
    place = dict(zip(values, places, strict=True))
    for i, group in enumerate(_values(rows[by]) if by else [None]):
        own = rows if by is None else rows[rows[by] == group]
        points = sorted((place[v], m) for v, m in zip(own[x], own[metric], strict=True))
        name = None if by is None else _ticks([group], by)[0][0]
        axes.plot(
            [p for p, _ in points],
            [m for _, m in points],
            label=name,
            color=COLOURS[i % len(COLOURS)],
            marker=MARKERS[i % len(MARKERS)],
            markersize=5,
            linewidth=1.6,
        )
    _scales(axes, places if read else [], list(rows[metric]))
    if not read or len(places) <= 12:
        axes.set_xticks(places, ticks)
        axes.minorticks_off()
    axes.set_xlabel(label)
    axes.set_ylabel(label_of(metric))
    axes.grid(True, color="0.88", linewidth=0.6)
    if by is not None:
        axes.legend(title=by, fontsize=8, title_fontsize=8)
    table = rows[[*dict.fromkeys((*([by] if by else []), x)), metric]]
    return _written(figure, table, folder, f"lines_{metric}")


def write_front(frame: Any, found: Any, goals: Sequence[Goal], folder: Path, by: str | None = None) -> list[Path]:
    """front.csv with the non-dominated rows, and for two goals or more a picture of the first two among all points.

    Over more than two goals the points that are best in the first two alone are joined by a line.
    """
    if len(goals) < 2:
        return _written(None, found, folder, "front")
    across, up = goals[0].metric, goals[1].metric
    if by is not None:
        _check_columns(frame, (by,))
    figure = Figure(figsize=(7.5, 5.0), layout="constrained")
    axes = figure.add_subplot()
    rows = solved_rows(frame, [across, up])
    for i, group in enumerate(_values(rows[by]) if by else [None]):
        own = rows if by is None else rows[rows[by] == group]
        name = "dominated, or equal" if by is None else _ticks([group], by)[0][0]
        colour = "0.65" if by is None else COLOURS[i % len(COLOURS)]
        axes.scatter(own[across], own[up], s=26, color=colour, marker=MARKERS[i % len(MARKERS)], label=name, zorder=2)
    line = front_of(rows, goals[:2]).sort_values([across, up])
    axes.plot(line[across], line[up], color="black", linewidth=1.0, drawstyle=_steps(goals), zorder=1)
    axes.scatter(found[across], found[up], s=80, facecolors="none", edgecolors="black", label="not dominated", zorder=3)
    varied = [c for c in input_columns(frame) if c != by]
    if len(found) <= 12 and varied:
        middle = (rows[across].min() + rows[across].max()) / 2
        for number, (_, row) in enumerate(found.iterrows()):
            text = ", ".join(str(row[c]) for c in varied)
            right = row[across] <= middle
            axes.annotate(
                text,
                (row[across], row[up]),
                # neighbours on a front are near each other: every other text stands above its point
                xytext=(7 if right else -7, (-10, 7)[number % 2]),
                ha="left" if right else "right",
                textcoords="offset points",
                fontsize=7,
            )
    _scales(axes, list(rows[across]), list(rows[up]))
    for name, goal in (("x", goals[0]), ("y", goals[1])):
        arrow = "less" if goal.minimise else "more"
        getattr(axes, f"set_{name}label")(f"{label_of(goal.metric)}, {arrow} is better")
    axes.grid(True, color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(0.12)
    axes.legend(fontsize=8)
    table = found[list(dict.fromkeys([*front_columns(frame, goals), *found.columns]))]
    return _written(figure, table, folder, "front")


def _steps(goals: Sequence[Goal]) -> str:
    """How the corner of a front turns: what is between two points is dominated by one of them."""
    return "steps-post" if goals[0].minimise else "steps-pre"


def _scales(axes: Axes, across: list[float], up: list[float]) -> None:
    """Logarithmic where values above 0 span more than a factor of ten, else linear."""
    for values, name in ((across, "x"), (up, "y")):
        if values and min(values) > 0 and max(values) > 10 * min(values):
            getattr(axes, f"set_{name}scale")("log")
        getattr(axes, f"{name}axis").set_major_formatter(_number)


def _values(column: Any) -> list[Any]:
    """Values of a column, numbers and quantities in their order, others as they come."""
    found = list(dict.fromkeys(column.dropna()))
    read = numbers([v.item() if isinstance(v, np.generic) else v for v in found])
    return found if read is None else [v for _, v in sorted(zip(read[0], found, strict=True), key=lambda pair: pair[0])]


def _ticks(values: list[Any], name: str) -> tuple[list[str], str]:
    """Texts of an axis's values and its label; quantities share one unit, which the label names: the one they are
    written in, or where that differs one in which the largest reads well."""
    read = numbers([v.item() if isinstance(v, np.generic) else v for v in values])
    if read is None:
        return [str(v) for v in values], name
    found, dimension = read
    if not dimension:
        return [f"{v:.6g}" for v in found], name
    written = {str(v).strip().partition(" ")[2] for v in values}
    unit = written.pop() if len(written) == 1 else ""
    unit = unit or format_quantity(max(found), dimension).partition(" ")[2]
    return [f"{v / unit_size(unit):.6g}" for v in found], f"{name} ({unit})"


def _check_columns(frame: Any, columns: Sequence[str]) -> None:
    problems = [f"{c}: no such column{did_you_mean(c, frame.columns)}" for c in columns if c not in frame]
    if problems:
        raise InputError(problems)


def _check_single(frame: Any, axes: Sequence[str]) -> None:
    """Raise InputError where several rows share a place, naming the inputs in which they differ."""
    if frame.duplicated(list(axes)).any():
        others = [c for c in input_columns(frame) if c not in axes]
        raise InputError(
            f"several points have the same {' and '.join(axes)}; they differ in {', '.join(others) or 'nothing'}: "
            "choose with --select COLUMN=VALUE" + ("" if len(axes) > 1 else ", or --by COLUMN")
        )


def _written(figure: Figure | None, table: Any, folder: Path, name: str) -> list[Path]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"{name}.csv"]
        table.to_csv(files[0], index=False)
        if figure is not None:
            files += [folder / f"{name}.png", folder / f"{name}.svg"]
            figure.savefig(files[1], dpi=130, metadata={"Software": None})
            figure.savefig(files[2], metadata={"Date": None})
    except OSError as error:
        raise InputError(f"{folder}: cannot be written ({error.strerror}); choose another place with --out") from error
    return files
