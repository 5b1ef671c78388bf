"""PostgreSQL, started for the tests."""

import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Self

import psycopg

from kits.databases.programs import CACHE, PATIENCE_S, Folder, ServerProcess, missing, run_once
from oracle.processes import free_port

UNPACKED = CACHE / "postgresql"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "wal_level": "replica",
    "jit": "off",
    "autovacuum": "off",
    "log_min_messages": "fatal",
}
NO_STANDBY = "nobody_answers"


class PostgresServer:
    """`fsync` as the test wants it: a killed server loses nothing without it, a killed machine would."""

    name = "postgresql"

    def __init__(self, *, fsync: bool = False) -> None:
        programs = _find_programs()
        self._folder = Folder(self.name, "postgres")
        self._libraries: list[Path] = []
        if programs.is_relative_to(UNPACKED):
            here = self._folder.readable(UNPACKED)
            programs = here / programs.relative_to(UNPACKED)
            self._libraries = sorted({path.parent for path in here.glob("usr/lib/*/*.so*")})
        self._programs = programs
        self.port = free_port()
        self._fsync = "on" if fsync else "off"
        self._server = ServerProcess(self._folder)
        initdb = [str(programs / "initdb"), "--pgdata", str(self._folder.data), "--no-sync", "--locale=C"]
        options = ["--encoding=UTF8", "--username=twofold", "--auth=trust"]
        run_once(self._folder.command([*initdb, *options], self._libraries))

    def start(self) -> None:
        settings = SETTINGS | {
            "port": str(self.port),
            "fsync": self._fsync,
            "unix_socket_directories": str(self._folder.path),
        }
        options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        words = [str(self._programs / "postgres"), "-D", str(self._folder.data), *options]
        self._server.start(self._folder.command(words, self._libraries), self._answers)

    def url(self, database: str) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://twofold@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """A new database; returns its URL."""
        self.ask(f"CREATE DATABASE {database}")
        return self.url(database)

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        """One statement, outside any transaction."""
        with closing(self._connect()) as connection:
            cursor = connection.execute(statement.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def stop(self) -> None:
        """A clean stop that does not wait for clients (`fast`)."""
        self._server.stop(signal.SIGINT)

    def kill(self) -> None:
        self._server.kill()

    def pause(self) -> None:
        self._server.pause()

    def resume(self) -> None:
        self._server.resume()

    @property
    def running(self) -> bool:
        return self._server.running

    def hold_commits(self) -> None:
        """From now on a COMMIT is written and then waits for a synchronous standby that is not there."""
        self.ask(f"ALTER SYSTEM SET synchronous_standby_names = '{NO_STANDBY}'")
        self.ask("SELECT pg_reload_conf()")
        # A server takes its new settings up in its own time: it holds commits when it holds one of ours.
        while not self._holds_a_commit():
            continue

    def release_commits(self) -> None:
        """All COMMITs that wait are answered."""
        self.ask("ALTER SYSTEM RESET synchronous_standby_names")
        self.ask("SELECT pg_reload_conf()")

    def commits_in_flight(self) -> int:
        """How many COMMITs wait for the standby."""
        return int(str(self.ask("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")[0][0]))

    def _holds_a_commit(self) -> bool:
        """A commit of our own, which is given up once it waits: it stays in this database, and nobody reads it."""
        with closing(self._connect()) as probe:
            commit = threading.Thread(target=probe.execute, args=("SELECT pg_logical_emit_message(true, 'probe', '')",))
            commit.start()
            held = False
            while commit.is_alive() and not held:
                waits = (
                    f"SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = {probe.info.backend_pid}"
                )
                held = bool(self.ask(waits))
            if held:
                self.ask(f"SELECT pg_cancel_backend({probe.info.backend_pid})")
            commit.join(PATIENCE_S)
            return held

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        address = f"host=127.0.0.1 port={self.port} user=twofold dbname=postgres connect_timeout=10"
        return psycopg.connect(address, autocommit=True)

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._folder.remove()


def _find_programs() -> Path:
    for root in (Path("/"), UNPACKED):
        found = sorted(root.glob("usr/lib/postgresql/*/bin/initdb"))
        if found:
            return found[-1].parent
    missing("PostgreSQL", "postgres")
    raise AssertionError
