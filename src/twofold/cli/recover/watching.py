"""`twofold recover --watch`: look again and again, end what an owner left, and tell the numbers."""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from twofold.cli.common import USAGE, CliError
from twofold.dualwrite.errors import DualWriteError
from twofold.dualwrite.recovery import ENDS, Action, Recovery, RecoveryFinding, RecoveryLook
from twofold.wire.errors import KafkaError

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIServer

log = logging.getLogger(__name__)
PROBLEMS = (DualWriteError, KafkaError, SQLAlchemyError, OSError)
Tell = Callable[[RecoveryFinding, str], None]


class Numbers:
    """The metrics of a watcher, served where --metrics says."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self.registry = CollectorRegistry()
        self._ended = Counter(
            "twofold_recover_ended", "Transactions that were ended.", ["outcome"], registry=self.registry
        )
        self._failed = Counter("twofold_recover_failures", "Attempts that failed.", registry=self.registry)
        self._found = Gauge(
            "twofold_recover_found", "Open or contradicting transactions at the last look.", ["action"],
            registry=self.registry,
        )  # fmt: skip
        self._looked = Gauge(
            "twofold_recover_last_look_timestamp_seconds", "When the last look succeeded.", registry=self.registry
        )
        for outcome in ("committed", "aborted"):
            self._ended.labels(outcome)

    def looked(self, look: RecoveryLook) -> None:
        for action in Action:
            self._found.labels(action.value).set(len(look.of(action)))
        self._looked.set(time.time())

    def ended(self, outcome: str) -> None:
        self._ended.labels(outcome).inc()

    def failed(self) -> None:
        self._failed.inc()

    def serve(self, address: str) -> "tuple[str, WSGIServer]":
        """The URL, and what to shut down."""
        from prometheus_client import start_http_server

        from twofold.config.listeners import ListenerError, parse_host_port

        try:
            at = parse_host_port(address, "--metrics")
            server, _ = start_http_server(at.port, at.host or "0.0.0.0", self.registry)
        except (ListenerError, OSError) as error:
            raise CliError(f"--metrics {address}: {error}", USAGE) from None
        return f"http://{at.host}:{server.server_port}/metrics", server


def watch(recovery: Recovery, interval_s: float, stop: threading.Event, numbers: Numbers, tell: Tell) -> None:
    """Until `stop` is set. What does not answer is asked again."""
    while True:
        try:
            look_once(recovery, stop, numbers, tell)
        except PROBLEMS as error:
            numbers.failed()
            log.warning("no look: %s", error)
        if stop.wait(interval_s):
            return


def look_once(recovery: Recovery, stop: threading.Event, numbers: Numbers, tell: Tell) -> None:
    look = recovery.look(heed_leases=True)
    numbers.looked(look)
    for finding in look.of(*ENDS):
        if stop.is_set():
            return
        try:
            if recovery.is_at_work(finding):
                continue
            settled = recovery.end(finding)
        except PROBLEMS as error:
            numbers.failed()
            log.warning("%r was not ended: %s", finding.transactional_id, error)
            continue
        if settled is not None:
            outcome = "committed" if settled.is_done else "aborted"
            numbers.ended(outcome)
            tell(finding, outcome)
