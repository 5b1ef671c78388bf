"""The audit: one line for what a principal was refused, and few lines per second for a flood of them."""

import logging

from twofold.broker.network.authorizer import AclResourceType, Operation
from twofold.broker.network.context import RequestContext
from twofold.broker.network.quiet import QuietLog
from twofold.runtime.api import Clock
from twofold.wire.apis import APIS

AUDIT_LOG = "twofold.audit"

log = logging.getLogger(AUDIT_LOG)

MOST_CHARACTERS = 300  # of a name that a client chose


class DenialAudit:
    """Tells which principal was refused what."""

    __slots__ = ("_log",)

    def __init__(self, clock: Clock) -> None:
        self._log = QuietLog(log, clock)

    def __call__(
        self, context: RequestContext, operation: Operation, resource_type: AclResourceType, name: str
    ) -> None:
        api = APIS[context.api_key].name
        # Each API and operation has lines of its own: a client that floods one does not hide the others.
        self._log.info(
            f"{api} {operation.name}",
            "refused: %r from %s may not %s the %s %r (%s, client id %r)",
            context.principal[:MOST_CHARACTERS],
            context.client_host,
            operation.name,
            resource_type.name,
            name[:MOST_CHARACTERS],
            api,
            (context.client_id or "")[:MOST_CHARACTERS],
        )
