"""The listener on real queries: what it tells while they run, wait, fail, end and start again."""

import json
import re
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from connector import LONG
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql.functions import udf
from spark_kit import PATIENCE_S, Kit

from kits.processes.prometheus import Prometheus, running_prometheus
from twofold.spark.metrics import MetricsListener
from twofold.spark.metrics import listener as listener_module

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


@pytest.fixture(scope="module")
def listener(spark: Any, spark_directory: Path) -> Iterator[MetricsListener]:
    """One for all tests here: each looks for its own queries only. The sink tells it what it did through a file in the
    temporary directory that a program and its Spark share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(spark_directory))
        made = MetricsListener("127.0.0.1:0", spark)
        spark.streams.addListener(made)
        yield made
        spark.streams.removeListener(made)
        made.close()


@pytest.fixture
def seen(listener: MetricsListener, ours: Kit) -> "Seen":
    return Seen(listener, ours)


class Seen:
    def __init__(self, listener: MetricsListener, kit: Kit) -> None:
        self.listener = listener
        self.kit = kit

    def start(self, name: str, source: str, target: str, **read: Any) -> Any:
        """A copy of a topic, under a name of its own."""
        frame = self.kit.stream(subscribe=source, startingOffsets="earliest", **read)
        writer = frame.select("key", "value").writeStream.format("twofold").queryName(name)
        writer = writer.option("kafka.bootstrap.servers", self.kit.bootstrap_servers).option("topic", target)
        query = writer.option("checkpointLocation", str(self.kit.directory / name)).start()
        self.kit._queries.append(query)
        return query

    def query(self, name: str) -> dict[str, Any]:
        """As `/queries` has it."""
        with urllib.request.urlopen(f"http://{self.listener.address}/queries", timeout=20) as answer:
            found = [row for row in json.load(answer) if row["name"] == name]
        return found[0] if found else {}

    def samples(self, name: str) -> dict[str, dict[str, float]]:
        """Of the page, by the short name of the metric and what tells its series apart."""
        with urllib.request.urlopen(f"http://{self.listener.address}/metrics", timeout=20) as answer:
            text = answer.read().decode()
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.labels.get("query") == name:
                    rest = ",".join(value for label, value in sorted(sample.labels.items()) if label != "query")
                    found.setdefault(sample.name.removeprefix("twofold_spark_"), {})[rest] = sample.value
        return found

    def wait_for(self, name: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        self.kit.wait_for(lambda: bool(found := self.query(name)) and holds(found))
        return self.query(name)


def test_a_query_tells_rows_bytes_distance_and_commits_and_falls_behind_when_it_is_held_up(seen: Seen) -> None:
    source, target = seen.kit.topic(), seen.kit.topic()
    seen.kit.send(source, range(100))
    name = f"copy-{source}"
    query = seen.start(name, source, target, maxOffsetsPerTrigger=60)
    query.processAllAvailable()
    found = seen.wait_for(name, lambda row: row["batches"] == 2 and row["transactions"] is not None)
    assert found["id"] == query.id and found["runId"] == query.runId
    assert found["sources"][0]["description"] == f"Twofold[Subscribe[{source}]]"
    assert found["sink"]["description"] == f"Twofold[{target}]"
    assert found["sources"][0]["metrics"] == {
        "avgOffsetsBehindLatest": "0.0",
        "maxOffsetsBehindLatest": "0",
        "minOffsetsBehindLatest": "0",
    }
    assert found["rows_read_per_s"] > 0 and found["bytes_written_per_s"] > 0 and found["last_commit_s"] > 0
    samples = seen.samples(name)
    assert samples["rows_read_total"] == {f"Twofold[Subscribe[{source}]]": 100}
    assert samples["rows_written_total"] == {"": 100}
    assert samples["bytes_written_total"][""] > 100 * 2
    assert samples["commit_seconds_count"] == {"": 2}
    assert samples["transactions_committed_total"][""] >= 2
    assert samples["last_batch"] == {"": 1}
    assert samples["phase_seconds_total"]["addBatch"] > samples["commit_seconds_sum"][""]
    query.stop()
    found = seen.wait_for(name, lambda row: row["state"] == "stopped")
    assert found["error"] is None and "progress_age_seconds" not in seen.samples(name)


def test_the_distance_grows_while_a_batch_takes_long(seen: Seen, tmp_path: Path) -> None:
    """It is asked of the brokers, not of the last batch: here none is done for all that time."""
    source, target, shut, go_on = seen.kit.topic(), seen.kit.topic(), tmp_path / "shut", tmp_path / "go on"
    seen.kit.send(source, range(10))
    name = f"slow-{source}"

    def hold(value: bytes) -> bytes:
        import time

        deadline = time.monotonic() + PATIENCE_S
        while shut.exists() and not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return value

    frame = seen.kit.stream(subscribe=source, startingOffsets="earliest")
    writer = frame.select(udf(hold, "binary")("value").alias("value")).writeStream.format("twofold").queryName(name)
    writer = writer.option("kafka.bootstrap.servers", seen.kit.bootstrap_servers).option("topic", target)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    seen.kit._queries.append(query)
    query.processAllAvailable()
    seen.wait_for(name, lambda row: row["batches"] == 1 and row["transactions"] is not None)
    shut.touch()
    seen.kit.send(source, range(500))
    found = seen.wait_for(name, lambda row: row["sources"][0]["offsetsBehindLatest"] == 500)
    assert found["batches"] == 1 and found["sources"][0]["metrics"]["maxOffsetsBehindLatest"] == "250"
    go_on.touch()
    query.processAllAvailable()
    seen.wait_for(name, lambda row: row["sources"][0]["offsetsBehindLatest"] == 0)


def test_open_transactions_of_a_query_are_told_with_their_age_and_gone_when_they_end(seen: Seen) -> None:
    """One under the name that a task of the query would have."""
    source, target = seen.kit.topic(), seen.kit.topic()
    seen.kit.send(source, range(10))
    name = f"open-{source}"
    query = seen.start(name, source, target)
    query.processAllAvailable()
    seen.wait_for(name, lambda row: row["transactions"] == {})
    task = {"bootstrap.servers": seen.kit.bootstrap_servers, "transactional.id": f"spark-{query.id}|0000abcd|0"}
    producer = Producer(task)
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(target, b"open")
    assert producer.flush(PATIENCE_S) == 0
    found = seen.wait_for(name, lambda row: row["transactions"] == {"writing": 1})
    assert found["oldest_transaction_s"] < PATIENCE_S
    samples = seen.samples(name)
    assert samples["transactions"]["writing"] == 1 and samples["transactions"]["prepared"] == 0
    producer.abort_transaction(PATIENCE_S)
    seen.wait_for(name, lambda row: row["transactions"] == {} and row["oldest_transaction_s"] == 0)


def test_queries_of_one_application_are_told_apart_and_a_failed_one_starts_again(seen: Seen) -> None:
    source, target = seen.kit.topic(), seen.kit.topic()
    seen.kit.send(source, range(10))
    good, bad = f"good-{source}", f"bad-{source}"
    first = seen.start(good, source, target)
    frame = seen.kit.stream(subscribe=source, startingOffsets="earliest")
    broken = frame.selectExpr("key", "cast(assert_true(cast(cast(value as string) as int) < 5) as binary) value")
    writer = broken.writeStream.format("twofold").queryName(bad).option("topic", target)
    writer = writer.option("kafka.bootstrap.servers", seen.kit.bootstrap_servers)
    second = writer.option("checkpointLocation", str(seen.kit.directory / bad)).start()
    found = seen.wait_for(bad, lambda row: row["state"] == "failed")
    assert found["error"] and "\n" not in found["error"]
    assert seen.samples(bad)["query_failures_total"] == {"": 1}
    first.processAllAvailable()
    seen.wait_for(good, lambda row: row["batches"] == 1 and row["state"] in ("running", "idle"))
    again = seen.start(bad, source, target)
    again.processAllAvailable()
    found = seen.wait_for(bad, lambda row: row["batches"] > 0)
    assert found["runId"] != second.runId and found["error"] is None
    samples = seen.samples(bad)
    assert samples["query_failures_total"] == {"": 1} and samples["query_state"]["failed"] == 0


def test_an_error_in_the_listener_is_logged_once_and_no_query_fails_of_it(
    seen: Seen, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source, target = seen.kit.topic(), seen.kit.topic()
    seen.kit.send(source, range(10))

    def fail(text: str) -> Any:
        raise RuntimeError("as the test asked for")

    class Broken:
        loads = staticmethod(fail)
        dumps = staticmethod(json.dumps)

    monkeypatch.setattr(listener_module, "json", Broken)
    query = seen.start(f"unseen-{source}", source, target, maxOffsetsPerTrigger=4)
    query.processAllAvailable()
    seen.kit.wait_for(lambda: seen.listener._errors >= 2)
    assert query.isActive and query.exception() is None
    assert len([row for row in caplog.records if "could not be taken" in row.message]) == 1
    assert len(seen.kit.values(subscribe=target)) == 10


def test_a_listener_that_hangs_holds_up_no_query(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark calls it on a thread of its own, so that batches go on; what was told late is told all the same."""
    source, target, go_on = seen.kit.topic(), seen.kit.topic(), threading.Event()
    seen.kit.send(source, range(10))
    name = f"unheard-{source}"
    take = MetricsListener._progressed

    def hang(self: MetricsListener, event: Any) -> None:
        assert go_on.wait(PATIENCE_S)
        take(self, event)

    monkeypatch.setattr(MetricsListener, "_progressed", hang)
    query = seen.start(name, source, target, maxOffsetsPerTrigger=4)
    query.processAllAvailable()
    assert len(seen.kit.values(subscribe=target)) == 10
    assert seen.query(name)["batches"] == 0
    go_on.set()
    seen.wait_for(name, lambda row: row["batches"] >= 2)


def test_the_port_is_on_loopback_answers_probes_and_is_free_after_close(spark: Any) -> None:
    made = MetricsListener("0", spark)
    try:
        assert made.address.startswith("127.0.0.1:") and made.queries() == []
        with urllib.request.urlopen(f"http://{made.address}/healthz", timeout=20) as answer:
            assert answer.read() == b"ok\n"
        with pytest.raises(OSError, match=f"metrics={made.address}: metrics cannot be served there"):
            MetricsListener(made.address, spark)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{made.address}/other", timeout=20)
    finally:
        made.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{made.address}/healthz", timeout=5)


def test_a_real_prometheus_answers_every_panel_and_rule_of_the_dashboard(seen: Seen, tmp_path: Path) -> None:
    source, target = seen.kit.topic(), seen.kit.topic()
    query = seen.start(f"drawn-{source}", source, target)
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / "alerts.yml")]
    (job,) = [job for job in config["scrape_configs"] if job["job_name"] == "twofold-spark"]
    job["static_configs"][0]["targets"] = [seen.listener.address]
    config["scrape_configs"] = [job]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    dashboard = json.loads((DEPLOY / "grafana" / "twofold-spark.json").read_text())
    with running_prometheus(tmp_path / "prometheus.yml", tmp_path) as prometheus:

        def is_drawn() -> bool:
            seen.kit.send(source, range(10))
            query.processAllAvailable()
            return bool(prometheus.query(f'rate(twofold_spark_commit_seconds_count{{query="drawn-{source}"}}[1m]) > 0'))

        seen.kit.wait_for(is_drawn)
        seen.wait_for(f"drawn-{source}", lambda row: row["transactions"] is not None)
        seen.kit.wait_for(lambda: bool(prometheus.query("twofold_spark_oldest_transaction_seconds")))
        for panel in dashboard["panels"]:
            for target_of_panel in panel.get("targets", ()):
                expression = target_of_panel["expr"].replace("$__rate_interval", "1m")
                expression = expression.replace("$instance", ".*").replace("$query", ".*")
                assert prometheus.query(expression), f"{panel['title']}: {expression}"
        for variable in dashboard["templating"]["list"]:
            if found := re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]):
                assert prometheus.ask(f"label/{found[2]}/values", **{"match[]": found[1]})
        seen.kit.wait_for(lambda: all(rule["health"] != "unknown" for rule in prometheus_rules(prometheus)))
        assert {rule["name"] for rule in prometheus_rules(prometheus) if rule["health"] != "ok"} == set()


def prometheus_rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


@pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 compares")
def test_our_words_and_numbers_are_those_of_sparks_connector(seen: Seen) -> None:
    source = seen.kit.topic()
    seen.kit.send(source, range(100))
    theirs = Kit(seen.kit.spark, seen.kit.bootstrap_servers, "kafka", seen.kit.directory / "theirs")
    frame = theirs.stream(subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=30)
    query = theirs.start(frame, f"theirs-{source}", processingTime="1 hour")
    try:
        seen.kit.wait_for(lambda: query.query.lastProgress is not None)
        told = query.query.lastProgress["sources"][0]
    finally:
        theirs.close()
    assert re.fullmatch(rf"KafkaV2\[Subscribe\[{source}\]\]", told["description"])
    from twofold.sink.behind import behind, offsets_of

    ours = behind(offsets_of(told["endOffset"]) or {}, offsets_of(told["latestOffset"]) or {})
    assert ours is not None
    words = dict(told["metrics"])
    words.pop("estimatedTotalBytesBehindLatest", None)
    assert ours.words() == words
