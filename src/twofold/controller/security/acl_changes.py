"""CreateAcls and DeleteAcls as operations on the image, and the filters that DescribeAcls uses as well.

1. A row that names an unknown code, a pattern type that only filters have, an empty resource name, a cluster of another
   name than `kafka-cluster`, or a principal without a colon: INVALID_REQUEST (42) for that row. The others are done.
2. Not looked at, as in Apache Kafka: whether the operation makes sense for the type, whether the resource or the user
   exists, and the text of the host.
3. An entry that exists is not made again, and its row is a success.
4. A filter matches what is equal to it; a null text, and the code ANY, match everything. The pattern type ANY means
   both types with that very name, MATCH means what applies to a resource of that name.
5. All rows of a request are one metadata transaction.
"""

from collections.abc import Iterator
from typing import Protocol
from uuid import UUID

from twofold.controller.context import Context, error_row, new_id
from twofold.controller.image import MetadataImage
from twofold.controller.operation import Operation
from twofold.controller.security.acls import AclPattern, AclSet, AclSubject
from twofold.controller.security.records import AccessControlEntry, RemoveAccessControlEntry
from twofold.security.acl_codes import ANY_NAME, CLUSTER_NAME, AclResourceType, PatternType, Permission
from twofold.wire.errors import NONE, InvalidRequest, KafkaError
from twofold.wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from twofold.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)

ANY = 1
RESOURCE_TYPES = range(2, 8)
OPERATIONS = range(2, 16)
PERMISSIONS = (Permission.DENY, Permission.ALLOW)
PATTERN_TYPES = (PatternType.LITERAL, PatternType.PREFIXED)
STEP_ENTRIES = 200  # that a filter looks at before others go on


class AclCriteria(Protocol):
    """What DescribeAcls and each row of DeleteAcls name."""

    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


def create_acls(image: MetadataImage, request: CreateAclsRequest, context: Context) -> Operation[CreateAclsResponse]:
    made: set[tuple[object, ...]] = set()
    results: list[AclCreationResult] = []
    for row in request.creations:
        code, message = NONE, None
        try:
            check_creation(row)
        except KafkaError as error:
            code, message = error_row(error)
        else:
            entry = _entry(new_id(context.random), row)
            if entry[1:] not in made and not _exists(image.acls, entry):
                made.add(entry[1:])
                yield entry
        results.append(AclCreationResult(error_code=code, error_message=message))
        yield None
    return CreateAclsResponse(results=results)


def check_creation(row: AclCreation) -> None:
    if row.resource_type not in RESOURCE_TYPES:
        raise InvalidRequest(f"an entry is about a resource of a known type, not of type {row.resource_type}")
    if row.resource_pattern_type not in PATTERN_TYPES:
        raise InvalidRequest(f"an entry has the pattern type LITERAL or PREFIXED, not {row.resource_pattern_type}")
    if row.operation not in OPERATIONS:
        raise InvalidRequest(f"an entry names a known operation, not {row.operation}")
    if row.permission_type not in PERMISSIONS:
        raise InvalidRequest(f"an entry allows or denies: permission {row.permission_type} does neither")
    if not row.resource_name:
        raise InvalidRequest("the name of a resource is not empty")
    if row.resource_type == AclResourceType.CLUSTER and row.resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"the only resource of type CLUSTER is {CLUSTER_NAME}, not {row.resource_name!r}")
    if ":" not in row.principal:
        raise InvalidRequest(f"a principal has a type and a name, such as User:alice, not {row.principal!r}")


def _entry(entry_id: UUID, row: AclCreation) -> AccessControlEntry:
    return AccessControlEntry(
        entry_id, row.resource_type, row.resource_name, row.resource_pattern_type, row.principal, row.host,
        row.operation, row.permission_type,
    )  # fmt: skip


def _exists(acls: AclSet, entry: AccessControlEntry) -> bool:
    pattern = AclPattern(entry.resource_type, entry.pattern_type, entry.resource_name)
    return any(one[1:] == entry[1:] for one in acls.by_subject.get(AclSubject(pattern, entry.principal), ()))


def delete_acls(image: MetadataImage, request: DeleteAclsRequest, context: Context) -> Operation[DeleteAclsResponse]:
    gone: set[UUID] = set()
    results: list[DeleteAclsFilterResult] = []
    for wanted in request.filters:
        try:
            check_filter(wanted)
        except KafkaError as error:
            code, message = error_row(error)
            results.append(DeleteAclsFilterResult(error_code=code, error_message=message, matching_acls=()))
            yield None
            continue
        found: list[AccessControlEntry] = []
        for number, entry in enumerate(image.acls):
            if matches(wanted, entry):
                found.append(entry)
                if entry.id not in gone:
                    gone.add(entry.id)
                    yield RemoveAccessControlEntry(entry.id)
            elif number % STEP_ENTRIES == STEP_ENTRIES - 1:
                yield None
        rows = [_matching(entry) for entry in sorted(found, key=_order)]
        results.append(DeleteAclsFilterResult(error_code=NONE, error_message=None, matching_acls=rows))
        yield None
    return DeleteAclsResponse(filter_results=results)


def _matching(entry: AccessControlEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=NONE,
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission_type,
    )


def _order(entry: AccessControlEntry) -> tuple[object, ...]:
    return entry[1:]


def check_filter(wanted: AclCriteria) -> None:
    """Refuse codes that no filter has."""
    for what, code, known in (
        ("resource type", wanted.resource_type_filter, RESOURCE_TYPES),
        ("pattern type", wanted.pattern_type_filter, (PatternType.MATCH, *PATTERN_TYPES)),
        ("operation", wanted.operation, OPERATIONS),
        ("permission", wanted.permission_type, PERMISSIONS),
    ):
        if code != ANY and code not in known:
            raise InvalidRequest(f"the filter names the unknown {what} {code}")


def matching_entries(acls: AclSet, wanted: AclCriteria) -> Iterator[AccessControlEntry]:
    """In an order that is the same in every process."""
    return iter(sorted((entry for entry in acls if matches(wanted, entry)), key=_order))


def matches(wanted: AclCriteria, entry: AccessControlEntry) -> bool:
    return (
        wanted.resource_type_filter in (ANY, entry.resource_type)
        and wanted.principal_filter in (None, entry.principal)
        and wanted.host_filter in (None, entry.host)
        and wanted.operation in (ANY, entry.operation)
        and wanted.permission_type in (ANY, entry.permission_type)
        and _matches_pattern(wanted, entry)
    )


def _matches_pattern(wanted: AclCriteria, entry: AccessControlEntry) -> bool:
    kind, name = wanted.pattern_type_filter, wanted.resource_name_filter
    if kind in PATTERN_TYPES and kind != entry.pattern_type:
        return False
    if name is None or name == entry.resource_name:
        return True
    if kind != PatternType.MATCH:
        return False
    if entry.pattern_type == PatternType.PREFIXED:
        return name.startswith(entry.resource_name)
    return entry.resource_name == ANY_NAME
