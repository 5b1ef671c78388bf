"""The plots of the report, each made from the results of one suite; a suite that was not run has none."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Rows = Mapping[str, Any]
Results = Mapping[str, Rows]

TWOFOLD, KAFKA = "twofold", "kafka"
COLORS = {"ceiling": "#b0b7c3", "twofold": "#d1495b", "kafka": "#30638e"}
NAMES = {"ceiling": "the client's ceiling", "twofold": "Twofold", "kafka": "Apache Kafka 4.3.1"}
AGAINST = "against kafka: "


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

    figure, axes = plt.subplots(rows, columns, figsize=(width * columns, height * rows), squeeze=False)
    plt.close(figure)  # it is saved, never shown
    return figure, list(axes.flat)


def bars(axis: Any, labels: list[str], series: Mapping[str, list[float]], ylabel: str) -> None:
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        at = [number + (place - (len(series) - 1) / 2) * width for number in range(len(labels))]
        axis.bar(at, values, width * 0.92, label=NAMES.get(name, name), color=COLORS.get(name))
    axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
    axis.set_ylabel(ylabel)
    axis.grid(axis="x", visible=False)


def curve(axis: Any, title: str, sizes: list[float], series: Mapping[str, list[float]], unit: str, what: str) -> None:
    for name, values in series.items():
        axis.plot(sizes, values, marker="o", markersize=3.5, label=NAMES.get(name, name), color=COLORS.get(name))
    if sizes[0] > 0:
        axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(what)
    axis.set_ylabel(unit)
    if len(series) > 1:
        axis.legend(frameon=False, fontsize=7.5)


def throughput(results: Results) -> Any:
    rows = results.get("throughput")
    if not rows:
        return None
    figure, (axis,) = new_figure(width=8.4)
    sizes = [1024 if "1 KB" in label else 100 for label in rows]
    names = [name for name in COLORS if name in next(iter(rows.values()))]
    series = {name: [row[name] * size / 1e6 for row, size in zip(rows.values(), sizes, strict=True)] for name in names}
    bars(axis, list(rows), series, "MB/s")
    axis.legend(frameon=False)
    return figure


def latency(results: Results) -> Any:
    rows = results.get("latency")
    if not rows:
        return None
    figure, axes = new_figure(2)
    labels = [label.removesuffix(" records/s") + "/s" for label in rows]
    for axis, what in zip(axes, ("acknowledged", "read"), strict=True):
        names = list(next(iter(rows.values())))
        bars(axis, labels, {name: [row[name][what]["p99_ms"] for row in rows.values()] for name in names}, "p99, ms")
        width = 0.8 / len(names)
        for place, name in enumerate(names):
            at = [number + (place - (len(names) - 1) / 2) * width for number in range(len(labels))]
            axis.plot(at, [row[name][what]["p50_ms"] for row in rows.values()], "_k", markersize=12)
        axis.set_title(f"until {what} (line: p50)", fontsize=9)
        axis.set_yscale("log")
    axes[0].legend(frameon=False, fontsize=7.5)
    figure.tight_layout()
    return figure


def transactions(results: Results) -> Any:
    rows = results.get("transactions")
    if not rows:
        return None
    figure, axes = new_figure(2, width=5.2)
    labels = [label.replace(" producers", "").replace(" records", " rec.") for label in rows]
    first = next(iter(rows.values()))
    for axis, key, unit in zip(axes, ("rate", "p99_ms"), ("transactions/s", "p99 of a commit, ms"), strict=True):
        names = [name for name in COLORS if name in first]
        bars(axis, labels, {name: [row[name][key] for row in rows.values()] for name in names}, unit)
    axes[0].legend(frameon=False, fontsize=7.5)
    axes[0].set_xlabel("producers, records per transaction")
    figure.tight_layout()
    return figure


# Of our own log and coordinators: suite, title, what the sizes are, unit, and the values that are drawn.
CURVES = (
    ("partitions", "an append, by partitions", "partitions", "us of processor", ("append_us", "read_us")),
    ("length", "an append, by length of the log", "GB", "us of processor", ("append_us", "kernel_us", "read_end_us")),
    ("groups", "a commit of 10 offsets", "groups of 100 offsets", "us of processor", ("commit_us",)),
    ("groups", "start after kill -9", "groups of 100 offsets", "s", ("load_s",)),
    ("commit with open transactions", "a transaction", "open transactions", "us of processor", ("cpu_us",)),
    ("coordinator load", "start after kill -9", "transactional ids", "s", ("seconds",)),
    (
        "fetch with aborted transactions",
        "a read_committed fetch of 64 KB",
        "aborted transactions in the log",
        "us of processor",
        ("end_cpu_us", "middle_cpu_us"),
    ),
)


def growth(results: Results) -> Any:
    found = [row for row in CURVES if results.get(row[0])]
    if not found:
        return None
    columns = 3
    figure, axes = new_figure(columns, -(-len(found) // columns), width=3.6, height=2.6)
    for axis, (suite, title, what, unit, keys) in zip(axes, found, strict=False):
        rows = results[suite]
        sizes = [float(size.split()[0]) for size in rows]
        series = {key.removesuffix("_us"): [row[key] for row in rows.values()] for key in keys}
        curve(axis, title, sizes, series, unit, what)
    for axis in axes[len(found) :]:
        axis.set_visible(False)
    figure.tight_layout()
    return figure


def against(results: Results) -> Any:
    found = {suite.removeprefix(AGAINST): rows for suite, rows in results.items() if suite.startswith(AGAINST)}
    if not found:
        return None
    figures = (("cpu_us", "us of processor"), ("p50_us", "p50, us"), ("memory_mb", "MB resident"))
    figure, axes = new_figure(len(figures), len(found), width=3.6, height=2.6)
    places = iter(axes)
    for title, rows in found.items():
        what, _, request = title.partition(", ")
        sizes = [float(size) for size in rows]
        for key, unit in figures:
            names = list(next(iter(rows.values())))
            series = {name: [row[name][key] for row in rows.values()] for name in names}
            curve(next(places), request, sizes, series, unit, what)
    figure.tight_layout()
    return figure


def metadata(results: Results) -> Any:
    creation, meanwhile, start = (results.get(f"metadata: {part}") for part in ("creation", "meanwhile", "start"))
    panels = [(draw, rows) for draw, rows in ((each_partition, creation), (waits, meanwhile), (starts, start)) if rows]
    if not panels:
        return None
    figure, axes = new_figure(len(panels), width=3.9)
    for axis, (draw, rows) in zip(axes, panels, strict=True):
        draw(axis, rows)
    figure.tight_layout()
    return figure


def each_partition(axis: Any, rows: Rows) -> None:
    for name in (TWOFOLD, KAFKA):
        found = [row[name] for row in rows.values() if name in row]
        sizes = [row["partitions"] for row in found]
        for key, style, what in (("us_a_partition", "o-", "until served"), ("cpu_us_a_partition", "o:", "processor")):
            values = [row[key] for row in found]
            axis.plot(sizes, values, style, ms=3.5, label=f"{NAMES[name]}, {what}", color=COLORS[name])
    axis.set_title("CreateTopics, us a partition", fontsize=9)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("partitions of the topic")
    axis.legend(frameon=False, fontsize=7.5)


def waits(axis: Any, rows: Rows) -> None:
    """Of the largest topic."""
    size, row = list(rows.items())[-1]
    found = row[TWOFOLD]
    series = {phase: [each["p99_ms"] for each in found[phase].values()] for phase in ("before", "creation")}
    bars(axis, list(found["before"]), series, "p99, ms")
    axis.set_title(f"others, while {int(size):,} are created", fontsize=9)
    axis.legend(frameon=False, fontsize=7.5)


def starts(axis: Any, rows: Rows) -> None:
    for kind in ("log", "snapshot"):
        found = [(float(size), row[kind]["seconds"]) for size, row in rows.items() if row.get(kind)]
        if found:
            axis.plot(*zip(*found, strict=True), "o-", ms=3.5, label=f"from the {kind}")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_title("start after kill -9, s", fontsize=9)
    axis.set_xlabel("partitions in the metadata log")
    axis.legend(frameon=False, fontsize=7.5)


PICTURES: dict[str, Callable[[Results], Any]] = {
    "throughput": throughput,
    "latency": latency,
    "transactions": transactions,
    "growth": growth,
    "against": against,
    "metadata": metadata,
}
