"""A broker inside this process, for tests and small programs.

    with Broker() as broker:
        broker.create_topic("orders", partitions=3)
        producer = Producer(bootstrap_servers=broker.bootstrap_servers)

`async with` does the same in an event loop. The broker runs in a thread with a loop of its own, on a port of its own,
and leaves nothing behind unless `data` says where. `Broker.faults` makes it fail in the ways that applications have to
survive.
"""

import asyncio
import json
import shutil
import socket
import tempfile
import threading
import time
import weakref
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from twofold.broker.faults.calls import Faults
from twofold.config.settings import Settings, data_directory, data_settings

if TYPE_CHECKING:
    from twofold.broker.broker import Broker as RunningBroker

__all__ = ["Broker", "Faults", "RemoteFaults"]

T = TypeVar("T")
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOOK_S = 0.01
CREATE_TIMEOUT_MS = 30_000

# What differs from Apache Kafka's defaults. The first member of a new group waits 3 s there, in case that more come.
DEFAULTS = {"group.initial.rebalance.delay.ms": "0"}


class Broker:
    """`data`: a directory to keep; without it that of `log.dirs` in `settings`, and without that a temporary one.

    `settings`: keys of server.properties. `group.initial.rebalance.delay.ms` is 0 unless they say otherwise, so that a
    consumer of a new group gets its first message at once.

    `port`: 0 chooses one. Later starts of this object have the same one.

    `metrics`: HOST:PORT at which /metrics is served, port 0 chooses one; without, it is not served.
    """

    def __init__(
        self,
        *,
        data: str | None = None,
        settings: Mapping[str, object] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        metrics: str | None = None,
    ) -> None:
        from twofold.broker.faults.local import LocalFaults

        self._data = data
        self._settings = DEFAULTS | {name: _text(value) for name, value in (settings or {}).items()}
        self._settings.setdefault("listeners", f"PLAINTEXT://{_host_port(host, port)}")
        if metrics is not None:
            self._settings["metrics.listener"] = metrics
        given = self._typed({})  # what is wrong with them is said here, not at the start
        if self._data is None and (given.is_set("log.dirs") or given.is_set("log.dir")):
            self._data = data_directory(given)
        self._address: tuple[str, int] | None = None
        self._metrics_address: tuple[str, int] | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._broker: RunningBroker | None = None
        self._faults = LocalFaults(stop=self.stop, kill=self.kill)
        self._temporary: str | None = None
        self._removal: weakref.finalize[..., Broker] | None = None

    # --- life ---

    def start(self) -> "Broker":
        """Return when clients are served, or raise what kept it from starting."""
        if self._thread is not None:
            raise RuntimeError("the broker is running already")
        if self._data is None and self._temporary is None:
            self._temporary = tempfile.mkdtemp(prefix="twofold-")
            self._removal = weakref.finalize(self, shutil.rmtree, self._temporary, ignore_errors=True)
        self._error = None
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="twofold-broker", daemon=True)
        self._thread.start()
        if not ready.wait(START_TIMEOUT_S):
            self.stop()
            raise TimeoutError(f"the broker was not ready after {START_TIMEOUT_S:.0f} s")
        if self._address is None:
            self._thread.join()
            self._thread = None
            assert self._error is not None
            raise self._error
        return self

    def stop(self) -> None:
        """Return when everything is on disk and the thread has ended; nothing happens if it has not started.

        `start` goes on with the same data, on the same port. `close` ends it for good.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._faults.resume()
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # the loop may end between the two lines
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._address = self._metrics_address = self._broker = None
        if self._error is not None:
            raise self._error

    def kill(self) -> None:
        """End the broker at once, as kill -9 ends a process: nothing is answered or written any more.

        `start` goes on with the same data, which it recovers, on the same port.
        """
        self._running()
        self._faults.lose()
        with suppress(OSError):  # it gives up, because it cannot write
            self.stop()

    def restart(self) -> None:
        """Stop and start again, with the same data, on the same port."""
        self._running()
        self.stop()
        self.start()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """An outage for the time of the block: the broker is stopped, and started again with its data, on its port."""
        self._running()
        self.stop()
        try:
            yield
        finally:
            self.start()

    def close(self) -> None:
        """Stop, and remove the data if it is in a temporary directory."""
        try:
            self.stop()
        finally:
            if self._removal is not None:
                self._removal()
            self._temporary = self._removal = None

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> "Broker":
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    # --- for the test ---

    @property
    def faults(self) -> Faults:
        """What makes the running broker fail."""
        return self._faults

    def create_topic(
        self, name: str, *, partitions: int | None = None, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic and return when clients can use it; without `partitions` it has `num.partitions`.

        Raises the protocol's error (`twofold.errors.KafkaError`), for example if the topic exists.
        """
        self._running()
        self._on_loop(
            self._create_topic(name, partitions, {key: _text(value) for key, value in (config or {}).items()})
        )

    async def _create_topic(self, name: str, partitions: int | None, config: Mapping[str, str]) -> None:
        from twofold.wire.errors import raise_for
        from twofold.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        topic = CreatableTopic(
            name=name,
            num_partitions=-1 if partitions is None else partitions,
            replication_factor=-1,
            assignments=(),
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in config.items()],
        )
        assert self._broker is not None
        created = await self._broker.controller.create_topics(
            CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS, validate_only=False)
        )
        for result in created.topics:
            raise_for(result.error_code, result.error_message)

    # --- where it is ---

    @property
    def host(self) -> str:
        return self._running()[0]

    @property
    def port(self) -> int:
        return self._running()[1]

    @property
    def bootstrap_servers(self) -> str:
        return _host_port(self.host, self.port)

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        self._running()
        if self._metrics_address is None:
            raise RuntimeError('the broker serves no metrics: use Broker(metrics="127.0.0.1:0")')
        return f"http://{_host_port(*self._metrics_address)}/metrics"

    @property
    def data(self) -> str:
        directory = self._data or self._temporary
        if directory is None:
            raise RuntimeError("the broker has not been started: use `with Broker() as broker:` or start()")
        return directory

    def _running(self) -> tuple[str, int]:
        if self._address is None:
            raise RuntimeError("the broker is not running: use `with Broker() as broker:` or start()")
        return self._address

    # --- the thread ---

    def _run(self, ready: threading.Event) -> None:
        from twofold.runtime.real import run

        try:
            run(self._main(ready))
        except BaseException as error:
            self._error = error
        finally:
            ready.set()

    async def _main(self, ready: threading.Event) -> None:
        from twofold.broker.run import serve

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()

        def on_ready(host: str, port: int) -> None:
            self._address = (host, port)
            ready.set()

        def on_metrics(host: str, port: int) -> None:
            self._metrics_address = (host, port)
            self._settings["metrics.listener"] = _host_port(host, port)

        await serve(
            self._typed(data_settings(self.data)),
            self.data,
            on_ready,
            self._stop,
            on_metrics=on_metrics,
            on_started=self._started,
            faults=self._faults,
        )

    def _started(self, broker: "RunningBroker") -> None:
        """Keep the ports that were chosen: clients look for the broker there after a restart."""
        from twofold.config.listeners import with_ports

        self._broker = broker
        self._settings["listeners"] = with_ports(self._typed({}), broker.listeners)

    def _on_loop(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _typed(self, more: Mapping[str, str]) -> Settings:
        return Settings.from_mapping({**self._settings, **more}, source="Broker(settings=...)")


class RemoteFaults(Faults):
    """The faults of a broker that was started with `twofold serve --test-faults HOST:PORT`."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT."""
        self._address = address

    def stop(self) -> None:
        super().stop()
        self._wait_for_end()

    def kill(self) -> None:
        with suppress(ConnectionError):  # it does not answer any more
            super().kill()
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        """The process has ended when no program listens at the address."""
        host, _, port = self._address.rpartition(":")
        end = time.monotonic() + STOP_TIMEOUT_S
        with suppress(ConnectionError):
            while time.monotonic() < end:
                socket.create_connection((host.strip("[]"), int(port)), timeout=STOP_TIMEOUT_S).close()
                time.sleep(LOOK_S)
            raise TimeoutError(f"the broker with faults at {self._address} did not end within {STOP_TIMEOUT_S:.0f} s")

    def _do(self, operation: str, **arguments: Any) -> Any:
        from http.client import HTTPConnection

        connection = HTTPConnection(self._address)
        try:
            connection.request("POST", f"/{operation}", json.dumps(arguments), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            told = json.loads(answer.read())
        finally:
            connection.close()
        if answer.status != 200:
            raise _ERRORS.get(told["kind"], RuntimeError)(told["error"])
        return told["result"]


_ERRORS: dict[str, type[Exception]] = {kind.__name__: kind for kind in (ValueError, TypeError, TimeoutError)}


def _host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
