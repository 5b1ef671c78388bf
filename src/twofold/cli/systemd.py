"""What `twofold serve` tells the service manager that started it (sd_notify(3), Type=notify of a unit)."""

import logging
import os
import socket

NOTIFY_SOCKET = "NOTIFY_SOCKET"  # in the environment of a service that is to tell
READY, STOPPING = "READY=1", "STOPPING=1"

log = logging.getLogger(__name__)


def tell_systemd(state: str) -> None:
    """Do nothing where no service manager listens."""
    address = os.environ.get(NOTIFY_SOCKET)
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to_manager:
            to_manager.sendto(state.encode(), address)
    except OSError as error:
        log.warning("the service manager cannot be told %s at %s=%s: %s", state, NOTIFY_SOCKET, address, error)
