"""TxnHeartbeat: API key 95, version 0 (KIP-1309, a draft: the key is provisional).

1. Without WRITE on the transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (53); that is no sign of life.
2. Empty id, producer id or epoch below 0, or a two-phase transaction: INVALID_REQUEST (42). An unknown id:
   TRANSACTIONAL_ID_NOT_FOUND (105). Coordinated elsewhere 16, loading 14, stopping 15.
3. Another producer id: INVALID_PRODUCER_ID_MAPPING (49); another epoch: PRODUCER_FENCED (90). One that is late for the
   end of its own transaction is answered without an error; late for an abort of the coordinator's:
   TRANSACTION_ABORTABLE (120), abort and go on.
4. It is answered at once whatever is under way, and changes nothing where no transaction is open or none was promised.
5. Served unless transaction.heartbeat.enable is false.
"""

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.services import Services
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import NONE, KafkaError, TransactionalIdAuthorizationFailed
from twofold.wire.messages.txn_heartbeat import TxnHeartbeatRequest, TxnHeartbeatResponse

KEY = 95


def handle(services: Services, context: RequestContext, request: TxnHeartbeatRequest) -> TxnHeartbeatResponse:
    transactional_id = request.transactional_id
    if not services.authorizer.authorize(context, Operation.WRITE, AclResourceType.TRANSACTIONAL_ID, transactional_id):
        raise TransactionalIdAuthorizationFailed(f"no WRITE on the transactional id {transactional_id}")
    services.transactions.heartbeat(
        transactional_id, ProducerId(request.producer_id), ProducerEpoch(request.producer_epoch)
    )
    return TxnHeartbeatResponse(error_code=NONE)


def error_response(request: TxnHeartbeatRequest, error: KafkaError, version: int) -> TxnHeartbeatResponse:
    return TxnHeartbeatResponse(error_code=error.code, error_message=error.message or error.name)
