"""Rate, time and errors of requests by API: what clients sent and got is what is told."""

from pathlib import Path

from kits.node.running import FETCH, PRODUCE, Node, batch, fetch_request, produce_request, running, scraper_of
from kits.node.sockets import on_loop, settle
from twofold.broker.metrics.durations import OF_REQUESTS_S, Durations
from twofold.wire.apis import KEYS
from twofold.wire.errors import OffsetOutOfRange, UnknownTopicOrPartition
from twofold.wire.messages.find_coordinator import FindCoordinatorRequest
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

from .test_metrics import Page

REQUESTS = "kafka_network_requestmetrics_requests_total"
ERRORS = "kafka_network_requestmetrics_errors_total"
TIMES = "twofold_request_seconds"
METADATA, FIND_COORDINATOR = KEYS["Metadata"], KEYS["FindCoordinator"]


async def scrape(node: Node) -> Page:
    return Page(await scraper_of(node.broker).page())


@on_loop
async def test_every_request_is_counted_with_its_time(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t")
        client = await node.connect()
        for _ in range(3):
            await client.call(produce_request(("t", 0, batch(b"v"))), PRODUCE, 9)
        page = await scrape(node)
        assert page(REQUESTS, request="Produce", version=9) == 3
        assert page(f"{TIMES}_count", request="Produce") == 3
        assert page(f"{TIMES}_bucket", request="Produce", le="+Inf") == 3
        assert 0 < (page(f"{TIMES}_sum", request="Produce") or 0) < 20
        assert page(f"{TIMES}_count", request="Fetch") is None, "what was never asked for has no series"
        assert page.labels(ERRORS) == []


@on_loop
async def test_a_call_lasts_until_its_answer_goes_out(tmp_path: Path) -> None:
    async with running(tmp_path, manual_timers=True) as node:
        await node.create("t")
        reader, writer = await node.connect(), await node.connect()
        reader.ask(fetch_request(("t", 0, 0), max_wait_ms=60_000), FETCH, 11)
        await settle()
        while node.broker.replicas.purgatory.fetches == {}:
            await settle()
        page = await scrape(node)
        assert page(REQUESTS, request="Fetch", version=11) == 1, "it has come"
        assert page(f"{TIMES}_count", request="Fetch") == 0, "and waits for data"
        await writer.call(produce_request(("t", 0, batch(b"v"))), PRODUCE, 9)
        await reader.answer(FETCH, 11)
        assert (await scrape(node))(f"{TIMES}_count", request="Fetch") == 1


@on_loop
async def test_errors_are_counted_by_api_and_name_once_per_row(tmp_path: Path) -> None:
    async with running(tmp_path, {"auto.create.topics.enable": "false"}) as node:
        await node.create("t", partitions=2)
        client = await node.connect()
        rows = [("t", 0, batch(b"v")), ("gone", 0, batch(b"v")), ("gone", 1, batch(b"v"))]
        await client.call(produce_request(*rows), PRODUCE, 9)
        await client.call(fetch_request(("t", 0, 99), ("t", 1, 0)), FETCH, 11)
        await client.call(MetadataRequest(topics=(MetadataRequestTopic(name="gone"),)), METADATA, 9)
        await client.call(FindCoordinatorRequest(key="g", key_type=7), FIND_COORDINATOR, 3)
        page = await scrape(node)
        unknown = UnknownTopicOrPartition.name
        assert page(ERRORS, request="Produce", error=unknown) == 2, "the partition that was written to has none"
        assert page(ERRORS, request="Fetch", error=OffsetOutOfRange.name) == 1
        assert page(ERRORS, request="Metadata", error=unknown) == 1
        assert page(ERRORS, request="FindCoordinator", error="INVALID_REQUEST") == 1
        assert len(page.labels(ERRORS)) == 4


@on_loop
async def test_a_whole_request_that_is_refused_counts_for_each_of_its_partitions(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        await node.create("t", partitions=2)
        client = await node.connect()
        await client.call(produce_request(("t", 0, batch(b"v")), ("t", 1, batch(b"v")), acks=5), PRODUCE, 9)
        assert (await scrape(node))(ERRORS, request="Produce", error="INVALID_REQUIRED_ACKS") == 2


def test_durations_fall_into_the_bucket_of_their_bound() -> None:
    times = Durations(OF_REQUESTS_S)
    for took_s in (-1.0, 0.0, 0.0001, 0.00011, 0.5, 30.0, 31.0):
        times.add(took_s)
    found = dict(times.buckets())
    assert (found[0.0001], found[0.0002], found[0.5], found[30.0], found[float("inf")]) == (3, 4, 5, 6, 7)
    assert times.count == 7
    assert abs(times.total_s - 61.50021) < 1e-9, "a clock that was set back takes nothing away"
