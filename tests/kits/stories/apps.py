"""Steps of programs that use the client of Twofold, and of an operator; both talk to the broker over its network."""

from typing import Any

from kits.node.sim_node import NODE
from kits.stories.node import StoryNode
from kits.stories.steps import step
from kits.stories.words import identity, place
from twofold.client import Admin, Producer
from twofold.client.admin.hanging import Hanging, find_hanging
from twofold.client.admin.transaction_model import RepairTransactionSpec
from twofold.types import TopicPartition
from twofold.wire.errors import KafkaError

ADDRESS = f"{NODE}:9092"


class Apps:
    """`app` and the like: a two-phase participant whose outcome is decided outside."""

    def __init__(self, node: StoryNode) -> None:
        self._node = node
        self._producers: dict[str, Producer] = {}

    def _open(self, client: str, transactional_id: str) -> Producer:
        options: dict[str, Any] = {"bootstrap_servers": ADDRESS, "linger_ms": 0, "transactional_id": transactional_id}
        self._producers[client] = Producer(
            runtime=self._node.sim.runtime(client), transaction_two_phase_commit_enable=True, **options
        )
        return self._producers[client]

    @step("{client}: open as {transactional_id}")
    async def open(self, client: str, transactional_id: str) -> None:
        await self._open(client, transactional_id).init_transactions()

    @step("{client}: recover as {transactional_id}")
    async def recover(self, client: str, transactional_id: str) -> None:
        """`init_transactions(keep_prepared_txn=True)`"""
        await self._open(client, transactional_id).init_transactions(keep_prepared_txn=True)

    @step(r"{client}: begin, send {key}=(?P<value>\S+) to {partition}, prepare")
    async def prepare(self, client: str, key: str, value: str, partition: str) -> str:
        producer, where = self._producers[client], place(partition)
        await producer.begin_transaction()
        await producer.send(where.topic, value.encode(), key=key.encode(), partition=where.partition)
        return f"prepared state {await producer.prepare_transaction()}"

    @step("{client}: complete with the state {state}")
    async def complete(self, client: str, state: str) -> str:
        """Commits if the state names the transaction that is prepared, else aborts; tells what became of the state."""
        try:
            return (await self._producers[client].complete_transaction(state)).name.lower()
        except KafkaError as error:
            return f"{type(error).__name__}: {error}"

    @step("{client} dies")
    async def die(self, client: str) -> None:
        self._node.sim.crash(client, power_cut=False)
        del self._producers[client]

    async def close(self) -> None:
        for producer in self._producers.values():
            await producer.close(flush=False)


class Operator:
    """`twofold txn`, as its commands call the admin client."""

    def __init__(self, node: StoryNode) -> None:
        self._node = node

    def _admin(self) -> Admin:
        return Admin(bootstrap_servers=ADDRESS, runtime=self._node.sim.runtime("operator"))

    @step("hanging transactions of {partition}")
    async def hanging(self, partition: str) -> list[str]:
        async with self._admin() as admin:
            return [_hanging_text(row) for row in await self._find(admin, place(partition))] or ["none"]

    async def _find(self, admin: Admin, where: TopicPartition) -> list[Hanging]:
        found, errors = await find_hanging(admin, [where])
        assert not errors, errors
        return found

    @step("repair {partition}( as {ending})?")
    async def repair(self, partition: str, ending: str = "") -> str:
        """Write the marker that the coordinator's record proves, or another one by hand."""
        where = place(partition)
        async with self._admin() as admin:
            (found,) = await self._find(admin, where)
            row = found.transaction
            commit = ending == "commit" if ending else "commit" in found.reason
            spec = RepairTransactionSpec(
                tp=where,
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                start_offset=row.start_offset,
                commit=commit,
            )
            try:
                await admin.repair_transaction(spec)
            except KafkaError as error:
                return error.name
        return "COMMIT is written" if commit else "ABORT is written"

    @step("force-terminate {transactional_id}")
    async def force_terminate(self, transactional_id: str) -> None:
        async with self._admin() as admin:
            await admin.force_terminate_transaction(transactional_id)


def _hanging_text(row: Hanging) -> str:
    open_one = row.transaction
    author = identity((open_one.producer_id, open_one.producer_epoch))
    owner = f" of {row.transactional_id}" if row.transactional_id else ""
    return f"{open_one.tp} from offset {open_one.start_offset}, {author}{owner}: {row.reason}"
