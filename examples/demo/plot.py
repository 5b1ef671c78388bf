"""The picture of a run: rows sent against rows visible, with the crashes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")  # a file, no window

from matplotlib import pyplot

from watch import Sample

COLOURS = ("tab:green", "tab:orange", "tab:purple")


def draw(path: Path, samples: Sequence[Sample], marks: Sequence[tuple[float, str]], labels: Mapping[str, str]) -> None:
    """`labels`: the topics to show, and how to call them."""
    figure, axes = pyplot.subplots(figsize=(10, 5), layout="constrained")
    times = [sample.at_s for sample in samples]
    axes.plot(times, [sample.sent for sample in samples], color="tab:gray", linestyle="--", label="orders sent")
    for (topic, label), colour in zip(labels.items(), COLOURS, strict=False):
        axes.step(times, [sample.visible[topic] for sample in samples], color=colour, where="post", label=label)
    for at_s, what in marks:
        axes.axvline(at_s, color="tab:red", linewidth=1)
        axes.annotate(what, (at_s, 0.98), xycoords=("data", "axes fraction"), rotation=90, va="top", ha="right",
                      color="tab:red")  # fmt: skip
    axes.set(xlabel="seconds", ylabel="rows", title="Rows sent, and rows visible at read_committed")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
