"""The administrator's calls about groups, a part of `twofold.client.admin.admin.Admin`.

1. A group is asked about at its coordinator. Groups that share a coordinator share a request.
2. A coordinator that is loading, has moved or is not there yet (14, 15, 16) is looked up again until
   `default_api_timeout_ms` is over, for the groups that it concerns: the others have their answers by then.
3. Topics go by name: an offset may outlive its topic, and then has no id to be asked for.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from twofold.client.admin.group_model import (
    CONSUMER_PROTOCOL_TYPE,
    GroupDescription,
    GroupListing,
    MemberDescription,
    OffsetAndMetadata,
    read_assignment,
)
from twofold.client.admin.group_offsets import (
    BY_NAME_UNTIL,
    GroupOffsets,
    commit_row,
    fetch_requests,
    read_offsets,
)
from twofold.client.admin.model import Results
from twofold.client.cluster.cluster import Cluster
from twofold.client.cluster.metadata import Node, group_by_topic
from twofold.connections.connection import Connection
from twofold.connections.errors import GaveUp, UnsupportedByBroker
from twofold.connections.waiting import Deadline
from twofold.types import TopicPartition
from twofold.wire.apis import KEYS
from twofold.wire.errors import (
    CoordinatorLoadInProgress,
    CoordinatorNotAvailable,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    KafkaError,
    NonEmptyGroup,
    NotCoordinator,
    UnknownMemberId,
    UnknownTopicOrPartition,
    UnsupportedVersion,
    error_for,
    raise_for,
)
from twofold.wire.messages import consumer_group_describe
from twofold.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from twofold.wire.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from twofold.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from twofold.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from twofold.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from twofold.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from twofold.wire.messages.offset_fetch import OffsetFetchResponse

V = TypeVar("V")
GROUP = 0
DEAD = "Dead"
_COORDINATOR_ERRORS = (CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator)

Ask = Callable[[Node, list[str], Deadline], Awaitable[Mapping[str, V | KafkaError]]]


class GroupCalls:
    _cluster: Cluster

    async def list_groups(self, *, states: Sequence[str] = (), types: Sequence[str] = ()) -> Mapping[str, GroupListing]:
        """The groups of every broker by id; with `states` or `types` only those, whatever the case of the words."""
        deadline = self._cluster.deadline()

        async def attempt() -> dict[str, GroupListing]:
            await self._cluster.refresh(deadline)
            found: dict[str, GroupListing] = {}
            for node_id in list(self._cluster.cache.nodes):
                for row in await self._list_groups_of(node_id, states, types, deadline):
                    found[row.group_id] = row
            return dict(sorted(found.items()))

        return await self._cluster.retry("ListGroups", attempt, deadline)

    async def _list_groups_of(
        self, node_id: int, states: Sequence[str], types: Sequence[str], deadline: Deadline
    ) -> list[GroupListing]:
        connection = await self._cluster.connection(node_id, deadline)
        needed = 5 if types else 4 if states else 0
        if needed and not connection.supports(KEYS["ListGroups"], needed):
            raise UnsupportedByBroker(f"{connection.label} cannot list groups by {'type' if types else 'state'}")
        request = ListGroupsRequest(states_filter=list(states), types_filter=list(types))
        response: ListGroupsResponse = await self._cluster.ask(connection, request, "ListGroups", deadline)
        raise_for(response.error_code, f"ListGroups at {connection.label}")
        return [
            GroupListing(row.group_id, row.protocol_type, row.group_state, row.group_type, node_id)
            for row in response.groups
        ]

    async def describe_groups(self, groups: Iterable[str]) -> Results[str, GroupDescription]:
        """Classic and consumer (KIP-848) groups; one that does not exist is GROUP_ID_NOT_FOUND."""

        async def ask(node: Node, names: list[str], deadline: Deadline) -> Mapping[str, GroupDescription | KafkaError]:
            connection = await self._cluster.connection(node.node_id, deadline)
            request = DescribeGroupsRequest(groups=names)
            response: DescribeGroupsResponse = await self._cluster.ask(connection, request, "DescribeGroups", deadline)
            found = {row.group_id: _described(row, node) for row in response.groups}
            others = [name for name, row in found.items() if isinstance(row, GroupIdNotFound)]
            if others and connection.supports(KEYS["ConsumerGroupDescribe"]):
                found |= await self._describe_consumer_groups(connection, node, others, deadline)
            return found

        return await self._at_coordinators("DescribeGroups", groups, ask)

    async def _describe_consumer_groups(
        self, connection: Connection, node: Node, names: list[str], deadline: Deadline
    ) -> dict[str, GroupDescription | KafkaError]:
        request = consumer_group_describe.ConsumerGroupDescribeRequest(
            group_ids=names, include_authorized_operations=False
        )
        response: consumer_group_describe.ConsumerGroupDescribeResponse = await self._cluster.ask(
            connection, request, "ConsumerGroupDescribe", deadline
        )
        # UNSUPPORTED_VERSION: the cluster has switched such groups off (group.version 0), so there is no such group.
        served = [row for row in response.groups if row.error_code != UnsupportedVersion.code]
        return {row.group_id: _described_consumer_group(row, node) for row in served}

    async def delete_groups(self, groups: Iterable[str]) -> Results[str, None]:
        """With all their offsets. A group that has members is not deleted: NON_EMPTY_GROUP."""

        async def ask(node: Node, names: list[str], deadline: Deadline) -> Mapping[str, KafkaError | None]:
            request = DeleteGroupsRequest(groups_names=names)
            response: DeleteGroupsResponse = await self._cluster.request(
                node.node_id, request, "DeleteGroups", deadline
            )
            return {row.group_id: _group_error(row.group_id, row.error_code) for row in response.results}

        return await self._at_coordinators("DeleteGroups", groups, ask)

    async def list_group_offsets(
        self,
        groups: Iterable[str],
        *,
        partitions: Mapping[str, Iterable[TopicPartition]] | None = None,
        require_stable: bool = False,
    ) -> Results[str, GroupOffsets]:
        """What each group has committed: everything, or what `partitions` names for it. A partition without an offset
        has no row, a group that does not exist none at all. With `require_stable` a partition whose offset is part of
        an open transaction is an error of its own, UNSTABLE_OFFSET_COMMIT; it is not waited for."""
        chosen = {name: group_by_topic(rows) for name, rows in (partitions or {}).items()}
        topics = {name: chosen.get(name) for name in groups}

        async def ask(node: Node, names: list[str], deadline: Deadline) -> Mapping[str, GroupOffsets | KafkaError]:
            connection = await self._cluster.connection(node.node_id, deadline)
            version = connection.version(KEYS["OffsetFetch"], at_most=BY_NAME_UNTIL)
            found: dict[str, GroupOffsets | KafkaError] = {}
            for request in fetch_requests({name: topics[name] for name in names}, version, require_stable):
                response: OffsetFetchResponse = await self._cluster.ask(
                    connection, request, "OffsetFetch", deadline, version=version
                )
                rows: Iterable[Any] = response.groups if version >= 8 else [response]
                for row in rows:
                    name = row.group_id if version >= 8 else request.group_id
                    found[name] = _group_error(name, row.error_code) or read_offsets(row.topics)
            return found

        return await self._at_coordinators("OffsetFetch", topics, ask)

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]
    ) -> Results[TopicPartition, None]:
        """Commit in the name of a group that has no members; one that has refuses all partitions."""
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for tp, value in offsets.items():
            topics.setdefault(tp.topic, []).append(commit_row(tp.partition, value))
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[OffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
        )

        async def ask(node: Node, _: list[str], deadline: Deadline) -> Mapping[str, Results[TopicPartition, None]]:
            connection = await self._cluster.connection(node.node_id, deadline)
            version = connection.version(KEYS["OffsetCommit"], at_most=BY_NAME_UNTIL)
            response: OffsetCommitResponse = await self._cluster.ask(
                connection, request, "OffsetCommit", deadline, version=version
            )
            return {group: _partition_results(group, response.topics)}

        return (await self._at_coordinators("OffsetCommit", [group], ask)).get()[group]

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> Results[TopicPartition, None]:
        """Forget offsets. Of topics that a member reads none are deleted: GROUP_SUBSCRIBED_TO_TOPIC."""
        wanted = group_by_topic(dict.fromkeys(partitions))
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
                )
                for name, indexes in wanted.items()
            ],
        )

        async def ask(
            node: Node, _: list[str], deadline: Deadline
        ) -> Mapping[str, Results[TopicPartition, None] | KafkaError]:
            response: OffsetDeleteResponse = await self._cluster.request(
                node.node_id, request, "OffsetDelete", deadline
            )
            return {group: _group_error(group, response.error_code) or _partition_results(group, response.topics)}

        return (await self._at_coordinators("OffsetDelete", [group], ask)).get()[group]

    # How

    async def _at_coordinators(self, what: str, groups: Iterable[str], ask: "Ask[V]") -> Results[str, V]:
        """Ask each group's coordinator until every group has an outcome or the deadline comes."""
        deadline = self._cluster.deadline()
        names = list(dict.fromkeys(groups))
        outcomes: dict[str, V | KafkaError] = {}

        async def attempt() -> None:
            if not names:
                return
            problem: KafkaError | None = None
            nodes, failed = await self._coordinators([name for name in names if name not in outcomes], deadline)
            answers: dict[str, V | KafkaError] = {**failed}
            for node, led in nodes.items():
                try:
                    answers |= await ask(node, led, deadline)
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    problem = error
            for name, answer in answers.items():
                if isinstance(answer, _COORDINATOR_ERRORS):
                    problem = answer
                else:
                    outcomes[name] = answer
            if problem is not None:
                raise problem

        try:
            await self._cluster.retry(what, attempt, deadline)
        except GaveUp as late:
            # The groups whose coordinators answered keep their outcomes.
            outcomes |= dict.fromkeys((name for name in names if name not in outcomes), late)
        values: dict[str, V] = {}
        errors: dict[str, KafkaError] = {}
        for name in names:
            outcome = outcomes[name]
            if isinstance(outcome, KafkaError):
                errors[name] = outcome
            else:
                values[name] = outcome
        return Results(values, errors)

    async def _coordinators(
        self, groups: list[str], deadline: Deadline
    ) -> tuple[dict[Node, list[str]], dict[str, KafkaError]]:
        connection = await self._cluster.any_connection(deadline)
        rows: list[Coordinator] = []
        if connection.supports(KEYS["FindCoordinator"], 4):
            request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=groups)
            response: FindCoordinatorResponse = await self._cluster.ask(
                connection, request, "FindCoordinator", deadline
            )
            rows += response.coordinators
        else:
            for name in groups:
                request = FindCoordinatorRequest(key_type=GROUP, key=name)
                response = await self._cluster.ask(connection, request, "FindCoordinator", deadline)
                rows.append(_coordinator_row(name, response))
        nodes: dict[Node, list[str]] = {}
        errors: dict[str, KafkaError] = {}
        for row in rows:
            error = _group_error(row.key, row.error_code)
            if error is not None:
                errors[row.key] = error
            else:
                nodes.setdefault(await self._node(row.node_id, deadline), []).append(row.key)
        return nodes, errors

    async def _node(self, node_id: int, deadline: Deadline) -> Node:
        node = self._cluster.node(node_id)
        if node is None:
            await self._cluster.refresh(deadline)
            node = self._cluster.node(node_id)
        if node is None:
            raise CoordinatorNotAvailable(f"broker {node_id} is the coordinator and not part of the cluster's metadata")
        return node


def _coordinator_row(name: str, response: FindCoordinatorResponse) -> Coordinator:
    return Coordinator(
        key=name,
        node_id=response.node_id,
        host=response.host,
        port=response.port,
        error_code=response.error_code,
        error_message=response.error_message,
    )


_WORDS: dict[type[KafkaError], str] = {
    GroupIdNotFound: "does not exist",
    NonEmptyGroup: "has members",
    UnknownMemberId: "has members, and only they may commit",
}


def _group_error(group: str, code: int) -> KafkaError | None:
    """What a broker says of a group in one number, in words."""
    if not code:
        return None
    error = error_for(code)
    words = _WORDS.get(error)
    return error(f"group {group!r} {words}" if words else f"group {group!r}")


def _partition_error(group: str, tp: TopicPartition, code: int) -> KafkaError:
    error = error_for(code)
    if error is UnknownTopicOrPartition:
        return error(f"there is no partition {tp}")
    if error is GroupSubscribedToTopic:
        return error(f"a member of group {group!r} reads topic {tp.topic!r}")
    if error in _WORDS:
        return error(f"group {group!r} {_WORDS[error]}")
    return error(f"{tp} of group {group!r}")


def _partition_results(group: str, topics: Iterable[Any]) -> Results[TopicPartition, None]:
    """The outcome of each partition. An answer of the wrong coordinator is raised, so that the right one is asked."""
    values: dict[TopicPartition, None] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for topic in topics:
        for row in topic.partitions:
            tp = TopicPartition(topic.name, row.partition_index)
            if not row.error_code:
                values[tp] = None
                continue
            errors[tp] = _partition_error(group, tp, row.error_code)
            if isinstance(errors[tp], _COORDINATOR_ERRORS):
                raise errors[tp]
    return Results(values, errors)


def _described(row: DescribedGroup, node: Node) -> GroupDescription | KafkaError:
    code = row.error_code
    if not code and row.group_state == DEAD:
        # How versions before 6 say it.
        code = GroupIdNotFound.code
    error = _group_error(row.group_id, code)
    if error is not None:
        return error
    members = tuple(_member(member, row.protocol_type) for member in row.members)
    return GroupDescription(
        row.group_id, row.group_state, "classic", row.protocol_type, row.protocol_data, node, members
    )


def _member(row: DescribedGroupMember, protocol_type: str) -> MemberDescription:
    assignment = read_assignment(row.member_assignment) if protocol_type == CONSUMER_PROTOCOL_TYPE else None
    return MemberDescription(row.member_id, row.group_instance_id, row.client_id, row.client_host, assignment)


CLASSIC_MEMBER = 0  # -1 where an older broker does not say


def _described_consumer_group(row: consumer_group_describe.DescribedGroup, node: Node) -> GroupDescription | KafkaError:
    error = _group_error(row.group_id, row.error_code)
    if error is not None:
        return error
    members = tuple(
        MemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            _assigned(member.assignment),
            _assigned(member.target_assignment),
            member.member_epoch,
            "classic" if member.member_type == CLASSIC_MEMBER else "consumer",
        )
        for member in row.members
    )
    return GroupDescription(
        row.group_id,
        row.group_state,
        "consumer",
        CONSUMER_PROTOCOL_TYPE,
        row.assignor_name,
        node,
        members,
        row.group_epoch,
        row.assignment_epoch,
    )


def _assigned(assignment: consumer_group_describe.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index) for topic in assignment.topic_partitions for index in topic.partitions
    )
