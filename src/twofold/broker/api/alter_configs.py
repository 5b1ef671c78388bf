"""AlterConfigs: API key 33, versions 0-2. The older form of IncrementalAlterConfigs.

1. What a resource has of its own is replaced as a whole: configurations that the request names get their values, all
   others that were set go back to their defaults. An empty list takes all of them back.
2. One row per resource, and the rules of IncrementalAlterConfigs: permission (29, 31), at which broker (42), what the
   controller refuses (`controller.configs`: duplicates, nulls and unknown types 42, values 40 for a topic and 42 for a
   broker, unknown topics 3), `validate_only`, REQUEST_TIMED_OUT (7) after `request.timeout.ms`.
3. The change is in force when the answer goes out.
"""

from twofold.broker.api.incremental_alter_configs import authorized_alterations
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError
from twofold.wire.message import replace
from twofold.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

KEY = 33


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    allowed, refused = authorized_alterations(services, context, request.resources)
    rows = [_failed(resource, error) for resource, error in refused]
    if allowed:
        call = services.controller.alter_configs(replace(request, resources=allowed))
        timeout_ms = services.settings.int("request.timeout.ms")
        response = await forward(services.runtime, call, timeout_ms=timeout_ms, name="AlterConfigs")
        rows += response.responses
    return AlterConfigsResponse(responses=rows)


def error_response(request: AlterConfigsRequest, error: KafkaError, version: int) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=[_failed(resource, error) for resource in request.resources])


def _failed(resource: AlterConfigsResource, error: KafkaError) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error.code,
        error_message=error.message or None,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
