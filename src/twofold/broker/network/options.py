"""The settings that concern sockets."""

from dataclasses import dataclass, field

from twofold.broker.network.admission import ServerLimits
from twofold.broker.network.entrance import EntranceOptions

MAX_REQUEST_MEMORY = 512 * 1024 * 1024  # where queued.max.request.bytes is -1


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The settings that concern sockets."""

    max_request_bytes: int = 104_857_600  # socket.request.max.bytes
    max_queued_requests: int = 500  # queued.max.requests, per connection
    max_queued_bytes: int = 4 * 1024 * 1024  # of one connection; then reading from it stops
    max_request_memory: int = MAX_REQUEST_MEMORY  # queued.max.request.bytes, of all connections
    max_idle_ms: int = 600_000  # connections.max.idle.ms; negative: for ever
    limits: ServerLimits = field(default_factory=ServerLimits)
    entrance: EntranceOptions = field(default_factory=EntranceOptions)

    def refusal_of(self, size: int, limit: int) -> str:
        """Why a request of that size is not read."""
        name = "socket.request.max.bytes" if limit == self.max_request_bytes else "sasl.server.max.receive.size"
        if size > limit:
            return f"a request of {size} bytes is larger than {name}={limit}"
        return f"a request of {size} bytes; sizes go from 1 to {name}={limit}"
