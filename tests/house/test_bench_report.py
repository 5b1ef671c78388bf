"""The page that `make bench` writes: tables as Markdown, a plot for every suite that was run."""

import json
import sys
from pathlib import Path

import pytest
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench.report import Report, as_markdown

RATES = {"ceiling": 3.0, "twofold": 2.0, "kafka": 1.0}
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
