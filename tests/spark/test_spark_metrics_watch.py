"""What the listener asks the brokers goes over connections like the query's own: a real broker with SASL_SSL."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kits.node.sockets import on_loop
from kits.security.certificates import Certificates
from kits.security.guarded_broker import guarded_broker
from twofold.client import NewTopic
from twofold.client.admin.admin import Admin
from twofold.runtime.real import real_runtime
from twofold.spark.metrics.plan import Reach, sink_plan, source_plan
from twofold.spark.metrics.watch import BrokerWatch, SinkQuestion, SourceQuestion
from twofold.types import TopicPartition

TP = TopicPartition("orders", 0)
PASSWORD = "opens"  # of bob, in the kit


@asynccontextmanager
async def options_of_bob(folder: Path) -> AsyncIterator[dict[str, str]]:
    """Of a query that reads `orders` over SASL_SSL, as Spark has them; the password stands in a file."""
    certificates = Certificates.make(folder)
    (folder / "password").write_text(PASSWORD)
    async with guarded_broker(folder, certificates) as running:
        async with Admin(bootstrap_servers=f"localhost:{running.ports['OPEN']}") as admin:
            await admin.create_topics([NewTopic(TP.topic, 1)])
        yield {
            "subscribe": TP.topic,
            "kafka.bootstrap.servers": f"localhost:{running.ports['BOTH']}",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "bob",
            "kafka.sasl.password": f"${{file:{folder / 'password'}}}",
            "kafka.ssl.truststore.location": str(certificates.trusted),
        }


async def answers(reach: Reach) -> list[object]:
    watch = BrokerWatch(real_runtime())
    try:
        ends = await watch.ends(SourceQuestion("q", 0, reach, "read_committed", (TP,)))
        return [ends, await watch.transactions(SinkQuestion("q", reach, "shop"))]
    finally:
        await watch.close()


@on_loop
async def test_the_brokers_are_asked_with_the_querys_own_security_settings(tmp_path: Path) -> None:
    async with options_of_bob(tmp_path) as options:
        reach = source_plan(options).reach
        assert reach is not None and reach == sink_plan(options, "1234").reach
        ends, transactions = await answers(reach)
        assert ends == {TP: 0}
        assert transactions is not None


@pytest.mark.parametrize("password", ["${env:TWOFOLD_NOT_SET}", "${file:/not/there}"])
@on_loop
async def test_a_secret_that_cannot_be_read_leaves_the_metrics_out(tmp_path: Path, password: str) -> None:
    async with options_of_bob(tmp_path) as options:
        reach = source_plan(options | {"kafka.sasl.password": password}).reach
        assert reach is not None
        assert await answers(reach) == [None, None]


@on_loop
async def test_a_login_that_is_refused_leaves_the_metrics_out(tmp_path: Path) -> None:
    async with options_of_bob(tmp_path) as options:
        (tmp_path / "password").write_text("another")
        reach = source_plan(options).reach
        assert reach is not None
        assert await answers(reach) == [None, None]


def test_a_plan_keeps_references_to_secrets_and_no_secret() -> None:
    options = {"kafka.bootstrap.servers": "h:1", "kafka.Security.Protocol": "SASL_SSL"}
    referring = source_plan(options | {"kafka.sasl.password": "${env:SHOP}"})
    assert referring.reach == Reach("h:1", (("sasl.password", "${env:SHOP}"), ("security.protocol", "SASL_SSL")))
    for name in ("kafka.sasl.password", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key"):
        assert source_plan(options | {name: "written out"}).reach is None
        assert sink_plan(options | {name: "written out"}, "1234").reach is None
