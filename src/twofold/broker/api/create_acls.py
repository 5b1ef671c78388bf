"""CreateAcls: API key 30, versions 1-3.

1. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) in every row. Without an authorizer:
   SECURITY_DISABLED (54) in every row.
2. The rest is for the controller (`controller.security`): what is wrong with a row is INVALID_REQUEST (42) there,
   and the others are done, in one metadata transaction. An entry that exists is a success.
3. The new entries are obeyed when the answer goes out. The request carries no timeout: the broker's
   `request.timeout.ms` bounds the waiting, then the answer is REQUEST_TIMED_OUT (7).
"""

from twofold.broker.network.authorizer import AllowAll, Authorizer, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError, SecurityDisabled
from twofold.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

KEY = 30


async def handle(services: Services, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
    check_acl_access(services.authorizer, context, Operation.ALTER)
    timeout_ms = services.settings.int("request.timeout.ms")
    call = services.controller.create_acls(request)
    return await forward(services.runtime, call, timeout_ms=timeout_ms, name="CreateAcls")


def check_acl_access(authorizer: Authorizer, context: RequestContext, operation: Operation) -> None:
    """Whether the client may look at or change access control entries, and whether there are any to obey."""
    if not cluster_allows(authorizer, context, operation):
        raise ClusterAuthorizationFailed(f"no {operation.name} on the cluster")
    if isinstance(authorizer, AllowAll):
        raise SecurityDisabled("no authorizer is set: authorizer.class.name is empty")


def error_response(request: CreateAclsRequest, error: KafkaError, version: int) -> CreateAclsResponse:
    row = AclCreationResult(error_code=error.code, error_message=error.message or None)
    return CreateAclsResponse(results=[row for _ in request.creations])
