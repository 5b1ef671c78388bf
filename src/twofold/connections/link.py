"""The way to one address, kept open: it connects when it is needed and backs off when that fails."""

import asyncio

from twofold.connections.connection import Address, Connection, ConnectionLimits, open_connection
from twofold.connections.errors import NoAnswer
from twofold.connections.security import PLAINTEXT, ConnectionSecurity
from twofold.connections.waiting import Backoff, Deadline, done_within, spawn_shared
from twofold.runtime.api import Runtime
from twofold.wire.errors import KafkaError


class BrokerLink:
    """The way to one address: at most one connection, at most one attempt to make it, back-off in between."""

    def __init__(
        self,
        runtime: Runtime,
        limits: ConnectionLimits,
        reconnect_backoff: Backoff,
        address: Address,
        node_id: int | None = None,
        security: ConnectionSecurity = PLAINTEXT,
    ) -> None:
        self.address = address
        self._security = security
        self._runtime = runtime
        self._limits = limits
        self._backoff = reconnect_backoff
        self._node_id = node_id
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._is_negotiating = False
        self._last_error: KafkaError | None = None  # why there is no connection; None while there is one

    @property
    def silence(self) -> NoAnswer | None:
        """What is wrong while something accepted the connection and has not answered the first request."""
        if not self._is_negotiating:
            return None
        return NoAnswer(
            f"{self.address} accepts connections and answers nothing: either it does not speak Kafka in plain text, or "
            "it stands still"
        )

    @property
    def connection(self) -> Connection | None:
        """The connection, when it is open."""
        connection = self._connection
        return connection if connection is not None and not connection.closed else None

    @property
    def backing_off(self) -> bool:
        return self._failures > 0

    async def connect(self, deadline: Deadline) -> Connection:
        connection = self.connection
        if connection is not None:
            return connection
        if self._opening is None or self._opening.done():
            self._opening = spawn_shared(self._runtime, self._open(), name=f"open {self.address}")
        opening = self._opening
        if not await done_within(self._runtime, opening, deadline.remaining_s()):
            raise deadline.gave_up(f"connecting to {self.address}", self.silence or self._last_error)
        return opening.result()

    async def _open(self) -> Connection:
        if self._connection is not None:
            # An open connection that ended counts as one failure: a broker that accepts and drops is not hammered.
            self._last_error = self._connection.error
            self._connection = None
            self._on_failure()
        pause_s = self._not_before - self._runtime.clock.monotonic()
        if pause_s > 0:
            await self._runtime.timers.sleep(pause_s)
        try:
            connection = await open_connection(
                self._runtime,
                self.address,
                self._limits,
                security=self._security,
                node_id=self._node_id,
                on_connected=self._on_connected,
            )
        except KafkaError as error:
            self._last_error = error
            self._on_failure()
            raise
        finally:
            self._is_negotiating = False
        self._failures = 0
        self._last_error = None
        self._connection = connection
        return connection

    def _on_connected(self) -> None:
        self._is_negotiating = True

    def _on_failure(self) -> None:
        self._failures += 1
        delay_s = self._backoff.delay_s(self._failures, self._runtime.random)
        self._not_before = self._runtime.clock.monotonic() + delay_s

    def close(self, error: KafkaError) -> None:
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.close(error)
