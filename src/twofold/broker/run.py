"""One broker from start to end, for whoever owns the process or the thread."""

import asyncio
import socket
from collections.abc import Callable

from twofold.broker.broker import Broker
from twofold.config.settings import Settings
from twofold.runtime.real import real_runtime
from twofold.wire.errors import KafkaError


async def serve(settings: Settings, data_dir: str, ready: Callable[[str, int], None], stop: asyncio.Event) -> None:
    """Run a broker until `stop` is set; `ready(host, port)` tells where its first listener is.

    What keeps it from starting is raised (OSError, DataDirectoryError, ListenerError), and so is what makes it give up.
    """
    broker = Broker(real_runtime(), settings, data_dir, hostname=socket.gethostname())
    failures: list[KafkaError] = []

    def fail(error: KafkaError) -> None:
        failures.append(error)
        stop.set()

    await broker.start(fail)
    try:
        ready(broker.listeners[0].host, broker.listeners[0].port)
        await stop.wait()
    finally:
        await broker.stop()
    if failures:
        raise OSError(f"the broker gave up: {failures[0]}")
