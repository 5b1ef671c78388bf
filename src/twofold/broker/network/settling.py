"""How an answer that comes later is settled, and what it was."""

import asyncio
import logging

from twofold.broker.network.context import Answer, CloseConnection, Peer

log = logging.getLogger(__name__)


def settle(waiting: "asyncio.Future[Answer]", answer: Answer) -> None:
    if not waiting.done():
        waiting.set_result(answer)


def result_of(peer: Peer, answer: "asyncio.Future[Answer]") -> Answer | CloseConnection:
    try:
        return answer.result()
    except CloseConnection as reason:
        return reason
    except (Exception, asyncio.CancelledError) as error:
        log.error("an answer to %s failed: %r", peer, error, exc_info=error)
        return CloseConnection(f"its request failed: {error!r}")
