"""`--command-config`: one file for all commands that ask a broker, and what is refused in it."""

import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from twofold.cli.app import make_root, run_app
from twofold.cli.common import COMMAND_CONFIG

SECRET = "xyzzy-18"
FILE = f"""security.protocol=SASL_PLAINTEXT
sasl.mechanism=PLAIN
sasl.username=alice
sasl.password={SECRET}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TWOFOLD_BOOTSTRAP_SERVER", "TWOFOLD_PROFILE", "TWOFOLD_COMMAND_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_that_takes_a_bootstrap_server_takes_a_command_config() -> None:
    asking = {
        path: {name for option in command.params for name in option.opts}
        for path, command in commands(make_root())
        if any("--bootstrap-server" in option.opts for option in command.params)
    }
    assert {("topic", "list"), ("recover",), ("doctor",), ("pipeline", "run"), ("txn", "list")} <= asking.keys()
    assert [path for path, names in asking.items() if COMMAND_CONFIG.names[0] not in names] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "sasl.pasword=x\n", "no client has a setting sasl.pasword (did you mean sasl.password?)"),
        (
            FILE + "bootstrap.servers=other:9092\n",
            "has bootstrap.servers=other:9092, and this command asks 127.0.0.1:1",
        ),
        (FILE.replace("PLAIN\n", "GSSAPI\n"), "Kerberos is not supported: use one of PLAIN"),
        (FILE + "sasl.login.class=com.example.Login\n", "sasl.login.class is not supported: no class of Java"),
        (FILE + "ssl.truststore.location=/ca.pem\n", "ssl.truststore.location has no effect with"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_before_anything_connects(
    home: Path, text: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = home / "client.properties"
    file.write_text(text)
    assert run_app(["topic", "list", "-b", "127.0.0.1:1", "--command-config", str(file)]) == 2
    said = capfd.readouterr().err
    assert message in said
    assert SECRET not in said


def test_a_file_that_is_not_there_is_named(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_app(["topic", "list", "--command-config", str(home / "none")]) == 2
    assert "cannot read --command-config" in capfd.readouterr().err


def test_settings_of_other_kinds_of_clients_are_passed_over(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = home / "client.properties"
    file.write_text("acks=all\nisolation.level=read_committed\nclient.dns.lookup=use_all_dns_ips\n")
    assert run_app(["topic", "list", "-b", "127.0.0.1:1", "--timeout", "0.1", "--command-config", str(file)]) == 3


def received_from(arguments: list[str], server: socket.socket) -> bytes:
    """All that a command sends to a server that answers nothing."""
    import threading

    heard = bytearray()

    def listen() -> None:
        server.settimeout(20)
        connection, _ = server.accept()
        connection.settimeout(20)
        heard.extend(connection.recv(4096))
        connection.close()
        server.close()

    thread = threading.Thread(target=listen)
    thread.start()
    run_app(arguments)
    thread.join()
    return bytes(heard)


def test_the_file_of_a_profile_does_not_count_with_another_address(home: Path) -> None:
    """TLS would begin with a handshake: a plain request shows that the file was not used."""
    import trustme

    trustme.CA().cert_pem.write_to_path(str(home / "ca.pem"))
    file = home / "client.properties"
    file.write_text(f"security.protocol=SSL\nssl.truststore.location={home}/ca.pem\n")
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    own, other = (f"127.0.0.1:{server.getsockname()[1]}" for server in servers)
    assert run_app(["profile", "add", "mine", "-b", own, "--command-config", str(file), "--use"]) == 0
    handshake = received_from(["topic", "list", "--timeout", "0.5"], servers[0])
    assert handshake[:2] == b"\x16\x03"
    request = received_from(["topic", "list", "-b", other, "--timeout", "0.5"], servers[1])
    assert request[4:6] == b"\x00\x12", "an ApiVersions request in plain text"
