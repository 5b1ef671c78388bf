"""Apache Kafka's own commands for topics, configurations, log directories and deletion print for Twofold what they
print for Apache Kafka, apart from ids, ports, paths, sizes of disks, the order of rows and the words for an error."""

import json
import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from oracle.kafka import Oracle
from oracle.twofold import Twofold, running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

PROGRAM = Path(__file__).parent / "java" / "AdminCommands.java"
TOPICS = "org.apache.kafka.tools.TopicCommand --bootstrap-server {servers}"
DELETE = "org.apache.kafka.tools.DeleteRecordsCommand --bootstrap-server {servers}"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand --bootstrap-server {servers}"
CONFIGS = "kafka.admin.ConfigCommand --bootstrap-server {servers}"
METRICS = "org.apache.kafka.tools.ClientMetricsCommand --bootstrap-server {servers}"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell --bootstrap-server {servers}"
COMMANDS = (
    f"{TOPICS} --create --topic tools-one --partitions 3 --config retention.ms=1000000 --config cleanup.policy=delete",
    f"{TOPICS} --create --topic tools-compact --config cleanup.policy=compact",
    f"{TOPICS} --describe --topic tools-one",
    f"{TOPICS} --describe --topic tools-.*",
    f"{TOPICS} --describe --topic tools-none",
    f"{TOPICS} --describe --topic tools-one --under-replicated-partitions",
    f"{TOPICS} --describe --topic tools-one --topics-with-overrides",
    f"{TOPICS} --describe --topic tools-one --partition-size-limit-per-response 2",
    f"{LOG_DIRS} --describe --topic-list tools-one,tools-compact",
    f"{LOG_DIRS} --describe --topic-list tools-one --broker-list 1",
    f"{LOG_DIRS} --describe --topic-list tools-one --broker-list 7",
    f"{DELETE} --offset-json-file {{plan}}",
    f"{OFFSETS} --topic tools-one --time -2",
    f"{OFFSETS} --topic tools-one --time -1",
    f"{DELETE} --offset-json-file {{wrong}}",
    f"{OFFSETS} --topic tools-one --time -2",
    f"{CONFIGS} --describe --entity-type topics --entity-name tools-one",
    f"{CONFIGS} --describe --all --entity-type topics --entity-name tools-one",
    f"{CONFIGS} --alter --entity-type topics --entity-name tools-one --add-config segment.ms=700000,flush.ms=5",
    f"{CONFIGS} --alter --entity-type topics --entity-name tools-one --delete-config retention.ms",
    f"{CONFIGS} --describe --entity-type topics --entity-name tools-one",
    f"{CONFIGS} --describe --entity-type topics --entity-name tools-none",
    f"{CONFIGS} --alter --entity-type topics --entity-name tools-one --add-config retention.ms=soon",
    f"{CONFIGS} --alter --entity-type brokers --entity-default --add-config log.cleaner.threads=2",
    f"{CONFIGS} --alter --entity-type brokers --entity-name 1 --add-config log.cleaner.threads=2",
    f"{CONFIGS} --describe --entity-type brokers --entity-default",
    f"{CONFIGS} --describe --entity-type brokers --entity-name 1",
    f"{CONFIGS} --alter --entity-type brokers --entity-name 1 --delete-config log.cleaner.threads",
    f"{CONFIGS} --alter --entity-type brokers --entity-default --delete-config log.cleaner.threads",
    f"{CONFIGS} --alter --entity-type brokers --entity-name 1 --add-config node.id=9",
    f"{CONFIGS} --alter --entity-type clients --entity-name app --add-config producer_byte_rate=1024",
    f"{CONFIGS} --alter --entity-type users --entity-name alice --entity-type clients --entity-default "
    "--add-config consumer_byte_rate=2048,request_percentage=12.5",
    f"{CONFIGS} --describe --entity-type clients --entity-name app",
    f"{CONFIGS} --describe --entity-type users --entity-name alice --entity-type clients",
    f"{CONFIGS} --alter --entity-type clients --entity-name app --add-config producer_byte_rate=0",
    f"{CONFIGS} --alter --entity-type ips --entity-name 10.1.2.3 --add-config connection_creation_rate=5",
    f"{CONFIGS} --describe --entity-type ips --entity-name 10.1.2.3",
    f"{CONFIGS} --alter --entity-type ips --entity-name 10.1.2.3 --delete-config connection_creation_rate",
    f"{CONFIGS} --alter --entity-type clients --entity-name app --delete-config producer_byte_rate",
    f"{CONFIGS} --alter --entity-type users --entity-name alice --entity-type clients --entity-default "
    "--delete-config consumer_byte_rate,request_percentage",
    f"{CONFIGS} --describe --entity-type clients",
    f"{CONFIGS} --describe --entity-type client-metrics",
    f"{CONFIGS} --describe --entity-type groups",
    f"{METRICS} --list",
    f"{METRICS} --describe",
    f"{CLUSTER} list-endpoints --bootstrap-server {{servers}}",
    f"{TOPICS} --delete --topic tools-.*",
)


def test_commands_print_what_they_print_for_apache_kafka(oracle: Oracle, tmp_path: Path) -> None:
    plan, wrong = tmp_path / "plan.json", tmp_path / "wrong.json"
    plan.write_text(deletion(("tools-one", 0, 4), ("tools-one", 1, -1), ("tools-compact", 0, 0)))
    wrong.write_text(deletion(("tools-one", 0, 99), ("tools-one", 2, 0)))
    commands = [command.format(servers="{servers}", plan=plan, wrong=wrong) for command in COMMANDS]
    with running_twofold() as twofold:
        theirs, ours = (run(oracle, server, commands) for server in (oracle, twofold))
    for expected, printed in zip(theirs, ours, strict=True):
        assert printed == expected
    assert len(ours) == len(COMMANDS)


def deletion(*rows: tuple[str, int, int]) -> str:
    partitions = [{"topic": topic, "partition": partition, "offset": offset} for topic, partition, offset in rows]
    return json.dumps({"version": 1, "partitions": partitions})


def run(oracle: Oracle, server: Oracle | Twofold, commands: list[str]) -> list[list[str]]:
    """What each command printed, comparable: itself and its lines, sorted. The first two make the topics."""
    parts = printed(oracle, server, commands[:2])
    fill(server.bootstrap_servers)
    return [comparable(part) for part in parts + printed(oracle, server, commands[2:])]


def printed(oracle: Oracle, server: Oracle | Twofold, commands: list[str]) -> list[str]:
    done = oracle.java_program(PROGRAM, [server.bootstrap_servers, *commands], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(commands), done.stdout[-2000:]
    return parts


def fill(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "batch.num.messages": 1, "enable.idempotence": True})
    for number in range(8):
        for partition in (0, 1):
            producer.produce("tools-one", b"%d" % number, partition=partition)
    assert producer.flush(20) == 0


def comparable(text: str) -> list[str]:
    text = re.sub(r"TopicId: [\w-]{22}", "TopicId: <id>", text)
    text = re.sub(r'"logDir":"[^"]+"', '"logDir":"<path>"', text)
    text = re.sub(r'"(total|usable)Bytes":\d+', r'"\1Bytes":<bytes>', text)
    text = re.sub(r"127\.0\.0\.1(:|\s+)\d+", "<address>", text)
    text = re.sub(r"(errors\.\w+Exception): .*", r"\1: <text>", text)
    text = re.sub(r"^\s*at .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^Dynamic configs for group .*\n", "", text, flags=re.MULTILINE)  # groups that other tests have left
    command, *lines = [" ".join(line.split()) for line in text.splitlines()]
    return [command, *sorted(in_order(line) for line in lines if line)]


def in_order(line: str) -> str:
    """Rows inside of one line of JSON have no order."""
    if line.startswith("{"):
        rows = re.findall(r'\{"partition":[^}]*\}', line)
        return re.sub(r'\{"partition":[^}]*\}', "", line) + " " + " ".join(sorted(rows))
    return line
