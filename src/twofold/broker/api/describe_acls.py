"""DescribeAcls: API key 29, versions 1-3.

1. Needs DESCRIBE on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31). Without an authorizer: SECURITY_DISABLED (54).
2. The filter is that of `controller.security`; an unknown code in it is INVALID_REQUEST (42).
3. One row per pattern, with its entries, in an order that is the same each time.
"""

from itertools import groupby

from twofold.broker.api.create_acls import check_acl_access
from twofold.broker.network.authorizer import Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.controller.security.acl_changes import check_filter, matching_entries
from twofold.controller.security.acls import AclPattern
from twofold.controller.security.records import AccessControlEntry
from twofold.wire.errors import NONE, KafkaError
from twofold.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

KEY = 29


def handle(services: Services, context: RequestContext, request: DescribeAclsRequest) -> DescribeAclsResponse:
    check_acl_access(services.authorizer, context, Operation.DESCRIBE)
    check_filter(request)
    resources = [
        DescribeAclsResource(
            resource_type=pattern.resource_type,
            resource_name=pattern.name,
            pattern_type=pattern.pattern_type,
            acls=[_description(entry) for entry in entries],
        )
        for pattern, entries in groupby(matching_entries(services.image.acls, request), key=_pattern)
    ]
    return DescribeAclsResponse(error_code=NONE, error_message=None, resources=resources)


def _pattern(entry: AccessControlEntry) -> AclPattern:
    return AclPattern(entry.resource_type, entry.pattern_type, entry.resource_name)


def _description(entry: AccessControlEntry) -> AclDescription:
    return AclDescription(
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )


def error_response(request: DescribeAclsRequest, error: KafkaError, version: int) -> DescribeAclsResponse:
    return DescribeAclsResponse(error_code=error.code, error_message=error.message or None, resources=())
