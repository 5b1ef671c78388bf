"""Groups as administrators see them: listed and described.

1. A group is listed from its first record on. Filters by state and by type ignore case, those by state blanks around a
   name, too; an unknown word matches none.
2. Protocol and subscriptions are shown of a stable group only: otherwise they are on their way to change. An assignment
   is shown until the next one takes its place: its member may still be working on it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from twofold.coordinator.group.classic import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from twofold.coordinator.group.consumer.overview import CONSUMER
from twofold.coordinator.group.membership import Membership
from twofold.coordinator.group.state import GroupsState
from twofold.coordinator.group.states import GroupState
from twofold.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember

CLASSIC = "classic"


class Listed(NamedTuple):
    group_id: str
    protocol_type: str
    state: str
    type: str = CLASSIC


def list_groups(
    state: GroupsState, membership: Membership, states: Sequence[str] = (), types: Sequence[str] = ()
) -> Iterator[Listed]:
    wanted_states = {name.strip().lower() for name in states}
    wanted_types = {name.lower() for name in types}
    if not types or CONSUMER in wanted_types:
        for group_id, consumers in state.consumers.items():
            name = consumers.state.value
            if not wanted_states or name.lower() in wanted_states:
                yield Listed(group_id, CONSUMER_PROTOCOL_TYPE, name, CONSUMER)
    if types and CLASSIC not in wanted_types:
        return
    for group_id, value in state.groups.items():
        group = membership.groups.get(group_id)
        name = GroupState.EMPTY.value if group is None else group.state.value
        if wanted_states and name.lower() not in wanted_states:
            continue
        protocol_type = value.protocol_type if group is None else group.protocol_type or ""
        yield Listed(group_id, protocol_type, name)


def describe_group(state: GroupsState, membership: Membership, group_id: str) -> DescribedGroup | None:
    """None for a group that does not exist."""
    group = membership.find(state, group_id) if group_id in state.groups else None
    if group is None:
        return None
    is_stable = group.state is GroupState.STABLE
    return DescribedGroup(
        error_code=0,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if is_stable else "",
        members=_members(group, is_stable),
    )


def _members(group: ClassicGroup, is_stable: bool) -> list[DescribedGroupMember]:
    return [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata(group.protocol) if is_stable else b"",
            member_assignment=member.assignment,
        )
        for member in group.members.values()
    ]
