"""SaslAuthenticate: API key 36, versions 0-2.

1. A listener with SASL takes it before the dispatcher (`broker/network/authentication.py`), after a SaslHandshake.
2. Everywhere else it is ILLEGAL_SASL_STATE (34), and the connection stays open.
"""

from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.wire.errors import IllegalSaslState, KafkaError
from twofold.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse

KEY = 36

TEXT = "SaslAuthenticate request received after successful authentication"


def handle(services: Services, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    return error_response(request, IllegalSaslState(TEXT), context.version)


def error_response(request: SaslAuthenticateRequest, error: KafkaError, version: int) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=error.code, error_message=str(error), auth_bytes=b"")
