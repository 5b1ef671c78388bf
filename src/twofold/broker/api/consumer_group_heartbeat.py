"""ConsumerGroupHeartbeat: API key 68, versions 0-1. Not served yet (KIP-848).

1. Listed by ApiVersions and always answered with UNSUPPORTED_VERSION (35), as Apache Kafka does where `group.version`
   is 0: a consumer with group.protocol=consumer then fails with a message. Were it not listed, some clients would wait.
"""

from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError, UnsupportedVersion
from twofold.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

KEY = 68

NOT_SERVED = "Twofold does not serve the consumer protocol (KIP-848) yet: use group.protocol=classic"


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse:
    return error_response(request, UnsupportedVersion(NOT_SERVED), context.version)


def error_response(
    request: ConsumerGroupHeartbeatRequest, error: KafkaError, version: int
) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.message or None, member_epoch=0, heartbeat_interval_ms=0
    )
