"""What the kernel holds back of a TCP connection between two processes of this machine.

A netlink socket of the kernel's `sock_diag` is asked for the two ends, which takes microseconds. Where it does not
answer, `/proc/net/tcp` is read, which lists all sockets and takes milliseconds.
"""

import functools
import socket
import struct
from pathlib import Path

SOCK_DIAG, BY_FAMILY = 4, 20
HEADER = struct.Struct("=IHHII")  # of netlink: size, type, flags, sequence, port
REQUEST = struct.Struct("=BBBxI")  # of inet_diag: family, protocol, extensions, states
PORTS = struct.Struct("!HH")
IDENTITY = struct.Struct("=16s16sIII")  # addresses, interface, cookie
QUEUES = struct.Struct("=II")  # bytes to be read, bytes to be sent
QUEUES_AT = HEADER.size + 4 + PORTS.size + IDENTITY.size + 4
ANY_STATE = ANY_COOKIE = 0xFFFFFFFF
PATIENCE_S = 5.0

Address = tuple[str, int]


class NotToldError(Exception):
    """The kernel does not tell of this socket."""


def unread(connection: socket.socket) -> bool:
    """Whether bytes that were sent here wait on our side, or on the other for its process to read them."""
    here, there = connection.getsockname()[:2], connection.getpeername()[:2]
    if connection.family == socket.AF_INET and tells_queues():
        return unread_by_netlink(here, there)
    return unread_by_proc(here, there)


def unread_by_netlink(here: Address, there: Address) -> bool:
    try:
        return queues(here, there)[1] > 0 or queues(there, here)[0] > 0
    except NotToldError:
        return False  # one end is closed


def queues(local: Address, remote: Address) -> tuple[int, int]:
    """Of the socket at `local` that is connected to `remote`: how many bytes wait to be read, and to be sent."""
    addresses = (socket.inet_aton(host).ljust(16, b"\0") for host, _ in (local, remote))
    asked = REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, ANY_STATE) + PORTS.pack(local[1], remote[1])
    asked += IDENTITY.pack(*addresses, 0, ANY_COOKIE, ANY_COOKIE)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as netlink:
        netlink.settimeout(PATIENCE_S)
        netlink.send(HEADER.pack(HEADER.size + len(asked), BY_FAMILY, 1, 1, 0) + asked)
        answer = netlink.recv(4096)
    if HEADER.unpack_from(answer)[1] != BY_FAMILY:
        raise NotToldError(f"{local} connected to {remote}")
    to_read, to_send = QUEUES.unpack_from(answer, QUEUES_AT)
    return to_read, to_send


@functools.cache
def tells_queues() -> bool:
    """Whether the kernel answers, tried with a connection that is there."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connection,
    ):
        try:
            queues(connection.getsockname(), connection.getpeername())
        except (NotToldError, AttributeError, OSError):
            return False
    return True


def unread_by_proc(here: Address, there: Address) -> bool:
    ours, theirs = (here[1], there[1]), (there[1], here[1])
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, remote, _, waiting, *_ = line.split()
            ends = tuple(int(address.rpartition(":")[2], 16) for address in (local, remote))
            to_send, to_read = (int(size, 16) > 0 for size in waiting.split(":"))
            if (ends == ours and to_send) or (ends == theirs and to_read):
                return True
    return False
