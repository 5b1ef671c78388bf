"""The administrator's calls about groups: coordinators found and found again, one request for those who share one,
an outcome for each group and partition."""

import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.client.scripted_broker import PORT, FakeBroker, hang_up
from twofold.client import Admin, OffsetAndMetadata, TopicPartition
from twofold.client.admin.group_model import read_assignment
from twofold.connections.errors import GaveUp, UnsupportedByBroker
from twofold.runtime.sim import Simulation
from twofold.wire import errors
from twofold.wire.apis import KEYS
from twofold.wire.messages import consumer_group_describe as modern
from twofold.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from twofold.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from twofold.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from twofold.wire.messages.list_groups import ListedGroup, ListGroupsResponse
from twofold.wire.messages.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from twofold.wire.messages.offset_delete import OffsetDeleteResponse
from twofold.wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class GroupBroker(FakeBroker):
    """Coordinates the groups of `offsets`, which all brokers of a story share; `led` says who has which."""

    def __init__(self, *args: Any, led: dict[str, int], **options: Any) -> None:
        super().__init__(*args, **options)
        self.led = led
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.members: dict[str, list[DescribedGroupMember]] = {}
        self.modern: set[str] = set()
        self.modern_error = errors.GroupIdNotFound.code
        self.unstable: set[TopicPartition] = set()
        self.loading = 0

    def code_of(self, group: str) -> int:
        if self.loading:
            self.loading -= 1
            return errors.CoordinatorLoadInProgress.code
        return 0 if self.led.get(group) == self.node_id else errors.NotCoordinator.code

    def on_find_coordinator(self, request: Any) -> FindCoordinatorResponse:
        rows = []
        for key in request.coordinator_keys or [request.key]:
            node_id = self.led.get(key, -1)
            host, port = self.nodes.get(node_id, ("", -1))
            code = errors.GroupAuthorizationFailed.code if key == "secret" else 0
            rows.append(
                Coordinator(key=key, node_id=node_id, host=host, port=port, error_code=code, error_message=None)
            )
        if request.coordinator_keys:
            return FindCoordinatorResponse(coordinators=rows)
        row = rows[0]
        return FindCoordinatorResponse(error_code=row.error_code, node_id=row.node_id, host=row.host, port=row.port)

    def on_list_groups(self, request: Any) -> ListGroupsResponse:
        rows = [
            ListedGroup(group_id=name, protocol_type="consumer", group_state="Empty", group_type="classic")
            for name, node_id in self.led.items()
            if node_id == self.node_id and name in self.offsets
        ]
        return ListGroupsResponse(error_code=0, groups=rows)

    def on_describe_groups(self, request: Any) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(groups=[self._described(name) for name in request.groups])

    def _described(self, name: str) -> DescribedGroup:
        code, state = self.code_of(name), "Stable"
        if name not in self.offsets:
            code, state = code or errors.GroupIdNotFound.code, "Dead"
        if state == "Dead" and self.versions[KEYS["DescribeGroups"]][1] < 6:
            code = 0
        return DescribedGroup(
            error_code=code,
            group_id=name,
            group_state=state,
            protocol_type="consumer",
            protocol_data="range",
            members=self.members.get(name, []),
        )

    def on_consumer_group_describe(self, request: Any) -> modern.ConsumerGroupDescribeResponse:
        assignment = modern.Assignment(
            topic_partitions=[modern.TopicPartitions(topic_id=None, topic_name="t", partitions=[0])]
        )
        empty = modern.Assignment(topic_partitions=[])
        member = modern.Member(
            member_id="m",
            member_epoch=3,
            client_id="c",
            client_host="/h",
            assignment=empty,
            target_assignment=assignment,
        )
        rows = [
            modern.DescribedGroup(
                error_code=0 if name in self.modern else self.modern_error,
                group_id=name,
                group_state="Reconciling",
                group_epoch=3,
                assignment_epoch=3,
                assignor_name="uniform",
                members=[member],
            )
            for name in request.group_ids
        ]
        return modern.ConsumerGroupDescribeResponse(groups=rows)

    def on_delete_groups(self, request: Any) -> DeleteGroupsResponse:
        rows = []
        for name in request.groups_names:
            code = self.code_of(name) or (0 if self.offsets.pop(name, None) else errors.GroupIdNotFound.code)
            rows.append(DeletableGroupResult(group_id=name, error_code=code))
        return DeleteGroupsResponse(results=rows)

    def on_offset_fetch(self, request: Any) -> OffsetFetchResponse:
        if not request.groups:
            rows = [self._fetched(OffsetFetchResponsePartition, tp) for tp in self.offsets.get(request.group_id, {})]
            topics = [OffsetFetchResponseTopic(name="t", partitions=rows)]
            return OffsetFetchResponse(topics=topics, error_code=self.code_of(request.group_id))
        groups = []
        for group in request.groups:
            wanted = list(self.offsets.get(group.group_id, {}))
            if group.topics is not None:
                wanted = [TopicPartition(row.name, index) for row in group.topics for index in row.partition_indexes]
            rows = [self._fetched(OffsetFetchResponsePartitions, tp, group.group_id) for tp in wanted]
            groups.append(
                OffsetFetchResponseGroup(
                    group_id=group.group_id,
                    topics=[OffsetFetchResponseTopics(name="t", partitions=rows)],
                    error_code=self.code_of(group.group_id),
                )
            )
        return OffsetFetchResponse(groups=groups)

    def _fetched(self, kind: Any, tp: TopicPartition, group: str = "a") -> Any:
        code = errors.UnstableOffsetCommit.code if tp in self.unstable else 0
        offset = self.offsets[group].get(tp, -1)
        return kind(partition_index=tp.partition, committed_offset=offset, metadata="", error_code=code)

    def on_offset_commit(self, request: Any) -> OffsetCommitResponse:
        topics = []
        for topic in request.topics:
            rows = []
            for row in topic.partitions:
                code = self.code_of(request.group_id)
                if not code and self.members.get(request.group_id):
                    code = errors.UnknownMemberId.code
                if not code and row.partition_index >= self.topics.get(topic.name, 0):
                    code = errors.UnknownTopicOrPartition.code
                if not code:
                    tp = TopicPartition(topic.name, row.partition_index)
                    self.offsets.setdefault(request.group_id, {})[tp] = row.committed_offset
                rows.append(OffsetCommitResponsePartition(partition_index=row.partition_index, error_code=code))
            topics.append(OffsetCommitResponseTopic(name=topic.name, partitions=rows))
        return OffsetCommitResponse(topics=topics)

    def on_offset_delete(self, request: Any) -> OffsetDeleteResponse:
        return OffsetDeleteResponse(error_code=self.code_of(request.group_id), topics=[])


Story = Callable[[Simulation, GroupBroker, GroupBroker, Admin], Awaitable[None]]


def play(story: Story) -> None:
    """Groups a and b are at broker 1, c at broker 2; each has an offset."""
    with Simulation(1) as sim:

        async def main() -> None:
            led = {"a": 1, "b": 1, "c": 2}
            brokers = [
                GroupBroker(sim.runtime(host), host, topics={"t": 2}, node_id=number, led=led)
                for number, host in ((1, "one"), (2, "two"))
            ]
            offsets: dict[str, dict[TopicPartition, int]] = {"a": {T0: 5, T1: 6}, "b": {T0: 7}, "c": {T0: 8}}
            for broker in brokers:
                broker.nodes = {1: ("one", PORT), 2: ("two", PORT)}
                broker.offsets = offsets
                await broker.start()
            async with Admin(bootstrap_servers=f"one:{PORT}", runtime=sim.runtime("client")) as admin:
                one, two = brokers
                await story(sim, one, two, admin)

        sim.run(main(), timeout_s=3600)


def total(api: str, *brokers: FakeBroker) -> int:
    return sum(broker.seen.get(api, 0) for broker in brokers)


def test_groups_of_one_coordinator_share_a_request() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        found = (await admin.describe_groups(["c", "a", "b", "a"])).get()
        assert list(found) == ["c", "a", "b"]
        assert [found[name].coordinator.node_id for name in ("a", "b", "c")] == [1, 1, 2]
        assert total("FindCoordinator", one, two) == 1
        assert (one.seen["DescribeGroups"], two.seen["DescribeGroups"]) == (1, 1)

    play(story)


def test_groups_of_all_brokers_are_listed_by_name() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        two.led["0"] = 2
        two.offsets["0"] = {}
        listed = await admin.list_groups(states=["Empty"], types=["classic"])
        assert [(row.group_id, row.coordinator) for row in listed.values()] == [("0", 2), ("a", 1), ("b", 1), ("c", 2)]
        request = next(row[2] for row in one.requests if row[0] == "ListGroups")
        assert (list(request.states_filter), list(request.types_filter)) == (["Empty"], ["classic"])

    play(story)


def test_a_broker_that_cannot_filter_is_not_asked_for_everything_instead() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.versions[KEYS["ListGroups"]] = (0, 3)
        with pytest.raises(UnsupportedByBroker, match=r"broker 1 \(one:9092\) cannot list groups by state"):
            await admin.list_groups(states=["Empty"])
        assert set(await admin.list_groups()) == {"a", "b", "c"}

    play(story)


def test_a_coordinator_that_moved_is_found_again_and_the_others_are_not_asked_twice() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.script("FindCoordinator", _stale({"a": 1, "b": 2, "c": 2}))
        found = (await admin.list_group_offsets(["a", "b", "c"])).get()
        assert {name: rows.get()[T0].offset for name, rows in found.items()} == {"a": 5, "b": 7, "c": 8}
        asked = [[group.group_id for group in row[2].groups] for row in one.requests if row[0] == "OffsetFetch"]
        assert asked == [["a"], ["b"]] and two.seen["OffsetFetch"] == 1

    play(story)


def _stale(led: dict[str, int]) -> Any:
    def step(broker: FakeBroker, request: Any) -> FindCoordinatorResponse:
        assert isinstance(broker, GroupBroker)
        true, broker.led = broker.led, led
        try:
            return broker.on_find_coordinator(request)
        finally:
            broker.led = true

    return step


def test_a_coordinator_that_loads_is_waited_for() -> None:
    async def story(sim: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.loading = 3
        assert (await admin.alter_group_offsets("a", {T0: 1, T1: OffsetAndMetadata(2, "why")})).errors == {}
        assert one.offsets["a"] == {T0: 1, T1: 2}
        one.loading = 1
        assert (await admin.delete_groups(["a"])).errors == {}
        one.loading = 1
        await admin.delete_group_offsets("b", [T0])

    play(story)


def test_a_lost_connection_is_tried_again() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        two.script("DescribeGroups", hang_up)
        assert set((await admin.describe_groups(["a", "c"])).get()) == {"a", "c"}
        assert one.seen["DescribeGroups"] == 1

    play(story)


def test_when_time_is_over_the_groups_that_were_answered_keep_their_answers() -> None:
    async def story(sim: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        two.loading = 1 << 30
        start = sim.now_s
        found = await admin.describe_groups(["a", "c"])
        assert list(found.values) == ["a"]
        assert isinstance(found.errors["c"], GaveUp) and "COORDINATOR_LOAD_IN_PROGRESS" in str(found.errors["c"])
        assert sim.now_s - start <= 60.0

    play(story)


def test_errors_belong_to_their_groups_and_say_why() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.led |= {"secret": 1, "gone": 1}
        found = await admin.delete_groups(["secret", "a", "gone"])
        assert list(found.values) == ["a"]
        assert isinstance(found.errors["secret"], errors.GroupAuthorizationFailed)
        assert str(found.errors["gone"]) == "GROUP_ID_NOT_FOUND: group 'gone' does not exist"

    play(story)


@pytest.mark.parametrize("newest", [5, 6])
def test_a_group_that_does_not_exist_is_an_error_whatever_the_version(newest: int) -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.versions[KEYS["DescribeGroups"]] = (0, newest)
        one.led["gone"] = 1
        found = await admin.describe_groups(["gone", "b"])
        assert isinstance(found.errors["gone"], errors.GroupIdNotFound) and list(found.values) == ["b"]

    play(story)


def test_where_consumer_groups_are_switched_off_a_group_that_does_not_exist_is_not_found() -> None:
    """At group.version 0 ConsumerGroupDescribe is there and answers UNSUPPORTED_VERSION."""

    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.led["gone"] = 1
        one.modern_error = errors.UnsupportedVersion.code
        found = await admin.describe_groups(["gone", "b"])
        assert isinstance(found.errors["gone"], errors.GroupIdNotFound) and list(found.values) == ["b"]

    play(story)


def test_what_is_no_classic_group_is_described_as_a_consumer_group() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.led["new"] = 1
        one.modern.add("new")
        group = (await admin.describe_groups(["a", "new"])).get()["new"]
        assert (group.type, group.state, group.protocol) == ("consumer", "Reconciling", "uniform")
        assert (group.members[0].assignment, group.members[0].target_assignment) == ((), (T0,))

    play(story)


def test_members_show_what_they_are_assigned() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.members["a"] = [
            DescribedGroupMember(
                member_id="m",
                group_instance_id="i",
                client_id="c",
                client_host="/10.0.0.1",
                member_metadata=b"",
                member_assignment=assignment({"t": [1, 0], "u": []}),
            )
        ]
        (member,) = (await admin.describe_groups(["a"])).get()["a"].members
        assert member.assignment == (T1, T0) and str(member) == "i at 10.0.0.1"

    play(story)


@pytest.mark.parametrize("newest", [2, 7, 8, 10])
def test_offsets_of_many_groups_in_every_version(newest: int) -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        for broker in (one, two):
            broker.versions[KEYS["OffsetFetch"]] = (1, newest)
            broker.versions[KEYS["FindCoordinator"]] = (0, 3 if newest < 8 else 6)
        one.offsets["b"] = one.offsets["a"]
        found = (await admin.list_group_offsets(["a", "b"])).get()
        rows = {T0: OffsetAndMetadata(5), T1: OffsetAndMetadata(6)}
        assert {name: row.get() for name, row in found.items()} == {"a": rows, "b": rows}
        assert total("OffsetFetch", one, two) == (1 if newest >= 8 else 2)
        assert all(version <= 9 for api, version, _ in one.requests if api == "OffsetFetch")

    play(story)


def test_partitions_without_an_offset_have_no_row_and_unstable_ones_are_not_waited_for() -> None:
    async def story(sim: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        one.unstable.add(T0)
        start = sim.now_s
        found = (
            await admin.list_group_offsets(["a", "b"], partitions={"a": [T0, T1], "b": [T1]}, require_stable=True)
        ).get()
        assert list(found["a"].values) == [T1] and isinstance(found["a"].errors[T0], errors.UnstableOffsetCommit)
        assert found["b"].get() == {}
        assert sim.now_s - start < 1.0

    play(story)


def test_refused_commits_are_told_by_partition() -> None:
    async def story(_: Simulation, one: GroupBroker, two: GroupBroker, admin: Admin) -> None:
        found = await admin.alter_group_offsets("a", {T0: 1, TopicPartition("t", 9): 1})
        assert list(found.values) == [T0]
        assert str(found.errors[TopicPartition("t", 9)]) == "UNKNOWN_TOPIC_OR_PARTITION: there is no partition t-9"
        one.members["a"] = [
            DescribedGroupMember(
                member_id="m", client_id="c", client_host="/h", member_metadata=b"", member_assignment=b""
            )
        ]
        refused = (await admin.alter_group_offsets("a", {T0: 1})).errors[T0]
        assert isinstance(refused, errors.UnknownMemberId) and "group 'a' has members" in str(refused)

    play(story)


def assignment(topics: dict[str, list[int]]) -> bytes:
    parts = [struct.pack(">hi", 1, len(topics))]
    for name, indexes in topics.items():
        parts += [struct.pack(">h", len(name)), name.encode(), struct.pack(">i", len(indexes))]
        parts += [struct.pack(">i", index) for index in indexes]
    return b"".join(parts) + struct.pack(">i", -1)


@given(st.dictionaries(st.from_regex(r"[a-z.]{1,8}", fullmatch=True), st.lists(st.integers(0, 2**31 - 1), max_size=5)))
def test_assignments_are_read_back(topics: dict[str, list[int]]) -> None:
    expected = tuple(TopicPartition(name, index) for name, indexes in topics.items() for index in indexes)
    assert read_assignment(assignment(topics)) == expected


@given(st.binary(max_size=64))
def test_bytes_that_are_no_assignment_do_no_harm(data: bytes) -> None:
    found = read_assignment(data)
    assert found is None or len(found) * 4 <= len(data)


def test_a_length_below_zero_ends_the_reading() -> None:
    assert read_assignment(struct.pack(">hih", 0, 2**31 - 1, -2)) is None
