"""`twofold.Admin`: every call of the asyncio client, for code without asyncio."""

import threading

import pytest

import twofold
import twofold.aio
from twofold.client import NewTopic, TopicPartition
from twofold.embedded import Broker
from twofold.wire.errors import UnknownTopicOrPartition

MADE_OTHERWISE = {"cluster", "of", "on"}


def public(cls: type) -> set[str]:
    bases = [base for base in cls.__mro__ if base.__module__.startswith("twofold.")]
    return {name for base in bases for name in vars(base) if not name.startswith("_")}


def test_it_has_every_call_of_the_asyncio_client():
    assert public(twofold.Admin) == public(twofold.aio.Admin) - MADE_OTHERWISE


def test_calls_from_several_threads_get_their_answers():
    with Broker() as broker, twofold.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name="t", num_partitions=2, replication_factor=1)]).get()
        found = []
        threads = [threading.Thread(target=lambda: found.append(set(admin.list_topics()))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [{"t"}] * 4
        assert admin.list_transactions().get() == {1: ()}
        assert admin.describe_producers([TopicPartition("t", 1)]).get() == {TopicPartition("t", 1): ()}
        with pytest.raises(UnknownTopicOrPartition):
            admin.describe_topics(["u"]).get()


def test_it_is_closed_once_and_ends_its_thread():
    def threads() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "admin" in thread.name]

    with Broker() as broker:
        admin = twofold.Admin.from_config({"bootstrap.servers": broker.bootstrap_servers})
        assert admin.describe_cluster().brokers
        assert threads() == ["twofold-admin"]
        admin.close()
        admin.close()
        assert threads() == []


def test_settings_are_checked_before_anything_starts():
    before = threading.active_count()
    with pytest.raises(TypeError, match="bootstrap_server"):
        twofold.Admin(bootstrap_server="x:1")  # type: ignore[call-arg]
    assert threading.active_count() == before
