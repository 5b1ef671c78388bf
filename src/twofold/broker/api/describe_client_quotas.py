"""DescribeClientQuotas: API key 48, versions 0-1.

1. Needs DESCRIBE_CONFIGS on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31) and null entries.
2. A filter that makes no sense: INVALID_REQUEST (42), or UNSUPPORTED_VERSION (35) for an entity type that is not known
   (`controller.quotas`), and null entries.
3. The answer is read from this broker's image, in the order of the entities.
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.controller.quotas import describe_client_quotas
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

KEY = 48


def handle(
    services: Services, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE_CONFIGS):
        raise ClusterAuthorizationFailed("no DESCRIBE_CONFIGS on the cluster")
    return describe_client_quotas(services.image, request)


def error_response(
    request: DescribeClientQuotasRequest, error: KafkaError, version: int
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message or None, entries=None)
