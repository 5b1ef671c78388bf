"""What a principal may do: every API asks the authorizer. Without one, every principal may do everything.

1. Operations and resource types carry Kafka's codes, because masks of them go over the wire.
2. READ, WRITE, DELETE and ALTER each imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS; ALL implies everything.
   That holds for what is allowed, and not for what is denied. Callers ask for the one operation that their API needs.
3. A mask of authorized operations has one bit per operation that makes sense for the resource's type.
4. A caller that only filters a list or makes a mask asks quietly: nothing is refused to the client then, and the audit
   has no line about it.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Protocol

from twofold.broker.network.context import RequestContext

# The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"

# What the protocol says where the client did not ask for a mask.
OPERATIONS_NOT_ASKED = -(2**31)


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


_READ, _WRITE, _CREATE, _DELETE = Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE
_ALTER, _DESCRIBE, _ACTION = Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION
_DESCRIBE_CONFIGS, _ALTER_CONFIGS = Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS

OPERATIONS: Mapping[AclResourceType, tuple[Operation, ...]] = {
    AclResourceType.TOPIC: (
        _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (_READ, _DELETE, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS),
    AclResourceType.CLUSTER: (
        _CREATE, _ALTER, _DESCRIBE, _ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (_WRITE, _DESCRIBE, Operation.TWO_PHASE_COMMIT),
    AclResourceType.DELEGATION_TOKEN: (_DESCRIBE,),
    AclResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip


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
