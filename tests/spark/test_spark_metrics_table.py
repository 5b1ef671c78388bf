"""What is known of queries, from what Spark, the sink and the brokers say. Progress is as Spark 4.3 wrote it."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from twofold.spark.metrics import page, reports
from twofold.spark.metrics.families import FAMILIES
from twofold.spark.metrics.plan import sink_plan, source_plan
from twofold.spark.metrics.reports import Receiver, Report
from twofold.spark.metrics.table import (
    FRESH_S,
    KEPT_ENDED_S,
    MAX_QUERIES,
    RATE_S,
    QueryRow,
    QueryState,
    QueryTable,
    Transactions,
)
from twofold.types import TopicPartition

A0, A1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


def progress(batch: int = 0, rows: int = 30, query: str = "q1", run: str = "r1", **more: Any) -> dict[str, Any]:
    """Of a query that reads two partitions up to 30 a batch."""
    end = (batch + 1) * 15
    return {
        "id": query,
        "runId": run,
        "name": "shop.totals",
        "batchId": batch,
        "numInputRows": rows,
        "durationMs": {"addBatch": 1365, "triggerExecution": 1825, "walCommit": 90},
        "sources": [
            {
                "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@47f784c3",
                "endOffset": {"orders": {"0": end, "1": end}},
                "latestOffset": {"orders": {"0": 100, "1": 50}},
                "numInputRows": rows,
            }
        ],
        "sink": {"description": "org.apache.spark.sql.execution.datasources.v2.python.PythonTable@2c6df9fc"},
        **more,
    }


def row_of(table: QueryTable, query: str = "q1") -> QueryRow:
    found = table.get(query)
    assert found is not None
    return found


def samples(table: QueryTable, now: float = 0.0) -> dict[str, float]:
    """By name and labels, as they stand on the page."""

    class Registry:
        def collect(self) -> list[Any]:
            return list(page.metrics(table, now, watch_failures=0, listener_errors=0))

    text = generate_latest(Registry()).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name.removeprefix('twofold_spark_')}{{{labels}}}"] = sample.value
    return found


def test_a_batch_is_counted_and_the_query_is_behind_by_what_is_left() -> None:
    table = QueryTable()
    table.started("q1", "r1", "shop.totals", 0.0)
    table.progressed(progress(0), 1.0)
    table.progressed(progress(1), 2.0)
    row = row_of(table)
    assert (row.state, row.last_batch, row.batches) == (QueryState.RUNNING, 1, 2)
    found = samples(table, 2.0)
    assert found["rows_read_total{query=shop.totals,source=orders}"] == 60
    assert found["max_offsets_behind_latest{query=shop.totals,source=orders}"] == 70
    assert found["avg_offsets_behind_latest{query=shop.totals,source=orders}"] == 45
    assert found["offsets_behind_latest{query=shop.totals,source=orders}"] == 90
    assert found["phase_seconds_total{phase=addBatch,query=shop.totals}"] == pytest.approx(2.73)
    assert found["query_state{query=shop.totals,state=running}"] == 1
    assert found["query_state{query=shop.totals,state=failed}"] == 0


def test_a_progress_without_a_batch_is_an_idle_query() -> None:
    table = QueryTable()
    table.started("q1", "r1", "shop.totals", 0.0)
    table.progressed(progress(3, rows=0, durationMs={"latestOffset": 3}), 1.0)
    row = row_of(table)
    assert (row.state, row.last_batch, row.batches) == (QueryState.IDLE, 2, 0)


def test_the_rate_of_a_query_that_stands_still_falls_to_zero() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 0.0)
    table.progressed(progress(0, rows=600), 60.0)
    row = row_of(table)
    assert row.read_rate.per_second(60.0) == pytest.approx(600 / RATE_S)
    assert row.read_rate.per_second(60.0 + RATE_S - 1) > 0
    assert row.read_rate.per_second(60.0 + RATE_S + 1) == 0


def test_a_rate_soon_after_the_start_is_not_diluted_by_the_time_before() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 100.0)
    table.progressed(progress(0, rows=600), 103.0)
    assert row_of(table).read_rate.per_second(103.0) == pytest.approx(200)


def test_what_the_brokers_said_is_forgotten_when_it_is_old() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 0.0)
    table.progressed(progress(0), 0.0)
    table.looked_at_source("q1", 0, {A0: 1015, A1: 15}, 1.0)
    table.looked_at_transactions("q1", Transactions({"prepared": 2}, 12.0), 1.0)
    found = samples(table, 1.0)
    assert found["offsets_behind_latest{query=q,source=orders}"] == 1000
    assert found["transactions{query=q,state=prepared}"] == 2
    assert found["transactions{query=q,state=writing}"] == 0
    assert found["oldest_transaction_seconds{query=q}"] == 12
    late = samples(table, 2.0 + FRESH_S)
    assert not [name for name in late if "behind" in name or "transactions{" in name or "oldest" in name]
    assert late["progress_age_seconds{query=q}"] == 2 + FRESH_S


def test_a_restart_of_a_query_goes_on_with_its_counters() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 0.0)
    table.progressed(progress(0), 1.0)
    table.ended("q1", "r1", "boom\nat line 3", 2.0)
    assert samples(table, 2.0)["query_state{query=q,state=failed}"] == 1
    table.started("q1", "r2", "q", 3.0)
    table.progressed(progress(1, run="r2"), 4.0)
    found = samples(table, 4.0)
    assert found["rows_read_total{query=q,source=orders}"] == 60
    assert found["query_failures_total{query=q}"] == 1
    assert found["query_state{query=q,state=failed}"] == 0


def test_the_end_of_an_earlier_run_that_is_told_late_ends_nothing() -> None:
    table = QueryTable()
    table.started("q1", "r2", "q", 0.0)
    table.ended("q1", "r1", "late", 1.0)
    table.idle("q1", "r1", 1.0)
    assert row_of(table).state is QueryState.STARTING


def test_an_ended_query_tells_no_age_and_no_distance() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 0.0)
    table.progressed(progress(0), 1.0)
    table.ended("q1", "r1", None, 2.0)
    assert not [name for name in samples(table, 2.0) if "behind" in name or "age" in name]


def test_what_the_sink_reports_is_counted_with_the_time_of_its_commit() -> None:
    table = QueryTable()
    table.started("q1", "r1", "q", 0.0)
    table.reported(Report("q1", 0, rows=30, bytes=3000, transactions=2, commit_s=0.04), 1.0)
    table.reported(Report("unknown", 0, 1, 1, 1, 1.0), 1.0)
    found = samples(table, 1.0)
    assert found["rows_written_total{query=q}"] == 30
    assert found["bytes_written_total{query=q}"] == 3000
    assert found["transactions_committed_total{query=q}"] == 2
    assert found["commit_seconds_bucket{le=0.05,query=q}"] == 1
    assert found["commit_seconds_bucket{le=0.02,query=q}"] == 0
    assert found["commit_seconds_sum{query=q}"] == pytest.approx(0.04)


def test_queries_that_come_and_go_leave_a_bounded_number_of_series() -> None:
    table = QueryTable()
    for number in range(10 * MAX_QUERIES):
        table.started(f"q{number}", "r", None, float(number))
        table.ended(f"q{number}", "r", None, float(number))
    assert len(list(table.rows())) <= MAX_QUERIES and table.left_out == 0


def test_queries_that_find_no_place_are_counted_and_get_one_when_another_ends() -> None:
    table = QueryTable()
    for number in range(MAX_QUERIES + 3):
        table.started(f"q{number}", "r", f"n{number}", 0.0)
    assert samples(table)["queries_left_out{}"] == 3 and table.get(f"q{MAX_QUERIES}") is None
    table.ended("q0", "r", None, 1.0)
    table.progressed(progress(query=f"q{MAX_QUERIES}", name="late"), 2.0)
    assert table.get(f"q{MAX_QUERIES}") is not None and table.left_out == 2


def test_an_ended_query_leaves_after_a_while() -> None:
    table = QueryTable()
    table.started("q1", "r", "a", 0.0)
    table.ended("q1", "r", "failed", 0.0)
    table.started("q2", "r", "b", 10.0)
    assert table.get("q1") is not None
    table.started("q3", "r", "c", KEPT_ENDED_S + 11)
    assert table.get("q1") is None


def test_two_queries_of_one_name_are_told_apart_and_an_ended_one_gives_its_name_away() -> None:
    table = QueryTable()
    table.started("aaaaaaaa-1", "r", "q", 0.0)
    table.started("bbbbbbbb-2", "r", "q", 0.0)
    assert [row.name for row in table.rows()] == ["q", "q (bbbbbbbb)"]
    table.ended("aaaaaaaa-1", "r", None, 1.0)
    table.started("cccccccc-3", "r", "q", 2.0)
    assert [(row.name, row.query_id) for row in table.rows()] == [("q", "cccccccc-3"), ("q (bbbbbbbb)", "bbbbbbbb-2")]


def test_two_sources_that_read_the_same_are_two_series() -> None:
    table = QueryTable()
    both = progress(0)["sources"] * 2
    table.progressed(progress(0, sources=both), 0.0)
    assert {name for name in samples(table) if name.startswith("rows_read_total")} == {
        "rows_read_total{query=shop.totals,source=orders}",
        "rows_read_total{query=shop.totals,source=orders 1}",
    }


def test_the_plan_gives_sources_and_sink_readable_names() -> None:
    table = QueryTable()
    table.progressed(progress(0), 0.0)
    table.described("q1", {0: "Twofold[Subscribe[orders]]"}, "Twofold[totals]")
    info = next(name for name in samples(table) if name.startswith("query_info"))
    assert "sources=Twofold[Subscribe[orders]]" in info and "sink=Twofold[totals]" in info
    (told,) = page.queries_json(table, 0.0)
    assert told["sources"][0]["description"] == "Twofold[Subscribe[orders]]"
    assert told["sources"][0]["metrics"] == {
        "avgOffsetsBehindLatest": "60.0",
        "maxOffsetsBehindLatest": "85",
        "minOffsetsBehindLatest": "35",
    }


def test_every_metric_of_the_table_is_on_the_page_with_its_labels() -> None:
    table = QueryTable()
    table.progressed(progress(0), 0.0)
    table.looked_at_transactions("q1", Transactions({}, 0.0), 0.0)
    told = {metric.name: metric for metric in page.metrics(table, 0.0, watch_failures=0, listener_errors=0)}
    assert list(told) == [family.name for family in FAMILIES]
    for family in FAMILIES:
        metric = told[family.name]
        assert (metric.type, metric.documentation) == (family.kind, family.help)
        assert metric.samples, family.name
        assert all(set(sample.labels) - {"le"} == set(family.labels) for sample in metric.samples)


# Plans


def test_options_are_described_as_sparks_connector_describes_its_own() -> None:
    assert source_plan({"Subscribe": "a,b", "kafka.bootstrap.servers": "h:1"}).name == "Twofold[Subscribe[a,b]]"
    assert source_plan({"subscribePattern": "a.*"}).name == "Twofold[SubscribePattern[a.*]]"
    assert source_plan({"kafka.isolation.level": "read_uncommitted"}).isolation == "read_uncommitted"


def test_a_sink_has_its_transactions_under_the_querys_prefix_or_the_chosen_one_or_none() -> None:
    assert sink_plan({"topic": "out"}, "1234").prefix == "spark-1234"
    assert sink_plan({"transactionalIdPrefix": "p"}, "1234").prefix == "p"
    assert sink_plan({"exactlyOnce": "OFF"}, "1234").prefix is None
    assert sink_plan({}, "1234").name == "Twofold[column topic]"


# Reports


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(reports, "directory", lambda: tmp_path / "reports")
    return tmp_path / "reports"


def test_a_report_reaches_every_listener_of_its_driver_and_no_other(
    apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    me = os.getpid()
    monkeypatch.setattr(reports, "jvm_above", lambda: me)
    found: list[list[Report]] = [[], [], []]
    receivers = [Receiver(jvm, found[n].append) for n, jvm in enumerate((me, me, os.getppid()))]
    report = Report("q", 7, 10, 1000, 2, 0.5)
    reports.send(report)
    for receiver in receivers:
        receiver.read()
        receiver.close()
    assert found == [[report], [report], []]
    assert list(apart.iterdir()) == []
    reports.send(report)  # to none


def test_a_listener_that_reads_nothing_holds_up_no_sink(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "jvm_above", os.getpid)
    found: list[Report] = []
    receiver = Receiver(os.getpid(), found.append)
    for number in range(5_000):
        reports.send(Report("q", number, 1, 1, 1, 0.1))
    receiver.read()
    receiver.close()
    assert found and found[0].batch_id == 0, "the first of them; the rest is lost"


def test_what_is_no_report_is_passed_over(apart: Path) -> None:
    found: list[Report] = []
    receiver = Receiver(os.getpid(), found.append)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for data in (b"", b"{}", b"[1]", b"\xff", json.dumps(["q", 1, 2, 3, 4, 0.5]).encode()):
            sender.sendto(data, str(receiver.path))
    receiver.read()
    receiver.close()
    assert found == [Report("q", 1, 2, 3, 4, 0.5)]


def test_a_directory_that_others_can_open_is_refused(apart: Path) -> None:
    apart.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only this user"):
        Receiver(os.getpid(), lambda report: None)


def test_sockets_of_jvms_that_were_killed_are_cleared_away(apart: Path) -> None:
    apart.mkdir(mode=0o700)
    (apart / "999999999-abc.sock").touch()
    Receiver(os.getpid(), lambda report: None).close()
    assert list(apart.iterdir()) == []
