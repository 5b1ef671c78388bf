"""LeaveGroup: API key 13, versions 0-5.

1. Without READ on the group: GROUP_AUTHORIZATION_FAILED (30). An empty group id: INVALID_GROUP_ID (24).
2. One member before version 3, whose error is that of the answer; any number from then on, each with its own row:
   UNKNOWN_MEMBER_ID (25) also where there is no such group, FENCED_INSTANCE_ID (82).
3. Without a member id, an instance id removes the static member that has it. An id that was given out and not used yet
   is taken back.
4. The members that are left rebalance. The answer to the last one waits until the log says that the group is empty.
"""

from collections.abc import Awaitable
from functools import partial

from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import NONE, GroupAuthorizationFailed, KafkaError
from twofold.wire.message import replace
from twofold.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity

KEY = 13

BATCHES_SINCE = 3


def handle(
    services: Services, context: RequestContext, request: LeaveGroupRequest
) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
    if not services.authorizer.authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")
    shard = services.groups.shard(request.group_id)
    if context.version < BATCHES_SINCE:
        request = replace(request, members=[MemberIdentity(member_id=request.member_id)])
    return when_done(shard.leave(request), partial(_fit, context.version))


def error_response(request: LeaveGroupRequest, error: KafkaError, version: int) -> LeaveGroupResponse:
    return LeaveGroupResponse(error_code=error.code)


def _fit(version: int, response: LeaveGroupResponse) -> LeaveGroupResponse:
    if version < BATCHES_SINCE and response.error_code == NONE:
        return replace(response, error_code=response.members[0].error_code)
    return response
