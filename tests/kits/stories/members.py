"""Steps of group members. A member that waits for the others is told later: its answer stands where it came."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kits.stories.node import StoryNode
from kits.stories.steps import step
from kits.stories.words import name_of, place

SESSION_MS = 10_000
REBALANCE_MS = 30_000
SUBSCRIPTION = b"\0\0\0\0\0\1\0\6orders\xff\xff\xff\xff"


@dataclass
class StoryMember:
    group: str = ""
    member_id: str = ""
    instance: str | None = None
    generation: int = -1

    def body(self, generation: str = "") -> dict[str, Any]:
        """In its generation, or in the one that a story names."""
        number = int(generation) if generation else self.generation
        return {"member_id": self.member_id, "generation_id": number, "group_instance_id": self.instance}


@dataclass
class Waiting:
    name: str
    receive: Any
    tell: Callable[[dict[str, Any]], str]


class Members:
    def __init__(self, node: StoryNode) -> None:
        self._node = node
        self._known: dict[str, StoryMember] = {}
        self._waiting: list[Waiting] = []

    def __getitem__(self, name: str) -> StoryMember:
        return self._known.setdefault(name, StoryMember())

    def _name_of(self, member_id: str) -> str:
        return next((name for name, known in self._known.items() if known.member_id == member_id), "a former member")

    async def news(self) -> list[str]:
        """The answers that came since."""
        answered = [one for one in self._waiting if one.receive.is_answered()]
        self._waiting = [one for one in self._waiting if one not in answered]
        return [f"{one.name}: {one.tell(await one.receive())}" for one in answered]

    def forget_requests(self) -> None:
        """The broker that they were sent to is gone."""
        self._waiting.clear()

    def _send(self, name: str, tell: Callable[[dict[str, Any]], str], api: str, version: int, **body: Any) -> None:
        self._waiting.append(Waiting(name, self._node.send(api, version, **body), tell))

    # --- membership ---

    @step("{client}: join group {group}( as instance {instance})?")
    async def join(self, client: str, group: str, instance: str = "") -> None:
        member = self[client]
        member.group, member.instance = group, instance or None

        def tell(answer: dict[str, Any]) -> str:
            if answer["error_code"]:
                return name_of(answer["error_code"])
            member.member_id, member.generation = answer["member_id"], answer["generation_id"]
            if answer["leader"] != member.member_id:
                return f"generation {member.generation}, follower"
            others = sorted(self._name_of(row["member_id"]) for row in answer["members"])
            return f"generation {member.generation}, leader of {' '.join(others)}"

        body = {"member_id": member.member_id, "group_instance_id": member.instance}
        self._send(
            client,
            tell,
            "JoinGroup",
            5 if instance else 3,
            group_id=group,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
            **body,
        )

    @step("{client}: sync( with {shares...})?")
    async def sync(self, client: str, shares: str = "") -> None:
        """The leader sends which member gets which partition: `m1=orders-0 m2=orders-1`."""
        member = self[client]
        rows = [
            {"member_id": self[name].member_id, "assignment": share.encode()}
            for name, _, share in (pair.partition("=") for pair in shares.split())
        ]

        def tell(answer: dict[str, Any]) -> str:
            if answer["error_code"]:
                return name_of(answer["error_code"])
            return f"assigned {answer['assignment'].decode() or 'nothing'}"

        self._send(client, tell, "SyncGroup", 3, group_id=member.group, assignments=rows, **member.body())

    @step("{client}: heartbeat to the group")
    async def heartbeat(self, client: str) -> str:
        member = self[client]
        return name_of((await self._node.ask("Heartbeat", 3, group_id=member.group, **member.body()))["error_code"])

    @step("{client}: leave the group")
    async def leave(self, client: str) -> str:
        member = self[client]
        body = {"group_id": member.group, "member_id": member.member_id}
        code: int = (await self._node.ask("LeaveGroup", 2, **body))["error_code"]
        self._known.pop(client)
        return name_of(code)

    # --- offsets ---

    @step("{client}: commit offset {offset} of {partition}( in generation {generation})?")
    async def commit(self, client: str, offset: str, partition: str, generation: str = "") -> str:
        member, where = self[client], place(partition)
        row = {"partition_index": where.partition, "committed_offset": int(offset), "committed_metadata": ""}
        answer = await self._node.ask(
            "OffsetCommit",
            7,
            group_id=member.group,
            generation_id_or_member_epoch=int(generation) if generation else member.generation,
            member_id=member.member_id,
            group_instance_id=member.instance,
            topics=[{"name": where.topic, "partitions": [row]}],
        )
        return name_of(answer["topics"][0]["partitions"][0]["error_code"])

    @step("(?P<stable>stable )?offset of {subject} in group {group}")
    async def offset(self, subject: str, group: str, stable: str = "") -> str:
        """`stable` waits for open transactions, as consumers do: then an error says that there is one."""
        where = place(subject)
        topics = [{"name": where.topic, "partition_indexes": [where.partition]}]
        answer = await self._node.ask("OffsetFetch", 7, group_id=group, topics=topics, require_stable=bool(stable))
        row = answer["topics"][0]["partitions"][0]
        if row["error_code"]:
            return name_of(row["error_code"])
        return "no offset" if row["committed_offset"] == -1 else f"offset {row['committed_offset']}"

    @step("describe group {subject}")
    async def describe(self, subject: str) -> str:
        row = (await self._node.ask("DescribeGroups", 4, groups=[subject]))["groups"][0]
        shares = sorted(
            f"{self._name_of(member['member_id'])}={member['member_assignment'].decode() or 'nothing'}"
            for member in row["members"]
        )
        return " ".join([row["group_state"], *shares])
