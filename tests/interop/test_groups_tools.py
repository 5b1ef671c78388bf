"""Apache Kafka's own commands for groups against Twofold: `kafka-consumer-groups.sh`, `kafka-groups.sh`, and
`kafka-configs.sh --entity-type groups` print what they print against Apache Kafka.

The same groups of both kinds, and the same records, are made on both, the same commands run on both, and what is
printed must agree line by line, apart from random ids, ports, the order of rows and the server's words for an error.
"""

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kits.groups.groups import Server, create_topic
from oracle.driver import Connection
from oracle.kafka import Oracle, running_oracle
from oracle.twofold import running_twofold

pytestmark = [pytest.mark.oracle, pytest.mark.interop]

PROGRAM = Path(__file__).parent / "java" / "AdminCommands.java"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand --bootstrap-server {servers} "
ALL_GROUPS = "org.apache.kafka.tools.GroupsCommand --bootstrap-server {servers} "
CONFIGS = "kafka.admin.ConfigCommand --bootstrap-server {servers} "
SETTINGS = {"group.consumer.heartbeat.interval.ms": "500"}  # members hear of each other soon
START_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
STEP_MS = 10_000
RECORDS = 10

WHAT = ("", "--offsets --verbose", "--members", "--members --verbose", "--state", "--state --verbose")
FILTERS = (
    "", "--consumer", "--share", "--streams", "--group-type consumer", "--group-type classic", "--group-type Consumer",
    "--group-type nothing", "--protocol consumer", "--protocol nothing", "--group-type classic --protocol consumer",
    "--consumer --group-type classic",
)  # fmt: skip
GROUP = "--entity-type groups --entity-name configured"
ALTERED = (
    "--describe --entity-type groups",
    f"--describe {GROUP}",
    f"--alter {GROUP} --add-config consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000",
    f"--describe {GROUP}",
    f"--describe --all {GROUP}",
    "--alter --group configured --add-config consumer.assignment.interval.ms=7",
    "--describe --group configured",
    "--describe --entity-type groups",
    f"--alter {GROUP} --add-config consumer.session.timeout.ms=1",
    f"--alter {GROUP} --add-config consumer.session.timeout.ms=soon",
    f"--alter {GROUP} --add-config consumer.nothing=1",
    f"--alter {GROUP} --delete-config consumer.nothing",
    f"--alter {GROUP} --delete-config consumer.session.timeout.ms",
    f"--alter {GROUP} --delete-config consumer.session.timeout.ms",
    f"--alter {GROUP} --delete-config consumer.heartbeat.interval.ms,consumer.assignment.interval.ms",
    f"--describe {GROUP}",
    "--alter --entity-type groups --entity-default --add-config consumer.session.timeout.ms=50000",
    "--alter --entity-type groups --add-config consumer.session.timeout.ms=50000",
)

WITH_A_MEMBER = (
    GROUPS + "--list",
    GROUPS + "--list --state",
    GROUPS + "--list --state Stable",
    GROUPS + "--list --state empty,dead",
    GROUPS + "--list --type",
    GROUPS + "--list --type classic",
    GROUPS + "--list --type consumer",
    GROUPS + "--describe --group readers",
    GROUPS + "--describe --group readers --offsets --verbose",
    GROUPS + "--describe --group readers --members",
    GROUPS + "--describe --group readers --members --verbose",
    GROUPS + "--describe --group readers --state",
    GROUPS + "--describe --all-groups --state",
    GROUPS + "--describe --group nobody",
    GROUPS + "--describe --group nobody --members",
    GROUPS + "--describe --group nobody --state",
    GROUPS + "--reset-offsets --group readers --topic tools --to-earliest --dry-run",
    GROUPS + "--reset-offsets --group readers --topic tools --to-earliest --execute",
    GROUPS + "--delete-offsets --group readers --topic tools",
    GROUPS + "--delete-offsets --group nobody --topic tools",
    GROUPS + "--delete --group readers",
    GROUPS + "--delete --group nobody",
    GROUPS + "--describe --group readers",
    GROUPS + "--list --state stable,assigning,reconciling",
    GROUPS + "--list --state --type consumer",
    *(GROUPS + f"--describe --group modern {what}" for what in WHAT),
    GROUPS + "--describe --group matching --members --verbose",
    GROUPS + "--describe --group matching --offsets",
    *(GROUPS + f"--describe --group left {what}" for what in WHAT),
    GROUPS + "--describe --all-groups",
    GROUPS + "--describe --all-groups --state --verbose",
    GROUPS + "--describe --all-groups --members --verbose",
    GROUPS + "--reset-offsets --group modern --topic tools --to-earliest --dry-run",
    GROUPS + "--reset-offsets --group modern --topic tools --to-earliest --execute",
    GROUPS + "--delete-offsets --group modern --topic tools",
    GROUPS + "--delete-offsets --group matching --topic tools:0",
    GROUPS + "--delete --group modern",
    GROUPS + "--delete --group left --group modern --group nobody",
    *(ALL_GROUPS + f"--list {filters}".strip() for filters in FILTERS),
    *(CONFIGS + words for words in ALTERED),
)

WITHOUT = (
    GROUPS + "--describe --group readers",
    GROUPS + "--describe --group readers --members",
    GROUPS + "--describe --group readers --state",
    GROUPS + "--list --state",
    GROUPS + "--reset-offsets --group readers --topic tools --to-earliest --dry-run",
    GROUPS + "--describe --group readers",
    GROUPS + "--reset-offsets --group readers --topic tools --to-offset 2 --execute",
    GROUPS + "--describe --group readers",
    GROUPS + "--reset-offsets --group readers --topic tools --shift-by 3 --execute",
    GROUPS + "--reset-offsets --group readers --topic tools --shift-by -100 --dry-run",
    GROUPS + "--reset-offsets --group readers --topic tools --shift-by 100 --dry-run",
    GROUPS + "--reset-offsets --group readers --topic tools --to-datetime 2023-11-14T22:14:05.000 --execute",
    GROUPS + "--reset-offsets --group readers --topic tools --to-datetime 2033-11-14T22:14:05.000 --dry-run",
    GROUPS + "--reset-offsets --group readers --topic tools:1 --to-latest --execute",
    GROUPS + "--reset-offsets --group readers --all-topics --to-current --dry-run --export",
    GROUPS + "--reset-offsets --group readers --all-topics --from-file {plan} --execute",
    GROUPS + "--reset-offsets --group readers --topic nothing --to-earliest --dry-run",
    GROUPS + "--reset-offsets --group newcomers --topic tools --to-earliest --execute",
    GROUPS + "--reset-offsets --all-groups --topic tools --to-latest --dry-run",
    GROUPS + "--describe --all-groups",
    GROUPS + "--delete-offsets --group readers --topic tools:0",
    GROUPS + "--delete-offsets --group readers --topic tools:0 --topic nothing",
    GROUPS + "--describe --group readers",
    GROUPS + "--delete --group readers",
    GROUPS + "--delete --group readers",
    GROUPS + "--list --state",
    *(GROUPS + f"--describe --group modern {what}" for what in WHAT),
    GROUPS + "--reset-offsets --group modern --topic tools --to-latest --dry-run",
    GROUPS + "--reset-offsets --group modern --topic tools --shift-by -2 --execute",
    GROUPS + "--reset-offsets --group modern --all-topics --to-current --dry-run --export",
    GROUPS + "--describe --group modern",
    GROUPS + "--delete-offsets --group modern --topic tools:0",
    GROUPS + "--describe --group modern --offsets --verbose",
    GROUPS + "--delete --group modern",
    GROUPS + "--delete --group modern",
    ALL_GROUPS + "--list",
    GROUPS + "--delete --all-groups",
    GROUPS + "--list",
    ALL_GROUPS + "--list",
)

COMMANDS = len(WITH_A_MEMBER) + len(WITHOUT)


def test_commands_for_groups_print_what_they_print_for_apache_kafka(tmp_path: Path) -> None:
    """On nodes of their own: some commands concern all groups."""
    with running_oracle(SETTINGS) as oracle, running_twofold(SETTINGS) as twofold:
        printed = {}
        for server in (oracle, twofold):
            fill(server)
            with members(server):
                first = run(oracle, server, WITH_A_MEMBER)
            plan = tmp_path / "plan.csv"
            plan.write_text("tools,0,4\ntools,1,5\n")
            commands = [command.replace("{plan}", str(plan)) for command in WITHOUT]
            printed[server.name] = first + run(oracle, server, commands)
    wrong = [pair for pair in zip(printed["oracle"], printed["twofold"], strict=True) if pair[0] != pair[1]]
    assert not wrong, "\n".join(f"{theirs}\n{ours}" for theirs, ours in wrong)
    assert len(printed["twofold"]) == COMMANDS


def run(oracle: Oracle, server: Server, commands: list[str] | tuple[str, ...]) -> list[list[str]]:
    """What each command printed, comparable: the command itself and its lines, sorted."""
    done = oracle.java_program(PROGRAM, [server.bootstrap_servers, *commands], timeout=180)
    assert done.returncode == 0, done.stderr
    parts = re.split(r"^\$ ", done.stdout, flags=re.MULTILINE)[1:]
    assert len(parts) == len(commands), done.stdout[-2000:]
    return [comparable(part) for part in parts]


def comparable(text: str) -> list[str]:
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uuid>", text)
    text = re.sub(r"(?<![\w+/])[\w+/]{22}(?![\w+/])", "<id>", text)  # of a member of the new protocol
    text = re.sub(r"\btools:[01](?!\S)", "tools:<one>", text)  # which member has it goes by ids that clients draw
    text = re.sub(r"127\.0\.0\.1(:|\s+)\d+", "<address>", text)
    text = re.sub(r"^\s*at .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^ *(share|streams)\..*\n", "", text, flags=re.MULTILINE)  # configurations of other groups
    text = re.sub(r"(errors\.\w+Exception): .*", r"\1: <text>", text)
    command, *lines = [" ".join(line.split()) for line in text.splitlines()]
    return [command, *sorted(line for line in lines if line)]


def fill(server: Server) -> None:
    """Two partitions of ten records, ten seconds apart."""
    create_topic(server, "tools", 2)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for number in range(RECORDS):
        for partition in (0, 1):
            producer.produce("tools", b"%d" % number, partition=partition, timestamp=START_MS + number * STEP_MS)
    assert producer.flush(20) == 0


@contextmanager
def members(server: Server) -> Iterator[None]:
    """One classic member of `readers`, which has committed 3 and 4; two of the new protocol in `modern`, one of them
    static, with 5 and 6; one in `matching`, by a pattern; and `left`, whose member has gone. All leave in the end."""
    with ExitStack() as stack:
        for group, protocol, topic, names, offset in (
            ("readers", "classic", "tools", [None], 3),
            ("modern", "consumer", "tools", ["static", None], 5),
            ("matching", "consumer", "^too.*", [None], 1),
        ):
            consumers = [stack.enter_context(member(server, group, protocol, topic, name)) for name in names]
            settle(consumers, offset)
        with member(server, "left", "consumer", "tools") as consumer:
            settle([consumer], 7)
        yield


@contextmanager
def member(server: Server, group: str, protocol: str, topic: str, instance: str | None = None) -> Iterator[Consumer]:
    options: dict[str, str | int | bool] = {
        "bootstrap.servers": server.bootstrap_servers,
        "group.id": group,
        "client.id": "reader",
        "enable.auto.commit": False,
        "max.poll.interval.ms": 600_000,  # it is polled until it has its partitions, and beats in the background
        "group.protocol": protocol,
    }
    if protocol == "classic":
        options["partition.assignment.strategy"] = "range"
    if instance is not None:
        options["group.instance.id"] = instance
    consumer = Consumer(options)
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()
        if instance is not None:
            remove(server, group, instance)


def remove(server: Server, group: str, instance: str) -> None:
    """A static member that is closed comes back, as the broker sees it."""
    row = {"member_id": "", "group_instance_id": instance, "reason": None}
    with Connection(server.host, server.port) as connection:
        answer = connection.ask("LeaveGroup", 5, group_id=group, members=[row])
    assert answer["error_code"] == 0 and answer["members"][0]["error_code"] == 0, answer


def settle(consumers: list[Consumer], offset: int) -> None:
    """Until the two partitions are shared evenly, and offsets are committed: this one and the next."""
    deadline = time.monotonic() + 60
    while any(len(consumer.assignment()) != 2 // len(consumers) for consumer in consumers):
        assert time.monotonic() < deadline, "the members were assigned nothing"
        for consumer in consumers:
            consumer.poll(0.05)
    offsets = [TopicPartition("tools", partition, offset + partition) for partition in (0, 1)]
    consumers[0].commit(offsets=offsets, asynchronous=False)
