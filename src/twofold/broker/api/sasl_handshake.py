"""SaslHandshake: API key 17, versions 0-1.

1. A listener with SASL takes it before the dispatcher (`broker/network/authentication.py`), as long as there is no
   user, and afterwards where an authentication has a lifetime.
2. Everywhere else it is ILLEGAL_SASL_STATE (34), and the connection stays open.
"""

from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import IllegalSaslState, KafkaError
from twofold.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

KEY = 17


def handle(services: Services, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=IllegalSaslState.code)


def error_response(request: SaslHandshakeRequest, error: KafkaError, version: int) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=error.code)
