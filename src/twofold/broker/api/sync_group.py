"""SyncGroup: API key 14, versions 0-5.

1. Without READ on the group: GROUP_AUTHORIZATION_FAILED (30). An empty group id: INVALID_GROUP_ID (24).
2. From version 5 on protocol type and name must be given, else INCONSISTENT_GROUP_PROTOCOL (23); in any version that
   has them they must be the group's.
3. UNKNOWN_MEMBER_ID (25), FENCED_INSTANCE_ID (82), ILLEGAL_GENERATION (22) for a client that is no member of the
   generation.
4. While members still join: REBALANCE_IN_PROGRESS (27). In a stable group: the member's assignment.
5. Otherwise members wait for the assignment of the leader, and every member, also the leader, gets it when it is in
   the log. A rebalance that begins meanwhile answers them with 27.
"""

from collections.abc import Awaitable

from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.answers import sync_error
from twofold.wire.errors import GroupAuthorizationFailed, InconsistentGroupProtocol, KafkaError
from twofold.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

KEY = 14

PROTOCOL_REQUIRED_SINCE = 5


def handle(
    services: Services, context: RequestContext, request: SyncGroupRequest
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    if context.version >= PROTOCOL_REQUIRED_SINCE and None in (request.protocol_type, request.protocol_name):
        raise InconsistentGroupProtocol(f"version {context.version} needs protocol type and name")
    if not services.authorizer.authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")
    shard = services.groups.shard(request.group_id)
    return when_done(shard.sync(request), lambda response: response)


def error_response(request: SyncGroupRequest, error: KafkaError, version: int) -> SyncGroupResponse:
    return sync_error(error)
