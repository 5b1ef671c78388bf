"""The administrator's calls about access control entries and SCRAM users, a part of `admin.admin.Admin`.

1. What a call creates or removes is obeyed when it returns.
2. A password leaves this process only salted and hashed, and is in no text that this module makes.
"""

import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from twofold.client.admin.model import Results
from twofold.client.cluster.cluster import Cluster
from twofold.connections.waiting import Deadline
from twofold.security.acl_codes import AclResourceType, Operation, PatternType, Permission
from twofold.security.scram import MIN_ITERATIONS, SALT_BYTES, ScramMechanism, salted_password
from twofold.wire.errors import NotController, error_for, raise_for
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from twofold.wire.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from twofold.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from twofold.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from twofold.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)

T = TypeVar("T")


class AclBinding(NamedTuple):
    """One access control entry: what a principal may, or may not, do with which resources, and from where."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: Operation
    permission: Permission = Permission.ALLOW
    pattern_type: PatternType = PatternType.LITERAL
    host: str = "*"


class AclFilter(NamedTuple):
    """Which entries are meant: None, and ANY, match everything. `PatternType.MATCH` is what applies to the name."""

    resource_type: AclResourceType = AclResourceType.ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY
    pattern_type: PatternType = PatternType.ANY
    host: str | None = None


EVERY_ACL = AclFilter()


class ScramPassword(NamedTuple):
    """The new password of a user. Its text does not show it."""

    user: str
    password: str
    mechanism: ScramMechanism = ScramMechanism.SHA_512
    iterations: int = MIN_ITERATIONS

    def __repr__(self) -> str:
        return f"ScramPassword(user={self.user!r}, mechanism={self.mechanism.mechanism_name})"


class SecurityCalls:
    _cluster: Cluster

    async def create_acls(self, bindings: Iterable[AclBinding]) -> Results[AclBinding, None]:
        """An entry that exists already is a success."""
        wanted = list(dict.fromkeys(bindings))

        async def attempt(deadline: Deadline) -> Results[AclBinding, None]:
            request = CreateAclsRequest(creations=[creation(binding) for binding in wanted])
            response: CreateAclsResponse = await self._ask_any(request, "CreateAcls", deadline)
            return results_by((one, row, None) for one, row in zip(wanted, response.results, strict=True))

        return await self._until_done("CreateAcls", attempt)

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[AclBinding]:
        async def attempt(deadline: Deadline) -> list[AclBinding]:
            request = DescribeAclsRequest(**filter_fields(wanted))
            response: DescribeAclsResponse = await self._ask_any(request, "DescribeAcls", deadline)
            raise_for(response.error_code, response.error_message)
            return [
                AclBinding(
                    AclResourceType(resource.resource_type), resource.resource_name, entry.principal,
                    Operation(entry.operation), Permission(entry.permission_type), PatternType(resource.pattern_type),
                    entry.host,
                )
                for resource in response.resources
                for entry in resource.acls
            ]  # fmt: skip

        return await self._until_done("DescribeAcls", attempt)

    async def delete_acls(self, filters: Iterable[AclFilter]) -> Results[AclFilter, list[AclBinding]]:
        """What each filter has removed."""
        wanted = list(dict.fromkeys(filters))

        async def attempt(deadline: Deadline) -> Results[AclFilter, list[AclBinding]]:
            request = DeleteAclsRequest(filters=[DeleteAclsFilter(**filter_fields(one)) for one in wanted])
            response: DeleteAclsResponse = await self._ask_any(request, "DeleteAcls", deadline)
            return results_by(
                (one, row, [binding_of(gone) for gone in row.matching_acls])
                for one, row in zip(wanted, response.filter_results, strict=True)
            )  # fmt: skip

        return await self._until_done("DeleteAcls", attempt)

    async def describe_users(self, users: Iterable[str] = ()) -> Results[str, Mapping[ScramMechanism, int]]:
        """The SCRAM mechanisms of each user, with their iterations; without names those of all users."""
        names = [UserName(name=name) for name in dict.fromkeys(users)]

        async def attempt(deadline: Deadline) -> Results[str, Mapping[ScramMechanism, int]]:
            request = DescribeUserScramCredentialsRequest(users=names or None)
            response: DescribeUserScramCredentialsResponse = await self._ask_any(
                request, "DescribeUserScramCredentials", deadline
            )
            raise_for(response.error_code, response.error_message)
            return results_by(
                (row.user, row, {ScramMechanism(info.mechanism): info.iterations for info in row.credential_infos})
                for row in response.results
            )

        return await self._until_done("DescribeUserScramCredentials", attempt)

    async def alter_users(
        self, passwords: Iterable[ScramPassword] = (), removals: Iterable[tuple[str, ScramMechanism]] = ()
    ) -> Results[str, None]:
        """Set passwords, and take mechanisms away from users; each user at most once."""
        upsertions = [upsertion(one) for one in passwords]
        deletions = [ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in removals]

        async def attempt(deadline: Deadline) -> Results[str, None]:
            request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
            response: AlterUserScramCredentialsResponse = await self._ask_any(
                request, "AlterUserScramCredentials", deadline
            )
            return results_by((row.user, row, None) for row in response.results)

        return await self._until_done("AlterUserScramCredentials", attempt)

    async def _ask_any(self, request: Any, api: str, deadline: Deadline) -> Any:
        """A broker passes on what is the controller's."""
        return await self._cluster.request(None, request, api, deadline)

    async def _until_done(self, what: str, attempt: Callable[[Deadline], Awaitable[T]]) -> T:
        deadline = self._cluster.deadline()
        return await self._cluster.retry(what, lambda: attempt(deadline), deadline)


def upsertion(one: ScramPassword) -> ScramCredentialUpsertion:
    """What the protocol carries of a password: it salted and hashed."""
    salt = secrets.token_bytes(SALT_BYTES)
    return ScramCredentialUpsertion(
        name=one.user,
        mechanism=one.mechanism,
        iterations=one.iterations,
        salt=salt,
        salted_password=salted_password(one.mechanism, one.password, salt, one.iterations),
    )


class AclFields(Protocol):
    """The fields that an entry has in an answer and in a record."""

    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...
    @property
    def pattern_type(self) -> int: ...
    @property
    def principal(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def operation(self) -> int: ...
    @property
    def permission_type(self) -> int: ...


def binding_of(entry: AclFields) -> AclBinding:
    return AclBinding(
        AclResourceType(entry.resource_type),
        entry.resource_name,
        entry.principal,
        Operation(entry.operation),
        Permission(entry.permission_type),
        PatternType(entry.pattern_type),
        entry.host,
    )


def creation(binding: AclBinding) -> AclCreation:
    return AclCreation(
        resource_type=binding.resource_type,
        resource_name=binding.resource_name,
        resource_pattern_type=binding.pattern_type,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation,
        permission_type=binding.permission,
    )


def filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def results_by(rows: Iterable[tuple[Any, Any, Any]]) -> Results[Any, Any]:
    """Values and errors; an answer that the controller has moved is raised, so that the right one is asked."""
    values: dict[Any, Any] = {}
    errors: dict[Any, Any] = {}
    for key, row, value in rows:
        if not row.error_code:
            values[key] = value
            continue
        error = error_for(row.error_code)(row.error_message or "")
        if isinstance(error, NotController):
            raise error
        errors[key] = error
    return Results(values, errors)
