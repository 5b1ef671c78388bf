"""What the commands that ask an Admin share: the connection, and the words for its answers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twofold.cli.command_config import make_config
from twofold.cli.common import FAILED, OK, OutputFormat, complain, print_json
from twofold.client.admin.admin import Admin
from twofold.client.config import ClientConfig
from twofold.wire.errors import KafkaError


class connected:  # noqa: N801 - reads as a verb: async with connected(...)
    """An Admin whose bootstrap server has answered."""

    def __init__(self, bootstrap_server: str, timeout_s: float) -> None:
        self._options = (bootstrap_server, int(timeout_s * 1000))

    async def __aenter__(self) -> Admin:
        server, timeout_ms = self._options
        self._admin = Admin.of(make_config(ClientConfig, server, {"default.api.timeout.ms": timeout_ms}))
        try:
            await self._admin.bootstrap(min(2_000, timeout_ms))
        except BaseException:
            await self._admin.close()
            raise
        return self._admin

    async def __aexit__(self, *_: object) -> None:
        await self._admin.close()


def complain_of_all(
    errors: Mapping[Any, KafkaError],
    verb: str,
    reason: Callable[[Any, KafkaError], str],
    ignored: tuple[type[KafkaError], ...] = (),
) -> int:
    """Say what failed, and why in the words of the command; returns the exit code."""
    code = OK
    for name, error in errors.items():
        if not isinstance(error, ignored):
            code = complain(f"cannot {verb} {name}: {reason(name, error)}", FAILED)
    return code


def print_deleted(names: Iterable[str], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json({"deleted": list(names)})
    else:
        for name in names:
            print(f"deleted {name}")
