"""docs/guide/metrics.md says what the code says, and names follow from Kafka's MBeans."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from twofold.broker.metrics.families import COUNTER, FAMILIES, GAUGE, HISTOGRAM, exported

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = ROOT / "docs" / "guide" / "metrics.md"


def test_the_tables_of_the_page_are_generated_from_the_code():
    tool = ROOT / "tools" / "generate_metrics.py"
    found = subprocess.run([sys.executable, tool, "--check"], check=False)
    assert found.returncode == 0, "docs/guide/metrics.md is stale: run python tools/generate_metrics.py"


def test_every_metric_that_the_page_names_exists():
    known = {family.sample for family in FAMILIES} | {
        f"{family.sample}_{part}"
        for family in FAMILIES
        if family.kind == HISTOGRAM
        for part in ("bucket", "sum", "count")
    }
    # Those of Spark queries have a generated table of their own, which test_spark_metrics compares.
    named = set(re.findall(r"\b((?:kafka|twofold)_(?!spark_)\w+)", PAGE.read_text()))
    assert named and named <= known, named - known


@pytest.mark.parametrize(
    ("mbean", "name", "kind"),
    [
        (
            "kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec:Count",
            "kafka_server_brokertopicmetrics_messagesin",
            COUNTER,
        ),
        (
            "kafka.server:type=ReplicaManager,name=ProducerIdCount:Value",
            "kafka_server_replicamanager_produceridcount",
            GAUGE,
        ),
        ("kafka.log:type=Log,name=Size,topic=t,partition=0:Value", "kafka_log_log_size", GAUGE),
        (
            "kafka.server:type=transaction-coordinator-metrics:partition-load-time-max",
            "kafka_server_transaction_coordinator_metrics_partition_load_time_max",
            GAUGE,
        ),
        (
            "kafka.coordinator.transaction:type=TransactionMarkerChannelManager,name=UnknownDestinationQueueSize:Value",
            "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
            GAUGE,
        ),
    ],
)
def test_names_are_spelled_as_the_jmx_exporter_spells_them(mbean: str, name: str, kind: str):
    assert exported(mbean) == (name, kind)


def test_names_are_unique_and_legal():
    names = [family.sample for family in FAMILIES]
    assert len(set(names)) == len(names)
    for family in FAMILIES:
        assert re.fullmatch(r"(kafka|twofold)_[a-z0-9_]+", family.sample)
        assert all(re.fullmatch(r"[a-zA-Z_]+", label) for label in family.labels)
        assert family.help.endswith(".") and "\n" not in family.help and "|" not in family.help
        assert bool(family.mbean) == family.name.startswith("kafka_")
