"""A running broker, or the metadata of a folder whose broker is stopped: both take the same calls."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Protocol

from twofold.cli import declare
from twofold.cli.admin import connected
from twofold.cli.stopped import controller_of
from twofold.client.admin.model import Results
from twofold.client.admin.security import (
    EVERY_ACL,
    AclBinding,
    AclFilter,
    ScramPassword,
    binding_of,
    creation,
    filter_fields,
    results_by,
    upsertion,
)
from twofold.controller.security.acl_changes import matching_entries
from twofold.controller.security.scram_changes import described
from twofold.quorum.controller import Controller
from twofold.security.scram import ScramMechanism
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from twofold.wire.messages.create_acls import CreateAclsRequest
from twofold.wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest

StoppedData = Annotated[
    str | None,
    declare.Option("--data", metavar="DIR", help="Change the folder of a stopped broker instead of asking one."),
]


class Security(Protocol):
    """What both can do."""

    async def create_acls(self, bindings: Iterable[AclBinding]) -> Results[AclBinding, None]: ...

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[AclBinding]: ...

    async def delete_acls(self, filters: Iterable[AclFilter]) -> Results[AclFilter, list[AclBinding]]: ...

    async def describe_users(self, users: Iterable[str] = ()) -> Results[str, Mapping[ScramMechanism, int]]: ...

    async def alter_users(
        self, passwords: Iterable[ScramPassword] = (), removals: Iterable[tuple[str, ScramMechanism]] = ()
    ) -> Results[str, None]: ...


class StoppedFolder:
    """The calls, done by the controller over a folder."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def create_acls(self, bindings: Iterable[AclBinding]) -> Results[AclBinding, None]:
        wanted = list(dict.fromkeys(bindings))
        response = await self._controller.create_acls(CreateAclsRequest(creations=[creation(one) for one in wanted]))
        return results_by((one, row, None) for one, row in zip(wanted, response.results, strict=True))

    async def describe_acls(self, wanted: AclFilter = EVERY_ACL) -> list[AclBinding]:
        row = DeleteAclsFilter(**filter_fields(wanted))
        return [binding_of(entry) for entry in matching_entries(self._controller.image.acls, row)]

    async def delete_acls(self, filters: Iterable[AclFilter]) -> Results[AclFilter, list[AclBinding]]:
        wanted = list(dict.fromkeys(filters))
        request = DeleteAclsRequest(filters=[DeleteAclsFilter(**filter_fields(one)) for one in wanted])
        response = await self._controller.delete_acls(request)
        return results_by(
            (one, row, [binding_of(gone) for gone in row.matching_acls])
            for one, row in zip(wanted, response.filter_results, strict=True)
        )

    async def describe_users(self, users: Iterable[str] = ()) -> Results[str, Mapping[ScramMechanism, int]]:
        return results_by(
            (row.user, row, {ScramMechanism(info.mechanism): info.iterations for info in row.credential_infos})
            for row in described(self._controller.image, list(users))
        )

    async def alter_users(
        self, passwords: Iterable[ScramPassword] = (), removals: Iterable[tuple[str, ScramMechanism]] = ()
    ) -> Results[str, None]:
        request = AlterUserScramCredentialsRequest(
            deletions=[ScramCredentialDeletion(name=name, mechanism=mechanism) for name, mechanism in removals],
            upsertions=[upsertion(one) for one in passwords],
        )
        response = await self._controller.alter_user_scram_credentials(request)
        return results_by((row.user, row, None) for row in response.results)


@asynccontextmanager
async def security(bootstrap_server: str, timeout_s: float, data: str | None) -> AsyncIterator[Security]:
    if data is not None:
        async with controller_of(data) as controller:
            yield StoppedFolder(controller)
    else:
        async with connected(bootstrap_server, timeout_s) as admin:
            yield admin
