"""DescribeGroups: API key 15, versions 0-6.

1. A row a group, in the order asked for. Without DESCRIBE on it: GROUP_AUTHORIZATION_FAILED (30).
2. A group that does not exist, or is not of the classic kind: state "Dead" without an error; from version 6 on with
   GROUP_ID_NOT_FOUND (69).
3. Members in any state; their subscriptions, assignments and the protocol only of a stable group.
4. The mask of allowed operations (version 3), where asked for, with rows that have no error.
5. Not the coordinator 16, loading 14: on the rows of the groups that it concerns.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, authorized_operations
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.overview import describe_group
from twofold.coordinator.group.states import GroupState
from twofold.wire.errors import NONE, GroupAuthorizationFailed, GroupIdNotFound, KafkaError
from twofold.wire.message import replace
from twofold.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

KEY = 15

NOT_FOUND_SINCE = 6


def handle(services: Services, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(
        groups=[_row(services, context, group_id, request.include_authorized_operations) for group_id in request.groups]
    )


def error_response(request: DescribeGroupsRequest, error: KafkaError, version: int) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_failed(group_id, error) for group_id in request.groups])


def _row(services: Services, context: RequestContext, group_id: str, with_operations: bool) -> DescribedGroup:
    try:
        if not services.authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.GROUP, group_id):
            raise GroupAuthorizationFailed(f"no DESCRIBE on group {group_id}")
        shard = services.groups.shard(group_id, allow_empty=True)
        found = describe_group(shard.committed, shard.membership, group_id)
        if found is None:
            if context.version >= NOT_FOUND_SINCE:
                raise GroupIdNotFound(f"there is no group {group_id}")
            found = _dead(group_id)
    except GroupIdNotFound as error:
        return replace(_dead(group_id), error_code=error.code, error_message=error.message)
    except KafkaError as error:
        return _failed(group_id, error)
    if with_operations:
        mask = authorized_operations(services.authorizer, context, AclResourceType.GROUP, group_id)
        return replace(found, authorized_operations=mask)
    return found


def _dead(group_id: str) -> DescribedGroup:
    return DescribedGroup(
        error_code=NONE,
        group_id=group_id,
        group_state=GroupState.DEAD.value,
        protocol_type="",
        protocol_data="",
        members=(),
    )


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    return replace(_dead(group_id), error_code=error.code, group_state="")
