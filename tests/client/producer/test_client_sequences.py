"""Numbering and order of an idempotent producer's batches, against a model of what a broker keeps."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.client.producer.sequences import MAX_EPOCH, PartitionSequences, ProducerIdentity
from twofold.types import NO_SEQUENCE

WINDOW = 5


class Fate(Enum):
    ACKNOWLEDGED = auto()
    FAILED = auto()


@dataclass(eq=False)
class Batch:
    name: int
    count: int = 1
    identity: ProducerIdentity | None = None
    base_sequence: int = NO_SEQUENCE
    on_wire: bool = False
    in_doubt: bool = False
    fate: Fate | None = None


@dataclass
class ModelBroker:
    """Accepts what Kafka's log accepts; a producer that it never saw may begin with any number, or, before Kafka 2.5,
    with 0 only."""

    is_strict: bool = False
    epoch: int | None = None
    last: int = -1
    recent: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    appended: list[int] = field(default_factory=list)

    def receive(self, batch: Batch, epoch: int, sequence: int) -> str:
        end = sequence + batch.count - 1
        if self.epoch is not None:
            if epoch < self.epoch:
                return "fenced"
            if epoch == self.epoch and (sequence, end) in self.recent:
                return "ok"
            if sequence != (self.last + 1 if epoch == self.epoch else 0):
                return "out of order"
            if epoch > self.epoch:
                self.recent.clear()
        elif self.is_strict and sequence != 0:
            return "unknown producer"
        self.epoch, self.last = epoch, end
        self.recent.append((sequence, end))
        self.appended.append(batch.name)
        return "ok"


class World:
    """One partition, one connection at a time, and a script of what goes wrong."""

    def __init__(self, *, is_strict: bool = False) -> None:
        self.sequences: PartitionSequences[Batch] = PartitionSequences(idempotent=True, max_unacked=WINDOW)
        self.current = ProducerIdentity(7, 0)
        self.broker = ModelBroker(is_strict)
        self.wire: deque[tuple[Batch, int, int]] = deque()
        self.answers: deque[tuple[Batch, str]] = deque()
        self.waiting: deque[Batch] = deque()
        self.all: list[Batch] = []

    def give(self, count: int) -> None:
        batch = Batch(len(self.all), count)
        self.all.append(batch)
        self.waiting.append(batch)

    def send(self) -> bool:
        sequences = self.sequences
        if sequences.wants_identity():
            for untold in sequences.untold():
                self.give_up(untold)
            if self.current == sequences.identity:
                bumped = self.current.bumped()
                assert bumped is not None
                self.current = bumped
            sequences.start_anew(self.current)
        batch = sequences.next_retry()
        if batch is None and self.waiting and sequences.may_send_new(self.current):
            batch = self.waiting.popleft()
        if batch is None:
            return False
        sequences.on_sent(batch, self.current)
        assert batch.identity is not None and len(sequences.unacked) <= WINDOW
        self.wire.append((batch, batch.identity.epoch, batch.base_sequence))
        return True

    def arrive(self, *, refuse: str = "") -> None:
        """The next request reaches the broker; its answer is on the way back."""
        if self.wire:
            batch, epoch, sequence = self.wire.popleft()
            self.answers.append((batch, refuse or self.broker.receive(batch, epoch, sequence)))

    def answer(self) -> None:
        if self.answers:
            self.on_answer(*self.answers.popleft())

    def deliver(self, *, refuse: str = "") -> None:
        self.arrive(refuse=refuse)
        while self.answers:
            self.answer()

    def on_answer(self, batch: Batch, answer: str) -> None:
        if batch.fate is not None:
            batch.on_wire = False
        elif answer == "ok":
            for settled in (*self.sequences.on_acknowledged(batch), batch):
                settled.fate = Fate.ACKNOWLEDGED
        elif answer == "out of order" and self.sequences.is_gap_explained(batch):
            self.sequences.on_out_of_order(batch)
        elif answer == "unknown producer" and not batch.in_doubt:
            self.sequences.on_forgotten(batch)
        elif answer == "try again":
            self.sequences.on_refused(batch)
        else:
            assert answer in ("invalid", "out of order", "unknown producer"), answer
            self.give_up(batch)

    def lose_connection(self) -> None:
        """Requests on the way do not arrive, answers neither; what became of them is unknown to the client."""
        for batch in [*(entry[0] for entry in self.answers), *(entry[0] for entry in self.wire)]:
            if batch.fate is None:
                self.sequences.on_unknown(batch)
        self.answers.clear()
        self.wire.clear()

    def restart_broker(self) -> None:
        """Its memory of a producer then goes back to the last batch, as after a clean stop of Kafka."""
        self.lose_connection()
        self.broker.recent = deque(list(self.broker.recent)[-1:], maxlen=WINDOW)

    def delete_records(self) -> None:
        """A broker before Kafka 2.5 deletes all records and forgets their producer, when all are acknowledged."""
        acknowledged = {batch.name for batch in self.all if batch.fate is Fate.ACKNOWLEDGED}
        if self.broker.is_strict and acknowledged >= set(self.broker.appended):
            self.broker.epoch, self.broker.last = None, -1
            self.broker.recent.clear()

    def give_up(self, batch: Batch) -> None:
        batch.fate = Fate.FAILED
        self.sequences.on_failed(batch)

    def expire_oldest(self) -> None:
        if self.sequences.unacked:
            self.give_up(self.sequences.unacked[0])

    def settle(self) -> None:
        """Everything goes well from here on."""
        for _ in range(10_000):
            sent = self.send()
            if self.wire or self.answers:
                self.deliver()
            elif not sent:
                return
        raise AssertionError("batches are left that nothing sends")


FAULTS = [
    "none",
    "lose the connection",
    "refuse for good",
    "refuse for now",
    "expire",
    "lose the connection and expire",
    "restart the broker",
    "restart the broker and expire",
    "delete all records",
]
# Each round: how many to send, how many of them arrive, how many answers come back, and what goes wrong then.
rounds = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.sampled_from(FAULTS)), max_size=8
)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=16), rounds, st.booleans())
@settings(max_examples=500, deadline=None)
def test_every_batch_is_appended_once_and_in_order_whatever_fails(
    counts: list[int], script: list[tuple[int, int, int, str]], is_strict: bool
) -> None:
    world = World(is_strict=is_strict)
    for count in counts:
        world.give(count)
    for to_send, to_arrive, to_answer, fault in script:
        for _ in range(to_send):
            world.send()
        for _ in range(to_arrive):
            world.arrive()
        for _ in range(to_answer):
            world.answer()
        if "restart" in fault:
            world.restart_broker()
        if "lose the connection" in fault:
            world.lose_connection()
        if "expire" in fault:
            world.expire_oldest()
        if fault == "delete all records":
            world.delete_records()
        if fault == "refuse for good":
            world.arrive(refuse="invalid")
        if fault == "refuse for now":
            world.arrive(refuse="try again")
    world.settle()
    appended = world.broker.appended
    acknowledged = [batch.name for batch in world.all if batch.fate is Fate.ACKNOWLEDGED]
    assert all(batch.fate is not None for batch in world.all)
    assert len(appended) == len(set(appended)), "a batch was appended twice"
    assert appended == sorted(appended), "batches changed their order"
    assert set(acknowledged) <= set(appended), "an acknowledged batch is not there"


def test_batches_that_a_restarted_broker_forgot_are_acknowledged_by_the_one_it_remembers() -> None:
    world = World()
    world.give(1), world.settle()
    for _ in range(4):
        world.give(2)
    for _ in range(4):
        world.send()
        world.arrive()
    world.restart_broker()
    world.give(1)
    world.settle()
    assert world.broker.appended == [0, 1, 2, 3, 4, 5]
    assert {batch.fate for batch in world.all} == {Fate.ACKNOWLEDGED}


def test_a_broker_that_lost_what_it_acknowledged_is_told_from_one_that_forgot() -> None:
    world = World()
    world.give(1), world.settle()
    world.give(1), world.settle()
    for _ in range(2):
        world.give(1)
    world.send(), world.send()
    world.lose_connection()
    world.broker.last -= 1  # a power cut took the second batch
    world.broker.recent.pop()
    while not world.sequences.wants_identity():
        world.send()
        world.deliver()
    assert world.sequences.untold() == [world.all[2]]
    world.settle()
    assert world.broker.appended == [0, 1, 3]


def test_what_a_forgetful_broker_refuses_is_numbered_anew_and_what_is_in_doubt_is_not() -> None:
    world = World(is_strict=True)
    world.give(2), world.settle()
    world.delete_records()
    for _ in range(3):
        world.give(1)
    world.send()
    world.lose_connection()
    world.settle()
    assert [batch.fate for batch in world.all] == [Fate.ACKNOWLEDGED, Fate.FAILED, Fate.ACKNOWLEDGED, Fate.ACKNOWLEDGED]
    assert world.broker.appended == [0, 2, 3]
    assert [(batch.identity, batch.base_sequence) for batch in world.all[2:]] == [((7, 1), 0), ((7, 1), 1)]


def test_a_batch_keeps_its_number_over_attempts() -> None:
    world = World()
    world.give(3)
    world.send()
    world.lose_connection()
    world.send()
    assert [entry[1:] for entry in world.wire] == [(0, 0)]


def test_nothing_newer_goes_out_while_a_batch_waits_for_its_next_attempt() -> None:
    world = World()
    world.give(1), world.settle()
    for _ in range(3):
        world.give(1)
    world.send(), world.send()
    world.lose_connection()
    assert world.send()
    assert not world.send(), "the second waits for the first, and the third for both"
    world.deliver()
    assert world.send()
    assert [entry[0].name for entry in world.wire] == [2]


def test_a_batch_that_may_be_appended_is_never_renumbered() -> None:
    world = World()
    world.give(1), world.settle()
    for _ in range(2):
        world.give(1)
    world.send(), world.send()
    world.broker = ModelBroker(appended=[0])  # the broker forgot the producer: it takes any number
    world.deliver(refuse="invalid")
    world.arrive()
    world.lose_connection()
    world.settle()
    assert world.broker.appended == [0, 2]


def test_the_first_batch_of_an_identity_goes_alone() -> None:
    world = World()
    for _ in range(3):
        world.give(1)
    assert [world.send(), world.send()] == [True, False]
    world.deliver()
    assert [world.send(), world.send()] == [True, True]


def test_sequence_numbers_wrap_to_zero() -> None:
    sequences: PartitionSequences[Batch] = PartitionSequences(idempotent=True, max_unacked=5)
    sequences.identity = ProducerIdentity(1, 0)
    sequences.next_sequence = 2**31 - 2
    first, second = Batch(0, 3), Batch(1, 1)
    sequences.on_sent(first, ProducerIdentity(1, 0))
    sequences.on_sent(second, ProducerIdentity(1, 0))
    assert (first.base_sequence, second.base_sequence) == (2**31 - 2, 1)


def test_the_last_epoch_is_followed_by_a_new_producer_id() -> None:
    assert ProducerIdentity(1, 0).bumped() == ProducerIdentity(1, 1)
    assert ProducerIdentity(1, MAX_EPOCH - 1).bumped() is None


def test_a_partition_adopts_a_new_epoch_only_when_nothing_of_the_old_one_is_open() -> None:
    sequences: PartitionSequences[Batch] = PartitionSequences(idempotent=True, max_unacked=5)
    old, new = ProducerIdentity(1, 0), ProducerIdentity(1, 1)
    batch = Batch(0)
    sequences.on_sent(batch, old)
    assert not sequences.may_send_new(new)
    sequences.on_acknowledged(batch)
    assert sequences.may_send_new(new)
    sequences.on_sent(Batch(1), new)
    assert (sequences.identity, sequences.next_sequence) == (new, 1)


def test_halves_of_a_batch_that_is_too_large_take_its_place_and_its_numbers() -> None:
    sequences: PartitionSequences[Batch] = PartitionSequences(idempotent=True, max_unacked=5)
    whole, behind = Batch(0, 10), Batch(1, 2)
    for batch in (whole, behind):
        sequences.on_sent(batch, ProducerIdentity(1, 0))
    parts = [Batch(2, 4), Batch(3, 6)]
    sequences.split(whole, parts)
    assert [(batch.name, batch.base_sequence) for batch in sequences.unacked] == [(2, 0), (3, 4), (1, 10)]
    assert sequences.next_retry() is parts[0]


@pytest.mark.parametrize("idempotent", [True, False])
def test_unacknowledged_batches_are_bounded(idempotent: bool) -> None:
    sequences: PartitionSequences[Batch] = PartitionSequences(idempotent=idempotent, max_unacked=5)
    identity = ProducerIdentity(1, 0) if idempotent else None
    first = Batch(-1)
    sequences.on_sent(first, identity)
    sequences.on_acknowledged(first)
    for name in range(5):
        assert sequences.may_send_new(identity)
        sequences.on_sent(Batch(name), identity)
    assert not sequences.may_send_new(identity)
