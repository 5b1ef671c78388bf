"""ListTransactions: API key 66, versions 0-2.

1. All ids that this broker coordinates, as they are committed. While any of its partitions is loading the whole request
   is COORDINATOR_LOAD_IN_PROGRESS (14); stopping: COORDINATOR_NOT_AVAILABLE (15).
2. Filters of different kinds are joined by "and", values of one kind by "or": states by their exact names (unknown ones
   are given back and match nothing), producer ids, from version 1 on a duration that must be exceeded, from version 2
   on a pattern of RE2 that matches the whole id, else INVALID_REGULAR_EXPRESSION (128). A broker without RE2 refuses
   every pattern with UNSUPPORTED_VERSION (35), and its log says what to install. Empty and negative filters are none.
3. Ids that may not be described are left out.
4. Many ids are looked at in slices; other connections are served in between.
5. Rows are sorted by their ids: a map has them in another order in every process, and a simulated broker must give the
   same answer whatever process it runs in.
"""

import logging
from operator import attrgetter

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.coordinator.transaction.overview import Filter, Listing, list_transactions
from twofold.extras import install_command
from twofold.wire.errors import NONE, KafkaError, UnsupportedVersion
from twofold.wire.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)

log = logging.getLogger(__name__)

KEY = 66
_by_id = attrgetter("transactional_id")

IDS_PER_TURN = 2000


async def handle(
    services: Services, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    shards = services.transactions.all_active()
    wanted = _filter(request)
    now_ms = services.runtime.clock.wall_ms()
    found: list[Listing] = []
    for shard in shards:
        pairs = list(shard.committed.entries.items())
        for start in range(0, len(pairs), IDS_PER_TURN):
            found += list_transactions(pairs[start : start + IDS_PER_TURN], wanted, now_ms)
            if len(pairs) > IDS_PER_TURN:
                await services.runtime.timers.sleep(0)
    found.sort(key=_by_id)
    authorize = services.authorizer.authorize
    return ListTransactionsResponse(
        error_code=NONE,
        unknown_state_filters=wanted.unknown_states,
        transaction_states=[
            TransactionState(
                transactional_id=row.transactional_id, producer_id=row.producer_id, transaction_state=row.state
            )
            for row in found
            if authorize(
                context, Operation.DESCRIBE, AclResourceType.TRANSACTIONAL_ID, row.transactional_id, quiet=True
            )
        ],
    )


def _filter(request: ListTransactionsRequest) -> Filter:
    try:
        return Filter.of(
            request.state_filters,
            request.producer_id_filters,
            request.duration_filter,
            request.transactional_id_pattern,
        )
    except UnsupportedVersion as error:
        log.warning("a client filters transactions by a pattern: %s: %s", error.message, install_command("re2"))
        raise


def error_response(request: ListTransactionsRequest, error: KafkaError, version: int) -> ListTransactionsResponse:
    return ListTransactionsResponse(error_code=error.code, transaction_states=())
