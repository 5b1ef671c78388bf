"""What a principal may do: every API asks the authorizer. Without one, every principal may do everything.

1. Operations and resource types carry Kafka's codes, because masks of them go over the wire.
2. READ, WRITE, DELETE and ALTER each imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS; ALL implies everything.
   That holds for what is allowed, and not for what is denied. Callers ask for the one operation that their API needs.
3. A mask of authorized operations has one bit per operation that makes sense for the resource's type.
4. A caller that only filters a list or makes a mask asks quietly: nothing is refused to the client then, and the audit
   has no line about it.
"""

from typing import Protocol

from twofold.broker.network.context import RequestContext
from twofold.security.acl_codes import CLUSTER_NAME as CLUSTER_NAME
from twofold.security.acl_codes import OPERATIONS as OPERATIONS
from twofold.security.acl_codes import AclResourceType as AclResourceType
from twofold.security.acl_codes import Operation as Operation

# What the protocol says where the client did not ask for a mask.
OPERATIONS_NOT_ASKED = -(2**31)


class Authorizer(Protocol):
    def authorize(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: AclResourceType,
        resource_name: str,
        *,
        quiet: bool = False,
    ) -> bool: ...

    def authorize_any(self, context: RequestContext, operation: Operation, resource_type: AclResourceType) -> bool:
        """Whether the operation is allowed on some resource of the type, whether or not it exists."""
        ...


class AllowAll:
    """No rules: every principal may do everything."""

    __slots__ = ()

    def authorize(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: AclResourceType,
        resource_name: str,
        *,
        quiet: bool = False,
    ) -> bool:
        return True

    def authorize_any(self, context: RequestContext, operation: Operation, resource_type: AclResourceType) -> bool:
        return True


def authorized_operations(
    authorizer: Authorizer, context: RequestContext, resource_type: AclResourceType, resource_name: str
) -> int:
    """The mask of what the principal may do with a resource."""
    mask = 0
    for operation in OPERATIONS[resource_type]:
        if authorizer.authorize(context, operation, resource_type, resource_name, quiet=True):
            mask |= 1 << operation
    return mask


def cluster_allows(
    authorizer: Authorizer, context: RequestContext, operation: Operation, *, quiet: bool = False
) -> bool:
    return authorizer.authorize(context, operation, AclResourceType.CLUSTER, CLUSTER_NAME, quiet=quiet)
