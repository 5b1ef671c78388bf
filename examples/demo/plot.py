"""The picture of a run: rows sent against rows visible, with the crashes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from watch import Sample

COLOURS = ("tab:green", "tab:orange", "tab:purple")


def draw(path: Path, samples: Sequence[Sample], marks: Sequence[tuple[float, str]], labels: Mapping[str, str]) -> None:
    """`labels`: the topics to show, and how to call them. The end of the path's name says what kind of file it is."""
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
        axes.step(times, rows, color=colour, where="post", label=f"{label}: {rows[-1]:,}")
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
