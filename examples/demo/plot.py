"""The picture of a run: rows sent against rows visible, with the crashes and the rows that are there twice."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from watch import Sample

COLOURS = ("tab:green", "tab:orange", "tab:purple")
ROOM = 1.3
"""Above the highest row, for the names of the crashes: no line runs through them."""


def draw(
    path: Path,
    samples: Sequence[Sample],
    marks: Sequence[tuple[float, str]],
    labels: Mapping[str, str],
    doubled: Mapping[str, int],
) -> None:
    """`labels`: the topics to show, and how to call them. `doubled`: how many rows of each the verdict found twice. The
    end of the path's name says what kind of file it is."""
    import matplotlib as mpl  # it takes a second, while the first lines of the demo are to be there at once

    mpl.use("Agg")  # a file, no window
    mpl.rcParams["svg.fonttype"] = "none"  # text as text, which is small
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    times = [sample.at_s for sample in samples]
    sent = [sample.sent for sample in samples]
    axes.plot(times, sent, color="tab:gray", linestyle="--", label=f"orders sent: {sent[-1]:,}")
    for (topic, label), colour in zip(labels.items(), COLOURS, strict=False):
        rows = [sample.visible[topic] for sample in samples]
        axes.step(times, rows, color=colour, where="post", label=f"{label}: {rows[-1]:,} rows visible")
        if doubled.get(topic):
            _mark_doubled(axes, times, sent, rows, doubled[topic])
    for at_s, what in marks:
        axes.axvline(at_s, color="tab:red", linewidth=1)
        axes.annotate(what, (at_s, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right",
                      color="tab:red")  # fmt: skip
    axes.set(xlabel="seconds", ylabel="rows", title="Rows sent, and rows visible at read_committed")
    axes.set_ylim(0, ROOM * max(sent[-1], *(sample.visible[topic] for sample in samples for topic in labels)))
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _mark_doubled(axes: Any, times: list[float], sent: list[int], rows: list[int], count: int) -> None:
    """From where more is visible than was sent. Before that they hide in what is not written yet."""
    more = [visible > orders for visible, orders in zip(rows, sent, strict=True)]
    style = {"step": "post", "facecolor": "none", "edgecolor": "tab:red", "hatch": "////", "linewidth": 0.0}
    axes.fill_between(times, sent, rows, where=more, label=f"{count:,} rows doubled", **style)
    axes.annotate(
        f"{count:,} rows\nare there twice", (times[-1], (sent[-1] + rows[-1]) / 2), (-45, 30),
        textcoords="offset points", color="tab:red", ha="center", arrowprops={"arrowstyle": "->", "color": "tab:red"},
    )  # fmt: skip
