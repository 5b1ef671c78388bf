"""The plots of the report, each made from the results of one suite; a suite that was not run has none.

1. A legend is words, and stands outside of the axes: it covers nothing.
2. Every axis has room above its highest point: nothing is clipped.
3. A point that is more than five times as high as every other one would flatten the rest. It is left out of the scale
   and told as a number beside a triangle; the page that shows the picture says why.

`python -m bench.pictures RESULTS.json DIRECTORY` draws the results of an earlier run again.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Mapping[str, Any]
Results = Mapping[str, Rows]

TWOFOLD, KAFKA = "twofold", "kafka"
COLORS = {"reference": "#b0b7c3", "twofold": "#d1495b", "kafka": "#30638e"}
NAMES = {
    "reference": "reference client: the same, with a server that only acknowledges",
    "twofold": "Twofold",
    "kafka": "Apache Kafka 4.3.1",
}
AGAINST = "against kafka: "
ROOM = 1.12
FAR = 5
SMALL = 7.5
LEGEND_LINE = 12  # points


def draw_all(results: Results, directory: Path) -> dict[str, str]:
    """Suites and the names of their pictures."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {
        "svg.fonttype": "none",
        "svg.hashsalt": "twofold",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.axisbelow": True,
    }
    drawn = {}
    for suite, draw in PICTURES.items():
        found = draw(results)
        if found is not None:
            name = f"{suite}.svg"
            found.savefig(directory / name, bbox_inches="tight", metadata={"Date": None})
            drawn[suite] = name
    return drawn


def new_figure(columns: int = 1, rows: int = 1, *, width: float = 4.2, height: float = 2.9) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    size = (width * columns, height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    plt.close(figure)  # it is saved, never shown
    return figure, list(axes.flat)


# Parts of every plot


def legend_of_all(figure: Any, axis: Any) -> None:
    """Above the axes that share it: bars before the lines in them."""
    from matplotlib.container import BarContainer

    named = zip(*axis.get_legend_handles_labels(), strict=True)
    handles, labels = zip(*sorted(named, key=lambda pair: not isinstance(pair[0], BarContainer)), strict=True)
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def titled(axis: Any, title: str, columns: int = 2) -> None:
    """With the legend of this axis between title and plot, where there is more than one series."""
    _, labels = axis.get_legend_handles_labels()
    lines = -(-len(labels) // columns) if len(labels) > 1 else 0
    axis.set_title(title, fontsize=9, pad=6 + LEGEND_LINE * lines)
    if lines:
        place = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "borderaxespad": 0.2}
        axis.legend(frameon=False, fontsize=SMALL, ncols=columns, columnspacing=1.0, handlelength=1.4, **place)


def plain_numbers(axis: Any, which: str) -> None:
    """1,000 and 0.1 instead of powers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    chosen = axis.xaxis if which == "x" else axis.yaxis
    chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    chosen.set_minor_formatter(NullFormatter())


def bars(axis: Any, labels: list[str], series: Mapping[str, list[float]], ylabel: str) -> None:
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        at = places_of(labels, place, len(series))
        axis.bar(at, values, width * 0.92, label=NAMES.get(name, name), color=COLORS.get(name))
    axis.set_xticks(range(len(labels)), [textwrap.fill(label, 13) for label in labels])
    axis.set_ylabel(ylabel)
    axis.set_ylim(0, ROOM * max(value for values in series.values() for value in values))
    axis.grid(axis="x", visible=False)


def places_of(labels: Sequence[str], place: int, count: int) -> list[float]:
    """Where the bars of one series stand."""
    return [number + (place - (count - 1) / 2) * 0.8 / count for number in range(len(labels))]


def curve(axis: Any, title: str, sizes: list[float], series: Mapping[str, list[float]], unit: str, what: str) -> None:
    far = far_point(series)
    colors = {}
    for name, values in series.items():
        shown = [float("nan") if (name, number) == far else value for number, value in enumerate(values)]
        (line,) = axis.plot(sizes, shown, "o-", ms=3.5, label=NAMES.get(name, name), color=COLORS.get(name))
        colors[name] = line.get_color()
    if sizes[0] > 0:
        axis.set_xscale("log")
        plain_numbers(axis, "x")
    rest = [v for name, values in series.items() for number, v in enumerate(values) if (name, number) != far]
    axis.set_ylim(0, ROOM * max(rest))
    if far is not None:
        tell_far(axis, sizes[far[1]], series[far[0]][far[1]], colors[far[0]])
    axis.set_xlabel(what)
    axis.set_ylabel(unit)
    titled(axis, title)


def far_point(series: Mapping[str, list[float]]) -> tuple[str, int] | None:
    """The series and place of a point that would flatten all others."""
    points = sorted((value, name, number) for name, values in series.items() for number, value in enumerate(values))
    if len(points) < 3 or points[-1][0] <= FAR * points[-2][0]:
        return None
    return points[-1][1], points[-1][2]


def tell_far(axis: Any, x: float, value: float, color: str) -> None:
    """The number, where the point would be if the axis went on."""
    place = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "ha": "right", "va": "top"}
    axis.annotate(f"{value:,.0f} ▲", (x, 1.0), (3, 0), color=color, fontsize=SMALL, **place)


# Beside a reference client and Apache Kafka


def throughput(results: Results) -> Any:
    rows = results.get("throughput")
    if not rows:
        return None
    figure, (axis,) = new_figure(width=8.4)
    sizes = [1024 if "1 KB" in label else 100 for label in rows]
    names = [name for name in COLORS if name in next(iter(rows.values()))]
    series = {name: [row[name] * size / 1e6 for row, size in zip(rows.values(), sizes, strict=True)] for name in names}
    bars(axis, list(rows), series, "MB/s")
    legend_of_all(figure, axis)
    return figure


def latency(results: Results) -> Any:
    rows = results.get("latency")
    if not rows:
        return None
    figure, axes = new_figure(2)
    labels = [f"{int(label.split()[0]):,}" for label in rows]
    names = list(next(iter(rows.values())))
    for axis, what in zip(axes, ("acknowledged", "read"), strict=True):
        bars(axis, labels, {name: [row[name][what]["p99_ms"] for row in rows.values()] for name in names}, "ms")
        for place, name in enumerate(names):
            at = places_of(labels, place, len(names))
            median = [row[name][what]["p50_ms"] for row in rows.values()]
            axis.plot(at, median, "_k", markersize=12, label="" if place else "the median (the bar: p99)")
        axis.set_title(f"until {what}", fontsize=9)
        axis.set_yscale("log")
        low = min(row[name][what]["p50_ms"] for row in rows.values() for name in names)
        high = max(row[name][what]["p99_ms"] for row in rows.values() for name in names)
        axis.set_ylim(low / 2, high * 2)
        plain_numbers(axis, "y")
        axis.set_xlabel("records of 1 KB per second")
    legend_of_all(figure, axes[0])
    return figure


def transactions(results: Results) -> Any:
    rows = results.get("transactions")
    if not rows:
        return None
    figure, axes = new_figure(2, width=5.2)
    labels = [label.replace(" producers, ", " × ").removesuffix(" records") for label in rows]
    first = next(iter(rows.values()))
    names = [name for name in COLORS if name in first]
    for axis, key, unit in zip(axes, ("rate", "p99_ms"), ("transactions/s", "p99 of a commit, ms"), strict=True):
        bars(axis, labels, {name: [row[name][key] for row in rows.values()] for name in names}, unit)
        axis.set_xlabel("producers × records per transaction")
    legend_of_all(figure, axes[0])
    return figure


# Of our own log and coordinators: suite, title, what the sizes are, unit, and the values that are drawn.
CPU = "µs of processor time"
CURVES: tuple[tuple[str, str, str, str, Mapping[str, str]], ...] = (
    ("partitions", "a batch of 4 KB", "partitions", CPU, {"append_us": "append", "read_us": "read"}),
    (
        "length",
        "a batch of 64 KB",
        "GB in the log",
        CPU,
        {"append_us": "append: our code", "kernel_us": "append: kernel", "read_end_us": "read at the end"},
    ),
    ("groups", "a commit of 10 offsets", "groups of 100 offsets", CPU, {"commit_us": "commit"}),
    ("groups", "start after kill -9", "groups of 100 offsets", "s", {"load_s": "start"}),
    ("commit with open transactions", "a transaction", "open transactions", CPU, {"cpu_us": "transaction"}),
    ("coordinator load", "start after kill -9", "transactional ids", "s", {"seconds": "start"}),
    (
        "fetch with aborted transactions",
        "a read_committed fetch of 64 KB",
        "aborted transactions in the log",
        CPU,
        {"end_cpu_us": "at the end of the log", "middle_cpu_us": "in its middle"},
    ),
)


def growth(results: Results) -> Any:
    found = [row for row in CURVES if results.get(row[0])]
    if not found:
        return None
    columns = min(4, len(found))
    figure, axes = new_figure(columns, -(-len(found) // columns), width=3.3, height=2.6)
    for axis, (suite, title, what, unit, keys) in zip(axes, found, strict=False):
        rows = results[suite]
        sizes = [float(size.split()[0]) for size in rows]
        series = {words: [row[key] for row in rows.values()] for key, words in keys.items()}
        curve(axis, title, sizes, series, unit, what)
    for axis in axes[len(found) :]:
        axis.set_axis_off()
        axis.text(0, 0.5, "▲ a point outside of the scale,\nwith its value", fontsize=SMALL)
    return figure


def against(results: Results) -> Any:
    found = {suite.removeprefix(AGAINST): rows for suite, rows in results.items() if suite.startswith(AGAINST)}
    if not found:
        return None
    figures = (("cpu_us", CPU), ("p50_us", "median, µs"), ("memory_mb", "MB resident"))
    figure, axes = new_figure(len(figures), len(found), width=3.6, height=2.4)
    places = iter(axes)
    for title, rows in found.items():
        what, _, request = title.partition(", ")
        sizes = [float(size) for size in rows]
        for key, unit in figures:
            names = list(next(iter(rows.values())))
            series = {name: [row[name][key] for row in rows.values()] for name in names}
            axis = next(places)
            curve(axis, request, sizes, series, unit, what)
            axis.get_legend().remove()
            axis.set_title(request, fontsize=9)
    legend_of_all(figure, axes[0])
    return figure


# The metadata


def metadata(results: Results) -> Any:
    creation, meanwhile, start = (results.get(f"metadata: {part}") for part in ("creation", "meanwhile", "start"))
    panels = [(draw, rows) for draw, rows in ((each_partition, creation), (waits, meanwhile), (starts, start)) if rows]
    if not panels:
        return None
    figure, axes = new_figure(len(panels), width=4.2)
    for axis, (draw, rows) in zip(axes, panels, strict=True):
        draw(axis, rows)
    return figure


def each_partition(axis: Any, rows: Rows) -> None:
    drawn = []
    for name in (TWOFOLD, KAFKA):
        found = [row[name] for row in rows.values() if name in row]
        sizes = [row["partitions"] for row in found]
        for key, style, what in (
            ("us_a_partition", "o-", "until served"),
            ("cpu_us_a_partition", "o:", "processor time"),
        ):
            values = [row[key] for row in found]
            drawn += values
            axis.plot(sizes, values, style, ms=3.5, label=f"{NAMES[name]}, {what}", color=COLORS[name])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(min(drawn) / 2, max(drawn) * 2)
    plain_numbers(axis, "x")
    plain_numbers(axis, "y")
    axis.set_xlabel("partitions of the topic")
    axis.set_ylabel("µs per partition")
    titled(axis, "CreateTopics")


def waits(axis: Any, rows: Rows) -> None:
    """Of the largest topic."""
    size, row = list(rows.items())[-1]
    found = row[TWOFOLD]
    phases = {"before": "before", "creation": "meanwhile"}
    series = {words: [each["p99_ms"] for each in found[phase].values()] for phase, words in phases.items()}
    bars(axis, list(found["before"]), series, "p99, ms")
    titled(axis, f"other requests, while {int(size):,} partitions are created")


def starts(axis: Any, rows: Rows) -> None:
    drawn = []
    for kind in ("log", "snapshot"):
        found = [(float(size), row[kind]["seconds"]) for size, row in rows.items() if row.get(kind)]
        if found:
            drawn += [seconds for _, seconds in found]
            axis.plot(*zip(*found, strict=True), "o-", ms=3.5, label=f"from the {kind}")
    axis.set_xscale("log")
    axis.set_ylim(0, ROOM * max(drawn))
    plain_numbers(axis, "x")
    axis.set_xlabel("partitions in the metadata log")
    axis.set_ylabel("seconds until it serves")
    titled(axis, "start after kill -9")


PICTURES: dict[str, Callable[[Results], Any]] = {
    "throughput": throughput,
    "latency": latency,
    "transactions": transactions,
    "growth": growth,
    "against": against,
    "metadata": metadata,
}

if __name__ == "__main__":
    draw_all(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
