"""Apache Kafka on folders: formatted as its users do it, with what only it can store, and started on a given folder."""

import base64
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer

from kits.folders.story import GROUP_KEY, Story
from oracle.kafka import Oracle, jars_or_skip

TWO_PHASE = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}
SNAPSHOTS = {"metadata.log.max.record.bytes.between.snapshots": "500"}  # many, in a log of some kilobytes
ACLS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:ANONYMOUS",
}


class FolderOracle(Oracle):
    """With the features that `kafka-storage.sh format` chooses, not those that a comparison wants."""

    format_args: tuple[str, ...] = ("--standalone",)

    def __init__(self, directory: Path, settings: Mapping[str, str] = {}) -> None:
        super().__init__(jars_or_skip(), directory, settings)
        directory.mkdir(parents=True, exist_ok=True)

    def _format(self) -> None:
        cluster_id = base64.urlsafe_b64encode(b"\x00" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        args = ["format", "-t", cluster_id, "-c", str(self._properties), *self.format_args]
        done = self.tool("kafka.tools.StorageTool", args)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


class StaticOracle(FolderOracle):
    """With the voters in its settings: kraft.version 0, as clusters before 3.9 have it."""

    format_args = ()

    def _write_properties(self, controller_port: int) -> None:
        self.settings["controller.quorum.voters"] = f"1@127.0.0.1:{controller_port}"
        super()._write_properties(controller_port)
        lines = self._properties.read_text().splitlines()
        kept = [line for line in lines if not line.startswith("controller.quorum.bootstrap.servers")]
        self._properties.write_text("\n".join([*kept, ""]))


def add_foreign(story: Story) -> None:
    """What only Apache Kafka writes in these tests: quotas, SCRAM credentials, groups of other protocols."""
    entity = [{"entity_type": "user", "entity_name": "somebody"}]
    quota = {"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1048576.0, "remove": False}]}
    answer: Any = story.wire.ask("AlterClientQuotas", 1, entries=[quota], validate_only=False)
    assert answer["entries"][0]["error_code"] == 0, answer
    credential = {"name": "somebody", "mechanism": 1, "iterations": 4096, "salt": b"salt", "salted_password": b"x" * 32}
    answer = story.wire.ask("AlterUserScramCredentials", 0, deletions=[], upsertions=[credential])
    assert answer["results"][0]["error_code"] == 0, answer
    consumer = Consumer(
        {"bootstrap.servers": story.address, "group.id": "modern", "group.protocol": "consumer",
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe(["plain"])
    seen, deadline = 0, time.monotonic() + 30
    while seen < 9 and time.monotonic() < deadline:
        seen += len(consumer.consume(9, 0.5))
    assert seen == 9
    consumer.commit(asynchronous=False)
    consumer.close()
    story.find("alive", GROUP_KEY)
    answer = story.wire.ask(
        "ConsumerGroupHeartbeat", 1, group_id="alive", member_id=str(uuid.uuid4()), member_epoch=0, instance_id=None,
        rack_id=None, rebalance_timeout=30000, subscribed_topic_names=["plain"], subscribed_topic_regex=None,
        server_assignor=None, topic_partitions=[],
    )  # fmt: skip
    assert answer["error_code"] == 0, answer


def foreign(story: Story) -> dict[str, Any]:
    """What is there of it."""
    quotas = story.wire.ask("DescribeClientQuotas", 1, components=[], strict=False)
    credentials = story.wire.ask("DescribeUserScramCredentials", 0, users=None)
    return {
        "quotas": quotas["entries"],
        "credentials": [(row["user"], row["credential_infos"]) for row in credentials["results"]],
        "modern": story.committed("modern"),
    }
