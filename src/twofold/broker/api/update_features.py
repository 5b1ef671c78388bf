"""UpdateFeatures: API key 57, versions 0-2.

1. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
2. The rest is for the controller, which takes all updates of a request or none (`controller.feature_updates`): unknown
   features and levels, downgrades that are not asked for as such, metadata.version (all 95), `validate_only`
   (version 1 on).
3. An error is told once for the whole request, without rows. A success has a row a feature up to version 1, and none
   from version 2 on.
4. Version 0 can only upgrade: its `allow_downgrade` is read and has no effect, as in Apache Kafka.
5. transaction.version does not go below 2 while a two-phase transaction is open (95, with its id), and none begins
   while it goes down.
6. The new levels are in force when the answer goes out, and ApiVersions tells them with a higher epoch. The request's
   timeout is not looked at, as in Apache Kafka: the broker's `request.timeout.ms` bounds the waiting, then the answer
   is REQUEST_TIMED_OUT (7).
"""

from twofold.broker.network.authorizer import Operation, cluster_allows
from twofold.broker.network.context import RequestContext
from twofold.broker.network.forwarding import forward
from twofold.broker.services import Services
from twofold.controller.features import TRANSACTION_VERSION
from twofold.coordinator.transaction.coordinator import TV2
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

KEY = 57


async def handle(services: Services, context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if not cluster_allows(services.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    timeout_ms = services.settings.int("request.timeout.ms")
    return await forward(services.runtime, _update(services, request), timeout_ms=timeout_ms, name="UpdateFeatures")


async def _update(services: Services, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    level = _transaction_version(request)
    if level is None or level >= TV2 or services.transactions.server_version < TV2:
        return await services.controller.update_features(request)
    with services.transactions.going_down_to(level):
        return await services.controller.update_features(request)


def _transaction_version(request: UpdateFeaturesRequest) -> int | None:
    """The level that is asked for; the last row of a feature counts."""
    rows = [row.max_version_level for row in request.feature_updates if row.feature == TRANSACTION_VERSION]
    return rows[-1] if rows else None


def error_response(request: UpdateFeaturesRequest, error: KafkaError, version: int) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message or None)
