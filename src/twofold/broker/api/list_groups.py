"""ListGroups: API key 16, versions 0-5.

1. The groups that this broker coordinates, sorted by id: all of them with DESCRIBE on the cluster, else those with
   DESCRIBE on the group.
2. Filters by state (version 4) and type (version 5) ignore case; an empty filter lets everything through, an unknown
   word nothing.
3. While a partition is being loaded: COORDINATOR_LOAD_IN_PROGRESS (14) and no groups, because the list would be
   incomplete.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.group.overview import list_groups
from twofold.wire.errors import NONE, KafkaError
from twofold.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

KEY = 16


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    authorizer = services.authorizer
    sees_all = cluster_allows(authorizer, context, Operation.DESCRIBE, quiet=True)
    groups = []
    for shard in services.groups.led():
        shard.check_active()
        groups += [
            ListedGroup(
                group_id=row.group_id, protocol_type=row.protocol_type, group_state=row.state, group_type=row.type
            )
            for row in list_groups(shard.committed, shard.membership, request.states_filter, request.types_filter)
            if sees_all
            or authorizer.authorize(context, Operation.DESCRIBE, AclResourceType.GROUP, row.group_id, quiet=True)
        ]
    return ListGroupsResponse(error_code=NONE, groups=sorted(groups, key=lambda row: row.group_id))


def error_response(request: ListGroupsRequest, error: KafkaError, version: int) -> ListGroupsResponse:
    return ListGroupsResponse(error_code=error.code, groups=())
