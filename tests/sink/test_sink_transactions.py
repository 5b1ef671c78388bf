"""What a sink learns of its transactions: from every coordinator, from brokers of any age, by its own deadline."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kits.client.scripted_broker import PORT, FakeBroker, silence
from twofold.client.admin.transaction_model import TransactionState
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.coordinators import Coordinators
from twofold.client.config import ClientConfig
from twofold.connections.errors import GaveUp
from twofold.runtime.sim import Simulation
from twofold.sink.names import task_id, task_pattern
from twofold.sink.transactions import TransactionLookup
from twofold.types import TopicPartition
from twofold.wire import errors
from twofold.wire.apis import KEYS
from twofold.wire.messages import describe_transactions, list_transactions
from twofold.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse

FIRST, SECOND = task_id("p", "0000000a", 0), task_id("p", "0000000a", 1)
OF_ANOTHER, NO_TASKS = task_id("p.b", "0000000a", 0), "p|driver"
ONGOING = [TransactionState.ONGOING]


class TransactionBroker(FakeBroker):
    """Coordinates the ids that `led`, which both brokers share, gives to it; each has a transaction open."""

    def __init__(self, *args: Any, led: dict[str, int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.led = led

    def on_find_coordinator(self, request: Any) -> FindCoordinatorResponse:
        (key,) = request.coordinator_keys
        node_id = self.led.get(key, 1)
        host, port = self.nodes[node_id]
        row = Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=0, error_message=None)
        return FindCoordinatorResponse(coordinators=[row])

    def on_list_transactions(self, request: Any) -> list_transactions.ListTransactionsResponse:
        # A pattern is not applied: that brokers do it is their own test.
        rows = [
            list_transactions.TransactionState(transactional_id=name, producer_id=7, transaction_state="Ongoing")
            for name, node_id in self.led.items()
            if node_id == self.node_id
        ]
        return list_transactions.ListTransactionsResponse(
            error_code=0, unknown_state_filters=[], transaction_states=rows
        )

    def on_describe_transactions(self, request: Any) -> describe_transactions.DescribeTransactionsResponse:
        return describe_transactions.DescribeTransactionsResponse(
            transaction_states=[self._described(name) for name in request.transactional_ids]
        )

    def _described(self, name: str) -> describe_transactions.TransactionState:
        code = 0
        if name == "secret":
            code = errors.TransactionalIdAuthorizationFailed.code
        elif name not in self.led:
            code = errors.TransactionalIdNotFound.code
        elif self.led[name] != self.node_id:
            code = errors.NotCoordinator.code
        topic = describe_transactions.TopicData(topic="t", partitions=[0, 2])
        return describe_transactions.TransactionState(
            error_code=code,
            transactional_id=name,
            transaction_state="Ongoing",
            transaction_timeout_ms=9,
            transaction_start_time_ms=5,
            producer_id=7,
            producer_epoch=3,
            topics=[topic],
        )


Story = Callable[[TransactionBroker, TransactionBroker, TransactionLookup, Cluster], Awaitable[None]]


def play(story: Story) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            led = {FIRST: 1, SECOND: 2, OF_ANOTHER: 2, NO_TASKS: 1}
            brokers = [
                TransactionBroker(sim.runtime(host), host, topics={"t": 3}, node_id=number, led=led)
                for number, host in ((1, "one"), (2, "two"))
            ]
            for broker in brokers:
                broker.nodes = {1: ("one", PORT), 2: ("two", PORT)}
                await broker.start()
            cluster = Cluster(sim.runtime("client"), ClientConfig(bootstrap_servers=f"one:{PORT}"))
            coordinators = Coordinators(cluster)
            one, two = brokers
            await story(one, two, TransactionLookup(cluster, coordinators), cluster)
            coordinators.close()
            await cluster.close()

        sim.run(main(), timeout_s=3600)


def listings(broker: FakeBroker) -> list[tuple[int, list[str], str | None]]:
    return [
        (version, list(request.state_filters), request.transactional_id_pattern)
        for api, version, request in broker.requests
        if api == "ListTransactions"
    ]


def test_ids_of_tasks_are_found_at_every_broker_by_their_pattern() -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        assert await sink.task_ids("p", ONGOING, cluster.deadline()) == [FIRST, SECOND]
        assert listings(one) == listings(two) == [(2, ["Ongoing"], task_pattern("p"))]

    play(story)


def test_where_one_broker_knows_no_patterns_each_lists_all_and_the_ids_of_others_are_left_out() -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        two.versions[KEYS["ListTransactions"]] = (0, 1)
        assert await sink.task_ids("p", ONGOING, cluster.deadline()) == [FIRST, SECOND]
        assert listings(two) == [(1, ["Ongoing"], None)]

    play(story)


def test_a_broker_that_does_not_list_hides_nothing_by_it() -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        refused = list_transactions.ListTransactionsResponse(
            error_code=errors.ClusterAuthorizationFailed.code, unknown_state_filters=[], transaction_states=[]
        )
        two.script("ListTransactions", lambda *_: refused)
        with pytest.raises(errors.ClusterAuthorizationFailed):
            await sink.task_ids("p", ONGOING, cluster.deadline())

    play(story)


def test_each_coordinator_describes_its_own_and_an_unknown_one_is_none() -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        found = await sink.describe([FIRST, "unknown", SECOND], cluster.deadline())
        assert set(found) == {FIRST, SECOND, "unknown"} and found["unknown"] is None
        first, second = found[FIRST], found[SECOND]
        assert first is not None and second is not None
        assert (first.coordinator_id, second.coordinator_id) == (1, 2)
        assert (first.identity, first.state, first.timeout_ms, first.start_ms) == ((7, 3), "Ongoing", 9, 5)
        assert tuple(first.partitions) == (TopicPartition("t", 0), TopicPartition("t", 2))

    play(story)


def test_what_may_not_be_described_is_no_unknown_id() -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        with pytest.raises(errors.TransactionalIdAuthorizationFailed, match="secret"):
            await sink.describe([FIRST, "secret"], cluster.deadline())

    play(story)


@pytest.mark.parametrize("api", ["ListTransactions", "DescribeTransactions"])
def test_the_deadline_is_the_callers(api: str) -> None:
    async def story(one: TransactionBroker, two: TransactionBroker, sink: TransactionLookup, cluster: Cluster) -> None:
        await cluster.refresh(cluster.deadline())
        one.script(api, *[silence] * 100)
        began = cluster.runtime.clock.monotonic()
        deadline = cluster.deadline(1_000, "kafka.delivery.timeout.ms")
        asked = {
            "ListTransactions": lambda: sink.task_ids("p", ONGOING, deadline),
            "DescribeTransactions": lambda: sink.describe([FIRST], deadline),
        }[api]
        with pytest.raises(GaveUp, match=r"1000 ms \(kafka.delivery.timeout.ms\)"):
            await asked()
        assert cluster.runtime.clock.monotonic() - began < 1.5

    play(story)
