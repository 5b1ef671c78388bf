"""The answers to members, and what of their requests depends on the version."""

from twofold.coordinator.group.classic import ClassicGroup, Member
from twofold.wire.errors import NONE, KafkaError
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from twofold.wire.messages.sync_group import SyncGroupResponse

UNKNOWN_MEMBER = ""


def rebalance_timeout(request: JoinGroupRequest) -> int:
    """Version 0 has one timeout for both."""
    return request.session_timeout_ms if request.rebalance_timeout_ms == -1 else request.rebalance_timeout_ms


def join_error(error: KafkaError, member_id: str = UNKNOWN_MEMBER) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=error.code, protocol_name=None, leader="", member_id=member_id, members=())


def joined(
    group: ClassicGroup,
    member: Member,
    leader: str | None = None,
    *,
    is_leader: bool | None = None,
    skip_assignment: bool = False,
) -> JoinGroupResponse:
    if is_leader is None:
        is_leader = group.leader == member.member_id
    return JoinGroupResponse(
        error_code=NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader or group.leader or "",
        member_id=member.member_id,
        members=group.view() if is_leader else (),
        skip_assignment=skip_assignment,
    )


def sync_error(error: KafkaError) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error.code, assignment=b"")


def synced(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=NONE, assignment=member.assignment, protocol_type=group.protocol_type, protocol_name=group.protocol
    )
