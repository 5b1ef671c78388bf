"""DualWrite and `twofold recover` over SASL_SSL, with WRITE on the topic, and WRITE and TWO_PHASE_COMMIT on the
transactional id. The password is a reference."""

from pathlib import Path

from kits.dualwrite.shop import TOPIC, Shop, sqlite_url, until
from kits.processes import commands
from kits.security.secure_server import ADMIN, ADMINS_PASSWORD, PASSWORD, USER, SecureServer
from twofold import Admin, Consumer, NewTopic
from twofold.client.admin.security import AclBinding
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
        assert shop.table() == read(server) == ["a kettle", "a teapot"]
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


def read(server: SecureServer) -> list[str]:
    config = server.client(ADMIN, ADMINS_PASSWORD)
    options = {"auto.offset.reset": "earliest", "isolation.level": "read_committed", "group.id": "check"}
    found: list[str] = []
    with Consumer.from_config(config | options) as consumer:
        consumer.subscribe([TOPIC])
        until(lambda: len(found.extend(_values(consumer)) or found) >= 2)
    return sorted(found)


def _values(consumer: Consumer) -> list[str]:
    return [(record.value or b"").decode() for record in consumer.poll(200)]
