"""The cluster as a client would find it: from the address that it is given to every broker that it is sent to."""

import socket
import time
from collections.abc import AsyncIterator

from twofold.cli.command_config import make_config
from twofold.cli.common import plural
from twofold.cli.doctor.findings import Finding, Grade, note, ok, problem, warning
from twofold.client import Admin, Node
from twofold.client.admin.transaction_model import TransactionState
from twofold.client.config import ClientConfig
from twofold.connections.connection import Address, ConnectionLimits, open_connection
from twofold.wire.apis import APIS
from twofold.wire.errors import KafkaError

ASKED = 5
LONG_OPEN_MS = 15 * 60_000
NAMED = 3
LOG_SAYS_WHY = "the broker's log says why"
REMOTE_PAGE = "docs/guide/remote-clients.md"


async def check_cluster(server: str, timeout_s: float, *, is_expected: bool) -> AsyncIterator[Finding]:
    """`is_expected`: a broker was named, so that none there is a problem."""
    timeout_ms = int(timeout_s * 1000)
    admin = _admin(server, timeout_ms)
    try:
        try:
            await admin.bootstrap(min(500, timeout_ms))
            cluster = await admin.describe_cluster()
        except KafkaError as error:
            if is_expected:
                yield problem("reachable", str(error), "is a broker running there? --bootstrap-server names another")
            else:
                yield note("reachable", f"no broker answers at {server}", "start one with: twofold serve")
            return
        yield ok(
            "reachable", f"{server} answers: cluster {cluster.cluster_id}, {plural(len(cluster.brokers), 'broker')}"
        )
        is_reached = True
        for node in sorted(cluster.brokers, key=lambda node: node.node_id):
            async for finding in _check_broker(admin, node, cluster.cluster_id, server, timeout_s):
                is_reached = is_reached and finding.level is not Grade.PROBLEM
                yield finding
        if is_reached:  # otherwise each question would wait for its whole time
            async for finding in _check_what_is_there(admin):
                yield finding
    finally:
        await admin.close()


def _admin(server: str, timeout_ms: int) -> Admin:
    values = {"default.api.timeout.ms": timeout_ms, "client.id": "twofold-doctor"}
    return Admin.of(make_config(ClientConfig, server, values))


async def _check_broker(
    admin: Admin, node: Node, cluster_id: str, server: str, timeout_s: float
) -> AsyncIterator[Finding]:
    where = f"broker {node.node_id} tells clients to connect to {node.address}"
    advice = f"let it advertise an address that this machine reaches (--advertise); see {REMOTE_PAGE}"
    try:
        found = await admin.cluster.runtime.blocking(socket.getaddrinfo, node.host, node.port)
    except OSError:
        yield problem("client sees", f"{where}, and this machine cannot resolve {node.host}", advice)
        return
    addresses = sorted({str(entry[4][0]) for entry in found})
    limits = ConnectionLimits("twofold-doctor", timeout_s * 1000, timeout_s * 1000)
    try:
        connection = await open_connection(
            admin.cluster.runtime, Address(node.host, node.port), limits, security=admin.config.security
        )
    except KafkaError as error:
        yield problem("client sees", f"{where} ({', '.join(addresses)}), and that fails: {error}", advice)
        return
    lacking = [api.name for key, api in APIS.items() if key not in connection.versions and api.name in NEEDED]
    connection.close()
    other = await cluster_at(str(node.address), timeout_s)
    if other not in (None, cluster_id):
        text = f"{where}, where another cluster answers: {other}, and {server} is of {cluster_id}"
        yield problem("client sees", text, advice)
        return
    yield ok("client sees", f"{where} ({', '.join(addresses)}), which answers in {await _round_trip_ms(admin):.1f} ms")
    if node.host not in addresses and node.host != "localhost" and all(map(_is_loopback, addresses)):
        text = f"{node.host} leads back to this machine ({', '.join(addresses)}); other machines may find another"
        yield note("client sees", text, f"run `twofold doctor -b` there, too; see {REMOTE_PAGE}")
    if lacking:
        yield warning(
            "client sees", f"broker {node.node_id} does not serve {', '.join(lacking)}", "is it an old version?"
        )


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


NEEDED = {"Produce", "Fetch", "InitProducerId", "EndTxn", "FindCoordinator", "DescribeTransactions", "ListTransactions"}


async def cluster_at(server: str, timeout_s: float) -> str | None:
    """The id of the cluster whose broker answers there."""
    timeout_ms = int(timeout_s * 1000)
    admin = _admin(server, timeout_ms)
    try:
        await admin.bootstrap(0)
        return (await admin.describe_cluster()).cluster_id
    except KafkaError:
        return None
    finally:
        await admin.close()


async def _round_trip_ms(admin: Admin) -> float:
    """The quickest of a few: the rest is this machine's own work."""
    times = []
    for _ in range(ASKED):
        begin = time.perf_counter()
        await admin.describe_cluster()
        times.append((time.perf_counter() - begin) * 1000)
    return min(times)


async def _check_what_is_there(admin: Admin) -> AsyncIterator[Finding]:
    try:
        topics = await admin.list_topics(include_internal=True)
        groups = await admin.list_groups()
        results = await admin.list_transactions(states=[TransactionState.ONGOING], duration_ms=LONG_OPEN_MS)
        late = [row for rows in results.get().values() for row in rows]
    except KafkaError as error:
        yield problem("client sees", f"a broker does not answer what every client asks: {error}", LOG_SAYS_WHY)
        return
    rows = [(topic.name, row) for topic in topics.values() for row in topic.partitions.values()]
    yield ok("client sees", f"{plural(len(topics), 'topic')} with {plural(len(rows), 'partition')}")
    without = [f"{name}-{row.partition}" for name, row in rows if row.leader < 0]
    if without:
        more = f" and {len(without) - NAMED:,} more" if len(without) > NAMED else ""
        text = f"{plural(len(without), 'partition')} without a leader: {', '.join(without[:NAMED])}{more}"
        yield problem("client sees", text, LOG_SAYS_WHY)
    if late:
        text = f"{plural(len(late), 'transaction')} open for more than 15 minutes"
        yield warning("client sees", text, "twofold txn blocked shows which readers wait")
    else:
        yield ok("client sees", f"coordinators answer: {plural(len(groups), 'group')}, no transaction hangs for long")
