"""The page that `make bench` writes: tables as Markdown, a plot for every suite that was run."""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.pictures import PICTURES, draw_all, far_point
from bench.report import Report, as_markdown

SHOWN = Path(__file__).parents[2] / "docs" / "performance"

SVG = "{http://www.w3.org/2000/svg}"

RATES = {"reference": 3.0, "twofold": 2.0, "kafka": 1.0}
TIMES = {what: {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 3.0} for what in ("acknowledged", "read")}
COMMITS = {"rate": 10.0, "p99_ms": 1.0}
WAITS = {"produce": COMMITS}
CREATED = {"partitions": 1000, "us_a_partition": 10.0, "cpu_us_a_partition": 5.0}
COSTS = {"cpu_us": 1.0, "p50_us": 2.0, "memory_mb": 3.0}


def test_a_table_keeps_its_rows_and_loses_its_colours():
    table = Table("size", "[bold]cost", title="growth", caption="goal: flat")
    table.add_row("1", "[green]2.5")
    lines = as_markdown(table).splitlines()
    assert lines == ["## growth", "", "| size | cost |", "|---|---|", "| 1 | 2.5 |", "", "goal: flat"]


@pytest.mark.slow
def test_every_suite_that_was_run_has_its_plot_and_the_others_have_none(tmp_path: Path):
    report = Report(quiet=True)
    report.add("throughput", "produce 1 KB plain", RATES)
    report.add("latency", "100 records/s", {"twofold": TIMES, "kafka": TIMES})
    report.add("transactions", "1 producers, 1 records", dict.fromkeys(RATES, COMMITS) | {"rate_of_kafka": 1.0})
    report.add("groups", "10", {"commit_us": 1.0, "load_s": 2.0, "memory_mb": 1.0})
    report.add("length", "0 GB", {"append_us": 1.0, "kernel_us": 2.0, "read_end_us": 1.0})
    report.add("against kafka: groups, a commit", "10", {"twofold": COSTS, "kafka": COSTS})
    report.add("metadata: creation", "1000", {"twofold": CREATED, "kafka": CREATED})
    report.add("metadata: meanwhile", "1000", {"twofold": {"before": WAITS, "creation": WAITS}})
    report.add("metadata: start", "1000", {"log": {"seconds": 1.0}, "snapshot": None})
    page = report.write_page(tmp_path).read_text()
    drawn = {path.stem for path in tmp_path.glob("*.svg")}
    assert drawn == {"throughput", "latency", "transactions", "growth", "against", "metadata"}
    assert all(f"]({name}.svg)" in page for name in drawn)
    assert json.loads((tmp_path / "results.json").read_text()) == report.results

    only = Report(quiet=True)
    only.add("throughput", "fetch 100 B", RATES)
    only.write_page(tmp_path)
    assert [path.name for path in tmp_path.glob("*.svg")] == ["throughput.svg"]


# The pictures of the docs


@pytest.fixture(scope="module")
def shown() -> Any:
    return json.loads((SHOWN / "results.json").read_text())


def points_of(axis: Any) -> Iterator[tuple[float, float]]:
    """Everything that is drawn: points of lines, and both ends of bars, in the coordinates of the data."""
    for line in axis.lines:
        yield from ((x, y) for x, y in line.get_xydata() if not math.isnan(y))
    for bar in axis.patches:
        for part in range(11):
            yield bar.get_x() + bar.get_width() / 2, max(bar.get_height() * part / 10, axis.get_ylim()[0])


def legends_of(figure: Any) -> list[Any]:
    return [*figure.legends, *(axis.get_legend() for axis in figure.axes if axis.get_legend() is not None)]


@pytest.mark.parametrize("suite", PICTURES)
def test_no_picture_clips_or_covers_what_it_shows_and_its_legends_are_words(suite: str, shown: Any):
    figure = PICTURES[suite](shown)
    figure.canvas.draw()
    legends = legends_of(figure)
    boxes = [legend.get_window_extent() for legend in legends]
    for axis in figure.axes:
        low, high = axis.get_ylim()
        for x, y in points_of(axis):
            assert low <= y < high, f"{axis.get_title()}: {y} is outside of {low} to {high}"
            place = axis.transData.transform((x, y))
            assert not any(box.contains(*place) for box in boxes), f"{axis.get_title()}: a legend covers {x}, {y}"
        assert axis.get_legend() is None or not axis.get_legend().get_window_extent().overlaps(
            axis.title.get_window_extent()
        )
    words = [text.get_text() for legend in legends for text in legend.get_texts()]
    assert all("_" not in word and len(word) > 3 for word in words), words


def test_a_point_that_would_flatten_the_rest_is_told_as_a_number(shown: Any):
    assert far_point({"a": [1.0, 2.0, 3.0], "b": [2.0, 2.0, 14.0]}) is None, "14 is less than five times 3"
    assert far_point({"a": [1.0, 2.0, 3.0], "b": [2.0, 2.0, 16.0]}) == ("b", 2)
    figure = PICTURES["against"](shown)
    told = [text.get_text() for axis in figure.axes for text in axis.texts]
    assert told == ["35,310 ▲", "3,694 ▲"]
    page = (SHOWN.parent / "performance.md").read_text()
    assert "35 ms" in page and "404" in page, "the page says what they are"


@pytest.mark.slow
def test_the_pictures_of_the_docs_are_drawn_from_their_results(shown: Any, tmp_path: Path):
    def texts(path: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text())

    drawn = draw_all(shown, tmp_path)
    assert set(drawn.values()) == {path.name for path in SHOWN.glob("*.svg")}
    for name in drawn.values():
        assert texts(SHOWN / name) == texts(tmp_path / name), f"draw {name} again: python -m bench.pictures"
        assert "ceiling" not in (SHOWN / name).read_text()


def test_the_picture_of_the_readme_shows_what_is_special_and_its_words_stay_inside_of_their_boxes() -> None:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    first, _, _ = (SHOWN.parents[1] / "README.md").read_text().partition("\n---\n")
    assert re.findall(r"!\[[^\]]+\]\((.*?)\)", first) == ["docs/special.svg"]
    root = ElementTree.fromstring((SHOWN.parent / "special.svg").read_text())
    boxes = [
        tuple(float(node.get(name, 0)) for name in ("x", "y", "width", "height"))
        for node in root.iter(f"{SVG}rect")
        if float(node.get("width", 0)) > 400 and node.get("rx")
    ]
    assert len(boxes) == 3
    told = []
    for node, given in with_inherited(root):
        text = "".join(node.itertext())
        font = FontProperties(family="DejaVu Sans", weight=given.get("font-weight", "normal"))
        wide = TextPath((0, 0), text, size=float(given["font-size"]), prop=font).get_extents().width
        share = {"middle": 0.5, "end": 1.0}.get(given.get("text-anchor", "start"), 0.0)
        left, base = float(node.get("x", 0)) - share * wide, float(node.get("y", 0))
        assert any(x <= left and left + wide <= x + w and y <= base <= y + h for x, y, w, h in boxes), text
        told.append(text)
    words = " ".join(told)
    assert all(word in words for word in ("Transactions", "Two systems", "Spark, exactly once")), words


def with_inherited(root: ElementTree.Element) -> Iterator[tuple[ElementTree.Element, dict[str, str]]]:
    """Every text with its attributes and those of the groups around it."""

    def walk(node: ElementTree.Element, given: dict[str, str]) -> Iterator[tuple[ElementTree.Element, dict[str, str]]]:
        given = given | node.attrib
        if node.tag == f"{SVG}text":
            yield node, given
        for child in node:
            yield from walk(child, given)

    return walk(root, {})
