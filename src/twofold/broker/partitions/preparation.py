"""Batches that a thread has to look into before they are appended, because that takes too long for the event loop.

1. A batch of another codec than the topic's `compression.type` is compressed anew.
2. The records of a large batch for a compacted topic are checked here: each needs a key.
"""

from twofold.config.topic import LogConfig
from twofold.records.batch import CODEC_MASK, HEADER_SIZE, Buffer, attributes_of, crc_is_valid, read_header
from twofold.records.client_batch_checks import CheckedBatch, is_heavy, recompress, validate_client_batch
from twofold.records.compression import Codec
from twofold.wire.errors import CorruptMessage, KafkaError

DEFAULT_LEVEL = -1
CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def must_prepare(records: Buffer | KafkaError | None, config: LogConfig) -> bool:
    """Whether there is work for a thread; False for a batch that was prepared, and for what is no batch."""
    if records is None or isinstance(records, KafkaError) or len(records) < HEADER_SIZE:
        return False
    if type(records) is CheckedBatch:
        return False
    return (config.is_compacted and is_heavy(records)) or _has_other_codec(records, config)


def prepare_batch(records: bytes, config: LogConfig, now_ms: int) -> bytes | KafkaError:
    """In a thread: the batch as the topic wants it, its records checked where that takes long."""
    found = _recompress(records, config) if _has_other_codec(records, config) else records
    if isinstance(found, KafkaError) or not (config.is_compacted and is_heavy(found)):
        return found
    try:
        validate_client_batch(
            found,
            max_message_bytes=config.max_message_bytes,
            compacted=True,
            now_ms=now_ms,
            timestamp_type=config.message_timestamp_type,
            before_max_ms=config.message_timestamp_before_max_ms,
            after_max_ms=config.message_timestamp_after_max_ms,
        )
    except KafkaError as error:
        return error
    return CheckedBatch(found)


def _has_other_codec(records: Buffer, config: LogConfig) -> bool:
    wanted = config.compression_type
    return wanted != "producer" and CODECS[wanted] != attributes_of(records) & CODEC_MASK


def _recompress(records: bytes, config: LogConfig) -> bytes | KafkaError:
    codec = CODECS[config.compression_type]
    level = {Codec.GZIP: config.compression_gzip_level, Codec.ZSTD: config.compression_zstd_level}.get(codec)
    try:
        header = read_header(records)
        if not crc_is_valid(records, 0, header):
            raise CorruptMessage(f"the CRC {header.crc} of the batch is not that of its bytes")
        return recompress(records, codec, level=None if level == DEFAULT_LEVEL else level)
    except KafkaError as error:
        return error
