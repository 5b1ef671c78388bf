"""DeleteGroups: API key 42, versions 0-2.

1. A row a group, each name once. Without DELETE on it: GROUP_AUTHORIZATION_FAILED (30). No such group:
   GROUP_ID_NOT_FOUND (69). One that has members: NON_EMPTY_GROUP (68).
2. A group goes with all its offsets, also those of open transactions, together or not at all.
3. Not the coordinator 16, loading 14: on the rows of the groups that it concerns.
"""

import asyncio
from collections.abc import Awaitable

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.records import LogRecord
from twofold.coordinator.group.state import GroupsState
from twofold.machine.runtime import Result
from twofold.wire.errors import NONE, GroupAuthorizationFailed, KafkaError
from twofold.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

KEY = 42


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    codes = await asyncio.gather(*(_delete(services, context, name) for name in names))
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=code) for name, code in zip(names, codes, strict=True)]
    )


def error_response(request: DeleteGroupsRequest, error: KafkaError, version: int) -> DeleteGroupsResponse:
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name, error_code=error.code) for name in names])


async def _delete(services: Services, context: RequestContext, group_id: str) -> int:
    try:
        if not services.authorizer.authorize(context, Operation.DELETE, AclResourceType.GROUP, group_id):
            raise GroupAuthorizationFailed(f"no DELETE on group {group_id}")
        await _write(services, group_id)
    except KafkaError as error:
        return error.code
    return NONE


def _write(services: Services, group_id: str) -> Awaitable[None]:
    shard = services.groups.shard(group_id, allow_empty=True)

    def decide(state: GroupsState, _: int) -> Result[LogRecord, None]:
        return Result(shard.offsets.delete_group(state, group_id), None)

    return shard.remove(decide, group_id)
