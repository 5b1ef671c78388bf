"""Spark's connection to this Python process, without the waits that TCP adds to small messages.

Unless `spark.python.unix.domain.socket.enabled` is set, the JVM and its Python workers talk over loopback TCP, and
neither of them sets TCP_NODELAY. A second small message then waits until the first is acknowledged (Nagle), and the
kernel delays that acknowledgement by 40 ms. A micro-batch of a few rows meets this several times.

This process can change its own end: what it sends goes at once, and what it has received is acknowledged at once.
"""

import os
import socket

QUICK = getattr(socket, "TCP_QUICKACK", None)
FDS = "/proc/self/fd"
LOOPBACK = "127.", "::1", "::ffff:127."


def answer_at_once() -> None:
    """Call where Spark calls this process, before what takes time: the kernel forgets a part of it when this process
    sends. Does nothing on systems that have no such options."""
    if QUICK is None:
        return
    for number in _descriptors():
        try:
            connection = socket.socket(fileno=number)
        except OSError:
            continue  # no socket, or closed meanwhile
        try:
            if _is_loopback(connection):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, QUICK, 1)
        except OSError:
            continue  # it listens, or its peer is gone
        finally:
            connection.detach()  # it stays what it was for its owner


def _descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(FDS)]
    except OSError:
        return []


def _is_loopback(connection: socket.socket) -> bool:
    """Spark's connections, and perhaps some to a broker of this host, to which this does no harm."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.type != socket.SOCK_STREAM:
        return False
    return str(connection.getpeername()[0]).startswith(LOOPBACK)
