"""The wire layer: bytes agree with kio's own writer, and every version round-trips through the one shape."""

import dataclasses
import importlib
import io
import struct
import subprocess
import sys
import typing
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from twofold.wire import codec
from twofold.wire.apis import APIS
from twofold.wire.errors import KafkaError, UnknownServerError, error_for
from twofold.wire.messages.api_versions import ApiVersionsRequest
from twofold.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from twofold.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from twofold.wire.messages.txn_heartbeat import TxnHeartbeatRequest, TxnHeartbeatResponse
from twofold.wire.schema import schema_of

ROOT = Path(__file__).parent.parent.parent
EVERY_VERSION = [
    pytest.param(api.key, version, kind, id=f"{api.name}-{version}-{kind}")
    for api in APIS.values()
    for version in range(api.min_version, api.spoken_max + 1)
    for kind in ("request", "response")
]


def plain_values(kafka_type: str) -> st.SearchStrategy:
    import datetime
    import uuid

    from kio.schema.errors import ErrorCode

    bits = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
    if kafka_type in bits:
        return st.integers(-(2 ** bits[kafka_type]), 2 ** bits[kafka_type] - 1)
    match kafka_type:
        case "uint16":
            return st.integers(0, 2**16 - 1)
        case "uint32":
            return st.integers(0, 2**32 - 1)
        case "float64":
            return st.floats(allow_nan=False)
        case "string":
            return st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
        case "bytes" | "records":
            return st.binary(max_size=8)
        case "bool":
            return st.booleans()
        case "uuid":
            return st.integers(1, 2**128 - 1).map(lambda n: uuid.UUID(int=n))
        case "error_code":
            return st.sampled_from(list(ErrorCode))
        case "timedelta_i32" | "timedelta_i64":
            return st.integers(0, 2**31 - 1).map(lambda ms: datetime.timedelta(milliseconds=ms))
        case "datetime_i64":
            return st.integers(0, 2**40).map(lambda ms: datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC))
    raise AssertionError(kafka_type)


@cache
def instances(cls: type) -> st.SearchStrategy:
    """Random instances of a kio class. (kio's own types do not resolve as strategies for every field.)"""
    hints = typing.get_type_hints(cls)
    fields = {}
    for item in dataclasses.fields(cls):
        hint = hints[item.name]
        arguments = typing.get_args(hint)
        array = typing.get_origin(hint) is tuple or any(typing.get_origin(a) is tuple for a in arguments)
        inner = entity_in(hint)
        one = instances(inner) if inner else plain_values(item.metadata["kafka_type"])
        value = st.lists(one, max_size=2).map(tuple) if array else one
        fields[item.name] = value | st.none() if type(None) in arguments and "tag" not in item.metadata else value
    return st.builds(cls, **fields)


def entity_in(hint: object) -> type | None:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((found for argument in typing.get_args(hint) if (found := entity_in(argument))), None)


@pytest.mark.parametrize(("key", "version", "kind"), EVERY_VERSION)
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(data=st.data())
def test_bytes_equal_those_of_kio_and_round_trip(key, version, kind, data):
    schema = schema_of(APIS[key].module, version, kind)
    message = data.draw(instances(schema))
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, message)
    expected = buffer.getvalue()

    one_shape = codec._codec(key, version, kind).read(expected, 0)
    written = bytearray()
    codec._codec(key, version, kind).write(one_shape, written)
    assert bytes(written) == expected


def test_generated_messages_are_up_to_date():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import generate_messages
    finally:
        sys.path.pop(0)
    folder = ROOT / "src/twofold/wire/messages"
    for name, text in generate_messages.generate().items():
        assert (folder / name).read_text() == text, f"run tools/generate_messages.py: {name} differs"


def body_of_request(message: object, key: int, version: int) -> str:
    """The bytes after the header, in hex."""
    frame = codec.encode_request(message, key, version, 7, "me")
    assert bytes(frame[4:17]) == struct.pack(">hhih", key, version, 7, 2) + b"me\0"
    return frame[17:].hex()


def body_of_response(message: object, key: int, version: int) -> str:
    frame = codec.encode_response(message, key, version, 7)
    assert bytes(frame[4:9]) == struct.pack(">i", 7) + b"\0"
    return frame[9:].hex()


INIT = InitProducerIdRequest(
    transactional_id="tx",
    transaction_timeout_ms=60_000,
    transaction_heartbeat_interval_ms=5_000,
    producer_id=42,
    producer_epoch=7,
    enable2_pc=True,
    keep_prepared_txn=True,
)


def test_two_phase_commit_and_heartbeats_have_these_bytes_on_the_wire():
    """KIP-939 and KIP-1309: what other clients need to speak them."""
    identity = "000000000000002a" + "0007"
    assert body_of_request(INIT, 22, 5) == "037478" + "0000ea60" + identity + "00"
    assert body_of_request(INIT, 22, 6) == "037478" + "0000ea60" + identity + "01" + "01" + "00"
    assert body_of_request(INIT, 22, 7) == "037478" + "0000ea60" + "00001388" + identity + "01" + "01" + "00"
    answer = InitProducerIdResponse(
        error_code=0, producer_id=73, producer_epoch=0, ongoing_txn_producer_id=42, ongoing_txn_producer_epoch=7
    )
    for version in (6, 7):
        expected = "00000000" + "0000" + "0000000000000049" + "0000" + identity + "00"
        assert body_of_response(answer, 22, version) == expected
    beat = TxnHeartbeatRequest(transactional_id="tx", producer_id=42, producer_epoch=7)
    assert body_of_request(beat, 95, 0) == "037478" + identity + "00"
    assert body_of_response(TxnHeartbeatResponse(error_code=0), 95, 0) == "00000000" + "0000" + "00" + "00"
    refused = TxnHeartbeatResponse(error_code=120, error_message="gone", throttle_time_ms=1)
    assert body_of_response(refused, 95, 0) == "00000001" + "0078" + "05676f6e65" + "00"


def test_a_version_without_a_field_reads_its_schema_default():
    frame = codec.encode_request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 3, 0, 1, "c")
    header = codec.decode_request_header(bytes(frame[4:]))
    request = codec.decode_request(3, 0, bytes(frame[4:]), header.body_offset)
    assert (header.client_id, header.correlation_id) == ("c", 1)
    assert request.allow_auto_topic_creation is True
    assert request.topics[0].topic_id is None


def test_api_versions_response_header_is_never_flexible():
    response = importlib.import_module("twofold.wire.messages.api_versions").ApiVersionsResponse(
        error_code=0, api_keys=()
    )
    frame = codec.encode_response(response, 18, 3, 77)
    assert frame[4:10] == struct.pack(">ih", 77, 0)


@given(st.binary(max_size=60))
def test_garbage_is_undecodable_and_nothing_else(data):
    try:
        header = codec.decode_request_header(data)
        api = APIS.get(header.api_key)
        if api and api.serves(header.version):
            codec.decode_request(header.api_key, header.version, data, header.body_offset)
    except codec.Undecodable:
        pass


@given(st.sampled_from(EVERY_VERSION), st.binary(max_size=40))
@settings(suppress_health_check=list(HealthCheck), deadline=None)
def test_garbage_body_of_any_version_is_undecodable_and_nothing_else(which, body):
    key, version, kind = which.values
    try:
        if kind == "request":
            codec.decode_request(key, version, body, 0)
        else:
            codec.decode_response(key, version, body)
    except codec.Undecodable:
        pass


def test_a_huge_array_length_does_not_allocate_it():
    frame = struct.pack(">i", 2**31 - 1)
    with pytest.raises(codec.Undecodable):
        codec.decode_request(3, 0, frame, 0)


def decode_whole(frame: bytes) -> object:
    header = codec.decode_request_header(frame)
    return codec.decode_request(header.api_key, header.version, frame, header.body_offset)


def test_every_truncation_of_a_request_is_undecodable():
    request = ApiVersionsRequest(client_software_name="name", client_software_version="1.0")
    frame = bytes(codec.encode_request(request, 18, 3, 5, "client"))[4:]
    for length in range(len(frame)):
        with pytest.raises(codec.Undecodable):
            decode_whole(frame[:length])


def test_error_codes_are_unique_and_complete():
    from kio.schema.errors import ErrorCode

    for code in ErrorCode:
        if code != 0:
            cls = error_for(code)
            assert (cls.code, cls.name, cls.retriable) == (code, code.name.upper(), code.retriable)
    assert error_for(9999) is UnknownServerError
    assert issubclass(error_for(3), KafkaError)


def test_importing_the_wire_layer_does_not_import_hypothesis():
    script = "import twofold.wire, sys; assert 'hypothesis' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
