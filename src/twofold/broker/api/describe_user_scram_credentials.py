"""DescribeUserScramCredentials: API key 50, version 0.

1. Needs DESCRIBE on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
2. One row per user with mechanisms and iterations, and nothing of the password. Null or no names mean all users. A
   missing user: RESOURCE_NOT_FOUND (91); one that is named twice: DUPLICATE_RESOURCE (92).
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.controller.security.scram_changes import described
from twofold.wire.errors import NONE, ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

KEY = 50


def handle(
    services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    if not cluster_allows(services.authorizer, context, Operation.DESCRIBE):
        raise ClusterAuthorizationFailed("no DESCRIBE on the cluster")
    results = described(services.image, [user.name for user in request.users or ()])
    return DescribeUserScramCredentialsResponse(error_code=NONE, error_message="", results=results)


def error_response(
    request: DescribeUserScramCredentialsRequest, error: KafkaError, version: int
) -> DescribeUserScramCredentialsResponse:
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message or None, results=())
