"""The dashboards and the alert rules in deploy/ ask for what a running broker really tells: names, labels, values.
What they ask of Spark queries is taken from the table of those metrics; `tests/spark` has real queries.

Prometheus is not run here (`test_deploy_prometheus.py` does that): expressions are taken apart with regular
expressions, which is enough for the few forms that they have. What is not understood fails.
"""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

import twofold
from twofold.broker.metrics.families import FAMILIES, HISTOGRAM
from twofold.embedded import Broker
from twofold.spark.metrics.families import FAMILIES as SPARK_FAMILIES
from twofold.spark.metrics.page import TRANSACTION_STATES
from twofold.spark.metrics.table import QueryState
from twofold.wire.apis import APIS
from twofold.wire.errors import error_for

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
GUIDE = ROOT / "docs" / "guide" / "monitoring.md"

ERROR_NAMES = {error_for(code).name for code in range(-1, 200)}
OF_PROMETHEUS = {"instance", "job"}  # it adds them to what it scrapes
OF_COUNTERS = {"rate", "increase"}
FUNCTIONS = OF_COUNTERS | {
    "sum", "min", "max", "avg", "by", "topk", "histogram_quantile", "min_over_time", "delta", "vector", "label_values",
    "time",
}  # fmt: skip
OPERATORS = {"and", "or", "bool"}
NAME = r"(?:kafka|twofold|process)_\w+|up\b"

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(rf"\b({NAME})(?:\{{([^}}]*)\}})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_BY = re.compile(r"\bby \(([\w, ]+)\)")


class Told(NamedTuple):
    """What the page says: for each sample its labels and their values, and the type of each."""

    labels: dict[str, dict[str, set[str]]]
    types: dict[str, str]


@pytest.fixture(scope="module")
def told() -> Told:
    """Of a broker with a committed, an aborted and an open transaction."""
    with Broker(metrics="127.0.0.1:0") as broker:
        producer = twofold.Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id="seen")
        with producer:
            producer.init_transactions()
            for end in (producer.commit_transaction, producer.abort_transaction):
                producer.begin_transaction()
                producer.send("orders", b"value")
                producer.flush()
                end()
            producer.begin_transaction()
            producer.send("orders", b"open")
            producer.flush()
            text = urllib.request.urlopen(broker.metrics_url, timeout=20).read().decode()
    labels: dict[str, dict[str, set[str]]] = {"up": {}}  # Prometheus's own
    types: dict[str, str] = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            types[sample.name] = family.type
            known = labels.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                known.setdefault(label, set()).add(value)
    for known_family in FAMILIES:  # what has no series at this moment: nothing is corrupt
        if known_family.sample in types:
            labels.setdefault(known_family.sample, {label: set() for label in known_family.labels})
    add_spark(labels, types)
    return Told(labels, types)


def add_spark(labels: dict[str, dict[str, set[str]]], types: dict[str, str]) -> None:
    """What a listener of Spark's queries tells."""
    states = {
        "twofold_spark_query_state": {state.value for state in QueryState},
        "twofold_spark_transactions": set(TRANSACTION_STATES),
    }
    for family in SPARK_FAMILIES:
        known = {label: set[str]() for label in family.labels}
        if "state" in known:
            known["state"] = states[family.name]
        types[family.sample] = family.kind
        labels[family.sample] = known
        if family.kind == HISTOGRAM:
            for suffix in ("_bucket", "_sum", "_count"):
                types[family.sample + suffix] = family.kind
                labels[family.sample + suffix] = known | ({"le": set[str]()} if suffix == "_bucket" else {})


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, expression, legend."""
    for dashboard in DASHBOARDS:
        for panel in json.loads(dashboard.read_text())["panels"]:
            for target in panel.get("targets", ()):
                yield panel["title"], target["expr"], target["legendFormat"]


def rules() -> Iterator[tuple[str, str, str]]:
    """Name, expression, the rest: labels and annotations."""
    for rule in ALERTS.read_text().split("- alert: ")[1:]:
        name, rest = rule.split("\n", 1)
        (expression,) = re.findall(r"^ +expr: (\S.*)$", rest, re.M)
        yield name, expression, rest


EXPRESSIONS = [*panels(), *rules()]


@pytest.mark.parametrize(
    ("where", "expression", "text"), EXPRESSIONS, ids=[f"{x[0]}-{n}" for n, x in enumerate(EXPRESSIONS)]
)
def test_every_metric_label_and_value_of_an_expression_is_told(
    where: str, expression: str, text: str, told: Told
) -> None:
    selectors = _SELECTOR.findall(_STRING.sub(lambda match: match[0].replace("{", "").replace("}", ""), expression))
    assert selectors, expression
    available: set[str] = set()
    for name, matchers in selectors:
        assert name in told.labels, f"{name} is not on the page"
        known = told.labels[name]
        available |= known.keys()
        parsed = _MATCHER.findall(matchers)
        assert ",".join(f'{label}{how}"{value}"' for label, how, value in parsed) == matchers, "not understood"
        for label, how, value in parsed:
            assert label in known or label in OF_PROMETHEUS, f"{name} has no label {label}"
            if not value.startswith("$") and label not in OF_PROMETHEUS:
                check_values(name, label, value.split("|") if how == "=~" else [value], known[label])
    grouped = {label.strip() for group in _BY.findall(expression) for label in group.split(",")}
    assert grouped <= available | OF_PROMETHEUS, grouped - available
    shown = {*re.findall(r"\$labels\.(\w+)", text), *re.findall(r"\{\{(\w+)\}\}", text)}
    assert shown <= (grouped or available | OF_PROMETHEUS), f"{where} shows {shown}, its series have {grouped}"


def check_values(name: str, label: str, values: list[str], known: set[str]) -> None:
    possible = {"request": {api.name for api in APIS.values()}, "error": ERROR_NAMES}.get(label, known)
    assert set(values) <= possible, f"{name}: {label} is never one of {set(values) - possible}"


@pytest.mark.parametrize(
    ("where", "expression", "text"), EXPRESSIONS, ids=[f"{x[0]}-{n}" for n, x in enumerate(EXPRESSIONS)]
)
def test_every_word_of_an_expression_is_known_and_rates_are_of_counters(
    where: str, expression: str, text: str, told: Told
) -> None:
    bare = re.sub(r"\[[^\]]*\]", "", _BY.sub("by ()", re.sub(r"\{[^}]*\}", "", _STRING.sub("", expression))))
    words = set(re.findall(r"[A-Za-z_]\w*", bare))
    assert words <= FUNCTIONS | OPERATORS | told.labels.keys(), f"{where}: {expression}"
    assert bare.count("(") == bare.count(")")
    for function, name in re.findall(rf"(\w+)\(({NAME})", bare):
        if function in OF_COUNTERS:
            assert told.types[name] in ("counter", "histogram"), f"{function} of the {told.types[name]} {name}"
        else:
            assert told.types[name] == "gauge", f"{function} of the {told.types[name]} {name}"


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_the_variables_of_a_dashboard_are_read_from_metrics_that_exist(path: Path, told: Told) -> None:
    dashboard = json.loads(path.read_text())
    queries = [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    for name, label in (re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups() for query in queries):  # type: ignore[union-attr]
        assert label in told.labels[name] or label in OF_PROMETHEUS
    declared = {one["name"] for one in dashboard["templating"]["list"]} | {"__rate_interval"}
    assert set(re.findall(r"\$\{?(\w+)", path.read_text())) <= declared
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    assert dashboard["uid"] == path.stem


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_no_panel_of_a_dashboard_covers_another(path: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_every_metric_of_the_issue_is_watched() -> None:
    text = " ".join(expression for _, expression, _ in EXPRESSIONS)
    for part in (
        "partitionswithlatetransactionscount", "laststableoffsetlag", "partition_open_seconds", "partition_load_time",
        "unknowndestinationqueuesize", "markers_pending", "heartbeat_expired_total", "txn_end_seconds_bucket",
        "request_seconds_bucket", "requestmetrics_requests_total", "requestmetrics_errors_total",
    ):  # fmt: skip
        assert part in text, part


def test_every_alert_is_explained_in_the_guide() -> None:
    names = [name for name, _, _ in rules()]
    assert len(set(names)) == len(names) >= 10
    page = GUIDE.read_text()
    assert [name for name in names if f"`{name}`" not in page] == []
    for name, _, rest in rules():
        assert re.search(r"severity: (warning|critical)\n", rest), name
        assert re.search(r'summary: ".+"\n', rest) and re.search(r'description: ".+"', rest), name
