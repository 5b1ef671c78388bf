"""Images, metadata transactions and deltas."""

import sys
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.metadata.controller import broker_records, fold, image_with
from twofold.controller.activation import activate
from twofold.controller.delta import delta_between, full_delta
from twofold.controller.features import initial_levels
from twofold.controller.image import ConfigOwner, MetadataImage
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    BrokerRegistrationChange,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
    NoOp,
    Partition,
    PartitionChange,
    ProducerIds,
    RemoveTopic,
    Topic,
    UnregisterBroker,
)
from twofold.controller.replay import ControllerState, InconsistentRecord, MetadataMachine


def id_(number: int) -> UUID:
    return UUID(int=number << 64)


def partition(topic: int, index: int, leader: int = 1) -> Partition:
    return Partition(index, id_(topic), (1, 2), (1, 2), leader)


# -- records


def test_look_ups_by_name_id_and_partition():
    image = fold([Topic("a", id_(1)), partition(1, 0), partition(1, 1)]).image
    topic = image.topic("a")
    assert topic is not None and image.topic_by_id(id_(1)) is topic
    assert [index for index, _ in topic.in_order()] == [0, 1]
    assert image.partition("a", 1) is topic.partitions[1]
    for missing in (image.topic("b"), image.topic_by_id(id_(9)), image.partition("a", 2), image.partition("b", 0)):
        assert missing is None


def test_a_change_bumps_the_partition_epoch_and_an_election_the_leader_epoch():
    records: list[MetadataRecord] = [Topic("a", id_(1)), partition(1, 0)]
    shrunk = fold([*records, PartitionChange(0, id_(1), isr=(1,))]).image.partition("a", 0)
    assert shrunk is not None
    assert (shrunk.isr, shrunk.leader, shrunk.leader_epoch, shrunk.partition_epoch) == ((1,), 1, 0, 1)
    elected = fold([*records, PartitionChange(0, id_(1), leader=2)]).image.partition("a", 0)
    assert elected is not None
    assert (elected.isr, elected.leader, elected.leader_epoch, elected.partition_epoch) == ((1, 2), 2, 1, 1)
    orphaned = fold([*records, PartitionChange(0, id_(1), leader=-1)]).image.partition("a", 0)
    assert orphaned is not None and not orphaned.has_leader


def test_an_empty_list_in_a_change_empties_and_an_absent_one_keeps():
    records: list[MetadataRecord] = [
        Topic("a", id_(1)),
        Partition(0, id_(1), (1, 2), (1,), 1, adding_replicas=(2,), removing_replicas=(1,)),
    ]
    found = fold([*records, PartitionChange(0, id_(1), adding_replicas=())]).image.partition("a", 0)
    assert found is not None
    assert (found.adding_replicas, found.removing_replicas, found.replicas) == ((), (1,), (1, 2))


def test_removing_a_topic_takes_its_configs_and_leaves_those_of_others():
    records: list[MetadataRecord] = [
        Topic("a", id_(1)),
        Topic("b", id_(2)),
        Config(2, "a", "k", "1"),
        Config(2, "b", "k", "2"),
    ]
    image = fold([*records, RemoveTopic(id_(1))]).image
    assert list(image.configs) == [ConfigOwner(2, "b")]
    assert list(image.topics) == ["b"]


def test_a_topic_may_come_back_under_its_name():
    records: list[MetadataRecord] = [
        Topic("a", id_(1)),
        partition(1, 0),
        RemoveTopic(id_(1)),
        Topic("a", id_(2)),
        partition(2, 0, 2),
    ]
    image = fold(records).image
    assert image.topic_by_id(id_(1)) is None
    assert image.partition("a", 0).leader == 2  # type: ignore[union-attr]


def test_level_0_switches_a_feature_off():
    assert not fold([FeatureLevel("x", 1), FeatureLevel("x", 0)]).image.features


def test_a_registration_changes_only_in_what_is_named():
    image = fold([*broker_records(1), BrokerRegistrationChange(1, 101, in_controlled_shutdown=1)]).image
    broker = image.broker(1)
    assert broker is not None
    assert not broker.fenced and broker.in_controlled_shutdown and not broker.is_active
    assert image.active_brokers() == []
    assert fold([UnregisterBroker(1, 101)], ControllerState(image)).image.broker(1) is None


@pytest.mark.parametrize(
    "records",
    [
        [partition(1, 0)],
        [PartitionChange(0, id_(1))],
        [Topic("a", id_(1)), PartitionChange(0, id_(1), leader=1)],
        [Topic("a", id_(1)), Topic("a", id_(2))],
        [Topic("a", id_(1)), Topic("b", id_(1))],
        [RemoveTopic(id_(1))],
        [BrokerRegistrationChange(1, 1)],
        [*broker_records(1), BrokerRegistrationChange(1, 99)],
        [UnregisterBroker(1, 1)],
        [ProducerIds(1, 1, 1000), ProducerIds(1, 1, 1000)],
        [EndTransaction()],
        [AbortTransaction()],
        [BeginTransaction(), BeginTransaction()],
        [BeginTransaction(), EndTransaction(), EndTransaction()],
    ],
    ids=lambda records: "-".join(type(record).__name__ for record in records),
)
def test_a_record_that_contradicts_those_before_it_stops_the_machine(records: list[MetadataRecord]):
    with pytest.raises(InconsistentRecord, match=f"offset {len(records) - 1}"):
        fold(records)


def test_every_record_moves_the_offset():
    assert fold([NoOp(), NoOp(), NoOp()]).image.offset == 2


# -- transactions


def test_a_transaction_is_unstable_until_its_end_and_then_complete():
    machine = MetadataMachine()
    state = fold([BeginTransaction("t"), Topic("a", id_(1))])
    assert not machine.is_stable(state)
    assert state.transaction is not None and state.transaction.start_offset == 0
    assert "a" not in state.transaction.before.topics
    state = fold([partition(1, 0), EndTransaction()], state)
    assert machine.is_stable(state)
    assert state.image.partition("a", 0) is not None


def test_an_abort_goes_back_to_the_image_before_the_beginning():
    before = fold([*initial_levels(), Topic("a", id_(1)), partition(1, 0)])
    records = [
        BeginTransaction("t"),
        Topic("b", id_(2)),
        PartitionChange(0, id_(1), leader=2),
        RemoveTopic(id_(1)),
        Config(4, "", "k", "v"),
        ProducerIds(1, 1, 1000),
        *broker_records(7),
        FeatureLevel("x", 1),
        AbortTransaction("no"),
    ]
    after = fold(records, before)
    assert after.transaction is None
    assert after.image.offset == before.image.offset + len(records)
    assert replace(after.image, offset=before.image.offset) == before.image


def test_records_after_an_abort_in_the_same_batch_count():
    state = fold([BeginTransaction(), Topic("a", id_(1)), AbortTransaction(), Topic("b", id_(2))])
    assert list(state.image.topics) == ["b"]


def test_two_transactions_in_one_batch():
    state = fold(
        [
            BeginTransaction(),
            Topic("a", id_(1)),
            EndTransaction(),
            BeginTransaction(),
            Topic("b", id_(2)),
            AbortTransaction(),
            BeginTransaction(),
            EndTransaction(),
        ]
    )
    assert list(state.image.topics) == ["a"]
    assert state.transaction is None


LEVELS = [FeatureLevel] * 3  # of metadata, transactions and groups


@pytest.mark.parametrize(
    ("history", "written"),
    [
        ([], [BeginTransaction, *LEVELS, EndTransaction]),
        (
            [BeginTransaction("Bootstrap records"), *initial_levels()[:1]],
            [AbortTransaction, BeginTransaction, *LEVELS, EndTransaction],
        ),
        (initial_levels(), []),
        ([*initial_levels(), BeginTransaction("x"), Topic("a", id_(1))], [AbortTransaction]),
    ],
    ids=["empty", "half a bootstrap", "nothing open", "open"],
)
def test_what_a_controller_writes_first(history: list[MetadataRecord], written: list[type]):
    state = fold(history)
    result = activate(state)
    assert [type(record) for record in result.records] == written
    after = fold(result.records, state)
    assert after.transaction is None
    assert dict(after.image.features) == {"metadata.version": 30, "transaction.version": 2, "group.version": 1}
    assert not after.image.topics
    levels = [record for record in result.records if isinstance(record, FeatureLevel)]
    assert not levels or levels[0].name == "metadata.version"


# -- any history


class History:
    """Draws records that fit those before them."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.state = ControllerState()
        self.next_id = 1

    def draw(self) -> MetadataRecord:
        image = self.state.image
        choices: list[Any] = [self.new_topic, self.config, self.feature, self.producer_ids, self.broker, NoOp]
        if image.topics:
            choices += [self.new_partition, self.remove_topic]
        if any(topic.partitions for topic in image.topics.values()):
            choices += [self.change] * 2
        choices.append(BeginTransaction if self.state.transaction is None else EndTransaction)
        if self.state.transaction is not None:
            choices.append(AbortTransaction)
        record: MetadataRecord = self.data.draw(st.sampled_from(choices))()
        self.state = fold([record], self.state)
        return record

    def any_topic(self, *, with_partitions: bool = False) -> Any:
        names = sorted(n for n, t in self.state.image.topics.items() if t.partitions or not with_partitions)
        return self.state.image.topics[self.data.draw(st.sampled_from(names))]

    def new_topic(self) -> MetadataRecord:
        self.next_id += 1
        free = [n for n in ("a", "b", "a.b", "a_b", "c") if n not in self.state.image.topics]
        return Topic(self.data.draw(st.sampled_from(free)), id_(self.next_id)) if free else NoOp()

    def new_partition(self) -> MetadataRecord:
        topic = self.any_topic()
        return Partition(len(topic.partitions), topic.topic_id, (1,), (1,), 1)

    def change(self) -> MetadataRecord:
        topic = self.any_topic(with_partitions=True)
        index = self.data.draw(st.integers(0, len(topic.partitions) - 1))
        return PartitionChange(index, topic.topic_id, leader=self.data.draw(st.sampled_from([-2, -1, 1])))

    def remove_topic(self) -> MetadataRecord:
        return RemoveTopic(self.any_topic().topic_id)

    def config(self) -> MetadataRecord:
        name = self.data.draw(st.sampled_from([*sorted(self.state.image.topics), "gone"]))
        value = self.data.draw(st.sampled_from(["1", "2", None]))
        return Config(2, name, self.data.draw(st.sampled_from(["k", "l"])), value)

    def feature(self) -> MetadataRecord:
        return FeatureLevel("x", self.data.draw(st.integers(0, 2)))

    def producer_ids(self) -> MetadataRecord:
        return ProducerIds(1, 1, self.state.image.next_producer_id + 1000)

    def broker(self) -> MetadataRecord:
        broker_id = self.data.draw(st.integers(1, 2))
        record = broker_records(broker_id, fenced=True)[0]
        if self.state.image.broker(broker_id) is None:
            return record
        epoch = 100 + broker_id
        fence, leave = BrokerRegistrationChange(broker_id, epoch, fenced=1), UnregisterBroker(broker_id, epoch)
        return self.data.draw(st.sampled_from([record, fence, leave]))


def cut_into_batches(data: st.DataObject, size: int) -> list[tuple[int, int]]:
    ends = sorted({*data.draw(st.lists(st.integers(1, size), max_size=6)), size})
    return list(zip([0, *ends[:-1]], ends, strict=True))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_batches_do_not_matter_and_deltas_lead_from_image_to_image(data: st.DataObject):
    history = History(data)
    records = [history.draw() for _ in range(data.draw(st.integers(1, 30)))]
    machine = MetadataMachine()
    state = shown = ControllerState()
    unseen: list[MetadataRecord] = []
    for start, end in cut_into_batches(data, len(records)):
        state = machine.apply_all(state, enumerate(records[start:end], start))
        unseen += records[start:end]
        if machine.is_stable(state):
            delta = delta_between(shown.image, state.image, unseen)
            assert delta.apply(shown.image) == state.image
            shown, unseen = state, []
    assert state == history.state
    assert full_delta(state.image).apply(MetadataImage()) == state.image


def test_a_delta_names_only_what_is_different():
    before = fold([Topic("a", id_(1)), partition(1, 0), partition(1, 1), Topic("b", id_(2))])
    records: list[MetadataRecord] = [PartitionChange(1, id_(1), leader=2), Config(2, "b", "k", "v")]
    after = fold(records, before)
    delta = delta_between(before.image, after.image, records)
    assert [(c.topic.name, c.partitions, c.is_new) for c in delta.changed_topics] == [("a", (1,), False)]
    assert list(delta.changed_configs) == [ConfigOwner(2, "b")]
    assert (delta.deleted_topics, dict(delta.changed_brokers), delta.features) == ((), {}, None)


def test_a_delta_of_an_aborted_transaction_only_moves_the_offset():
    before = fold([Topic("a", id_(1)), partition(1, 0)])
    records: list[MetadataRecord] = [
        BeginTransaction(),
        PartitionChange(0, id_(1), leader=2),
        Topic("b", id_(2)),
        AbortTransaction(),
    ]
    after = fold(records, before)
    delta = delta_between(before.image, after.image, records)
    assert (delta.changed_topics, delta.deleted_topics) == ((), ())
    assert delta.offset == after.image.offset


def test_a_delta_has_both_topics_when_a_name_was_used_again():
    before = fold([Topic("a", id_(1)), partition(1, 0)])
    records: list[MetadataRecord] = [RemoveTopic(id_(1)), Topic("a", id_(2)), partition(2, 0)]
    after = fold(records, before)
    delta = delta_between(before.image, after.image, records)
    assert [topic.topic_id for topic in delta.deleted_topics] == [id_(1)]
    assert [(change.topic.topic_id, change.is_new) for change in delta.changed_topics] == [(id_(2), True)]


def test_a_delta_keeps_the_collision_of_a_name_whose_twin_is_deleted():
    before = fold([Topic("a.b", id_(1)), Topic("a_b", id_(2))])
    records: list[MetadataRecord] = [RemoveTopic(id_(1))]
    after = fold(records, before)
    assert after.image.collidable["a_b"] == {"a_b"}
    assert delta_between(before.image, after.image, records).apply(before.image) == after.image


def test_an_old_image_stays_as_it_was():
    before = image_with(1)
    copy = full_delta(before)
    fold([Topic("a", id_(1)), partition(1, 0), Config(4, "", "k", "v")], ControllerState(before))
    assert full_delta(before) == copy


# -- size


def calls_of(action: Any) -> int:
    count = 0

    def count_calls(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(count_calls)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


def test_one_change_and_its_delta_cost_the_same_with_10_and_with_100000_partitions():
    costs = set()
    machine = MetadataMachine()
    for size in (10, 100_000):
        state = fold([Topic("big", id_(1)), *(partition(1, index) for index in range(size))])
        records: list[MetadataRecord] = [PartitionChange(5, id_(1), leader=2)]

        def change(state: ControllerState = state, records: list[MetadataRecord] = records) -> None:
            after = machine.apply_all(state, enumerate(records, state.image.offset + 1))
            delta_between(state.image, after.image, records)

        change()
        costs.add(calls_of(change))
    assert max(costs) - min(costs) < 10, "a map of many has buckets, a map of few has one"
    assert max(costs) < 250


def test_replaying_a_partition_costs_a_few_calls():
    records: list[MetadataRecord] = [Topic("big", id_(1)), *(partition(1, index) for index in range(1000))]
    machine = MetadataMachine()
    assert calls_of(lambda: machine.apply_all(ControllerState(), enumerate(records))) < 1000 * 10 + 200
