"""AlterClientQuotas: API key 49, versions 0-1.

1. Needs ALTER_CONFIGS on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) on every row.
2. The rest is for the controller, which decides each entity on its own (`controller.quotas`): everything that is wrong
   with one is INVALID_REQUEST (42) on its row. `validate_only` changes nothing.
3. The quotas are in force when the answer goes out. The request carries no timeout: the broker's `request.timeout.ms`
   bounds the waiting, then the answer is REQUEST_TIMED_OUT (7).
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityDataResult,
    EntryDataResult,
)

KEY = 49


async def handle(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER_CONFIGS):
        raise ClusterAuthorizationFailed("no ALTER_CONFIGS on the cluster")
    call = services.controller.alter_client_quotas(request)
    timeout_ms = services.settings.int("request.timeout.ms")
    return await forward(services.runtime, call, timeout_ms=timeout_ms, name="AlterClientQuotas")


def error_response(request: AlterClientQuotasRequest, error: KafkaError, version: int) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            EntryDataResult(
                error_code=error.code,
                error_message=error.message or None,
                entity=[
                    EntityDataResult(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )
