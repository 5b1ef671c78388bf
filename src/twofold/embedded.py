"""A broker inside this process, for tests and small programs.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It runs in a thread with a loop of its own, on a port of its own, and leaves nothing behind unless `data` says where.
"""

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType

from twofold.config.settings import Settings, data_directory, data_settings

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class Broker:
    """`data`: a directory to keep; without it that of `log.dirs` in `settings`, and without that a temporary one.

    `settings`: keys of server.properties.

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
        self._data = data
        self._settings = {name: _text(value) for name, value in (settings or {}).items()}
        self._settings.setdefault("listeners", f"PLAINTEXT://{host}:{port}")
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
        self._temporary: str | None = None

    # --- life ---

    def start(self) -> "Broker":
        """Return when clients are served, or raise what kept it from starting."""
        if self._thread is not None:
            raise RuntimeError("the broker is running already")
        if self._data is None:
            self._temporary = tempfile.mkdtemp(prefix="twofold-")
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
            self._remove_temporary()
            assert self._error is not None
            raise self._error
        return self

    def stop(self) -> None:
        """Return when everything is on disk and the thread has ended; nothing happens if it has not started."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            with suppress(RuntimeError):  # the loop may end between the two lines
                self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(STOP_TIMEOUT_S)
        if thread.is_alive():
            raise TimeoutError(f"the broker did not stop within {STOP_TIMEOUT_S:.0f} s")
        self._address = self._metrics_address = None
        self._remove_temporary()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> "Broker":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- where it is ---

    @property
    def host(self) -> str:
        return self._running()[0]

    @property
    def port(self) -> int:
        return self._running()[1]

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def metrics_url(self) -> str:
        """Where /metrics is."""
        self._running()
        if self._metrics_address is None:
            raise RuntimeError('the broker serves no metrics: use Broker(metrics="127.0.0.1:0")')
        host, port = self._metrics_address
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"

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

        await serve(self._typed(data_settings(self.data)), self.data, on_ready, self._stop, on_metrics=on_metrics)

    def _typed(self, more: Mapping[str, str]) -> Settings:
        return Settings.from_mapping({**self._settings, **more}, source="Broker(settings=...)")

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
