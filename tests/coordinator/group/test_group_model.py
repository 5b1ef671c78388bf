"""The protocol against a model: members that come, go, stall, crash and restart, and a coordinator that moves.

The clients here behave as clients do: they join until they have a generation, the leader assigns, they sync, and they
give up a generation as soon as they hear of the next. What must hold is said once, after every step:

1. A partition is owned by one member at most among those that the coordinator would let commit.
2. A generation that was given out belongs to one leader, one protocol, and the assignment of that leader.
3. Every request is answered once (the kit checks), and nobody waits for ever.
4. Committed offsets never move back.
"""

import os
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from kits.coordinator.groups import REBALANCE, SESSION, World
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import KafkaError, NotEnoughReplicas

PARTITIONS = 5
EXAMPLES = 5_000 if os.environ.get("TWOFOLD_LONG") else 120


@dataclass(eq=False)
class Client:
    """A consumer. `owned` are the partitions it works on, until it learns that they are somebody else's."""

    instance: str | None = None
    member_id: str = ""
    generation: int = -1
    joining: int | None = None
    syncing: int | None = None
    owned: set[int] = field(default_factory=set)
    is_alive: bool = True
    last_seen_ms: int = 0

    def lose(self) -> None:
        self.generation = -1
        self.owned = set()


class Protocol(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize(delay=st.sampled_from([0, 3_000]))
    def start(self, delay: int) -> None:
        self.world = World(initial_rebalance_delay_ms=delay)
        self.everybody: list[Client] = []
        self.leaders: dict[tuple[int, int], str] = {}  # by coordinator and generation: who led it
        self.committed: dict[int, int] = {}
        self.coordinators = 0
        self.instances = 0

    # --- clients ---

    @rule(target=clients, static=st.booleans())
    def start_client(self, static: bool) -> Any:
        if len([client for client in self.everybody if client.is_alive]) >= 6:
            return multiple()
        self.instances += static
        client = Client(f"i{self.instances}" if static else None)
        self.everybody.append(client)
        return client

    @rule(client=clients)
    def join(self, client: Client) -> None:
        if client.is_alive and client.joining is None and client.syncing is None and client.generation < 0:
            client.joining = self.world.send_join(client.member_id, instance=client.instance)
            self.listen()

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        if not client.is_alive or client.generation < 0:
            return
        code = self.world.heartbeat(client.member_id, client.generation, instance=client.instance)
        self.heard(client, code)
        self.listen()

    @rule(client=clients)
    def rejoin_as_leader(self, client: Client) -> None:
        """Something changed that only the members see."""
        if client.is_alive and client.generation >= 0 and client.syncing is None:
            client.lose()
            self.join(client)

    @rule(client=clients, partition=st.integers(0, PARTITIONS - 1))
    def commit(self, client: Client, partition: int) -> None:
        if not client.is_alive or client.generation < 0 or partition not in client.owned:
            return
        offset = self.committed.get(partition, 0) + 1
        who: dict[str, Any] = {
            "member_id": client.member_id,
            "generation": client.generation,
            "group_instance_id": client.instance,
        }
        try:
            assert self.world.commit({("t", partition): offset}, **who) == [0]
        except KafkaError as error:
            self.heard(client, error.code)
        else:
            self.committed[partition] = offset

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        if client.is_alive and client.member_id:
            token = self.world.send_leave((client.member_id, client.instance))
            assert not self.world.is_answered(token) or self.world.answer(token).members[0].error_code in (0, 25, 82)
        client.is_alive = False
        self.listen()

    @rule(client=consumes(clients))
    def crash(self, client: Client) -> None:
        client.is_alive = False

    @rule(target=clients, client=consumes(clients))
    def restart_static(self, client: Client) -> Client:
        """The same instance in a new process, which knows nothing; the old one may still run for a while."""
        if client.instance is None or not client.is_alive:
            return client
        client.is_alive = False
        again = Client(client.instance)
        self.everybody.append(again)
        return again

    # --- the world ---

    @rule(ms=st.sampled_from([1, 500, 3_000, SESSION - 1, SESSION, REBALANCE]))
    def pass_time(self, ms: int) -> None:
        """Clients that live send their heartbeats."""
        left = ms
        while left > 0:
            step = min(left, SESSION // 3)
            self.world.advance(step)
            left -= step
            self.listen()
            for client in self.everybody:
                if client.is_alive and client.generation >= 0:
                    self.heartbeat(client)

    @rule(ms=st.sampled_from([SESSION - 1, SESSION]))
    def stall(self, ms: int) -> None:
        """Nobody gets through."""
        self.world.advance(ms)
        self.listen()

    @rule(ms=st.integers(-(10**9), 10**9))
    def wall_clock_jumps(self, ms: int) -> None:
        self.world.wall_ms += ms

    @rule()
    def coordinator_moves(self) -> None:
        self.world = self.world.restart()
        self.coordinators += 1
        for client in self.everybody:
            client.joining = client.syncing = None

    @rule()
    def log_is_slow(self) -> None:
        self.world.holding = True

    @rule(fails=st.booleans())
    def log_goes_on(self, fails: bool) -> None:
        """What was written meanwhile is committed, or the coordinator gave up on it (it is in the log all the same)."""
        self.world.holding = False
        self.world.commit_all(NotEnoughReplicas("") if fails else None)
        self.listen()

    @rule(client=clients)
    def write_fails(self, client: Client) -> None:
        """One write of the membership is refused by the log."""
        self.world.refusal = NotEnoughReplicas("")
        self.join(client)
        self.world.refusal = None

    @rule()
    def settle(self) -> None:
        """When nothing happens for long enough, the living share the partitions among them."""
        self.log_goes_on(fails=False)
        for _ in range(12):
            for client in self.everybody:
                self.join(client)
            self.pass_time(SESSION)
        living = [client for client in self.everybody if client.is_alive]
        if not living:
            self.world.advance(REBALANCE + SESSION)
            assert self.world.group_state() in (GroupState.EMPTY, GroupState.DEAD)
            return
        assert self.world.group_state() is GroupState.STABLE
        assert sorted(self.world.members()) == sorted(client.member_id for client in living)
        owned = sorted(partition for client in living for partition in client.owned)
        assert owned == list(range(PARTITIONS))

    # --- how clients react ---

    def heard(self, client: Client, code: int) -> None:
        if code == 27:
            client.lose()
        elif code in (22, 25, 82):
            client.lose()
            client.member_id = ""
        else:
            assert code == 0, code

    def listen(self) -> None:
        """Take in answers until there are none; syncs follow joins, and joins errors."""
        moved = True
        while moved:
            moved = False
            for client in self.everybody:
                moved |= self.hear_join(client) or self.hear_sync(client)

    def hear_join(self, client: Client) -> bool:
        if client.joining is None or not self.world.is_answered(client.joining):
            return False
        answer = self.world.answer(client.joining)
        client.joining = None
        if not client.is_alive:
            return True
        if answer.error_code == 79:
            client.member_id = answer.member_id
            self.join(client)
        elif answer.error_code == 0:
            client.member_id, client.generation = answer.member_id, answer.generation_id
            self.check_leader(answer)
            self.sync(client, answer)
        else:
            assert answer.error_code in (15, 25, 27, 82), answer
            client.member_id = "" if answer.error_code in (25, 82) else client.member_id
        return True

    def check_leader(self, answer: Any) -> None:
        key = (self.coordinators, answer.generation_id)
        assert (
            self.leaders.setdefault(key, answer.leader) == answer.leader or not answer.members or answer.skip_assignment
        )

    def sync(self, client: Client, answer: Any) -> None:
        assignments = {}
        if answer.members and not answer.skip_assignment:
            members = sorted(row.member_id for row in answer.members)
            shares = {member: bytes(range(at, PARTITIONS, len(members))) for at, member in enumerate(members)}
            assignments = shares
        client.syncing = self.world.send_sync(
            client.member_id, client.generation, assignments, instance=client.instance
        )

    def hear_sync(self, client: Client) -> bool:
        if client.syncing is None or not self.world.is_answered(client.syncing):
            return False
        answer = self.world.answer(client.syncing)
        client.syncing = None
        if not client.is_alive:
            return True
        if answer.error_code == 0:
            client.owned = set(answer.assignment)
        elif answer.error_code == 15:
            client.lose()
        else:
            self.heard(client, answer.error_code)
        return True

    # --- what must hold ---

    @invariant()
    def a_partition_has_one_owner_that_may_commit(self) -> None:
        if not hasattr(self, "world"):
            return
        group = self.world.membership.find(self.world.state, "g")
        owners: dict[int, Client] = {}
        for client in self.everybody:
            if group is None or client.generation != group.generation or client.member_id not in group.members:
                continue
            for partition in client.owned:
                assert partition not in owners, f"{partition} is owned by {client} and {owners[partition]}"
                owners[partition] = client

    @invariant()
    def offsets_never_move_back(self) -> None:
        if hasattr(self, "world"):
            for partition, offset in self.committed.items():
                assert self.world.offset("t", partition) == offset

    @invariant()
    def whoever_waits_has_a_deadline(self) -> None:
        """Nobody waits for ever: a group in a rebalance has a time at which it goes on."""
        if hasattr(self, "world"):
            for group in self.world.membership.groups.values():
                deadlines = self.world.membership.deadlines
                if group.state is GroupState.PREPARING_REBALANCE:
                    assert deadlines.get(("join", group.group_id, "")) is not None
                elif group.state is GroupState.COMPLETING_REBALANCE and group.pending_syncs:
                    assert deadlines.get(("sync", group.group_id, "")) is not None
                assert group.joining == sum(member.is_awaiting_join for member in group.members.values())

    @invariant()
    def the_log_says_what_is_known(self) -> None:
        if hasattr(self, "world"):
            world = self.world
            replayed = world.machine.apply_all(world.machine.initial(), enumerate(world.log))
            assert replayed == world.state


TestProtocol = Protocol.TestCase
TestProtocol.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
