"""Clients that share a transactional id, lose replies, repeat requests, crash and come back, in any order.

The world fails over after every record, and may be set to another transaction.version at any time. What must hold:

1. Only steps of the table are written (`World` checks it), and no epoch of a producer id ever goes down.
2. No client is given epoch 32767, and no identity is given to two clients.
3. Who is not the current client neither widens nor ends a transaction.
4. A repeated request is told what it was told before, as long as nobody else did anything.
5. Markers of a producer id have rising epochs, and no client writes under an epoch below the last marker.
6. What was decided is what is completed; a two-phase transaction is never ended by the clock.
"""

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kits.coordinator.transactions import (
    CONCURRENT_TRANSACTIONS,
    EMPTY,
    NEVER,
    OK,
    ONGOING,
    P,
    Told,
    World,
    a_transaction,
    partitions,
)
from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.states import EXPIRABLE, PREPARING, State
from twofold.coordinator.transaction.transitions import client_pair, has_kept

LAST_EPOCH = 32766


@dataclass
class Request:
    """One whose reply did not arrive."""

    kind: str
    args: tuple
    expected: Told
    log_size: int


@dataclass
class Client:
    name: str
    pair: tuple[int, int] | None = None
    lost: Request | None = None


class SharedId(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clients = [Client("first"), Client("second")]
        self.owners: dict[tuple[int, int], str] = {}
        self.markers: dict[int, int] = {}
        self.checked = 0
        self.decided: State | None = None

    @initialize(epoch=st.sampled_from([None, 0, 32765, 32766]), tv=st.sampled_from([1, 2]))
    def begin(self, epoch, tv):
        self.world = World(tv, start=None if epoch is None else a_transaction(EMPTY, epoch), next_id=2000)
        if epoch is not None:
            self.clients[0].pair = (P, epoch)
            self.owners[P, epoch] = "first"

    # --- what a reply means ---

    def _deliver(self, client: Client, request: str, args: tuple, found: Told, lost: bool) -> None:
        client.lost = None
        if isinstance(found, tuple):
            pair = found[0], found[1]
            assert 0 <= pair[1] <= LAST_EPOCH, f"{client.name} is given {pair}"
            owner = self.owners.setdefault(pair, client.name)
            assert owner == client.name, f"{pair} is given to {client.name} and belongs to {owner}"
            if not lost:
                client.pair = pair
        if lost and (isinstance(found, tuple) or found == OK):
            client.lost = Request(request, args, found, len(self.world.log))

    def _ask(self, client: Client, request: str, args: tuple) -> Told:
        before, size = self.world.entry, len(self.world.log)
        found = getattr(self.world, request)(*args)
        if len(self.world.log) > size and request in ("add", "end"):
            pair = args[:2] if request == "add" else args[1:3]
            assert before is not None and pair == client_pair(before), "only the current client changes anything"
            assert request == "end" or not has_kept(before), "nobody widens a kept transaction"
            assert pair[1] >= self.markers.get(pair[0], -1), "nobody writes below the last marker"
        return found

    def _request(self, client: Client, request: str, args: tuple, lost: bool) -> None:
        self._deliver(client, request, args, self._ask(client, request, args), lost)

    # --- clients ---

    clients_ = st.integers(0, 1)

    @rule(index=clients_, lost=st.booleans())
    def init_anew(self, index, lost):
        self._request(self.clients[index], "init", (), lost)
        self.clients[index].lost = None  # a repetition gets the next epoch, which is right

    @rule(index=clients_, lost=st.booleans())
    def init_named(self, index, lost):
        client = self.clients[index]
        if client.pair is not None:
            was_expired = self.world.entry is None
            self._request(client, "init", client.pair, lost)
            if was_expired:
                client.lost = None  # nothing is known of the old identity: a repetition is fenced, as in Kafka

    @rule(index=clients_, enable_2pc=st.booleans())
    def keep_prepared(self, index, enable_2pc):
        if self.world.tv < 2:
            return
        before = self.world.entry
        found = self.world.keep(enable_2pc=enable_2pc)
        if isinstance(found, tuple) and len(found) == 4:
            assert before is not None and found[2:] == (before.producer_id, before.producer_epoch)
            assert self.world.now.partitions == before.partitions and self.world.now.start_ms == before.start_ms
        self._deliver(self.clients[index], "keep", (), found, lost=False)

    @rule(index=clients_, name=st.sampled_from(["t-0", "t-1", "u-0"]), lost=st.booleans())
    def add(self, index, name, lost):
        client = self.clients[index]
        if client.pair is None:
            return
        before = self.world.entry
        size = len(self.world.log)
        self._request(client, "add", (*client.pair, partitions(name)), lost)
        if len(self.world.log) > size:
            old = before.partitions if before is not None and before.state is ONGOING else frozenset()
            assert self.world.now.partitions == old | partitions(name)

    @rule(index=clients_, commit=st.booleans(), version=st.sampled_from([1, 2, 2]), lost=st.booleans())
    def end(self, index, commit, version, lost):
        client = self.clients[index]
        if client.pair is not None:
            self._request(client, "end", (commit, *client.pair, version), lost)

    @rule(index=clients_, commit=st.booleans(), version=st.sampled_from([1, 2, 2]))
    def whole_transaction(self, index, commit, version):
        """Of whom nothing goes wrong; so that there is something for the others to go wrong with."""
        self.world.complete()
        self.add(index, "t-0", lost=False)
        self.end(index, commit, version, lost=False)
        self.world.complete()

    @precondition(lambda self: any(client.lost for client in self.clients))
    @rule(index=clients_, patient=st.booleans())
    def repeat(self, index, patient):
        client = self.clients[index] if self.clients[index].lost else self.clients[1 - index]
        request = client.lost
        assert request is not None
        if patient:
            self.world.complete()
        since = [record.value.state if record.value else None for record in self.world.log[request.log_size :]]
        alone = all(state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT) for state in since)
        found = self._ask(client, request.kind, request.args)
        if alone:
            assert found == request.expected or (found == CONCURRENT_TRANSACTIONS and self.world.pending)
            request.log_size = len(self.world.log)  # and once more
        elif isinstance(found, tuple):
            self._deliver(client, request.kind, request.args, found, lost=False)

    # --- the coordinator ---

    @precondition(lambda self: self.world.pending)
    @rule()
    def write_markers(self):
        self.world.complete()

    @precondition(lambda self: bool(self.world.state.ongoing))
    @rule()
    def time_passes_beyond_every_timeout(self):
        self.world.now_ms += 1_000_000
        if self.world.entry is not None:
            before = self.world.now
            if self.world.sweep():
                assert before.state is ONGOING and before.timeout_ms != NEVER

    @precondition(lambda self: self.world.entry is not None and len(self.world.log) > 10)
    @rule()
    def a_week_passes(self):
        self.world.now_ms += 7 * 86_400_000
        if self.world.expire():
            for client in self.clients:
                client.lost = None

    @precondition(lambda self: self.world.entry is not None)
    @rule()
    def come_near_the_last_epoch(self):
        """As if the current client had been initialised thirty thousand times."""
        if self.world.entry is None or self.world.now.state not in EXPIRABLE or self.world.now.producer_epoch > 32000:
            return
        holder = next((client for client in self.clients if client.pair == self.world.pair), None)
        if holder is not None:
            pair = (self.world.now.producer_id, 32765)
            self.world.write(a_transaction(EMPTY, pair[1], pair[0], timeout_ms=self.world.now.timeout_ms))
            self._deliver(holder, "init", (), pair, lost=False)

    @rule(tv=st.sampled_from([1, 2]))
    def transaction_version_is_set(self, tv):
        self.world.tv = tv

    # --- what must hold after every step ---

    @invariant()
    def what_was_written_is_right(self):
        if not hasattr(self, "world"):
            return
        for record in self.world.log[self.checked :]:
            if record.value is not None:
                self._check(record.value)
        self.checked = len(self.world.log)

    def _check(self, value: TransactionMetadata) -> None:
        assert value.producer_epoch <= 32767 and value.next_producer_epoch <= LAST_EPOCH
        if value.state in PREPARING:
            assert self.decided is None, "a decision is made once"
            self.decided = value.state
            last = self.markers.get(value.producer_id, -1)
            assert value.producer_epoch > last or (value.client_version < 2 and value.producer_epoch == last)
            self.markers[value.producer_id] = value.producer_epoch
            return
        if value.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
            expected = State.COMPLETE_COMMIT if self.decided is State.PREPARE_COMMIT else State.COMPLETE_ABORT
            assert value.state is expected
            self.decided = None
            assert not has_kept(value) and value.partitions == frozenset()
        assert value.start_ms != -1 or value.state is EMPTY


SharedId.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSharedId = SharedId.TestCase


def walk(seed: int, steps: int) -> None:
    """The same rules by chance alone, which goes deeper: Hypothesis is for the short story once something is found."""
    chance = Random(seed)
    coin = lambda: chance.random() < 0.5  # noqa: E731
    machine = SharedId()
    machine.begin(chance.choice([None, 0, 32765, 32766]), chance.choice([1, 2]))
    rules = {
        machine.init_anew: (6, lambda: (chance.randrange(2), coin())),
        machine.init_named: (8, lambda: (chance.randrange(2), coin())),
        machine.keep_prepared: (5, lambda: (chance.randrange(2), coin())),
        machine.add: (14, lambda: (chance.randrange(2), chance.choice(["t-0", "t-1"]), coin())),
        machine.end: (14, lambda: (chance.randrange(2), coin(), chance.choice([1, 2, 2]), coin())),
        machine.whole_transaction: (6, lambda: (chance.randrange(2), coin(), chance.choice([1, 2]))),
        machine.write_markers: (12, tuple),
        machine.time_passes_beyond_every_timeout: (4, tuple),
        machine.transaction_version_is_set: (2, lambda: (chance.choice([1, 2, 2]),)),
        machine.repeat: (20, lambda: (chance.randrange(2), coin())),
        machine.a_week_passes: (1, tuple),
        machine.come_near_the_last_epoch: (2, tuple),
    }
    names, weights = list(rules), [weight for weight, _ in rules.values()]
    for step in chance.choices(names, weights, k=steps):
        if step == machine.repeat and not any(client.lost for client in machine.clients):
            continue
        if step == machine.a_week_passes and machine.world.entry is None:
            continue
        step(*rules[step][1]())
        machine.what_was_written_is_right()


@pytest.mark.parametrize("seed", range(100))
def test_shared_id_by_chance(seed):
    walk(seed, 300)
