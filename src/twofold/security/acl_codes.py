"""The codes of access control, as the protocol and stored records have them.

READ, WRITE, DELETE and ALTER each imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS; ALL stands for every
operation.
"""

from collections.abc import Mapping
from enum import IntEnum

# The name of the one resource of type CLUSTER.
CLUSTER_NAME = "kafka-cluster"

ANY_HOST = "*"
ANY_PRINCIPAL = "User:*"
ANY_NAME = "*"


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


class PatternType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3
