"""JoinGroup: API key 11, versions 0-9.

1. Without READ on the group: GROUP_AUTHORIZATION_FAILED (30). An empty group id: INVALID_GROUP_ID (24). A session
   timeout outside of `group.min.session.timeout.ms` and `group.max.session.timeout.ms`: INVALID_SESSION_TIMEOUT (26).
2. A group is created by the first member that joins without an id. A member id in a group that does not have it:
   UNKNOWN_MEMBER_ID (25).
3. From version 4 on a member without id and without instance id is given an id and has to come again with it:
   MEMBER_ID_REQUIRED (79).
4. No protocol that all members have in common, or another protocol type: INCONSISTENT_GROUP_PROTOCOL (23). More than
   `group.max.size` members: GROUP_MAX_SIZE_REACHED (81).
5. A static member without id takes the place of its former self, which is FENCED_INSTANCE_ID (82) from then on. In a
   stable group it gets the current generation without a rebalance; as leader it is told from version 9 on that the
   assignment exists (`skip_assignment`).
6. Other members wait until the generation is complete: all have joined, or `rebalance_timeout_ms` is up; a new group
   waits `group.initial.rebalance.delay.ms`, and longer while members come. Only the leader gets their list.
7. Before version 7 an error comes with the protocol name "" instead of null.
"""

from collections.abc import Awaitable
from functools import partial

from twofold.broker.coordinators.groups.service import client_of
from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.answers import join_error
from twofold.wire.errors import GroupAuthorizationFailed, KafkaError
from twofold.wire.message import replace
from twofold.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

KEY = 11

NULL_PROTOCOL_SINCE = 7


def handle(
    services: Services, context: RequestContext, request: JoinGroupRequest
) -> JoinGroupResponse | Awaitable[JoinGroupResponse]:
    if not services.authorizer.authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")
    shard = services.groups.shard(request.group_id)
    return when_done(shard.join(request, client_of(context)), partial(_fit, context.version))


def error_response(request: JoinGroupRequest, error: KafkaError, version: int) -> JoinGroupResponse:
    return _fit(version, join_error(error, request.member_id))


def _fit(version: int, response: JoinGroupResponse) -> JoinGroupResponse:
    if response.protocol_name is None and version < NULL_PROTOCOL_SINCE:
        return replace(response, protocol_name="")
    return response
