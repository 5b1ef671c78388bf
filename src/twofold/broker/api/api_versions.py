"""ApiVersions: API key 18, versions 0-4.

1. Told are the APIs that have a handler, or that this node forwards to the controllers, with the ranges of the one
   table; a client need not be authenticated to ask.
2. From version 3 on a client names its software: letters and digits, inside also '-' and '.'. Anything else is
   INVALID_REQUEST (42) with an empty list.
3. Features are told from version 3 on: what this broker supports, and what the cluster finalized, at the offset of
   the metadata image. That epoch is never negative, or clients would ignore `transaction.version`.
4. Supported features that begin at level 0 are left out before version 4, whose clients could not read them.
   Finalized features at level 0 are left out.
5. A version that is not served is answered in version 0 with UNSUPPORTED_VERSION (35) and the range of this API only,
   so that the client can ask again; dispatch does that with `unsupported_version_response`.
"""

import re
from functools import cache

from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.config.cluster import serves_heartbeats
from twofold.wire.apis import APIS
from twofold.wire.errors import NONE, InvalidRequest, KafkaError, UnsupportedVersion
from twofold.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

KEY = 18

SOFTWARE_SINCE = 3
ZERO_LEVELS_SINCE = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def handle(services: Services, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if not is_software_named(request, context.version):
        return ApiVersionsResponse(error_code=InvalidRequest.code, api_keys=())
    if context.version >= SOFTWARE_SINCE:
        context.peer.software_name = request.client_software_name
        context.peer.software_version = request.client_software_version
    return ApiVersionsResponse(
        error_code=NONE,
        api_keys=_served(serves_heartbeats(services.settings), services.core.is_member),
        supported_features=_supported_features(services, context.version),
        finalized_features_epoch=max(0, services.image.offset),
        finalized_features=[
            FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, level in sorted(services.image.features.items())
            if level > 0
        ],
    )


def is_software_named(request: ApiVersionsRequest, version: int) -> bool:
    """Whether the request will be answered without an error."""
    names = (request.client_software_name, request.client_software_version)
    return version < SOFTWARE_SINCE or all(_SOFTWARE.fullmatch(name) for name in names)


def error_response(request: ApiVersionsRequest, error: KafkaError, version: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(error_code=error.code, api_keys=())


def unsupported_version_response() -> ApiVersionsResponse:
    api = APIS[KEY]
    return ApiVersionsResponse(
        error_code=UnsupportedVersion.code,
        api_keys=[ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)],
    )


@cache
def _served(heartbeats: bool, forwards: bool) -> tuple[ApiVersion, ...]:
    from twofold.broker.network.dispatch import served_apis

    return tuple(
        ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.max_version)
        for api in served_apis(heartbeats=heartbeats, forwards=forwards)
    )


def _supported_features(services: Services, version: int) -> list[SupportedFeatureKey]:
    registration = services.image.broker(services.node_id)
    return [
        SupportedFeatureKey(
            name=feature.name, min_version=feature.min_supported_version, max_version=feature.max_supported_version
        )
        for feature in (registration.features if registration else ())
        if feature.min_supported_version > 0 or version >= ZERO_LEVELS_SINCE
    ]
