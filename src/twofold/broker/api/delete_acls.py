"""DeleteAcls: API key 31, versions 1-3.

1. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) in every row. Without an authorizer:
   SECURITY_DISABLED (54) in every row.
2. The rest is for the controller (`controller.security`): one row per filter with what it matched; a filter with an
   unknown code is INVALID_REQUEST (42). All that matches is removed, in one metadata transaction.
3. The entries are obeyed no longer when the answer goes out. The request carries no timeout: the broker's
   `request.timeout.ms` bounds the waiting, then the answer is REQUEST_TIMED_OUT (7).
"""

from twofold.broker.api.create_acls import check_acl_access
from twofold.broker.network.authorizer import Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.wire.errors import KafkaError
from twofold.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

KEY = 31


async def handle(services: Services, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
    check_acl_access(services.authorizer, context, Operation.ALTER)
    timeout_ms = services.settings.int("request.timeout.ms")
    call = services.controller.delete_acls(request)
    return await forward(services.runtime, call, timeout_ms=timeout_ms, name="DeleteAcls")


def error_response(request: DeleteAclsRequest, error: KafkaError, version: int) -> DeleteAclsResponse:
    row = DeleteAclsFilterResult(error_code=error.code, error_message=error.message or None, matching_acls=())
    return DeleteAclsResponse(filter_results=[row for _ in request.filters])
