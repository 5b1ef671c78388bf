"""What the cases of KIP-848 share: members over raw connections, with ids and epochs of their own choice."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from interop.cases.groups_kit import Answer, commit_rows, coordinated, fetch_body
from interop.cases.txn_kit import partition_of
from oracle.compare import Probe, Topic, attempts
from oracle.wire import fit

GROUP_RESOURCE = 32
SET, DELETE, APPEND = 0, 1, 2
SAME: Any = object()


class Party:
    """A group that only this case uses, and its members: ids are those of the case, so that both servers order them
    alike."""

    def __init__(self, probe: Probe, suffix: str = "group", *, partitions: int = 4) -> None:
        self.probe = probe
        self.id = coordinated(probe, probe.name(suffix))
        self.topic = self.new_topic(partitions=partitions) if partitions else None

    @property
    def only_topic(self) -> Topic:
        assert self.topic is not None
        return self.topic

    def new_topic(self, suffix: str = "topic", partitions: int = 1) -> Topic:
        """A topic that the coordinator of this group knows: it hears of topics later than those who ask for metadata.
        The story has not begun yet, so the group may come and go once for that."""
        topic = self.probe.topic(suffix, partitions)
        scout = self.member("scout")
        for _ in attempts():
            if scout.join(None, [topic.name])["assignment"]["topic_partitions"]:
                break
        scout.leave(None)
        self.probe.tell("DeleteGroups", 2, groups_names=[self.id])
        return topic

    def new_topic_of_others(self, suffix: str, partitions: int) -> Topic:
        """One more topic, while the story goes on: no member of this group wants it so far."""
        topic = self.probe.topic(suffix, partitions)
        self.hears_of(topic, partitions)
        return topic

    def hears_of(self, topic: Topic, partitions: int) -> None:
        """Until the coordinator of this group knows this topic with so many partitions (0: it is gone), while the story
        goes on: a scout asks in another group, which has the same coordinator."""
        group_id = next(name for name in self._neighbours() if partition_of(name) == partition_of(self.id))
        scout = self.member("scout")
        coordinated(self.probe, group_id)
        for _ in attempts():
            assignment = scout.join(None, [topic.name], group_id=group_id)["assignment"]["topic_partitions"]
            scout.leave(None, group_id=group_id)
            if [len(row["partitions"]) for row in assignment if row["topic_id"] == topic.id] == [partitions] * (
                partitions > 0
            ):
                return
        raise AssertionError(f"the coordinator of {self.id} does not hear of {topic}")

    def _neighbours(self) -> Iterator[str]:
        return (f"{self.id}-{number}" for number in count())

    def grow(self, topic: Topic, partitions: int) -> None:
        row = {"name": topic.name, "count": partitions, "assignments": None}
        self.probe.tell("CreatePartitions", 2, topics=[row], timeout=5000, validate_only=False)
        self.hears_of(topic, partitions)

    def drop(self, topic: Topic) -> None:
        self.probe.tell("DeleteTopics", 5, topic_names=[topic.name], timeout=5000)
        self.probe.await_gone(topic.name)
        self.hears_of(topic, 0)

    def member(self, name: str, **options: Any) -> "Modern":
        return Modern(self, name, **options)

    def configure(self, label: str | None = None, **values: Any) -> None:
        """`heartbeat`, `session` and `assignment` in milliseconds; None takes a value back."""
        long = {
            "heartbeat": "consumer.heartbeat.interval.ms",
            "session": "consumer.session.timeout.ms",
            "assignment": "consumer.assignment.interval.ms",
        }
        rows = [
            {
                "name": long[name],
                "config_operation": DELETE if value is None else SET,
                "value": None if value is None else str(value),
            }
            for name, value in values.items()
        ]
        alter_group(self.probe, label, self.id, rows)

    def describe(
        self, label: str, version: int = 1, *groups: str, keep: Callable[[Answer], Answer] = lambda answer: answer
    ) -> Answer:
        body = {"group_ids": groups or [self.id], "include_authorized_operations": True}
        answer: Answer = self.probe.ask(label, "ConsumerGroupDescribe", version, body, keep=keep)
        return answer

    def listed(self, label: str) -> None:
        def own(answer: Answer) -> Any:
            return [row for row in answer["groups"] if row["group_id"] == self.id]

        self.probe.ask(label, "ListGroups", 5, {"states_filter": [], "types_filter": []}, keep=own)

    def commit(
        self,
        label: str,
        member: str,
        epoch: int,
        partitions: Sequence[int],
        version: int = 9,
        *,
        topic: Topic | None = None,
        until: Callable[[Answer], bool] = lambda answer: True,
        **more: Any,
    ) -> None:
        topic = topic or self.only_topic
        body = {"group_id": self.id, "generation_id_or_member_epoch": epoch, "member_id": member, **more}
        body["topics"] = commit_rows(topic, dict.fromkeys(partitions, 5))
        self.probe.ask(label, "OffsetCommit", version, fit("OffsetCommit", version, body), until=until)

    def fetch(self, label: str, member: str | None, epoch: int, version: int = 9) -> None:
        body = fetch_body(version, self.id, [(self.only_topic, [0])], member_id=member, member_epoch=epoch)
        self.probe.ask(label, "OffsetFetch", version, body)


def counted(answer: Answer) -> Answer:
    """How many partitions the members are to have. Which ones goes by ids, and the server makes some."""
    targets = [member["target_assignment"] for group in answer["groups"] for member in group["members"]]
    for row in [row for target in targets for row in target["topic_partitions"]]:
        row["partitions"] = len(row["partitions"])
    return answer


def alter_group(probe: Probe, label: str | None, group_id: str, rows: list[Answer]) -> None:
    body = {
        "resources": [{"resource_type": GROUP_RESOURCE, "resource_name": group_id, "configs": rows}],
        "validate_only": False,
    }
    if label is not None:
        probe.ask(label, "IncrementalAlterConfigs", 1, body)
        return
    (row,) = probe.tell("IncrementalAlterConfigs", 1, **body)["responses"]
    assert row["error_code"] == 0, row


class Modern:
    """One member of the consumer protocol. It remembers the epoch that it was told."""

    def __init__(self, party: Party, name: str, *, id: str = "", version: int = 1, instance: str | None = None) -> None:
        self.party, self.name, self.version, self.instance = party, name, version, instance
        self.id = id or name
        self.epoch = 0
        self.probe = party.probe

    def ask(self, label: str | None, *, until: Callable[[Any], bool] = lambda answer: True, **fields: Any) -> Answer:
        """A heartbeat with these fields; all others stand for: as before."""
        owned = fields.pop("owned", None)
        rows = None
        if owned is not None:
            partitions: Mapping[Topic, Sequence[int]] = (
                owned if isinstance(owned, dict) else {self.party.only_topic: owned}
            )
            rows = [{"topic_id": topic.id, "partitions": list(found)} for topic, found in partitions.items() if found]
        body = {
            "group_id": self.party.id,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "instance_id": self.instance,
            "rack_id": None,
            "rebalance_timeout": -1,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": rows,
        } | fields
        body = fit("ConsumerGroupHeartbeat", self.version, body)
        if label is None:
            answer: Answer = self.probe.tell("ConsumerGroupHeartbeat", self.version, **body)
        else:
            answer = self.probe.ask(f"{self.name}: {label}", "ConsumerGroupHeartbeat", self.version, body, until=until)
        if answer["error_code"] == 0:
            self.epoch = answer["member_epoch"]
        return answer

    def join(self, label: str | None, topics: Sequence[str] | None = SAME, **fields: Any) -> Answer:
        names = [self.party.only_topic.name] if topics is SAME else topics
        asked: Answer = {"rebalance_timeout": 60_000, "subscribed_topic_names": names, "owned": {}, "member_epoch": 0}
        return self.ask(label, **(asked | fields))

    def beat(self, label: str, **fields: Any) -> Answer:
        return self.ask(label, **fields)

    def full(self, label: str, owned: Any, **fields: Any) -> Answer:
        names = [self.party.only_topic.name]
        asked: Answer = {"rebalance_timeout": 60_000, "subscribed_topic_names": names, "owned": owned}
        return self.ask(label, **(asked | fields))

    def leave(self, label: str | None, epoch: int = -1, **fields: Any) -> Answer:
        answer = self.ask(label, member_epoch=epoch, **fields)
        self.epoch = 0
        return answer

    def settle(self, owned: Sequence[int]) -> None:
        """Acknowledge until nothing changes any more; set-up."""
        for _ in range(5):
            self.ask(None, owned=owned)


def wait(seconds: float) -> None:
    """Both servers count in their own time."""
    time.sleep(seconds)


def two(probe: Probe, **options: Any) -> tuple[Party, Modern, Modern]:
    """a has all four partitions at epoch 2, b has joined at 3 and waits."""
    party = Party(probe)
    a, b = party.member("a", **options), party.member("b", **options)
    a.join("joins")
    b.join("joins")
    return party, a, b


def even(probe: Probe, **options: Any) -> tuple[Party, Modern, Modern]:
    """a has 0 and 1, b has 2 and 3, both in epoch 3."""
    party, a, b = two(probe, **options)
    a.beat("is told to give up")
    a.beat("has given up", owned=[0, 1])
    b.beat("gets its half")
    return party, a, b
