"""Those who ask for metadata all the time, each in a thread of its own, and hold every answer against the ledger."""

import random
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kio.index import load_response_schema
from kio.serial import entity_reader

from kits.metadata_kills.ledger import PREFIX, Ledger, State, counts, differences
from kits.processes.server import TwofoldServer
from oracle.batches import batch
from oracle.driver import Connection, WireClosed
from oracle.wire import KEYS

UNKNOWN_TOPIC_OR_PARTITION = 3
# What a client tries again after: leaders and coordinators that move or load, timeouts, fenced and unknown epochs.
RETRIABLE = frozenset({5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 56, 72, 74, 75})
RETRIABLE_HERE = frozenset({"_TRANSPORT", "_TIMED_OUT", "_ALL_BROKERS_DOWN", "REQUEST_TIMED_OUT", "NOT_CONTROLLER"})
PAGE = 2000
TOPIC = 2
TOPIC_SOURCE = 1


class Reader(threading.Thread):
    """Asks until it is stopped; a connection that ends is made again."""

    pause_s: ClassVar[float] = 0.1

    def __init__(self, server: TwofoldServer, ledger: Ledger, seed: int) -> None:
        super().__init__(daemon=True, name=type(self).__name__)
        self.server, self.ledger = server, ledger
        self.chance = random.Random(seed)
        self._stopping = threading.Event()
        self._connection: Connection | None = None

    def run(self) -> None:
        while not self._stopping.wait(self.pause_s):
            try:
                self.look()
            except (OSError, WireClosed) as error:
                self.ledger.trouble(self.name, type(error).__name__)
                self._hang_up()
            except Exception as error:
                self.ledger.fail(f"{self.name} failed: {error!r}")
                return
        self._hang_up()

    def stop(self) -> None:
        self._stopping.set()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @abstractmethod
    def look(self) -> None:
        """Ask once."""

    def ask(self, api: str, version: int, **body: Any) -> Any:
        """An answer as kio reads it: there may be very many rows, and dicts of them would take long."""
        if self._connection is None:
            self._connection = Connection(self.server.host, self.server.port, timeout_s=60)
        self._connection.send(api, version, body)
        payload = self._connection.receive()
        if payload is None:
            raise WireClosed(f"{api}: closed instead of an answer")
        schema = load_response_schema(KEYS[api], version)
        answer, _ = entity_reader(schema)(payload, 5 if schema.__flexible__ else 4)
        return answer

    def saw_counts(self, since: int, seen: Mapping[str, int], names: Sequence[str] | None = None) -> None:
        ledger = self.ledger
        shown = differences(seen, counts(ledger.newest, names))
        ledger.answered(self.name, since, lambda state: counts(state, names) == seen, shown)


def partition_count(rows: Sequence[Any]) -> int:
    """Of the rows of a topic; -1 where they are not 0, 1, 2, ... with a leader each."""
    fine = all(row.error_code == 0 and row.leader_id == 1 for row in rows)
    return len(rows) if fine and [row.partition_index for row in rows] == list(range(len(rows))) else -1


class AllTopics(Reader):
    """Metadata of everything."""

    pause_s = 0.15

    def look(self) -> None:
        since = self.ledger.known
        answer = self.ask("Metadata", 12, topics=None, allow_auto_topic_creation=False)
        rows = {row.name: row for row in answer.topics if row.name.startswith(PREFIX)}
        assert all(row.error_code == 0 for row in rows.values())
        self.saw_counts(since, {name: partition_count(row.partitions) for name, row in rows.items()})


class NamedTopics(Reader):
    """Metadata of some topics of the change that is under way, and of some others."""

    def look(self) -> None:
        ledger = self.ledger
        since = ledger.known
        candidates = sorted(ledger.newest.keys() | ledger.states[max(0, since - 1)].keys())
        names = self.chance.sample(candidates, min(len(candidates), self.chance.choice((1, 10, 200))))
        names += [name for name in large(ledger.newest) if name not in names]
        rows = [{"name": name} for name in names]
        answer = self.ask("Metadata", 12, topics=rows, allow_auto_topic_creation=False)
        strange = [row for row in answer.topics if row.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION)]
        assert not strange, strange[0]
        found = {row.name: partition_count(row.partitions) for row in answer.topics if row.error_code == 0}
        self.saw_counts(since, found, names)


def large(state: State) -> list[str]:
    return [name for name, topic in state.items() if topic.partitions > PAGE]


class Pages(Reader):
    """DescribeTopicPartitions of one large topic, page by page: each page is full, or the last of a whole topic."""

    def look(self) -> None:
        names = large(self.ledger.newest)
        if not names:
            return
        name = names[-1] if self.chance.random() < 0.7 else self.chance.choice(names)
        first = 0
        while first >= 0:
            first = self._page(name, first)

    def _page(self, name: str, first: int) -> int:
        since = self.ledger.known
        cursor = {"topic_name": name, "partition_index": first} if first else None
        body = {"topics": [{"name": name}], "response_partition_limit": PAGE, "cursor": cursor}
        answer = self.ask("DescribeTopicPartitions", 0, **body)
        (row,) = answer.topics
        found = [one.partition_index for one in row.partitions]
        after = None if answer.next_cursor is None else answer.next_cursor.partition_index
        assert row.error_code in (0, UNKNOWN_TOPIC_OR_PARTITION), row.error_code

        def is_of(state: State) -> bool:
            topic = state.get(name)
            if topic is None or row.error_code:
                return topic is None and bool(row.error_code)
            end = min(topic.partitions, first + PAGE)
            return found == list(range(first, end)) and after == (end if end < topic.partitions else None)

        shown = f"{name}: error {row.error_code}, {len(found)} partitions from {first}, the next page at {after}"
        self.ledger.answered(self.name, since, is_of, shown)
        return -1 if after is None else after


class Touch(Reader):
    """ListOffsets of, and a record for, any partition of the largest topics: it is there if the topic is."""

    pause_s = 0.03

    def look(self) -> None:
        names = large(self.ledger.newest)
        if not names:
            return
        name = names[-1] if self.chance.random() < 0.8 else self.chance.choice(names)
        index = self.chance.randrange(self.ledger.newest[name].partitions)
        since = self.ledger.known
        if self.chance.random() < 0.5:
            row = {"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}
            body = {"replica_id": -1, "topics": [{"name": name, "partitions": [row]}]}
            code = self.ask("ListOffsets", 7, **body).topics[0].partitions[0].error_code
        else:
            index %= 50  # each that was written to has files
            data = [{"index": index, "records": batch(1)}]
            body = {"transactional_id": None, "acks": -1, "timeout": 10_000}
            answer = self.ask("Produce", 9, **body, topic_data=[{"name": name, "partition_data": data}])
            code = answer.responses[0].partition_responses[0].error_code
        if code in RETRIABLE:
            self.ledger.trouble(self.name, f"error {code}")
            return
        assert code in (0, UNKNOWN_TOPIC_OR_PARTITION), code
        is_known = bool(code == 0)

        def is_of(state: State) -> bool:
            topic = state.get(name)
            return (topic is not None and index < topic.partitions) == is_known

        self.ledger.answered(self.name, since, is_of, f"error {code} for {name}-{index}")


def own_configs(rows: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    """What was set for the topic itself."""
    return tuple(sorted((row.name, row.value) for row in rows if row.config_source == TOPIC_SOURCE))


class Configs(Reader):
    """DescribeConfigs of every topic that there is or may be, in one request."""

    pause_s = 0.3

    def look(self) -> None:
        ledger = self.ledger
        since = ledger.known
        names = sorted(ledger.newest.keys() | ledger.states[max(0, since - 1)].keys())
        keys = sorted({key for state in ledger.states[-2:] for topic in state.values() for key, _ in topic.configs})
        rows = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": keys} for name in names]
        if not keys or not rows:
            return
        answer = self.ask("DescribeConfigs", 4, resources=rows)
        strange = [row for row in answer.results if row.error_code not in (0, UNKNOWN_TOPIC_OR_PARTITION)]
        assert not strange, strange[0]
        seen = {row.resource_name: own_configs(row.configs) for row in answer.results if row.error_code == 0}

        def projected(state: State) -> dict[str, object]:
            return {name: state[name].configs for name in names if name in state}

        shown = differences(seen, projected(ledger.newest))
        ledger.answered(self.name, since, lambda state: projected(state) == seen, shown)


class StockList(Reader):
    """list_topics of confluent-kafka: all topics, all partitions."""

    pause_s = 0.5

    def look(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.server.bootstrap_servers, "log_level": 0})
        since = self.ledger.known
        try:
            found = admin.list_topics(timeout=30).topics
        except KafkaException as error:
            name = error.args[0].name()
            self.ledger.trouble(self.name, name)
            if name not in RETRIABLE_HERE:
                raise
            return
        seen: dict[str, int] = {}
        for topic in found.values():
            assert topic.topic is not None
            if topic.topic.startswith(PREFIX):
                assert topic.error is None, topic.error
                rows = topic.partitions
                fine = all(one.error is None and one.leader == 1 for one in rows.values())
                seen[topic.topic] = len(rows) if fine and rows.keys() == set(range(len(rows))) else -1
        self.saw_counts(since, seen)


NewReader = Callable[[TwofoldServer, Ledger, int], Reader]
READERS: tuple[NewReader, ...] = (AllTopics, NamedTopics, Pages, Touch, Configs, StockList)
