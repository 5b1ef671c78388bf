"""Spark's connection to a Python worker over loopback TCP: small messages do not wait for one another."""

import os
import socket
from collections.abc import Iterator

import pytest

from twofold.spark.worker_socket import QUICK, answer_at_once

pytestmark = pytest.mark.skipif(QUICK is None, reason="this system has no TCP_QUICKACK")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Spark's end, and that of the worker."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        spark = socket.create_connection(listener.getsockname())
        worker, _ = listener.accept()
        with spark, worker:
            yield spark, worker


def options_of(connection: socket.socket) -> tuple[bool, bool]:
    """Whether it sends at once, and acknowledges at once."""
    assert QUICK is not None
    sends = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    acknowledges = connection.getsockopt(socket.IPPROTO_TCP, QUICK)
    return bool(sends), bool(acknowledges)


def exchange(spark: socket.socket, worker: socket.socket) -> None:
    """As a worker that is used again: it has answered, so the kernel expects it to answer soon and delays what it
    acknowledges."""
    for _ in range(4):
        spark.sendall(b"task")
        worker.recv(4)
        worker.sendall(b"done")
        spark.recv(4)


def test_a_worker_that_has_answered_acknowledges_at_once_again(ends: tuple[socket.socket, socket.socket]) -> None:
    spark, worker = ends
    exchange(spark, worker)
    assert options_of(worker) == (False, False)
    answer_at_once()
    assert options_of(worker) == (True, True)


def test_the_second_small_message_of_spark_is_not_held_back(ends: tuple[socket.socket, socket.socket]) -> None:
    spark, worker = ends
    exchange(spark, worker)
    spark.sendall(b"head")
    spark.sendall(b"rows")  # Spark's kernel keeps it until the first is acknowledged
    assert worker.recv(64) == b"head"
    answer_at_once()
    worker.setblocking(False)
    assert worker.recv(64) == b"rows"


def test_other_descriptors_stay_as_they_are(ends: tuple[socket.socket, socket.socket]) -> None:
    spark, worker = ends
    read, write = os.pipe()
    left, right = socket.socketpair()
    with left, right, socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as unconnected:
        before = sorted(os.listdir("/proc/self/fd"))
        answer_at_once()
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert unconnected.fileno() >= 0
        os.write(write, b"1")
        left.sendall(b"2")
        spark.sendall(b"3")
        assert (os.read(read, 1), right.recv(1), worker.recv(1)) == (b"1", b"2", b"3")
        socket.create_connection(listener.getsockname()).close()
    os.close(read)
    os.close(write)
