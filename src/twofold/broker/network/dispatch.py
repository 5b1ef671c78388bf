"""From the bytes of a request to the bytes of its answer: header, table, handler.

1. A handler module is imported when its API is first asked for: start-up pays for none of them.
2. What cannot be read, and what is not served, ends the connection without an answer, as in Kafka; the one exception
   is an ApiVersions request of an unknown version, which is answered in version 0.
3. The arrays of a request are counted before it is decoded: what a client makes us hold is in proportion to what it
   sends (`wire/entries.py`). A large one is decoded in a thread.
4. Nothing but `CloseConnection` escapes from here, whatever a handler raises.
5. Where quotas are enforced, a request has a charge (`broker/quotas`): what it takes, and how long its client waits.
6. What only the controller can answer goes there as it came, where that is another node (`forwarding`).
7. How long each call took is counted, from here until its answer goes out; so are the error codes of answers.
"""

import asyncio
import importlib
import logging
import pkgutil
import struct
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeAlias, TypeVar

from twofold.broker import api as api_package
from twofold.broker.network.context import (
    FASTEST_S,
    Answer,
    Calls,
    CloseConnection,
    Frame,
    HandlerResult,
    Later,
    NoResponse,
    Peer,
    RequestContext,
)
from twofold.broker.network.forwarding import FORWARDED, Forwarder
from twofold.broker.quotas.charge import Charge, timed
from twofold.broker.quotas.ledger import QuotaLedger
from twofold.broker.services import Services
from twofold.runtime.api import Spawn
from twofold.wire import codec
from twofold.wire.apis import APIS, Api
from twofold.wire.entries import LyingCount, check_entries, request_walk
from twofold.wire.error_codes import compile_look
from twofold.wire.errors import KafkaError, UnknownServerError
from twofold.wire.message import Message

API_VERSIONS = 18
INIT_PRODUCER_ID = 22
TXN_HEARTBEAT = 95
WITHOUT_HEARTBEATS = 6  # the newest InitProducerId that does not know them
HEADER_SIZE = 10
LARGE_BYTES = 128 * 1024

_HEADER = struct.Struct(">hhih")
_unpack_header = _HEADER.unpack_from

_new_tuple = tuple.__new__
_AT_ONCE = (Frame, Later, Message, NoResponse)  # a tuple, because `A | B` is made anew at each request

T = TypeVar("T")

log = logging.getLogger(__name__)

Request: TypeAlias = bytes | bytearray | memoryview
Result: TypeAlias = Answer | Later


@cache
def served_apis(*, heartbeats: bool = True, forwards: bool = False) -> tuple[Api, ...]:
    """The rows of the table that have a handler, in the order of their keys; and, if it `forwards`, those that the
    controller answers.

    Without transaction heartbeats there is neither TxnHeartbeat nor the version of InitProducerId that asks for them.
    """
    present = _modules()
    served = [api for _, api in sorted(APIS.items()) if api.module in present or (forwards and api.key in FORWARDED)]
    if heartbeats:
        return tuple(served)
    return tuple(
        replace(api, max_version=WITHOUT_HEARTBEATS) if api.key == INIT_PRODUCER_ID else api
        for api in served
        if api.key != TXN_HEARTBEAT
    )


def _modules() -> frozenset[str]:
    return frozenset(module.name for module in pkgutil.iter_modules(api_package.__path__))


Handle: TypeAlias = Callable[[Services, RequestContext, Any], HandlerResult]
Wrap: TypeAlias = Callable[[str, Handle], Handle]
"""What a broker for tests puts around the handler of each API, by its name (`broker/faults`)."""


class Handler:
    """One API: its row and, once a client has asked for it, the functions of its module."""

    __slots__ = (
        "api", "flexible", "handle", "decode", "error_response", "requests", "calls", "error_codes", "is_forwarded",
    )  # fmt: skip

    def __init__(self, api: Api, wrap: Wrap | None, *, is_forwarded: bool = False) -> None:
        module: Any = None
        if not is_forwarded or api.module in _modules():
            module = importlib.import_module(f"{api_package.__name__}.{api.module}")
        self.api = api
        self.is_forwarded = is_forwarded
        handle: Handle = getattr(module, "handle", _never_here)
        self.handle: Handle = handle if wrap is None else wrap(api.name, handle)
        # Produce reads its own bytes: records are views into the frame and not copies.
        self.decode: Callable[[Request, int, int], Any] | None = getattr(module, "decode", None)
        self.error_response: Callable[[Any, KafkaError, int], Any] | None = getattr(module, "error_response", None)
        self.flexible: dict[int, bool] = {}  # of versions that were asked for
        self.requests = [0] * (api.max_version + 1)  # how many came, by version
        self.calls = Calls()
        self.error_codes: Callable[[Any], Sequence[int]] | None = None  # of a response, once there was one

    def is_flexible(self, version: int) -> bool | None:
        """None for a version that is not served. Looks at a schema only when its version is first used."""
        known = self.flexible.get(version)
        if known is None and self.api.serves(version):
            known = self.flexible[version] = codec.is_flexible(self.api.key, version)
        return known

    def encode(self, context: RequestContext, response: Message) -> Frame:
        frame = codec.encode_response(response, context.api_key, context.version, context.correlation_id)
        look = self.error_codes
        if look is None:
            look = self.error_codes = compile_look(type(response))
        return _new_tuple(Frame, ([frame], look(response)))


def _never_here(services: Services, context: RequestContext, request: Any) -> HandlerResult:
    raise UnknownServerError("only the controller answers this")


class Dispatcher:
    """Handles requests for one broker."""

    __slots__ = (
        "_services", "_spawn", "_served", "_handlers", "_client_ids", "_now_s", "_wrap", "_forwarder", "quotas",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        spawn: Spawn,
        now_s: Callable[[], float],
        *,
        heartbeats: bool = True,
        wrap: Wrap | None = None,
        quotas: QuotaLedger | None = None,
        forwarder: Forwarder | None = None,
    ) -> None:
        """`now_s` is a clock that only goes ahead. `forwarder` is there where the controller is another node."""
        self._services = services
        self._spawn = spawn
        self._forwarder = forwarder
        served = served_apis(heartbeats=heartbeats, forwards=forwarder is not None)
        self._served = {api.key: api for api in served}
        self._handlers: dict[int, Handler] = {}
        self._client_ids: dict[bytes, str] = {}
        self._now_s = now_s
        self._wrap = wrap
        self.quotas = quotas or QuotaLedger(now_s)

    def dispatch(self, peer: Peer, frame: Request) -> Result:
        """Start handling one request (without its length)."""
        started_s = self._now_s()
        if len(frame) < HEADER_SIZE:
            raise CloseConnection(f"a request of {len(frame)} bytes is shorter than its header")
        api_key, version, correlation_id, id_length = _unpack_header(frame)
        handler = self._handlers.get(api_key) or self._load(api_key)
        flexible = handler.flexible.get(version)
        if flexible is None:
            flexible = handler.is_flexible(version)
        if flexible is None:
            if api_key == API_VERSIONS:
                return _unsupported_api_versions(correlation_id)
            raise CloseConnection(f"{handler.api.name} version {version} is not served")
        handler.requests[version] += 1
        position = HEADER_SIZE
        client_id = None
        if id_length >= 0:
            position += id_length
            raw = bytes(frame[HEADER_SIZE:position])
            client_id = self._client_ids.get(raw) or self._client_id(raw, id_length)
        if flexible:
            # Almost always there are no tagged fields, and their count is one zero byte.
            if position < len(frame) and frame[position] == 0:
                position += 1
            else:
                position = _slow_header(frame).body_offset
        elif id_length < -1:
            raise CloseConnection(f"a client id of negative length {id_length}")
        charge = None
        if self.quotas.enforced:
            charge = Charge(self.quotas, peer, client_id, api_key, version, len(frame))
        context = _new_tuple(RequestContext, (api_key, version, correlation_id, client_id, peer, charge))
        result = self._handle(handler, context, frame, position)
        if charge is not None:
            result = charge.handled(result)
        calls = handler.calls
        if type(result) is Frame and not result.errors:
            # What `Calls.add` does with most requests, without the call.
            took_s = self._now_s() - started_s
            if took_s <= FASTEST_S:
                calls.fastest += 1
                calls.fastest_s += took_s
            else:
                calls.add(took_s, result)
        elif isinstance(result, Later):
            result.calls, result.started_s = calls, started_s
        else:
            calls.add(self._now_s() - started_s, result)
        return result

    def refuse(self, peer: Peer, frame: bytes, error: KafkaError) -> Answer | None:
        """An error in the shape of the request's API; None where that has no such shape, or cannot be read."""
        try:
            header = codec.decode_request_header(frame)
            handler = self._handlers.get(header.api_key) or self._load(header.api_key)
            if not handler.is_flexible(header.version) and not handler.api.serves(header.version):
                return None
            context = RequestContext(header.api_key, header.version, header.correlation_id, header.client_id, peer)
            request = _decode(handler, context, frame, header.body_offset)
            return self._failed(handler, context, request, error)
        except (CloseConnection, codec.Undecodable):
            return None

    def calls(self) -> dict[str, Calls]:
        """By API, of those that were asked for."""
        return {handler.api.name: handler.calls for handler in self._handlers.values()}

    def requests(self) -> Iterator[tuple[str, int, int]]:
        """How many requests came: (API, version, count)."""
        for handler in self._handlers.values():
            for version, count in enumerate(handler.requests):
                if count:
                    yield handler.api.name, version, count

    def _load(self, api_key: int) -> Handler:
        api = self._served.get(api_key)
        if api is None:
            raise CloseConnection(f"API key {api_key} is not served")
        is_forwarded = self._forwarder is not None and api_key in FORWARDED
        handler = self._handlers[api_key] = Handler(api, self._wrap, is_forwarded=is_forwarded)
        return handler

    def _client_id(self, raw: bytes, length: int) -> str:
        try:
            client_id = raw.decode()
        except UnicodeDecodeError:
            raise CloseConnection(f"a client id that is not UTF-8: {raw[:32]!r}") from None
        if len(raw) != length:
            raise CloseConnection(f"a client id of {length} bytes does not fit into its request")
        if len(self._client_ids) < 1000 and length <= 256:
            self._client_ids[raw] = client_id
        return client_id

    def _handle(self, handler: Handler, context: RequestContext, frame: Request, position: int) -> Result:
        if handler.decode is None:
            # kio's reader wants bytes that cannot change under it.
            frame = frame if type(frame) is bytes else bytes(frame)
            if handler.is_forwarded:
                work = self._forward(handler, context, frame, position)
                return Later(self._spawn(self._timed(context, work), name=handler.api.name))
            if len(frame) > LARGE_BYTES:
                return self._handle_large(handler, context, frame, position)
        request = _decode(handler, context, frame, position)
        result = self._call(handler, context, request)
        return self._encoded(handler, context, request, result) if isinstance(result, Message) else result

    async def _forward(self, handler: Handler, context: RequestContext, frame: bytes, position: int) -> Answer:
        assert self._forwarder is not None
        try:
            return await self._forwarder.answer(context, frame)
        except Exception as error:
            return self._failed(handler, context, _decode(handler, context, frame, position), error)

    def _handle_large(self, handler: Handler, context: RequestContext, frame: bytes, position: int) -> Later:
        """Decode and encode in a thread: a hundred thousand entries take a second, and others want to be served."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        work = self._answer_large(handler, context, frame, position, answer)
        self._spawn(self._timed(context, work), name=handler.api.name)
        return Later(answer)

    async def _answer_large(
        self,
        handler: Handler,
        context: RequestContext,
        frame: bytes,
        position: int,
        answer: "asyncio.Future[Answer]",
    ) -> None:
        try:
            request = await self._services.aside(_decode, handler, context, frame, position)
            if answer.done():
                return  # the client is gone, and nothing has begun
            result = self._call(handler, context, request)
            found: Answer
            if isinstance(result, Message):
                found = await self._services.aside(self._encoded, handler, context, request, result)
            elif isinstance(result, Later):
                answer.add_done_callback(partial(_give_up_too, result))
                found = await result.answer
            else:
                found = result
        except Exception as error:
            if not isinstance(error, CloseConnection):
                log.error("%s of %d bytes from %s failed", handler.api.name, len(frame), context.peer, exc_info=error)
            if not answer.done():
                # Another one: with its trace the error holds this frame, and this frame holds the answer. Until the
                # collector of such circles comes by, clients could send gigabytes.
                answer.set_exception(CloseConnection(str(error)))
        else:
            if not answer.done():
                answer.set_result(found)

    def _call(self, handler: Handler, context: RequestContext, request: Any) -> "Result | Message":
        try:
            result = handler.handle(self._services, context, request)
        except Exception as error:
            return self._failed(handler, context, request, error)
        if isinstance(result, _AT_ONCE):
            return result
        return Later(
            self._spawn(self._timed(context, self._wait(handler, context, request, result)), name=handler.api.name)
        )

    def _timed(self, context: RequestContext, work: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        """The work, with its time on the request's charge if it has one."""
        return work if context.charge is None else timed(work, context.charge, self._now_s)

    async def _wait(
        self, handler: Handler, context: RequestContext, request: Any, result: Awaitable[Message | Answer]
    ) -> Answer:
        try:
            response = await result
        except Exception as error:
            return self._failed(handler, context, request, error)
        if type(response) is Frame or type(response) is NoResponse:
            return response
        return self._encoded(handler, context, request, response)

    def _encoded(self, handler: Handler, context: RequestContext, request: Any, response: Any) -> Answer:
        try:
            return handler.encode(context, response)
        except Exception as error:  # for example a text that does not fit its field
            return self._failed(handler, context, request, error)

    def _failed(self, handler: Handler, context: RequestContext, request: Any, error: Exception) -> Answer:
        """The API's own form of an error, or the end of the connection where it has none."""
        if isinstance(error, CloseConnection):
            raise error
        name = handler.api.name
        if not isinstance(error, KafkaError):
            log.error(
                "%s version %d from %s (client id %s) failed: %r",
                name, context.version, context.peer, context.client_id, error, exc_info=error,
            )  # fmt: skip
            error = UnknownServerError("the broker failed at this request; its log says where")
        if handler.error_response is None:
            raise CloseConnection(f"{name} has no form for the error {error}")
        try:
            response = handler.error_response(request, error, context.version)
            return response if isinstance(response, Frame | NoResponse) else handler.encode(context, response)
        except Exception as second:
            log.error("%s version %d: no answer with the error %s", name, context.version, error, exc_info=second)
            raise CloseConnection(f"{name} cannot be answered with the error {error}") from None


def _decode(handler: Handler, context: RequestContext, frame: Request, position: int) -> Any:
    version = context.version
    try:
        if handler.decode is None:
            return codec.decode_request(context.api_key, version, frame, position)  # type: ignore[arg-type]
        if len(frame) > LARGE_BYTES:  # what the codec does with every request
            check_entries(request_walk(context.api_key, version), frame, position)
        return handler.decode(frame, version, position)
    except (codec.Undecodable, LyingCount) as error:
        raise CloseConnection(f"{handler.api.name} version {version} cannot be read: {error}") from None


def _give_up_too(waiting: Later, answer: "asyncio.Future[Answer]") -> None:
    if answer.cancelled():
        waiting.give_up()


def _slow_header(frame: Request) -> codec.RequestHeader:
    try:
        return codec.decode_request_header(bytes(frame))
    except codec.Undecodable as error:
        raise CloseConnection(f"the header cannot be read: {error}") from None


def _unsupported_api_versions(correlation_id: int) -> Frame:
    """A newer client asks for a version that the broker does not know: name the known ones in version 0, which every
    client reads."""
    from twofold.broker.api.api_versions import unsupported_version_response

    return Frame([codec.encode_response(unsupported_version_response(), API_VERSIONS, 0, correlation_id)])
