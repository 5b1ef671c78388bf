"""Stock admin clients that make a change of the ledger, again and again until it has happened."""

import asyncio
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol

import kafka.errors
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioPartitions
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import KafkaAdminClient

from kits.metadata_kills.ledger import Change, Ledger

PATIENCE_S = 120
AGAIN_S = 0.05
# What a second attempt is told where the first has gone through after all, with nobody left to tell.
HAPPENED = {"create": 36, "grow": 37, "delete": 3}
NOT_CONTROLLER, REQUEST_TIMED_OUT = 41, 7


class Unreachable(Exception):
    """The broker went away, or was away."""


class Admin(Protocol):
    name: str
    kinds: frozenset[str]

    def perform(self, address: str, change: Change) -> set[int]:
        """The error codes of the rows of the answer; Unreachable where there is none."""
        ...


class Confluent:
    name = "confluent-kafka"
    kinds = frozenset({"create", "grow", "delete", "configs"})

    def perform(self, address: str, change: Change) -> set[int]:
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0, "retries": 0})
        futures = self._send(admin, change)
        codes = set()
        for future in futures.values():
            try:
                future.result(PATIENCE_S)
                codes.add(0)
            except KafkaException as error:
                if error.args[0].code() < 0:
                    raise Unreachable(error.args[0].name()) from error
                codes.add(error.args[0].code())
        return codes

    def _send(self, admin: AdminClient, change: Change) -> Mapping[Any, Any]:
        times = {"request_timeout": PATIENCE_S, "operation_timeout": PATIENCE_S}
        topics = change.topics
        if change.kind == "create":
            wanted = [NewTopic(n, t.partitions, 1, config=dict(t.configs)) for n, t in topics.items() if t is not None]
            return admin.create_topics(wanted, **times)
        if change.kind == "grow":
            return admin.create_partitions(
                [NewPartitions(n, t.partitions) for n, t in topics.items() if t is not None], **times
            )
        if change.kind == "delete":
            return admin.delete_topics(list(topics), **times)
        resources = [
            ConfigResource(
                ConfigResource.Type.TOPIC,
                name,
                incremental_configs=[
                    ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in topic.configs
                ],
            )
            for name, topic in topics.items()
            if topic is not None
        ]
        return admin.incremental_alter_configs(resources, request_timeout=PATIENCE_S)


class KafkaPython:
    name = "kafka-python"
    kinds = frozenset({"create", "grow", "delete", "configs"})

    def perform(self, address: str, change: Change) -> set[int]:
        admin = None
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=address,
                request_timeout_ms=PATIENCE_S * 1000,
                reconnect_backoff_ms=50,
                reconnect_backoff_max_ms=200,
            )
            return self._send(admin, change)
        except kafka.errors.KafkaError as error:
            raise Unreachable(type(error).__name__) from error
        finally:
            if admin is not None:
                admin.close()

    def _send(self, admin: KafkaAdminClient, change: Change) -> set[int]:
        topics, options = change.topics, {"timeout_ms": PATIENCE_S * 1000, "raise_errors": False}
        if change.kind == "create":
            wanted = {
                name: {"num_partitions": t.partitions, "replication_factor": 1, "configs": dict(t.configs)}
                for name, t in topics.items()
                if t is not None
            }
            return {row["error_code"] for row in admin.create_topics(wanted, **options)["topics"]}
        if change.kind == "grow":
            wanted_counts = {name: t.partitions for name, t in topics.items() if t is not None}
            return {row.error_code for row in admin.create_partitions(wanted_counts, **options).results}
        if change.kind == "delete":
            return {row["error_code"] for row in admin.delete_topics(list(topics), **options)["topics"]}
        resources = [PythonResource("topic", n, configs=dict(t.configs)) for n, t in topics.items() if t is not None]
        rows = admin.alter_configs(resources, raise_on_unknown=False, incremental=True)["topic"]
        return {0 if text == "OK" else -1 for text in rows.values()}


class AioKafka:
    name = "aiokafka"
    kinds = frozenset({"create", "grow", "delete"})

    def perform(self, address: str, change: Change) -> set[int]:
        try:
            return asyncio.run(self._perform(address, change))
        except AioError as error:
            code: int | None = getattr(error, "errno", None)  # those of the client itself have none
            if code is not None and code in HAPPENED.values():
                return {code}
            raise Unreachable(type(error).__name__) from error

    async def _perform(self, address: str, change: Change) -> set[int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=address, request_timeout_ms=PATIENCE_S * 1000)
        try:
            await admin.start()
            topics = change.topics
            if change.kind == "create":
                wanted = [
                    AioTopic(name, t.partitions, 1, topic_configs=dict(t.configs))
                    for name, t in topics.items()
                    if t is not None
                ]
                answer = await admin.create_topics(wanted)
                return {row[1] for row in answer.topic_errors}
            if change.kind == "grow":
                answer = await admin.create_partitions(
                    {name: AioPartitions(t.partitions) for name, t in topics.items() if t is not None}
                )
                return {row[1] for row in answer.topic_errors}
            answer = await admin.delete_topics(list(topics))
            return {row[1] for row in answer.topic_error_codes}
        finally:
            await admin.close()


ADMINS: tuple[Admin, ...] = (Confluent(), KafkaPython(), AioKafka())


class Attempt(threading.Thread):
    """Makes one change; ends when it has happened."""

    def __init__(self, address: str, ledger: Ledger, change: Change, admin: Admin) -> None:
        super().__init__(daemon=True, name=f"{change.kind} by {admin.name}")
        self.ledger, self.change, self.admin, self.address = ledger, change, admin, address
        self.tries = 0
        self.seconds = 0.0  # of the try that succeeded
        self.sent = threading.Event()

    def run(self) -> None:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not self._try():
                assert time.monotonic() < deadline, f"{self.name}: not done after {self.tries} tries"
                time.sleep(AGAIN_S)
            self.ledger.acknowledge()
        except Exception as error:
            self.ledger.fail(f"{self.name}: {error!r}")

    def _try(self) -> bool:
        self.tries += 1
        began = time.monotonic()
        self.sent.set()
        try:
            codes = self.admin.perform(self.address, self.change)
        except (Unreachable, OSError) as error:
            self.ledger.trouble(self.name, str(error) or type(error).__name__)
            return False
        self.seconds = time.monotonic() - began
        if codes == {0}:
            return True
        if self.tries > 1 and codes == {HAPPENED.get(self.change.kind)}:
            self.ledger.trouble(self.name, f"error {codes}: had happened")
            return True
        assert codes <= {NOT_CONTROLLER, REQUEST_TIMED_OUT}, f"{self.name}, try {self.tries}: errors {codes}"
        self.ledger.trouble(self.name, f"errors {codes}")
        return False
