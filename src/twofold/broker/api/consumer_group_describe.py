"""ConsumerGroupDescribe: API key 69, versions 0-1. Not served yet (KIP-848).

1. Listed by ApiVersions; a row a group, always with UNSUPPORTED_VERSION (35), as Apache Kafka does where
   `group.version` is 0. Administrators' clients then ask with DescribeGroups.
"""

from twofold.broker.api.consumer_group_heartbeat import NOT_SERVED
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError, UnsupportedVersion
from twofold.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

KEY = 69


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    return error_response(request, UnsupportedVersion(NOT_SERVED), context.version)


def error_response(
    request: ConsumerGroupDescribeRequest, error: KafkaError, version: int
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(
                error_code=error.code,
                error_message=error.message or None,
                group_id=group_id,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=(),
            )
            for group_id in request.group_ids
        ]
    )
