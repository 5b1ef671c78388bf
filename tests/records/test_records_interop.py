"""Batches built here are read by the parsers of kafka-python and aiokafka, and theirs here, without a broker between.

aiokafka ships a parser in C and one in Python, both are used. kafka-python reads only the codecs whose packages are
installed: gzip always. The others are covered by aiokafka, and by the batches in test_records_compression that Apache
Kafka wrote.
"""

import aiokafka.record.default_records as aio
import kafka.codec
import kafka.record.default_records as kp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from twofold.records.batch import BatchBuilder, crc_is_valid, iter_headers, iter_records, read_header
from twofold.records.compression import Codec
from twofold.records.control import end_transaction_marker

HAS = {
    Codec.NONE: True,
    Codec.GZIP: kafka.codec.has_gzip(),
    Codec.SNAPPY: kafka.codec.has_snappy(),
    Codec.LZ4: kafka.codec.has_lz4(),
    Codec.ZSTD: kafka.codec.has_zstd(),
}
KAFKA_PYTHON_CODECS = [codec for codec in Codec if HAS[codec]]

BLOBS = st.none() | st.binary(max_size=60)
RECORDS = st.lists(
    st.tuples(
        BLOBS,
        BLOBS,
        st.integers(0, 2**44),
        st.lists(st.tuples(st.text(max_size=10), BLOBS), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=15,
)
READERS = [
    *(pytest.param(kp.DefaultRecordBatch, codec, id=f"kafka-python-{codec.name}") for codec in KAFKA_PYTHON_CODECS),
    *(pytest.param(aio.DefaultRecordBatch, codec, id=f"aiokafka-c-{codec.name}") for codec in Codec),
    *(pytest.param(aio._DefaultRecordBatchPy, codec, id=f"aiokafka-py-{codec.name}") for codec in Codec),
]
WRITERS = [
    *(
        pytest.param(kp.DefaultRecordBatchBuilder, codec, id=f"kafka-python-{codec.name}")
        for codec in KAFKA_PYTHON_CODECS
    ),
    *(pytest.param(aio.DefaultRecordBatchBuilder, codec, id=f"aiokafka-c-{codec.name}") for codec in Codec),
    *(pytest.param(aio._DefaultRecordBatchBuilderPy, codec, id=f"aiokafka-py-{codec.name}") for codec in Codec),
]
LARGE = [(b"%d" % i, b"value %d " % i * 40, 1_600_000_000_000 + i, (("h", b"%d" % i),)) for i in range(2000)]


def rows(batch):
    return [
        (
            record.offset,
            record.timestamp,
            None if record.key is None else bytes(record.key),
            None if record.value is None else bytes(record.value),
            tuple((key, None if value is None else bytes(value)) for key, value in record.headers),
        )
        for record in batch
    ]


def expected(records, base_offset=0):
    return [(base_offset + i, time, key, value, headers) for i, (key, value, time, headers) in enumerate(records)]


def they_read(reader, codec, records):
    builder = BatchBuilder(codec, base_offset=500, producer_id=3, producer_epoch=1, base_sequence=8, transactional=True)
    for record in records:
        builder.add(*record)
    batch = reader(builder.build())
    assert batch.validate_crc()
    assert batch.is_transactional
    assert not batch.is_control_batch
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (3, 1, 8)
    assert batch.next_offset == 500 + len(records)
    assert rows(batch) == expected(records, 500)


def we_read(writer, codec, records):
    builder = writer(
        magic=2,
        compression_type=int(codec),
        is_transactional=1,
        producer_id=3,
        producer_epoch=1,
        base_sequence=8,
        batch_size=10**9,
    )
    for offset, (key, value, timestamp, headers) in enumerate(records):
        assert builder.append(offset, timestamp, key, value, list(headers)) is not None
    batch = bytes(builder.build())
    header = read_header(batch)
    assert crc_is_valid(batch, 0, header)
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (3, 1, 8)
    assert (header.count, header.last_offset) == (len(records), len(records) - 1)
    assert rows(iter_records(batch)) == expected(records)
    return header


@pytest.mark.parametrize(("reader", "codec"), READERS)
@settings(max_examples=40)
@given(RECORDS)
def test_they_read_what_we_build(reader, codec, records):
    they_read(reader, codec, records)


@pytest.mark.parametrize(("writer", "codec"), WRITERS)
@settings(max_examples=40)
@given(RECORDS)
def test_we_read_what_they_build(writer, codec, records):
    we_read(writer, codec, records)


@pytest.mark.parametrize(("reader", "codec"), READERS)
def test_they_read_large_batches_of_ours(reader, codec):
    they_read(reader, codec, LARGE)


@pytest.mark.parametrize(("writer", "codec"), WRITERS)
def test_we_read_large_batches_of_theirs(writer, codec):
    assert we_read(writer, codec, LARGE).codec == codec


@settings(max_examples=40)
@given(RECORDS)
def test_uncompressed_batches_are_the_same_bytes_as_kafka_pythons(records):
    theirs = kp.DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=10**9,
    )
    ours = BatchBuilder(leader_epoch=0)
    for offset, (key, value, timestamp, headers) in enumerate(records):
        theirs.append(offset, timestamp, key, value, list(headers))
        ours.add(key, value, timestamp, headers)
    built = bytes(theirs.build())
    assert built[12:16] in (bytes(4), b"\xff" * 4)  # the leader's field, whatever a client writes there
    assert ours.build()[:12] + built[12:16] + ours.build()[16:] == built


def test_markers_are_control_records_to_kafka_python():
    for commit in (True, False):
        marker = end_transaction_marker(
            commit=commit, producer_id=7, producer_epoch=1, coordinator_epoch=3, timestamp_ms=1_700_000_000_000
        )
        batch = kp.DefaultRecordBatch(marker)
        assert batch.is_control_batch
        (record,) = batch
        assert (record.commit, record.abort) == (commit, not commit)


def test_a_run_of_batches_is_split_alike():
    run = b""
    for count in (1, 5, 2):
        builder = BatchBuilder(base_offset=len(run))
        for record in LARGE[:count]:
            builder.add(*record)
        run += builder.build()
    records = MemoryRecords(run + run[:40])
    theirs = []
    while (batch := records.next_batch()) is not None:
        theirs.append((batch.base_offset, batch.size_in_bytes))
    assert [(header.base_offset, header.size) for _, header in iter_headers(run + run[:40])] == theirs
    assert len(theirs) == 3
