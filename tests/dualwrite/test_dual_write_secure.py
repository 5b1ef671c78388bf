"""DualWrite, `twofold recover` and ApplyOnce over SASL_SSL. The password is a reference.

The first two have WRITE on the topic, and WRITE and TWO_PHASE_COMMIT on the transactional id.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine, text

from kits.dualwrite.shop import TOPIC, Shop, sqlite_url, until
from kits.processes import commands
from kits.security.secure_server import ADMIN, ADMINS_PASSWORD, PASSWORD, USER, SecureServer
from twofold import Admin, NewTopic
from twofold.client.admin.security import AclBinding
from twofold.client.consumer.consumer import ConsumerRecord
from twofold.dualwrite.apply_once import ApplyOnce
from twofold.security.acl_codes import AclResourceType, Operation

ID = "shop|orders"  # the guide gives `shop` the ids that begin so


class Crash(BaseException):
    """The program of a writer stops where it is."""


def test_a_dead_writers_transaction_is_ended_by_recover_over_the_same_secure_connection(tmp_path: Path) -> None:
    server = SecureServer(tmp_path / "server")
    server.prepare()
    (tmp_path / "password").write_text(PASSWORD + "\n")
    settings = server.client(USER, f"${{file:{tmp_path / 'password'}}}")
    (tmp_path / "client.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    with server:
        with Admin.from_config(server.client(ADMIN, ADMINS_PASSWORD)) as admin:
            admin.create_topics([NewTopic(TOPIC, 1)]).get()
            right = AclBinding(AclResourceType.TOPIC, TOPIC, f"User:{USER}", Operation.WRITE)
            assert not admin.create_acls([right]).errors
            shop = Shop(server.bootstrap_servers, sqlite_url(tmp_path))
            leave_prepared(shop, admin, settings)
            assert open_ids(admin) == [ID]
            asked = ("--db", shop.url, "--command-config", str(tmp_path / "client.properties"))
            done = commands.run("recover", *asked, server=server.bootstrap_servers)
            assert done.returncode == 0, done.stderr
            assert open_ids(admin) == []
        assert shop.table() == applied(server, tmp_path) == ["a kettle", "a teapot"]
        shop.close()
        assert PASSWORD not in done.stdout + done.stderr + server.log_text()


def leave_prepared(shop, admin, settings):
    """One order that is whole, and one whose writer died between the commit of the database and that of the log."""
    options = {name.replace(".", "_"): value for name, value in settings.items() if name != "bootstrap.servers"}
    died = False

    def stop(reached: str) -> None:
        if died and reached == "write: complete log":
            raise Crash

    dual = shop.dual(ID, observer=stop, **options)
    dual._keep_settling = lambda: None
    shop.order(dual, "a teapot")
    died = True
    try:
        shop.block(dual, shop.of("a kettle"), lambda db, log: until(lambda: bool(open_ids(admin))))
    except Crash:
        dual.log._producer._thread.close()  # nothing is said to the broker
        return
    raise AssertionError("the writer did not die")


def open_ids(admin: Admin) -> list[str]:
    found = admin.describe_transactions([ID]).values
    return [name for name, row in found.items() if row.is_ongoing]


def applied(server: SecureServer, folder: Path) -> list[str]:
    """What ApplyOnce carries into another database, over the same kind of connection."""
    config = server.client(ADMIN, ADMINS_PASSWORD)
    options: dict[str, Any] = {name.replace(".", "_"): value for name, value in config.items()}
    engine = create_engine(f"sqlite:///{folder / 'applied.db'}")
    with engine.begin() as db:
        db.execute(text("CREATE TABLE bills (value TEXT)"))

    def apply(db: Connection, records: list[ConsumerRecord]) -> None:
        for record in records:
            db.execute(text("INSERT INTO bills VALUES (:value)"), {"value": (record.value or b"").decode()})

    with ApplyOnce(engine, group_id="bills", topics=[TOPIC], **options) as worker:
        seen = [0]
        until(lambda: seen.append(worker.step(apply, timeout_ms=200)) or sum(seen) >= 2)
    with engine.begin() as db:
        return sorted(db.execute(text("SELECT value FROM bills")).scalars())
