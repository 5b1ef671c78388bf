"""ConsumerGroupDescribe: API key 69, versions 0-1 (KIP-848). Groups of the consumer protocol, for administrators.

1. A row a group. UNSUPPORTED_VERSION (35) while `group.version` is 0. Without DESCRIBE on the group:
   GROUP_AUTHORIZATION_FAILED (30). An empty id: INVALID_GROUP_ID (24). No such group, or a classic one:
   GROUP_ID_NOT_FOUND (69); administrators' clients then ask with DescribeGroups.
2. Epochs of the group, of its target and of each member; what each member has, with what it has yet to give up, and
   what it is to have. Topics that are gone are left out. The kind of a member (version 1): 0 classic, 1 consumer.
3. A topic in it that the client may not DESCRIBE: TOPIC_AUTHORIZATION_FAILED (29), and no members.
4. The mask of allowed operations, where asked for, with rows that have no error.
5. Not the coordinator 16, loading 14: on the rows of the groups that it concerns.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, authorized_operations
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.consumer.overview import describe_consumer_group, topics_shown
from twofold.wire.errors import (
    GroupAuthorizationFailed,
    GroupIdNotFound,
    KafkaError,
    TopicAuthorizationFailed,
)
from twofold.wire.message import replace
from twofold.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

KEY = 69


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    services.groups.check_consumer_protocol()
    return ConsumerGroupDescribeResponse(
        groups=[
            _row(services, context, group_id, with_operations=request.include_authorized_operations)
            for group_id in request.group_ids
        ]
    )


def error_response(
    request: ConsumerGroupDescribeRequest, error: KafkaError, version: int
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_failed(group_id, error) for group_id in request.group_ids])


def _row(services: Services, context: RequestContext, group_id: str, *, with_operations: bool) -> DescribedGroup:
    authorizer = services.authorizer
    try:
        if not authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.GROUP, group_id):
            raise GroupAuthorizationFailed("")
        shard = services.groups.shard(group_id)
        group = shard.committed.consumers.get(group_id)
        if group is None:
            raise GroupIdNotFound(f"Group {group_id} not found.")
        found = describe_consumer_group(group, services.groups.cluster, shard.consumers.config)
        for name in sorted(topics_shown(found)):
            if not authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name):
                raise TopicAuthorizationFailed(
                    "The group has described topic(s) that the client is not authorized to describe."
                )
    except KafkaError as error:
        return _failed(group_id, error)
    if with_operations:
        mask = authorized_operations(authorizer, context, AclResourceType.GROUP, group_id)
        return replace(found, authorized_operations=mask)
    return found


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        error_code=error.code,
        error_message=error.message or None,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=(),
    )
