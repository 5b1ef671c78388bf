"""One broker from start to end, for the owner of the process or the thread."""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from twofold.broker.broker import Broker
from twofold.config.listeners import ListenerAddress, listen_addresses, parse_host_port
from twofold.config.settings import Settings
from twofold.extras import require
from twofold.runtime.real import check_can_listen, real_runtime
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from twofold.broker.faults.local import LocalFaults
    from twofold.broker.metrics.http import MetricsServer

METRICS = "metrics.listener"
LOOPBACK = "127.0.0.1"

log = logging.getLogger(__name__)


async def serve(
    settings: Settings,
    data_dir: str,
    ready: Callable[[str, int], None],
    stop: asyncio.Event,
    *,
    on_metrics: Callable[[str, int], None] | None = None,
    on_looked: Callable[[], None] | None = None,
    on_started: Callable[[Broker], None] | None = None,
    faults: "LocalFaults | None" = None,
) -> None:
    """Run a broker until `stop` is set; `ready(host, port)` tells where its first listener is.

    `on_metrics(host, port)` tells, before the broker starts, where metrics and probes are, if they are served, and
    `on_looked()` that the first look at all partitions is over. `on_started(broker)` hands the broker over before
    `ready`. With `faults` it is a broker for tests, which can be asked for faults. What keeps the broker from starting
    is raised (MissingExtra, OSError, DataDirectoryError, ListenerError, ConfigError), and so is what makes it give up.
    """
    require("server", "the broker")
    metrics_at = _metrics_address(settings)
    _check_ports(settings)
    broker = _make_broker(settings, data_dir, faults)
    failures: list[KafkaError] = []

    def fail(error: KafkaError) -> None:
        failures.append(error)
        stop.set()

    broker.first_look.on_walked = on_looked
    metrics = None if metrics_at is None else _metrics_server(broker)
    try:
        if metrics is not None and metrics_at is not None:
            # First of all and to the last: probes tell how far a start, and a stop, has come.
            bound = await _listen(metrics, metrics_at)
            if on_metrics is not None:
                on_metrics(bound.host, bound.port)
        await broker.start(fail)
        try:
            if faults is not None:
                faults.attach(broker.server)
            if on_started is not None:
                on_started(broker)
            ready(broker.listeners[0].host, broker.listeners[0].port)
            await stop.wait()
        finally:
            if faults is not None:
                faults.detach()
            await broker.stop()
    finally:
        if metrics is not None:
            metrics.stop()
    if failures:
        raise OSError(f"the broker gave up: {failures[0]}")


def _make_broker(settings: Settings, data_dir: str, faults: "LocalFaults | None") -> Broker:
    hostname = socket.gethostname()
    if faults is None:
        return Broker(real_runtime(), settings, data_dir, hostname=hostname)
    return Broker(faults.make_runtime(), settings, data_dir, hostname=hostname, wrap=faults.requests.wrap)


def _check_ports(settings: Settings) -> None:
    """Before anything is made on disk: a start that cannot listen leaves nothing behind."""
    for address in listen_addresses(settings):
        check_can_listen(address.host, address.port)


def _metrics_address(settings: Settings) -> ListenerAddress | None:
    """On the loopback address, if the setting names no host: the page needs no login, and tells topics and groups."""
    text = settings.optional_string("metrics.listener")
    if not text:
        return None
    address = parse_host_port(text, METRICS)
    if not address.host:
        return ListenerAddress(METRICS, LOOPBACK, address.port)
    if not _is_loopback(address.host):
        log.warning(
            "%s=%s: any host that reaches it reads the metrics without a login; %s:%d is for this machine",
            METRICS, text, LOOPBACK, address.port,
        )  # fmt: skip
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _metrics_server(broker: Broker) -> "MetricsServer":
    # Only where they are wanted: the library of metrics takes longer to import than a broker takes to start.
    from twofold.broker.metrics.http import MetricsServer, NotNow
    from twofold.broker.metrics.probes import HEALTH_PATH, READY_PATH, Readiness, health
    from twofold.broker.metrics.reading import BrokerCollector, Scraper

    server = broker.server
    scraper = Scraper(BrokerCollector(broker.services, server, broker.first_look, broker.listeners), broker.runtime)
    readiness = Readiness(server, broker.listeners, broker.logs, broker.groups, broker.transactions)

    async def page() -> bytes:
        if not server.is_open or server.draining:
            raise NotNow(f"the broker is {'stopping' if server.draining else 'starting'}; {READY_PATH} tells more")
        return await scraper.page()

    return MetricsServer(broker.runtime, page, {HEALTH_PATH: health, READY_PATH: readiness.probe})


async def _listen(metrics: "MetricsServer", address: ListenerAddress) -> ListenerAddress:
    try:
        listener = await metrics.listen(address.host, address.port)
    except OSError as error:
        where = f"{address.host}:{address.port}"
        reason = error.strerror or str(error)
        raise OSError(f"metrics cannot be served at {where}: {reason}; choose another ({METRICS})") from error
    return ListenerAddress(METRICS, address.host or listener.host, listener.port)
