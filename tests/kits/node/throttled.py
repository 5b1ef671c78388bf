"""A whole broker on the test's loop with real sockets, whose clock stands until the test moves it."""

import dataclasses
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kits.node.running import Client, ManualTimers, Node
from kits.node.sockets import settle
from twofold.broker.broker import Broker
from twofold.config.settings import Settings
from twofold.runtime.api import Clock
from twofold.runtime.real import real_runtime
from twofold.wire import codec
from twofold.wire.apis import KEYS
from twofold.wire.messages.alter_client_quotas import AlterClientQuotasRequest, EntityData, EntryData, OpData

ALTER_CLIENT_QUOTAS = KEYS["AlterClientQuotas"]


class StandingClock:
    """Goes ahead only when it is moved; the time of day is the real one."""

    def __init__(self, real: Clock) -> None:
        self._real = real
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return self._real.wall_ms()


class ThrottledNode(Node):
    def __init__(self, broker: Broker, timers: ManualTimers, clock: StandingClock) -> None:
        super().__init__(broker, timers)
        self.clock = clock

    def advance(self, seconds: float) -> None:
        """Move the clock; what muted connections wait for has come when it is due."""
        self.clock.now_s += seconds
        for connection in list(self.broker.server.connections):
            mute = connection._mute
            if mute is not None and mute.until_s <= self.clock.now_s + 1e-9:
                connection._end_mute()

    async def limit(self, owner: Mapping[str, str | None], **limits: float | None) -> None:
        """Set quotas of an owner; None takes one away."""
        ops = [OpData(key=key, value=value or 0.0, remove=value is None) for key, value in limits.items()]
        entity = [EntityData(entity_type=kind, entity_name=name) for kind, name in owner.items()]
        request = AlterClientQuotasRequest(entries=[EntryData(entity=entity, ops=ops)], validate_only=False)
        answer = await self.broker.controller.alter_client_quotas(request)
        assert answer.entries[0].error_code == 0, answer.entries[0].error_message

    def muted_for_ms(self) -> list[int]:
        """Of each muted connection, how long it still is."""
        mutes = [connection._mute for connection in self.broker.server.connections]
        return sorted(round((mute.until_s - self.clock.now_s) * 1000) for mute in mutes if mute is not None)

    async def is_answered(self, client: Client) -> bool:
        """Whether an answer has come, or comes before that to another client that asks now."""
        await settle()
        other = await self.connect()
        await other.call(api_versions(), KEYS["ApiVersions"], 0)
        other.close()
        return bool(client.reader._buffer)  # type: ignore[attr-defined]


def api_versions() -> Any:
    from twofold.wire.messages.api_versions import ApiVersionsRequest

    return ApiVersionsRequest()


def frame_of(message: Any, api: str, version: int, *, size: int | None = None, client_id: str = "test") -> bytes:
    """The bytes of a request, its length included; with `size`, its client id makes the frame so long."""
    frame = bytes(codec.encode_request(message, KEYS[api], version, 1, client_id))
    if size is None:
        return frame
    missing = size - (len(frame) - 4)
    return bytes(codec.encode_request(message, KEYS[api], version, 1, client_id + "x" * missing))


@asynccontextmanager
async def throttled_node(directory: Path, **settings: object) -> AsyncIterator[ThrottledNode]:
    runtime = real_runtime()
    timers, clock = ManualTimers(runtime.timers), StandingClock(runtime.clock)
    texts = {"listeners": "PLAINTEXT://127.0.0.1:0"} | {k.replace("_", "."): str(v) for k, v in settings.items()}
    broker = Broker(
        dataclasses.replace(runtime, timers=timers, clock=clock), Settings.from_mapping(texts), str(directory)
    )
    await broker.start()
    node = ThrottledNode(broker, timers, clock)
    try:
        yield node
    finally:
        for client in node.clients:
            client.close()
        await broker.stop(0.0)
