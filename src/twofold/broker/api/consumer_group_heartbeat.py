"""ConsumerGroupHeartbeat: API key 68, versions 0-1 (KIP-848). A member joins, stays, acknowledges and leaves with it.

1. UNSUPPORTED_VERSION (35) while `group.version` is 0, or where `group.coordinator.rebalance.protocols` lacks
   "consumer". Without READ on the group: GROUP_AUTHORIZATION_FAILED (30); without DESCRIBE on a topic that is named:
   TOPIC_AUTHORIZATION_FAILED (29). What is wrong with the request itself: INVALID_REQUEST (42), UNSUPPORTED_ASSIGNOR
   (112). Not the coordinator 16, loading 14.
2. Member epoch 0 joins, creates the group, takes over an empty classic group, and upgrades one with members as
   `group.consumer.migration.policy` says; with any other epoch the group must be there: GROUP_ID_NOT_FOUND (69). A
   full group: GROUP_MAX_SIZE_REACHED (81).
3. An unknown member: UNKNOWN_MEMBER_ID (25); an epoch that is not the member's, nor the one before of a member that
   owns no more than it may: FENCED_MEMBER_EPOCH (110). An instance id of another member: FENCED_INSTANCE_ID (82); one
   that is not given up: UNRELEASED_INSTANCE_ID (111). A pattern that RE2 refuses: INVALID_REGULAR_EXPRESSION (128).
4. Epoch -1 leaves; -2 is a static member that comes back soon.
5. The answer waits until what it says is safe. It has the whole assignment when the member joins, sends all fields, or
   gets another one; else none.
"""

from collections.abc import Awaitable

from twofold.broker.coordinators.waiting import when_done
from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import GroupAuthorizationFailed, KafkaError, TopicAuthorizationFailed
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

KEY = 68


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
    services.groups.check_consumer_protocol()
    authorize = services.authorizer.authorize
    if not authorize(context, Operation.READ, AclResourceType.GROUP, request.group_id):
        raise GroupAuthorizationFailed(f"no READ on group {request.group_id}")
    for name in dict.fromkeys(request.subscribed_topic_names or ()):
        if not authorize(context, Operation.DESCRIBE, AclResourceType.TOPIC, name):
            raise TopicAuthorizationFailed(f"no DESCRIBE on topic {name}")
    return when_done(services.groups.consumer_heartbeat(context, request), lambda response: response)


def error_response(
    request: ConsumerGroupHeartbeatRequest, error: KafkaError, version: int
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
    )
