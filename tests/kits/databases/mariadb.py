"""MariaDB, started for the tests."""

import signal
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pymysql

from kits.databases.programs import CACHE, Folder, ServerProcess, missing, run_once
from oracle.processes import free_port

UNPACKED = CACHE / "mariadb-server-core"
# What mariadb-install-db passes to the server, after making root an account without a password.
SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")
BEFORE_THEM = "create database mysql;\nuse mysql;\nset @auth_root_socket=NULL;\nset @current_hostname=NULL;\n"
SMALL = ("--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M", "--max-connections=60")
HELD_FOR_MS = 3_600_000


class MariadbServer:
    """`fsync` as the test wants it: a killed server loses nothing without it, a killed machine would."""

    name = "mariadb"

    def __init__(self, *, fsync: bool = False) -> None:
        root = next((root for root in (Path("/"), UNPACKED) if (root / "usr/sbin/mariadbd").exists()), None)
        if root is None:
            missing("MariaDB", "mariadbd")
            raise AssertionError
        self._folder = Folder(self.name, "mysql")
        if root == UNPACKED:
            root = self._folder.readable(UNPACKED)
        self._root = root
        self._libraries = sorted({path.parent for path in root.glob("usr/lib/*/*.so*")}) if root != Path("/") else []
        self.port = free_port()
        self._durability = "1" if fsync else "2"
        self._server = ServerProcess(self._folder)
        share = root / "usr" / "share" / "mysql"
        script = BEFORE_THEM + "".join((share / name).read_text() for name in SYSTEM_TABLES)
        run_once(self._command("--bootstrap", "--skip-log-error"), script)

    def _command(self, *options: str) -> list[str]:
        share = self._root / "usr" / "share" / "mysql"
        places = [f"--basedir={self._root / 'usr'}", f"--lc-messages-dir={share}", f"--datadir={self._folder.data}"]
        words = [str(self._root / "usr/sbin/mariadbd"), "--no-defaults", *places, *SMALL, *options]
        return self._folder.command(words, self._libraries)

    def start(self) -> None:
        listen = ["--bind-address=127.0.0.1", f"--port={self.port}", f"--socket={self._folder.path / 'socket'}"]
        flush = [f"--innodb-flush-log-at-trx-commit={self._durability}", "--innodb-lock-wait-timeout=50"]
        # A log of its own changes, so that a COMMIT can wait for another server that has them too.
        binary = ["--log-bin=binary", "--server-id=1", "--sync-binlog=0", "--binlog-format=ROW"]
        self._server.start(self._command(*listen, *flush, *binary), self._answers)

    def url(self, database: str) -> str:
        """For SQLAlchemy."""
        return f"mariadb+pymysql://root@127.0.0.1:{self.port}/{database}"

    def create(self, database: str) -> str:
        """A new database; returns its URL."""
        self.ask(f"CREATE DATABASE {database}")
        return self.url(database)

    def ask(self, statement: str) -> list[tuple[object, ...]]:
        """One statement, outside any transaction."""
        with closing(self._connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def stop(self) -> None:
        """A clean stop, which ends what clients have open."""
        self._server.stop(signal.SIGTERM)

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
        """From now on a COMMIT is written and then waits for a replica that is not there (semi-synchronous)."""
        self.ask(f"SET GLOBAL rpl_semi_sync_master_timeout = {HELD_FOR_MS}")
        self.ask("SET GLOBAL rpl_semi_sync_master_wait_point = AFTER_SYNC")
        self.ask("SET GLOBAL rpl_semi_sync_master_enabled = ON")

    def release_commits(self) -> None:
        """All COMMITs that wait are answered."""
        self.ask("SET GLOBAL rpl_semi_sync_master_enabled = OFF")

    def commits_in_flight(self) -> int:
        """How many COMMITs wait for the replica."""
        waits = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for semi-sync ACK%'"
        return int(str(self.ask(waits)[0][0]))

    def _connect(self) -> "pymysql.Connection[Any]":
        return pymysql.connect(host="127.0.0.1", port=self.port, user="root", autocommit=True, connect_timeout=10)

    def _answers(self) -> bool:
        try:
            self.ask("SELECT 1")
        except pymysql.err.OperationalError:
            return False
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._folder.remove()
