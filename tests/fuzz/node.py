"""A broker on a simulated machine that is asked anything, and must live up to what clients rely on.

1. Every request is answered or its connection is closed, within a bound of its time; JoinGroup and SyncGroup may wait
   for others of their group.
2. Nothing is logged as an error: an error in the log is a failure of ours, whatever the client did.
3. What a healthy client wrote is there to the end, also after a restart, and every log opens.
"""

import asyncio
import logging
import uuid
from typing import Any

from fuzz import seeds
from kits.node.sim_node import NODE, SimNode
from oracle.batches import batch
from oracle.compare import produce_body
from oracle.wire import decode_response
from twofold.broker.network.context import CloseConnection, Frame, Later, NoResponse
from twofold.broker.network.dispatch import Dispatcher
from twofold.log.api import Bound
from twofold.runtime.sim import Simulation
from twofold.wire.apis import APIS
from twofold.wire.errors import KafkaError

WAITING = {"JoinGroup", "SyncGroup"}
PATIENCE_S = 3_000.0  # of simulated time; timeouts are drawn up to 2^31 ms, and these are not waited for
HEALTHY_RECORDS = 20


class ErrorLog(logging.Handler):
    """What was logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def __enter__(self) -> "ErrorLog":
        self._logger = logging.getLogger("twofold")
        self._level, self._propagate = self._logger.level, self._logger.propagate
        self._logger.setLevel(logging.ERROR)
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.setLevel(self._level)
        self._logger.propagate = self._propagate


class FuzzedNode(SimNode):
    """Asked through its dispatcher by frames that need not make sense."""

    known_id: uuid.UUID

    async def prepare(self) -> None:
        await self.create_topic("t")
        await self.create_topic("healthy")
        await self.create_topic("compacted", cleanup_policy="compact")
        await self.create_topic("zstd", compression_type="zstd")
        self.known_id = self.broker.image.topic("t").topic_id  # type: ignore[union-attr]
        answer = await self.ask("Produce", 7, **produce_body("healthy", batch(HEALTHY_RECORDS)))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0

    async def put(self, frame: bytes) -> Frame | NoResponse | str:
        """What becomes of one frame (without its length): an answer, or why its connection was closed."""
        dispatcher: Dispatcher = self._dispatcher
        try:
            result = dispatcher.dispatch(self._peer, frame)
            if not isinstance(result, Later):
                return result
            done, _ = await asyncio.wait([result.answer], timeout=PATIENCE_S)
            if not done:
                result.answer.cancel()
                return "waits"
            return result.answer.result()
        except CloseConnection as reason:
            return str(reason)

    async def send_message(self, key: int, version: int, message: Any, client_id: str | None = "f") -> None:
        """Any well-typed request; what comes back must be an answer of its version, to the last byte."""
        api = APIS[key]
        frame = seeds.request_frame(key, version, message, client_id=client_id, correlation_id=7)
        from fuzz.strategies import KNOWN_ID

        answer = await self.put(frame.replace(KNOWN_ID.bytes, self.known_id.bytes))
        if answer == "waits":
            assert api.name in WAITING or api.name == "Fetch", f"{api.name} {version} is not answered: {message}"
        elif isinstance(answer, Frame):
            payload = b"".join(bytes(part) for part in answer.parts)
            assert int.from_bytes(payload[:4], "big") == len(payload) - 4
            correlation_id, _ = decode_response(api.name, version, payload[4:])
            assert correlation_id == 7

    async def check(self) -> None:
        """After kill -9 and a restart: whole logs, and all that the healthy client wrote."""
        await self.restart()
        for partition in list(self.broker.replicas.partitions()):
            log = partition.log
            log.read(log.log_start_offset, 1 << 20, Bound.LOG_END)
        log = self.log("healthy")
        assert (log.log_start_offset, log.log_end_offset) == (0, HEALTHY_RECORDS)

    def log(self, topic: str, index: int = 0) -> Any:
        return self.broker.replicas.leader(topic, index).log


def story(steps: Any, *, seed: int = 1, check: bool = True) -> None:
    """Run `steps(node)` on a fresh node and check it afterwards."""
    with ErrorLog() as errors, Simulation(seed) as sim:

        async def main() -> None:
            node = await FuzzedNode(sim).start()
            await node.prepare()
            await steps(node)
            if check:
                await node.check()
            await node.broker.stop()

        sim.run(main(), timeout_s=400 * 86_400)
    assert not errors.found, "\n".join(errors.found)


__all__ = ["NODE", "FuzzedNode", "KafkaError", "story"]
