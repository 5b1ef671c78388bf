"""Which topics a running query reads and writes, and where: asked of Spark's plan on the driver.

Spark 4.3 lets a Python source name neither itself nor its sink: where Spark's own connector is `KafkaV2[Subscribe[a]]`,
its progress has the name of a class and a number. What is here is read from the options that the query was given.
What Spark does not tell (Spark Connect, another version) is left out: metrics have less to say then, and nothing fails.
No secret is kept: of a connection only references to secrets are taken over, as the query itself has them.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twofold.connections.security import literal_secret
from twofold.sink.names import prefix_of_query
from twofold.spark.kafka_names import SECURITY_PREFIXES, SECURITY_PROTOCOL

KAFKA = "kafka."
SERVERS = "kafka.bootstrap.servers"
ISOLATION = "kafka.isolation.level"
FORMAT = "twofold"
STRATEGIES = (("subscribe", "Subscribe"), ("subscribepattern", "SubscribePattern"), ("assign", "Assign"))

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where the brokers of a query are, and `security.protocol`, `sasl.*` and `ssl.*` of the connections to them."""

    servers: str
    security: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SourcePlan:
    name: str
    reach: Reach | None
    isolation: str


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """`prefix` is None where nothing is written in transactions."""

    name: str
    reach: Reach | None
    prefix: str | None


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """`sources` by the numbers that Spark gives them."""

    sources: Mapping[int, SourcePlan] = field(default_factory=dict)
    sink: SinkPlan | None = None


def reach_of(lower: Mapping[str, str]) -> Reach | None:
    """By options in lower case. None where no brokers are named, or a secret is written out: it is not kept here."""
    servers = lower.get(SERVERS)
    settings = {name.removeprefix(KAFKA): value for name, value in lower.items() if name.startswith(KAFKA)}
    names = (SECURITY_PROTOCOL, *SECURITY_PREFIXES)
    security = {name: value for name, value in settings.items() if name.startswith(names)}
    if servers is None or literal_secret(security) is not None:
        return None
    return Reach(servers, tuple(sorted(security.items())))


def source_plan(options: Mapping[str, str]) -> SourcePlan:
    """In the form of Spark's own connector. Names of options do not care about case."""
    lower = {name.lower(): value for name, value in options.items()}
    chosen = [f"{words}[{lower[name]}]" for name, words in STRATEGIES if name in lower]
    isolation = lower.get(ISOLATION, "read_committed")
    return SourcePlan(f"Twofold[{', '.join(chosen)}]", reach_of(lower), isolation)


def sink_plan(options: Mapping[str, str], query_id: str) -> SinkPlan:
    lower = {name.lower(): value for name, value in options.items()}
    exactly_once = lower.get("exactlyonce", "auto").lower() != "off"
    prefix = lower.get("transactionalidprefix") or prefix_of_query(query_id)
    return SinkPlan(f"Twofold[{lower.get('topic', 'column topic')}]", reach_of(lower), prefix if exactly_once else None)


def plan_of(spark: Any, query_id: str) -> QueryPlan:
    """Of a query that has made progress."""
    try:
        wrapper = spark.streams.get(query_id)._jsq
        plan = wrapper.streamingQuery().logicalPlan()
        java = spark._jvm.scala.jdk.javaapi.CollectionConverters
        sources = dict(_sources(java, plan))
        sink = None
        if _simple_name(plan) == "WriteToMicroBatchDataSource" and FORMAT in str(plan.toString()).splitlines()[0]:
            sink = sink_plan(dict(java.asJava(plan.writeOptions())), query_id)
        return QueryPlan(sources, sink)
    except Exception as error:
        log.debug("Spark does not tell the plan of query %s: %s", query_id, error)
        return QueryPlan()


def _sources(java: Any, plan: Any) -> list[tuple[int, SourcePlan]]:
    found = []
    for leaf in java.asJava(plan.collectLeaves()):
        if _simple_name(leaf) == "StreamingDataSourceV2ScanRelation":
            relation = leaf.relation()
            number = str(relation.metadataPath()).rpartition("/")[2]
            if number.isdecimal() and relation.table().name() == FORMAT:
                found.append((int(number), source_plan(dict(relation.options()))))
    return found


def _simple_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())
