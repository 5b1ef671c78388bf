"""Where the database is: a URL from the command line, the environment or a file. Its password never leaves this module
in a message."""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from twofold.cli.common import USAGE, CliError

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

HIDDEN = "***"
DRIVERS = {
    "psycopg": "psycopg[binary]",
    "psycopg2": "psycopg2-binary",
    "pymysql": "pymysql",
    "MySQLdb": "mysqlclient",
    "mariadb": "mariadb",
}


def database_url(db: str | None, db_env: str | None, db_file: str | None) -> str:
    """The one that was given, of three ways."""
    given = [name for name, value in (("--db", db), ("--db-env", db_env), ("--db-file", db_file)) if value]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise CliError(f"one of --db, --db-env and --db-file says where the database is; {found} was given", USAGE)
    if db_env:
        url = os.environ.get(db_env, "").strip()
        if not url:
            raise CliError(f"--db-env {db_env}: there is no such variable in the environment, or it is empty", USAGE)
        return url
    if db_file:
        try:
            url = Path(db_file).read_text().strip()
        except OSError as error:
            raise CliError(f"--db-file {db_file}: {error.strerror}", USAGE) from None
        if not url or "\n" in url:
            raise CliError(f"--db-file {db_file}: one line with the URL of the database is expected", USAGE)
        return url
    assert db is not None
    return db


def make_engine(text: str) -> "Engine":
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(text)
        engine = create_engine(url, pool_pre_ping=True)
    except (ArgumentError, ValueError) as error:
        if isinstance(error, NoSuchModuleError):
            raise CliError(
                f"{make_url(text).drivername} is no kind of database that SQLAlchemy knows: postgresql+psycopg, "
                "mariadb+pymysql and sqlite are",
                USAGE,
            ) from None
        raise CliError(
            "the URL of the database is not of the form postgresql+psycopg://user:password@host/name", USAGE
        ) from None
    except ImportError as error:
        package = DRIVERS.get(error.name or "", error.name or "its driver")
        raise CliError(f"{url.drivername} needs a driver: pip install '{package}'", USAGE) from None
    if engine.dialect.is_async:
        raise CliError(
            f"{url.drivername} is a driver for asyncio: name another for this command, such as postgresql+psycopg, "
            "mariadb+pymysql or sqlite",
            USAGE,
        )
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        raise CliError(f"{shown(url)}: there is no such file", USAGE)
    return engine


def shown(url: "URL") -> str:
    """Without its password, and without what stands behind the question mark, which may have one, too."""
    return repr(url.set(query={}))


def without_password(message: str, url: "URL") -> str:
    """A driver may repeat what it was given."""
    in_query = [url.query[name] for name in url.query if "pass" in name.lower()]
    for password in filter(None, (url.password, *in_query)):
        for shape in (str(password), quote(str(password), safe=""), quote_plus(str(password))):
            message = message.replace(shape, HIDDEN)
    return message
