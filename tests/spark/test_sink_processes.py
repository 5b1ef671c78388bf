"""What a process of Spark keeps of its sinks, for it serves all queries of a session."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.types import StringType, StructField, StructType
from sink_kit import SETTINGS

from kits.processes.server import TwofoldServer
from twofold.spark.clients import MAX_CLUSTERS
from twofold.spark.options import WriteOptions, write_options
from twofold.spark.sink import MAX_SINKS, batch_writer, identified, owner_of, sink_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("server"), SETTINGS) as running:
        yield running


def options(server: TwofoldServer, directory: Path, number: int) -> WriteOptions:
    """Each with a configuration of its own, and a checkpoint as Spark leaves it when it begins the first batch."""
    checkpoint = directory / str(number)
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": f"{directory.name}-{number}"}))
    (checkpoint / "offsets" / "0").write_text('v1\n{}\n{"t":{"0":1}}')
    given = {
        "kafka.bootstrap.servers": server.bootstrap_servers,
        "kafka.client.id": f"client-{number}",
        "topic": "out",
        "checkpointLocation": str(checkpoint),
    }
    return identified(write_options(given, streaming=True))


def test_more_sinks_than_clusters_take_turns(server: TwofoldServer, tmp_path: Path) -> None:
    chosen = [options(server, tmp_path, number) for number in range(MAX_CLUSTERS + 1)]
    for _ in range(2):
        for one in chosen:
            sink = sink_for(one)
            assert sink.start(owner_of(one)).decided == ()
            assert not sink.writer().is_open


def test_sink_that_had_to_give_way_starts_anew(server: TwofoldServer, tmp_path: Path) -> None:
    chosen = [options(server, tmp_path, number) for number in range(MAX_SINKS + 1)]
    first = sink_for(chosen[0])
    assert sink_for(chosen[0]) is first
    for one in chosen[1:]:
        sink_for(one)
    assert sink_for(chosen[0]) is not first
    assert sink_for(chosen[0]).start(owner_of(chosen[0])).decided == ()


def test_the_start_says_which_rows_another_sink_may_have_written_before_the_move(
    server: TwofoldServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = options(server, tmp_path, 1)
    sink_for(one).start(owner_of(one))
    assert not caplog.messages  # the query's own first batch
    moved = options(server, tmp_path, 2)
    (tmp_path / "2" / "offsets" / "1").write_text('v1\n{}\n{"t":{"0":9}}')
    sink_for(moved).start(owner_of(moved))
    (said,) = caplog.messages
    assert "batch 1 is the first that this sink writes" in said
    assert 'the input from {"t":{"0":1}} to {"t":{"0":9}}' in said


def test_a_batch_warns_that_a_repeated_job_writes_it_again_unless_it_has_a_write_id(
    server: TwofoldServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark pickles a writer before it makes tasks."""
    schema = StructType([StructField("value", StringType())])
    given = {"kafka.bootstrap.servers": server.bootstrap_servers, "topic": "out"}
    for more, warns in (({}, True), ({"writeId": "nightly"}, False), ({"transactionalIdPrefix": "p"}, False)):
        caplog.clear()
        writer = batch_writer(given | more, schema, overwrite=False)
        try:
            pickle.dumps(writer)
            warned = [said for said in caplog.messages if "a job that is repeated writes it again" in said]
            assert len(warned) == warns, (more, caplog.messages)
            assert all("With a writeId it is written once" in said for said in warned)
        finally:
            writer.abort([])
