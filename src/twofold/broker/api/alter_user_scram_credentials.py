"""AlterUserScramCredentials: API key 51, version 0.

1. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) in every row.
2. The rest is for the controller (`controller.security`): one row per user with 33, 91, 92 or 93. The good rows are one
   atomic change.
3. The new password counts for the next login. What is connected stays connected, also where its user is removed. The
   request carries no timeout: the broker's `request.timeout.ms` bounds the waiting, then the answer is
   REQUEST_TIMED_OUT (7).
4. The body is never logged: it has what a password can be checked against.
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

KEY = 51


async def handle(
    services: Services, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    timeout_ms = services.settings.int("request.timeout.ms")
    call = services.controller.alter_user_scram_credentials(request)
    return await forward(services.runtime, call, timeout_ms=timeout_ms, name="AlterUserScramCredentials")


def error_response(
    request: AlterUserScramCredentialsRequest, error: KafkaError, version: int
) -> AlterUserScramCredentialsResponse:
    deleted, changed = [row.name for row in request.deletions], [row.name for row in request.upsertions]
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=error.code, error_message=error.message or None)
            for name in dict.fromkeys(deleted + changed)
        ]
    )
