"""Heartbeat: API key 12, versions 0-4.

1. Without READ on the group: GROUP_AUTHORIZATION_FAILED (30). An empty group id: INVALID_GROUP_ID (24).
2. UNKNOWN_MEMBER_ID (25), FENCED_INSTANCE_ID (82), ILLEGAL_GENERATION (22) for a client that is no member of the
   generation.
3. A member's session begins anew. While the group prepares a rebalance it is told so: REBALANCE_IN_PROGRESS (27).
4. While the group is being loaded: NONE. Its members get a full session when that is done.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import NONE, CoordinatorLoadInProgress, GroupAuthorizationFailed, KafkaError
from twofold.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse

KEY = 12


def handle(services: Services, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
    if not services.authorizer.authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")
    try:
        shard = services.groups.shard(request.group_id)
    except CoordinatorLoadInProgress:
        return HeartbeatResponse(error_code=NONE)
    return HeartbeatResponse(error_code=shard.heartbeat(request))


def error_response(request: HeartbeatRequest, error: KafkaError, version: int) -> HeartbeatResponse:
    return HeartbeatResponse(error_code=error.code)
