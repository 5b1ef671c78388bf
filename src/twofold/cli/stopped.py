"""A data folder that no broker has open: its metadata is changed by the controller that a broker would run.

1. The folder is locked meanwhile, as a broker locks it. One that is in use is refused.
2. What is written is what a request to a running broker would have written, and is on disk when the command ends.
3. A folder that is not there yet is made, so that the first user exists before the first start.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twofold.cli.common import FAILED, USAGE, CliError
from twofold.config.authorization import AuthorizerSettings
from twofold.config.settings import Settings
from twofold.controller.fitness.openable import first_problem
from twofold.log.directory.identity import (
    DataDirectoryError,
    identify,
    node_id_of,
    was_closed_cleanly,
)
from twofold.log.manager import LOCK
from twofold.log.recovery.checkpoints import decode_uuid
from twofold.metadata_log.errors import UnusableMetadata
from twofold.quorum.controller import Controller
from twofold.runtime.api import Runtime
from twofold.runtime.real import real_runtime
from twofold.wire.errors import KafkaStorageError

DEFAULT_NODE_ID = 1
# An authorizer without entries would let no principal in. That does not matter here: this is the way back.
_ANY_AUTHORIZER = AuthorizerSettings(frozenset(), allow_everyone=True)


@asynccontextmanager
async def controller_of(data: str) -> AsyncIterator[Controller]:
    """The controller over the metadata of a folder; CliError where it cannot be had."""
    runtime = real_runtime()
    _make(data)
    try:
        lock = runtime.disk.lock(f"{data}/{LOCK}")
    except BlockingIOError:
        raise CliError(f"{data} is in use: stop its broker first, or ask it with --bootstrap-server", FAILED) from None
    except OSError as error:
        raise CliError(f"{data} cannot be opened: {error.strerror}", FAILED) from None
    try:
        controller = _controller(runtime, data)
        await controller.start()
        try:
            yield controller
        finally:
            await controller.stop()
    except (DataDirectoryError, UnusableMetadata, KafkaStorageError) as error:
        raise CliError(str(error), FAILED) from None
    finally:
        lock.release()


def _make(data: str) -> None:
    if os.path.isdir(data):
        return
    parent = os.path.dirname(os.path.abspath(data))
    if not os.path.isdir(parent):
        raise CliError(f"there is no folder {parent} to make {data} in", USAGE)
    try:
        os.mkdir(data, 0o700)
    except OSError as error:
        raise CliError(f"{data} cannot be made: {error.strerror}", FAILED) from None


def _controller(runtime: Runtime, data: str) -> Controller:
    node_id = node_id_of(runtime.disk, data) or DEFAULT_NODE_ID
    identity = identify(runtime.disk, data, node_id, runtime.random)
    meta = identity.meta
    directory_id = decode_uuid(meta.directory_id)
    identity.complete(runtime.disk, data)
    return Controller(
        runtime,
        Settings.from_mapping({"node.id": str(node_id)}),
        log_dir=data,
        cluster_id=meta.cluster_id,
        directory_id=directory_id,
        check=lambda image: first_problem(
            image, node_id=node_id, directory_id=directory_id, authorizer=_ANY_AUTHORIZER
        ),
        closed_cleanly=was_closed_cleanly(runtime.disk, data),
    )
