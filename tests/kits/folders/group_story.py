"""Groups of both protocols in a data folder, put in and asked by raw requests, for folders that move between versions.

A member here is what its client would remember of it: its id and its generation, or epoch. It goes on in another
process, with another version of the server.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

from kits.folders.story import GROUP_KEY, Identity, Story
from oracle.wire import fit

TOPIC, PARTITIONS = "plain", 3
SESSION_MS = 1_800_000  # nobody is removed while a test starts a server
REBALANCE_MS = 60_000
SUBSCRIPTION = b"\0\0\0\0\0\1\0\5plain\xff\xff\xff\xff"
NOT_READY = (14, 15, 16)


def assignment_of(*partitions: int) -> bytes:
    rows = b"".join(partition.to_bytes(4) for partition in partitions)
    return b"\0\0\0\0\0\1\0\5plain" + len(partitions).to_bytes(4) + rows + b"\xff\xff\xff\xff"


@dataclass
class ClassicMember:
    group: str
    member_id: str = ""
    instance: str | None = None
    generation: int = -1

    def plain(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class ModernMember:
    group: str
    member_id: str
    epoch: int = 0


class GroupStory(Story):
    """One server, and the groups in its folder."""

    # --- members of the classic protocol ---

    def join(self, member: ClassicMember) -> dict[str, Any]:
        body = {
            "group_id": member.group, "session_timeout": SESSION_MS, "rebalance_timeout": REBALANCE_MS,
            "member_id": member.member_id, "group_instance_id": member.instance, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
        }  # fmt: skip
        answer: dict[str, Any] = self.wire.ask("JoinGroup", 5, **body)
        if answer["error_code"] == 79:  # it has its id now
            answer = self.wire.ask("JoinGroup", 5, **(body | {"member_id": answer["member_id"]}))
        if answer["error_code"] == 0:
            member.member_id, member.generation = answer["member_id"], answer["generation_id"]
        return answer

    def sync(self, member: ClassicMember, assignments: dict[str, bytes]) -> dict[str, Any]:
        rows = [{"member_id": member_id, "assignment": data} for member_id, data in assignments.items()]
        answer: dict[str, Any] = self.wire.ask("SyncGroup", 3, **self._place(member), assignments=rows)
        return answer

    def classic_heartbeat(self, member: ClassicMember) -> int:
        self.find(member.group, GROUP_KEY)
        code = 0

        def answered() -> bool:
            nonlocal code
            code = self.wire.ask("Heartbeat", 3, **self._place(member))["error_code"]
            return code not in NOT_READY

        self._until(answered)
        return code

    def _place(self, member: ClassicMember) -> dict[str, Any]:
        return {
            "group_id": member.group,
            "generation_id": member.generation,
            "member_id": member.member_id,
            "group_instance_id": member.instance,
        }

    def join_again(self, member: ClassicMember) -> bytes:
        """It has given up everything. Its assignment, where the coordinator makes it."""
        answer = self.join(member)
        assert (answer["error_code"], answer["leader"]) == (0, ""), answer
        synced = self.sync(member, {})
        assert synced["error_code"] == 0, synced
        return bytes(synced["assignment"])

    # --- members of the new protocol ---

    def beat(self, member: ModernMember, *, owned: list[int] | None = None, joins: bool = False) -> dict[str, Any]:
        self.find(member.group, GROUP_KEY)
        rows = None if owned is None else [{"topic_id": self.topic_id(), "partitions": owned}] * bool(owned)
        body = {
            "group_id": member.group, "member_id": member.member_id, "member_epoch": 0 if joins else member.epoch,
            "instance_id": None, "rack_id": None, "rebalance_timeout": REBALANCE_MS if joins else -1,
            "subscribed_topic_names": [TOPIC] if joins else None, "subscribed_topic_regex": None,
            "server_assignor": None, "topic_partitions": [] if joins else rows,
        }  # fmt: skip
        answer: dict[str, Any] = {}

        def answered() -> bool:
            answer.update(self.wire.ask("ConsumerGroupHeartbeat", 1, **fit("ConsumerGroupHeartbeat", 1, body)))
            return answer["error_code"] not in NOT_READY

        self._until(answered)
        if answer["error_code"] == 0:
            member.epoch = answer["member_epoch"]
        return answer

    def topic_id(self) -> Any:
        return next(row["topic_id"] for row in self._metadata() if row["name"] == TOPIC)

    def commit_as(self, member: ClassicMember | ModernMember, offset: int, version: int = 8) -> int:
        place = member.epoch if isinstance(member, ModernMember) else member.generation
        instance = None if isinstance(member, ModernMember) else member.instance
        row = {
            "partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": ""
        }  # fmt: skip
        answer = self.wire.ask(
            "OffsetCommit", version, group_id=member.group, generation_id_or_member_epoch=place,
            member_id=member.member_id, group_instance_id=instance, topics=[{"name": TOPIC, "partitions": [row]}],
        )  # fmt: skip
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    # --- what is there ---

    def group_types(self) -> dict[str, tuple[str, str]]:
        """Type and state by name, of the groups that are listed."""
        rows = self.wire.ask("ListGroups", 5, states_filter=[], types_filter=[])["groups"]
        return {row["group_id"]: (row["group_type"], row["group_state"]) for row in rows}

    def offset(self, group: str) -> int:
        """Of partition 0."""
        return int(next((row[2] for row in self.committed(group) if row[1] == 0), -1))

    # --- filling ---

    def fill_classic(self) -> tuple[list[ClassicMember], Identity]:
        """Two members that share a group, one of them static; one that has joined and has no assignment yet; offsets
        of an open transaction; offsets of nobody."""
        self._topics()
        members = [ClassicMember("pair"), ClassicMember("pair", instance="b")]
        for group in ("pair", "half"):
            self.find(group, GROUP_KEY)
        host, _, port = self.address.rpartition(":")
        with ThreadPoolExecutor() as pool, GroupStory(host, int(port)) as other:
            answers = list(pool.map(lambda story, member: story.join(member), (self, other), members))
            assert [answer["error_code"] for answer in answers] == [0, 0], answers
            leads = 0 if answers[0]["leader"] == members[0].member_id else 1
            given = {members[0].member_id: assignment_of(0, 1), members[1].member_id: assignment_of(2)}
            for at in (leads, 1 - leads):
                story = (self, other)[at]
                answer = story.sync(members[at], given if at == leads else {})
                assert (answer["error_code"], answer["assignment"]) == (0, given[members[at].member_id]), answer
        assert [self.classic_heartbeat(member) for member in members] == [0, 0]
        assert self.commit_as(members[0], 5) == 0
        half = ClassicMember("half")
        assert self.join(half)["error_code"] == 0
        identity = self.begin("open", b"open", group="pending")
        self.commit("given", {(TOPIC, 0): 1})
        return [*members, half], identity
