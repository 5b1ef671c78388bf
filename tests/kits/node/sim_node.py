"""A broker on a simulated machine, asked through its dispatcher."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

from oracle.wire import decode_response, encode_request, fit
from twofold.broker.broker import Broker
from twofold.broker.network.context import Frame, Later, Peer
from twofold.broker.network.dispatch import Dispatcher
from twofold.config.settings import Settings
from twofold.runtime.sim import Simulation

NODE = "node"
COORDINATORS = 5
"""Of groups as of transactions: a start makes one for each partition of their topics, and no test needs all fifty."""
N = TypeVar("N", bound="SimNode")
T = TypeVar("T")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A request on its way: calling it waits for the answer."""

    receive: Callable[[], Awaitable[T]]
    is_answered: Callable[[], bool]

    def __call__(self) -> Awaitable[T]:
        return self.receive()


class SimNode:
    key, key_type = "g", 0  # whose coordinator is there when the node has started

    def __init__(self, sim: Simulation, **settings: object) -> None:
        self.sim = sim
        self.settings = {
            "listeners": f"PLAINTEXT://{NODE}:9092",
            "offsets.topic.num.partitions": str(COORDINATORS),
            "transaction.state.log.num.partitions": str(COORDINATORS),
            **{key.replace("_", "."): str(value) for key, value in settings.items()},
        }
        self.broker: Broker = None  # type: ignore[assignment]

    async def start(self: N) -> N:
        runtime = self.sim.runtime(NODE)
        self.broker = Broker(runtime, Settings.from_mapping(self.settings), "/data", hostname=NODE)
        await runtime.spawn(self.broker.start(), name="start")
        self._dispatcher = Dispatcher(self.broker.services, runtime.spawn, runtime.clock.monotonic)
        self._peer = Peer("10.0.0.1", 4711, "PLAINTEXT")
        await self.coordinator()
        return self

    async def restart(self) -> None:
        """kill -9, and a new process."""
        self.sim.crash(NODE, power_cut=False)
        await self.start()

    async def coordinator(self) -> None:
        while (await self.ask("FindCoordinator", 1, key=self.key, key_type=self.key_type))["error_code"]:
            await self.sleep(0.01)

    async def sleep(self, seconds: float) -> None:
        await self.broker.runtime.timers.sleep(seconds)

    def send(self, api: str, version: int, **body: Any) -> Asked[dict[str, Any]]:
        """Ask now; what is returned waits for the answer."""
        frame = encode_request(api, version, fit(api, version, body), correlation_id=1)
        dispatched = self._dispatcher.dispatch(self._peer, frame[4:])
        result = dispatched.answer if isinstance(dispatched, Later) else dispatched

        async def receive() -> dict[str, Any]:
            answer = result if isinstance(result, Frame) else await result  # type: ignore[misc]
            assert isinstance(answer, Frame)
            payload = b"".join(bytes(part) for part in answer.parts)[4:]
            return decode_response(api, version, payload)[1]

        return Asked(receive, lambda: isinstance(result, Frame) or result.done())  # type: ignore[union-attr]

    async def ask(self, api: str, version: int, **body: Any) -> dict[str, Any]:
        return await self.send(api, version, **body)()

    async def create_topic(self, name: str = "t", **configs: object) -> None:
        settings = [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()]
        row = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": settings}
        answer = await self.ask("CreateTopics", 5, topics=[row], timeout=1000)
        assert answer["topics"][0]["error_code"] == 0


def simulated(
    kind: type[SimNode], **settings: object
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Run a story with a node that has a topic `t`, for up to a month of its time."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(story)
        def test(**arguments: Any) -> None:
            with Simulation(1) as sim:

                async def main() -> None:
                    node = await kind(sim, **settings).start()
                    await node.create_topic()
                    await story(node, **arguments)
                    if node.broker is not None:
                        await node.broker.stop()

                sim.run(main(), timeout_s=30 * 86_400)

        return _without_first_argument(test, story)

    return decorate


def _without_first_argument(test: Callable[..., None], story: Callable[..., Any]) -> Callable[..., None]:
    """Or pytest takes the story's node for a fixture."""
    import inspect

    del test.__wrapped__  # type: ignore[attr-defined]
    parameters = list(inspect.signature(story).parameters.values())[1:]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return test
