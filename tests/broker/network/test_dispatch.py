"""What is not a request that we serve: closed without an answer, with a line in the log, and everybody else goes on."""

import os
import struct
from typing import Any

import pytest

from kits.node.running import LIST_OFFSETS, list_request, listed, raw_header, running
from kits.node.sockets import on_loop
from twofold.broker.network.context import CloseConnection, Frame, Later, Peer
from twofold.broker.network.dispatch import Dispatcher, served_apis
from twofold.wire import codec
from twofold.wire.apis import APIS, KEYS
from twofold.wire.errors import KafkaError, NotController
from twofold.wire.messages.api_versions import ApiVersionsRequest
from twofold.wire.messages.list_offsets import ListOffsetsRequest

API_VERSIONS = KEYS["ApiVersions"]


def is_alive(client):
    return client.call(ApiVersionsRequest(client_software_name="t", client_software_version="1"), API_VERSIONS, 3)


UNREADABLE = {
    "shorter than a header": b"\x00\x12",
    "unknown key": raw_header(999, 0),
    "negative key": raw_header(-1, 0),
    "a key without a handler": raw_header(52, 0),
    "version too high": raw_header(KEYS["Metadata"], 99),
    "version too low": raw_header(KEYS["CreateTopics"], 0),
    "negative version": raw_header(KEYS["Metadata"], -1),
    "body cut off": raw_header(KEYS["Metadata"], 1) + b"\x00",
    "no body": raw_header(KEYS["Metadata"], 12),
    "client id beyond the frame": struct.pack(">hhih", 18, 0, 1, 500) + b"abc",
    "client id not UTF-8": struct.pack(">hhih", 18, 0, 1, 2) + b"\xff\xfe",
    "client id of length -2": struct.pack(">hhih", 18, 0, 1, -2),
    "endless tagged fields": struct.pack(">hhih", 18, 3, 1, -1) + b"\xff" * 20,
    "array of two billion": raw_header(KEYS["Metadata"], 1) + struct.pack(">i", 2**31 - 1),
    "garbage": bytes(range(256)),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_ends_the_connection_with_a_line_and_no_other(tmp_path, name, caplog):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            bad, good = await node.connect(), await node.connect()
            bad.send(UNREADABLE[name])
            assert await bad.closed_by_peer()
            assert f"closed 127.0.0.1:{bad.writer.get_extra_info('sockname')[1]}" in caplog.text
            assert (await is_alive(good)).error_code == 0

    scenario()


def test_random_bytes_never_take_the_server_down(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            for size in (4, 10, 100, 5000):
                for _ in range(10):
                    client = await node.connect()
                    client.send(os.urandom(size))
                    client.send_raw(os.urandom(size))
                    client.close()
            assert (await is_alive(await node.connect())).error_code == 0

    scenario()


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_0_and_the_connection_lives(tmp_path, version):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            client.send(raw_header(API_VERSIONS, version, 77) + b"\x00\x01\x02whatever")
            correlation_id, response = codec.decode_response(API_VERSIONS, 0, await client.receive())
            assert (correlation_id, response.error_code) == (77, 35)
            assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == [(18, 0, 4)]
            assert (await is_alive(client)).error_code == 0

    scenario()


def dispatcher_of(services: Any = None, spawn: Any = None) -> Dispatcher:
    """Without the broker behind it."""
    return Dispatcher(services, spawn, lambda: 0.0)


def test_every_served_api_has_a_handler_that_loads():
    served = {api.name for api in served_apis()}
    assert {"Produce", "Fetch", "ListOffsets", "OffsetForLeaderEpoch", "Metadata", "ApiVersions"} <= served
    dispatcher = dispatcher_of()
    for api in served_apis():
        assert dispatcher._load(api.key).api is APIS[api.key]


def test_tagged_fields_in_a_header_are_skipped(tmp_path):
    @on_loop
    async def scenario():
        async with running(tmp_path) as node:
            client = await node.connect()
            body = bytes(codec.encode_request(list_request(), LIST_OFFSETS, 6, 5, "c"))[4:]
            at = codec.decode_request_header(body).body_offset
            client.send(body[: at - 1] + b"\x02\x00\x01x\x07\x02yz" + body[at:])
            assert codec.decode_response(LIST_OFFSETS, 6, await client.receive())[0] == 5

    scenario()


class FailingServices:
    """What `list_offsets` touches, all of it broken."""

    def __init__(self, error):
        self.error = error

    @property
    def authorizer(self):
        raise self.error


def failing_request(error):
    dispatcher = dispatcher_of(FailingServices(error))
    frame = bytes(codec.encode_request(list_request(("t", 0, -1)), LIST_OFFSETS, 7, 9, "c"))[4:]
    return dispatcher, frame


@pytest.mark.parametrize(("error", "code"), [(ValueError("a bug"), -1), (NotController("not here"), 41)])
def test_what_a_handler_raises_becomes_the_apis_own_error(error, code, caplog):
    dispatcher, frame = failing_request(error)
    answer = dispatcher.dispatch(Peer("host", 1, "PLAINTEXT"), frame)
    _, response = codec.decode_response(LIST_OFFSETS, 7, b"".join(answer.parts)[4:])
    assert [row.error_code for row in listed(response)] == [code]
    assert ("a bug" in caplog.text) == (not isinstance(error, KafkaError)), "only bugs are logged"


def test_an_api_without_a_form_for_errors_ends_the_connection():
    dispatcher, frame = failing_request(ValueError("a bug"))
    dispatcher._load(LIST_OFFSETS).error_response = None
    with pytest.raises(CloseConnection):
        dispatcher.dispatch(Peer("host", 1, "PLAINTEXT"), frame)


@on_loop
async def test_what_a_coroutine_raises_becomes_the_apis_own_error():
    import asyncio

    async def broken(services, context, request: ListOffsetsRequest):
        raise NotController("not here")

    dispatcher = dispatcher_of(spawn=lambda coroutine, *, name: asyncio.get_running_loop().create_task(coroutine))
    dispatcher._load(LIST_OFFSETS).handle = broken
    frame = bytes(codec.encode_request(list_request(("t", 0, -1)), LIST_OFFSETS, 7, 9, "c"))[4:]
    later = dispatcher.dispatch(Peer("host", 1, "PLAINTEXT"), frame)
    assert isinstance(later, Later)
    answer = await later.answer
    assert isinstance(answer, Frame)
    _, response = codec.decode_response(LIST_OFFSETS, 7, b"".join(answer.parts)[4:])
    assert [row.error_code for row in listed(response)] == [41]


def test_client_ids_are_remembered_up_to_a_bound():
    dispatcher = dispatcher_of()
    for number in range(3000):
        raw = b"client-%d" % number
        assert dispatcher._client_id(raw, len(raw)) == f"client-{number}"
    assert len(dispatcher._client_ids) <= 1000
