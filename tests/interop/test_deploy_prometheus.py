"""The files of deploy/ under a real Prometheus, and the dashboards as Grafana's own schema reads them.

promtool checks configuration and rules and runs the rules on made-up series; then Prometheus scrapes a broker, and
every panel of every dashboard is asked as Grafana would ask it. Grafana itself is in no package registry: in its place
stand its published schema (`grafana-foundation-sdk`) and these questions.
"""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, TopicPartition

import twofold
from kits.processes.prometheus import Prometheus, promtool, running_prometheus
from twofold.embedded import Broker

pytestmark = pytest.mark.interop

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
OF_BROKERS = [path for path in DASHBOARDS if path.stem != "twofold-spark"]  # that one: tests/spark
RULES = DEPLOY / "prometheus" / "alerts.yml"
# Of a broker on which nothing is wrong, and no producer promised heartbeats.
EMPTY_WHERE_ALL_IS_WELL = {"Hidden offsets", "Open since", "Errors by API and name", "Commits by time taken"}
VARIABLES = {"$instance": ".*", "$topic": ".*", "$request": ".*", "$__rate_interval": "1m"}


def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    for words in (("check", "config", DEPLOY / "prometheus" / "prometheus.yml"), ("check", "rules", RULES)):
        done = promtool(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.M)
    assert f"SUCCESS: {len(names)} rules found" in done.stdout


def test_alerts_fire_when_they_should_and_say_what_they_should(tmp_path: Path) -> None:
    wanted = DEPLOY / "prometheus" / "alerts.test.yml"
    done = promtool("test", "rules", wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (wanted, RULES):
        (tmp_path / path.name).write_text(path.read_text().replace("} == 0", "} == 3").replace("> 900", "> 90000"))
    broken = promtool("test", "rules", tmp_path / wanted.name)
    assert broken.returncode != 0 and "TwofoldBrokerDown" in broken.stdout + broken.stderr, "the test can fail"


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """That scrapes a broker with a committed, an aborted and an open transaction, by our own configuration."""
    directory = tmp_path_factory.mktemp("prometheus")
    with Broker(metrics="127.0.0.1:0") as broker:
        config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(RULES)]
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [broker.metrics_url.split("/")[2]]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        with running_prometheus(directory / "prometheus.yml", directory) as running:
            work(broker.bootstrap_servers, running)
            yield running


def work(bootstrap_servers: str, prometheus: Prometheus) -> None:
    """Transactions until Prometheus has seen two of them end: a rate needs two looks."""
    with twofold.Producer(bootstrap_servers=bootstrap_servers, transactional_id="seen") as producer:
        producer.init_transactions()
        deadline = time.monotonic() + 60
        ended = 'sum(rate(twofold_request_seconds_count{request="EndTxn"}[1m])) > 0'
        consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        while not prometheus.query(ended):
            assert time.monotonic() < deadline, "Prometheus has not seen a rate"
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("orders", b"value")
                producer.flush()
                end()
            consumer.poll(0.2)
        consumer.close()
        producer.begin_transaction()
        producer.send("orders", b"open")
        producer.flush()


def panels() -> Iterator[tuple[str, str]]:
    for path in OF_BROKERS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"]


def test_every_panel_is_answered_by_a_prometheus_that_scrapes_a_broker(prometheus: Prometheus) -> None:
    empty = set()
    for title, expression in panels():
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        if not prometheus.query(expression):
            empty.add(title)
    assert empty <= EMPTY_WHERE_ALL_IS_WELL


def test_every_variable_of_a_dashboard_has_values(prometheus: Prometheus) -> None:
    for path in OF_BROKERS:
        for variable in json.loads(path.read_text())["templating"]["list"]:
            if variable["type"] == "query":
                found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"])
                assert found is not None, variable
                assert prometheus.ask(f"label/{found[2]}/values", **{"match[]": found[1]}), variable["name"]


def test_every_rule_is_evaluated_and_none_fires_on_a_broker_that_is_well(prometheus: Prometheus) -> None:
    deadline = time.monotonic() + 30
    while True:
        rules = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]
        if rules and all(rule["health"] != "unknown" for rule in rules):
            break
        assert time.monotonic() < deadline, "Prometheus has not evaluated the rules"
        time.sleep(0.1)
    assert {rule["health"] for rule in rules} == {"ok"}, [rule for rule in rules if rule["health"] != "ok"]
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafanas_schema_knows_every_field_of_a_dashboard(path: Path) -> None:
    """What it does not know it drops without a word: the panel would look otherwise than written."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    written = json.loads(path.read_text())
    read = json.loads(JSONEncoder(sort_keys=True).encode(Dashboard.from_json(written)))
    assert dropped(written, read) == []


def dropped(written: Any, read: Any, where: str = "") -> list[str]:
    if isinstance(written, dict):
        if not isinstance(read, dict):
            return [where]
        return [
            name
            for key, value in written.items()
            for name in (dropped(value, read[key], f"{where}.{key}") if key in read else [f"{where}.{key}"])
        ]
    if isinstance(written, list):
        if not isinstance(read, list) or len(read) != len(written):
            return [where]
        return [name for one, other in zip(written, read, strict=True) for name in dropped(one, other, f"{where}[]")]
    return [] if written == read else [where]
