"""A broker's life: start, restart, stop, and what keeps it from starting."""

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from kits.node.running import (
    FETCH,
    PRODUCE,
    batch,
    fetch_request,
    fetched,
    produce_request,
    produced,
    records_of,
    running,
)
from kits.node.sockets import on_loop, until
from twofold.broker.broker import Broker as LoopBroker
from twofold.broker.run import serve
from twofold.config.listeners import ListenerError, advertised_addresses, listen_addresses, parse_address
from twofold.config.settings import Settings
from twofold.embedded import Broker
from twofold.log.manager import DataDirectoryError
from twofold.records.batch import iter_headers
from twofold.runtime.real import real_runtime
from twofold.wire.apis import KEYS
from twofold.wire.messages import describe_cluster, incremental_alter_configs


def test_what_was_acknowledged_is_there_after_a_restart_and_offsets_go_on(tmp_path):
    @on_loop
    async def scenario():
        for start in range(3):
            async with running(tmp_path) as node:
                if not start:
                    await node.create("t")
                client = await node.connect()
                request = produce_request(("t", 0, batch(b"start %d" % start, producer=(7, 0, start))))
                (row,) = produced(await client.call(request, PRODUCE, 9))
                assert (row.error_code, row.base_offset) == (0, start)
                (read,) = fetched(await client.call(fetch_request(("t", 0, 0)), FETCH, 12))
                assert (read.high_watermark, len(list(iter_headers(records_of(read))))) == (start + 1, start + 1)

    scenario()


def test_the_cluster_keeps_its_id_and_the_broker_its_place(tmp_path):
    @on_loop
    async def scenario():
        ids = set()
        for _ in range(2):
            async with running(tmp_path) as node:
                client = await node.connect()
                response = await client.call(
                    describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=False),
                    KEYS["DescribeCluster"],
                    0,
                )
                ids.add(response.cluster_id)
                (broker,) = response.brokers
                assert (broker.broker_id, broker.host, broker.port) == (1, *node.address)
        assert len(ids) == 1

    scenario()


def test_untouched_partitions_cost_no_directory(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("many", 1000)
            client = await node.connect()
            await client.call(produce_request(("many", 17, batch())), PRODUCE, 9)
            assert sorted(p.name for p in tmp_path.glob("many-*")) == ["many-17"]
            assert len(list(node.broker.replicas.partitions())) == 1

    scenario()


def test_a_deleted_topic_is_gone_and_one_of_its_name_starts_anew(tmp_path):
    from twofold.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            first = await node.create("t", 2)
            client = await node.connect()
            await client.call(produce_request(("t", 0, batch()), ("t", 1, batch())), PRODUCE, 9)
            await node.broker.controller.delete_topics(
                DeleteTopicsRequest(topics=[DeleteTopicState(name="t", topic_id=None)], timeout_ms=1)
            )
            (row,) = produced(await client.call(produce_request(("t", 0, batch())), PRODUCE, 9))
            assert row.error_code == 3
            second = await node.create("t")
            rows = produced(await client.call(produce_request((first, 0, batch()), (second, 0, batch())), PRODUCE, 13))
            assert [(row.error_code, row.base_offset) for row in rows] == [(100, -1), (0, 0)]

    scenario()


def test_a_change_of_configuration_is_obeyed_at_once(tmp_path):
    configs = incremental_alter_configs

    async def alter(node, resource_type, resource_name, name, value):
        response = await node.broker.controller.incremental_alter_configs(
            configs.IncrementalAlterConfigsRequest(
                resources=[
                    configs.AlterConfigsResource(
                        resource_type=resource_type,
                        resource_name=resource_name,
                        configs=[configs.AlterableConfig(name=name, config_operation=0, value=value)],
                    )
                ],
                validate_only=False,
            )
        )
        assert response.responses[0].error_code == 0, response

    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            await node.create("t")
            client = await node.connect()
            large = produce_request(("t", 0, batch(bytes(5000))))
            assert produced(await client.call(large, PRODUCE, 9))[0].error_code == 0
            await alter(node, 2, "t", "max.message.bytes", "1000")
            assert produced(await client.call(large, PRODUCE, 9))[0].error_code == 10
            await alter(node, 2, "t", "max.message.bytes", "9000")
            assert produced(await client.call(large, PRODUCE, 9))[0].error_code == 0
            await node.create("u")
            node.log("u")
            await alter(node, 4, "", "message.max.bytes", "1000")
            large = produce_request(("t", 0, batch(bytes(5000))), ("u", 0, batch(bytes(5000))))
            codes = [row.error_code for row in produced(await client.call(large, PRODUCE, 9))]
            assert codes == [0, 10], "the topic's own value is stronger"

    scenario()


# --- listeners ---


def settings(**values):
    return Settings.from_mapping({name.replace("_", "."): value for name, value in values.items()})


def test_addresses_are_read_as_kafka_writes_them():
    assert str(parse_address("PLAINTEXT://host:9092", "listeners")) == "PLAINTEXT://host:9092"
    assert parse_address("plaintext://[::1]:0", "listeners").host == "::1"
    assert parse_address("PLAINTEXT://:9092", "listeners").host == ""
    for bad in ("host:9092", "PLAINTEXT://host", "PLAINTEXT://host:x", "PLAINTEXT://host:70000", "://h:1", ""):
        with pytest.raises(ListenerError, match="listeners="):
            parse_address(bad, "listeners")


def test_listeners_that_cannot_be_served_are_refused_by_name():
    with pytest.raises(ListenerError, match="twice"):
        listen_addresses(settings(listeners="PLAINTEXT://a:1,PLAINTEXT://b:2"))
    named = settings(
        listeners="INSIDE://a:1,OUTSIDE://b:2", listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT"
    )
    assert [address.name for address in listen_addresses(named)] == ["INSIDE", "OUTSIDE"]


def test_clients_are_told_addresses_that_they_can_use():
    bound = [parse_address("PLAINTEXT://0.0.0.0:4000", "listeners")]
    assert [str(a) for a in advertised_addresses(settings(), bound, "box")] == ["PLAINTEXT://box:4000"]
    told = settings(advertised_listeners="PLAINTEXT://public:0")
    assert [str(a) for a in advertised_addresses(told, bound, "box")] == ["PLAINTEXT://public:4000"]
    for bad in ("PLAINTEXT://0.0.0.0:1", "OTHER://host:1"):
        with pytest.raises(ListenerError, match=r"advertised\.listeners"):
            advertised_addresses(settings(advertised_listeners=bad), bound, "box")


# --- what keeps it from starting ---


def test_a_second_broker_on_the_same_directory_is_refused(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path):
            other = LoopBroker(real_runtime(), settings(listeners="PLAINTEXT://127.0.0.1:0"), str(tmp_path))
            with pytest.raises(DataDirectoryError, match="in use"):
                await other.start()

    scenario()


def test_a_port_that_is_taken_is_an_os_error_and_the_directory_is_given_back(tmp_path):
    @on_loop
    async def scenario():
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            broker = LoopBroker(real_runtime(), settings(listeners=f"PLAINTEXT://127.0.0.1:{port}"), str(tmp_path))
            with pytest.raises(OSError, match=str(port)):
                await broker.start()
        async with running(tmp_path):
            pass

    scenario()


def test_a_directory_of_another_node_is_refused(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path):
            pass
        with pytest.raises(DataDirectoryError, match=r"node\.id=1"):
            async with running(tmp_path, {"node.id": 2}):
                pass

    scenario()


def test_serve_tells_where_it_listens_and_ends_when_told(tmp_path):
    @on_loop
    async def scenario():
        stop = asyncio.Event()
        told = []
        serving = asyncio.ensure_future(
            serve(settings(listeners="PLAINTEXT://127.0.0.1:0"), str(tmp_path), lambda *at: told.append(at), stop)
        )
        await until(lambda: bool(told))
        host, port = told[0]
        _, writer = await asyncio.open_connection(host, port)
        writer.close()
        stop.set()
        await serving
        with pytest.raises(OSError):
            await asyncio.open_connection(host, port)

    scenario()


# --- embedded ---


def test_embedded_brokers_run_side_by_side_and_leave_nothing_behind():
    before = set(threading.enumerate())  # a broker of the whole session may be among them
    with Broker() as one, Broker(settings={"num.partitions": 3, "auto.create.topics.enable": False}) as two:
        assert one.port != two.port
        assert one.bootstrap_servers == f"127.0.0.1:{one.port}"
        for broker in (one, two):
            socket.create_connection((broker.host, broker.port)).close()
        directories = [one.data, two.data]
    assert not [t for t in set(threading.enumerate()) - before if t.name == "twofold-broker"]
    assert not any(Path(directory).exists() for directory in directories)


def test_an_embedded_broker_keeps_a_directory_that_it_was_given(tmp_path):
    broker = Broker(data=str(tmp_path))
    for _ in range(2):
        broker.start()
        assert broker.data == str(tmp_path)
        broker.stop()
    assert (tmp_path / "meta.properties").exists()
    broker.stop()


def test_an_embedded_broker_that_cannot_start_says_why(tmp_path):
    with Broker(data=str(tmp_path)), pytest.raises(DataDirectoryError):
        Broker(data=str(tmp_path)).start()
    with pytest.raises(ListenerError):
        Broker(settings={"listeners": "nonsense"}).start()
    with pytest.raises(RuntimeError, match="not running"):
        _ = Broker().port


def test_an_embedded_broker_is_started_once(tmp_path):
    with Broker() as broker, pytest.raises(RuntimeError, match="running already"):
        broker.start()
