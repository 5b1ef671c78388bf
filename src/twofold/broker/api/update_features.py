"""UpdateFeatures: API key 57, versions 0-2.

1. Needs ALTER on the cluster, else CLUSTER_AUTHORIZATION_FAILED (31).
2. The rest is for the controller, which takes all updates of a request or none (`controller.feature_updates`): unknown
   features and levels, downgrades that are not asked for as such, metadata.version (all 95), `validate_only`
   (version 1 on).
3. An error is told once, for the whole request, without rows. A success has a row a feature up to version 1, and none
   from version 2 on.
4. Version 0 can only upgrade: its `allow_downgrade` is read and has no effect, as in Apache Kafka.
5. The new levels are in force when the answer goes out, and ApiVersions tells them with a higher epoch. The request's
   timeout is not looked at, as in Apache Kafka: the broker's `request.timeout.ms` bounds the waiting, then the answer
   is REQUEST_TIMED_OUT (7).
"""

from typing import TYPE_CHECKING

from twofold.broker.authorizer import Operation, cluster_allows
from twofold.broker.context import RequestContext
from twofold.broker.forwarding import forward
from twofold.wire.errors import ClusterAuthorizationFailed, KafkaError
from twofold.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse

if TYPE_CHECKING:
    from twofold.broker.broker import Broker

KEY = 57


async def handle(broker: "Broker", context: RequestContext, request: UpdateFeaturesRequest) -> UpdateFeaturesResponse:
    if not cluster_allows(broker.authorizer, context, Operation.ALTER):
        raise ClusterAuthorizationFailed("no ALTER on the cluster")
    timeout_ms = broker.settings.int("request.timeout.ms")
    return await forward(
        broker, broker.controller.update_features(request), timeout_ms=timeout_ms, name="UpdateFeatures"
    )


def error_response(request: UpdateFeaturesRequest, error: KafkaError, version: int) -> UpdateFeaturesResponse:
    return UpdateFeaturesResponse(error_code=error.code, error_message=error.message or None)
