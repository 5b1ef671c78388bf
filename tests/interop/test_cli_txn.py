"""`twofold txn` as somebody types it: on an empty broker, with wrong words, without a broker, against an older one; and
with the words of kafka-transactions.sh, whose output is compared line by line."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kits.processes.asked import Answered, Asked
from kits.processes.commands import run_cold
from kits.processes.server import TwofoldServer
from kits.wire.proxy import Proxy
from kits.wire.tools import (
    SETTINGS,
    Cli,
    Server,
    fresh,
    hang,
    make_cli,
    make_topic,
    not_verifying,
    session,
    stable_offset,
)
from oracle.processes import free_port

pytestmark = pytest.mark.interop

JAVA = Path(__file__).parent / "java" / "AdminCommands.java"
COMMAND = "org.apache.kafka.tools.TransactionsCommand --bootstrap-server {servers}"

WRONG = 2
UNREACHABLE = 3


@pytest.fixture(scope="module")
def twofold_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwofoldServer]:
    with TwofoldServer(tmp_path_factory.mktemp("cli-txn"), SETTINGS) as running:
        yield running


@pytest.fixture(params=["twofold", pytest.param("oracle", marks=[pytest.mark.oracle, pytest.mark.slow])])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    node: Server = request.getfixturevalue("twofold_server" if request.param == "twofold" else "oracle")
    with not_verifying(node):
        yield node


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """In front of an empty broker, which tells clients to come this way."""
    with Proxy() as running:
        settings = {"advertised.listeners": f"PLAINTEXT://{running.address}"}
        with TwofoldServer(tmp_path_factory.mktemp("empty"), settings) as empty:
            running.forward_to(empty.host, empty.port)
            yield running


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return make_cli(capsys, monkeypatch)


def verbs(topic: str = "orders", transactional_id: str = "x") -> dict[str, list[str]]:
    """A use of every verb."""
    place = ["--topic", topic, "--partition", "0"]
    whose = ["--transactional-id", transactional_id]
    return {
        "list": ["list"],
        "describe": ["describe", transactional_id],
        "producers": ["producers", *place],
        "describe-producers": ["describe-producers", *place],
        "hanging": ["hanging"],
        "find-hanging": ["find-hanging", *place],
        "blocked": ["blocked"],
        "watch": ["watch", "--count", "1"],
        "fate": ["fate", topic, "0"],
        "abort": ["abort", *place, "--start-offset", "0", "--yes"],
        "complete": ["complete", *whose, "--state", "1:0", "--commit", "--yes"],
        "terminate": ["terminate", *whose, "--yes"],
    }


ALL_VERBS = list(verbs())


# Nothing there


def test_every_verb_on_an_empty_broker_says_that_there_is_nothing(cli: Cli, proxy: Proxy) -> None:
    expected = {
        "list": (0, "TransactionalId\tCoordinator\tProducerId\tTransactionState\t"),
        "describe": (1, "cannot describe x: no coordinator knows it; `twofold txn list` shows those that are known"),
        "hanging": (0, "no hanging transaction in "),
        "blocked": (0, "no reader waits in "),
        "watch": (0, "0 ongoing, 0 being ended, readers wait in 0 partitions"),
        "complete": (1, "no coordinator knows 'x'; `twofold txn list` shows those that are known"),
        "terminate": (1, "no coordinator knows 'x'; `twofold txn list` shows those that are known"),
    }
    for name, words in verbs().items():
        code, text = expected.get(name, (1, "topic 'orders' does not exist"))
        done = cli(proxy.address, *words, code=code)
        assert text in (done.stderr if code else done.stdout), f"{name}: {done}"
        assert not (done.stdout if code else done.stderr), f"{name}: {done}"


def test_no_verb_makes_a_topic(cli: Cli, proxy: Proxy) -> None:
    for words in verbs("never-made").values():
        cli(proxy.address, *words, code=0 if words[0] in ("list", "hanging", "blocked", "watch") else 1)
    from twofold import Admin

    with Admin(bootstrap_servers=proxy.address) as admin:
        assert "never-made" not in admin.list_topics()


# Wrong words


def test_wrong_ids_offsets_and_partitions_are_told_what_there_is_instead(cli: Cli, server: Server) -> None:
    topic, name = make_topic(server, 2), fresh("x")
    writer = session(server, name)
    writer.write(topic, 0, "a")
    here = ("--topic", topic, "--partition", "0")
    ours = f"{writer.producer_id}:{writer.epoch}"
    cases: list[tuple[int, str, tuple[str, ...]]] = [
        (WRONG, "topic .* has no partition 7, it has 0 to 1", ("producers", "--topic", topic, "--partition", "7")),
        (WRONG, "has no partition 7", ("hanging", "--topic", topic, "--partition", "7")),
        (WRONG, "has no partition -1", ("blocked", "--topic", topic, "--partition", "-1")),
        (WRONG, "has no partition 2", ("fate", topic, "2")),
        (WRONG, "has no partition 2", ("abort", "--topic", topic, "--partition", "2", "--start-offset", "0")),
        (WRONG, "--partition 0 is of no topic: add --topic", ("hanging", "--partition", "0")),
        (WRONG, "there is no broker 9: the cluster has 1", ("hanging", "--broker-id", "9")),
        (WRONG, "there is no broker 9: the cluster has 1", ("list", "--broker-id", "9")),
        (WRONG, "there is no broker 9: the cluster has 1", ("describe", name, "--broker-id", "9")),
        (WRONG, "there is no broker 9: the cluster has 1", ("producers", *here, "--broker-id", "9")),
        (WRONG, "there is no broker 9: the cluster has 1", ("find-hanging", "--broker-id", "9")),
        (WRONG, "--offset 99 is not there: .* has offsets 0 to 0", ("fate", topic, "0", "--offset", "99")),
        (WRONG, "--offset 0 is not there: .*-1 is empty", ("fate", topic, "1", "--offset", "0")),
        (WRONG, "--state 'Ongoin' is none of: Empty, Ongoing, ", ("list", "--state", "Ongoin")),
        (1, r"-pattern '\[a-' is no regular expression", ("list", "--transactional-id-pattern", "[a-")),
        (WRONG, "no transactional id: give one", ("describe",)),
        (1, "no open transaction of .*-0 begins at offset 5; open ones begin at 0",
         ("abort", *here, "--start-offset", "5")),
        (1, "no open transaction of .*-0 belongs to producer 4711; open ones",
         ("abort", *here, "--producer-id", "4711", "--producer-epoch", "0", "--coordinator-epoch", "0")),
        (1, f"producer {writer.producer_id} has epoch {writer.epoch} in .*-0, not 9: nothing was ended",
         ("abort", *here, "--producer-id", ours.split(":")[0], "--producer-epoch", "9", "--coordinator-epoch", "0")),
        (WRONG, "say what to abort: --start-offset, or both of", ("abort", *here)),
        (WRONG, "say what to abort", ("abort", *here, "--start-offset", "0", "--producer-id", "1")),
        (WRONG, "say what to abort", ("abort", *here, "--producer-id", "1", "--coordinator-epoch", "0")),
        (WRONG, "say what was decided: --commit or --abort", ("complete", "--transactional-id", name, "--state", ours)),
        (WRONG, "--state is empty", ("complete", "--transactional-id", name, "--state", "", "--abort")),
        (WRONG, "'7' is not", ("complete", "--transactional-id", name, "--state", "7", "--commit")),
        (1, f"in state Ongoing as {ours}, not 1:9 .* nothing was changed",
         ("complete", "--transactional-id", name, "--state", "1:9", "--commit")),
        (WRONG, "No such option", ("list", "--offset", "1")),
    ]  # fmt: skip
    destructive = ("abort", "complete", "terminate")
    for code, text, words in cases:
        done = cli(server, *words, *(["--yes"] if words[0] in destructive else []), code=code)
        assert re.search(text, done.stderr), f"{words}: {done.stderr}"
        assert not done.stdout, f"{words}: {done.stdout}"
    assert stable_offset(server, topic, 0) == 0, "nothing was ended"
    assert writer.end(True) == 0


# No broker, or an older one


@pytest.mark.parametrize("name", ALL_VERBS)
def test_without_a_broker_every_verb_asks_whether_there_is_one(cli: Cli, name: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    done = cli(address, *verbs()[name], "--timeout", "0.5", code=UNREACHABLE)
    assert f"Is a broker running at {address}?" in done.stderr and not done.stdout


NEEDED = {
    "list": "ListTransactions",
    "describe": "DescribeTransactions",
    "producers": "DescribeProducers",
    "describe-producers": "DescribeProducers",
    "hanging": "DescribeProducers",
    "find-hanging": "DescribeProducers",
    "abort": "DescribeProducers",
    "complete": "DescribeTransactions",
    "terminate": "DescribeTransactions",
    "watch": "ListTransactions",
}


def test_a_broker_that_lacks_an_api_is_said_to(cli: Cli, proxy: Proxy) -> None:
    topic = fresh("older")
    host, port = proxy.address.split(":")
    make_topic(_At(host, int(port)), 1, topic)
    for name, api in NEEDED.items():
        proxy.hidden = {api}
        try:
            done = cli(proxy.address, *verbs(topic)[name], code=1)
        finally:
            proxy.hidden = set()
        said = done.stdout if name == "watch" else done.stderr
        assert f"does not serve {api}" in said, f"{name}: {done}"


class _At:
    name = "proxy"

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"


def test_what_is_seen_without_an_api_is_still_shown(cli: Cli, proxy: Proxy) -> None:
    """Without DescribeProducers `blocked` knows where readers wait but not for whom; without ListTransactions `fate`
    knows what became of batches but not who wrote them."""
    host, port = proxy.address.split(":")
    at = _At(host, int(port))
    topic = make_topic(at, 1)
    writer = session(at)
    writer.write(topic, 0, "a")
    for words, api in (
        (["blocked", "--topic", topic], "DescribeProducers"),
        (["fate", topic, "0"], "ListTransactions"),
    ):
        proxy.hidden = {api}
        try:
            done = cli(proxy.address, *words, "--format", "json", code=1)
        finally:
            proxy.hidden = set()
        assert f"does not serve {api}" in done.stderr
        (row,) = done.json
        assert row["transactional_id"] is None
        assert row.get("hidden", 1) == 1 and row.get("fate", "open") == "open"
    assert writer.end(True) == 0


def test_at_an_older_broker_a_transaction_is_ended_by_its_numbers(cli: Cli, proxy: Proxy) -> None:
    """As a whole if a coordinator can be asked and has it, else by a marker."""
    host, port = proxy.address.split(":")
    at = _At(host, int(port))
    topic = make_topic(at, 1)
    for hidden, told in (
        ({"DescribeProducers"}, "and fenced its producer"),
        ({"DescribeProducers", "ListTransactions"}, f"had open in {topic}-0\n"),
    ):
        before = stable_offset(at, topic, 0)
        writer = session(at)
        writer.write(topic, 0, "a")
        numbers = (("producer-id", writer.producer_id), ("producer-epoch", writer.epoch), ("coordinator-epoch", 0))
        words = [word for name, value in numbers for word in (f"--{name}", str(value))]
        proxy.hidden = hidden
        try:
            done = cli(proxy.address, "abort", "--topic", topic, "--partition", "0", *words, "--yes")
        finally:
            proxy.hidden = set()
        assert told in done.stdout
        assert stable_offset(at, topic, 0) == before + 2


# For programs


def test_every_verb_speaks_json(cli: Cli, server: Server) -> None:
    topic, name = make_topic(server), fresh("x")
    hung = hang(server, topic, 0)
    writer = session(server, name)
    writer.write(topic, 0, "a")

    def told(*words: str) -> Any:
        return cli(server, *words, "--format", "json").json

    here = ("--topic", topic, "--partition", "0")
    row = {"transactional_id": name, "coordinator": 1, "producer_id": writer.producer_id, "state": "Ongoing"}
    assert row in told("list") and row in told("list", "--state", "ongoing", "--broker-id", "1")
    assert told("list", "--transactional-id-pattern", f"{name}.*") == [row]
    assert told("list", "--transactional-id-pattern", name, "--duration-filter", "600000") == []
    (described,) = told("describe", name)
    assert described["partitions"] == [f"{topic}-0"] and described["start_ms"] > 0 and described["duration_ms"] >= 0
    starts = {it["producer_id"]: it["current_txn_start_offset"] for it in told("producers", *here)}
    assert starts == {hung: 0, writer.producer_id: 1}
    (found,) = told("hanging", "--topic", topic)
    assert (found["producer_id"], found["reason"]) == (hung, "unknown to the coordinator")
    assert found["first_timestamp"] > 0 and found["last_timestamp"] > 0 and found["duration_ms"] >= 0
    assert told("find-hanging", *here) == [] and len(told("find-hanging", *here, "--max-transaction-timeout", "0")) == 1
    (waiting,) = told("blocked", "--topic", topic)
    assert (waiting["stable_offset"], waiting["hidden"], waiting["producer_id"]) == (0, 2, hung)
    assert told("watch", "--topic", topic, "--count", "1")["blocked"][0]["partition"] == f"{topic}-0"
    assert [it["fate"] for it in told("fate", topic, "0")] == ["open", "open"]
    aborted = told("abort", *here, "--start-offset", "0", "--yes")
    assert (aborted["how"], aborted["producer_id"], aborted["partitions"]) == ("marker", hung, [f"{topic}-0"])
    whole = told("abort", *here, "--start-offset", "1", "--yes")
    assert (whole["how"], whole["transactional_id"], whole["partitions"]) == ("terminated", name, [f"{topic}-0"])
    assert told("terminate", "--transactional-id", name, "--yes")["transactional_id"] == name
    fates = [(it["fate"], it["marker_offset"]) for it in told("fate", topic, "0")]
    assert fates == [("aborted", 2), ("aborted", 3), ("control", 2), ("control", 3)]


# Asking


def typed(server: Server, answer: str, *words: str) -> Answered:
    with Asked(server.bootstrap_servers, "txn", *words) as asked:
        return asked.answer(answer)


def test_verbs_that_end_something_say_what_and_ask(cli: Cli, twofold_server: TwofoldServer) -> None:
    topic, name = make_topic(twofold_server, 2), fresh("x")
    writer = session(twofold_server, name)
    writer.write(topic, 0, "a")
    writer.write(topic, 1, "a")
    words = ("abort", "--topic", topic, "--partition", "1", "--start-offset", "0")
    for script in (
        words,
        ("terminate", "--transactional-id", name),
        ("complete", "--transactional-id", name, "--state", f"{writer.producer_id}:{writer.epoch}", "--abort"),
    ):
        assert "add --yes" in cli(twofold_server, *script, code=WRONG).stderr
    refused = typed(twofold_server, "n", *words)
    assert refused.code == 1 and not refused.stdout
    who = f"producer id {writer.producer_id}, epoch {writer.epoch}, state Ongoing, open since 20"
    assert f"has it open as '{name}' ({who}" in refused.stderr and "Abort the whole transaction" in refused.stderr
    assert f"{topic}-0" in refused.stderr and "[y/N]" in refused.stderr and "nothing was ended" in refused.stderr
    assert stable_offset(twofold_server, topic, 1) == 0
    agreed = typed(twofold_server, "y", "terminate", "--transactional-id", name)
    assert agreed.code == 0, agreed.stderr
    places = f"in 2 partitions ({topic}-0, {topic}-1)"
    assert f"'{name}' has {who}" in agreed.stderr
    assert f"abort its transaction {places}, and fence its producer?" in agreed.stderr
    assert agreed.stdout.startswith(f"terminated {name}, which was Ongoing: aborted the transaction of {name} (")
    assert agreed.stdout.endswith(f"{places} and fenced its producer")
    assert [stable_offset(twofold_server, topic, index) for index in range(2)] == [2, 2]


def test_the_command_runs_in_an_interpreter_of_its_own(twofold_server: TwofoldServer) -> None:
    topic, name = make_topic(twofold_server), fresh("x")
    session(twofold_server, name).write(topic, 0, "a")
    words = ("terminate", "--transactional-id", name, "--yes")
    ended = run_cold("txn", *words, server=twofold_server.bootstrap_servers)
    assert ended.returncode == 0 and ended.stdout.startswith(f"terminated {name}, which was Ongoing"), ended
    assert stable_offset(twofold_server, topic, 0) == 2


# As kafka-transactions.sh


def masked(text: str) -> list[str]:
    """Without what counts on while one looks, and without the spaces that it takes up."""
    lines = []
    for line in text.splitlines():
        if line.startswith("SLF4J"):
            continue
        cells = [cell.rstrip() for cell in line.split("\t")]
        if len(cells) == 10 and cells[7].isdigit():  # describe: TransactionDurationMs
            cells[7] = "<duration>"
            cells[8] = ",".join(sorted(cells[8].split(",")))
        lines.append("\t".join(cells))
    return [lines[0], *sorted(lines[1:])]


@pytest.mark.oracle
@pytest.mark.slow
def test_words_and_tables_are_those_of_kafka_transactions(cli: Cli, server: Server, oracle: Any) -> None:
    topic, name = make_topic(server, 2), fresh("x")
    writer, done_with = session(server, name), session(server, f"{name}-done")
    for index in range(2):
        writer.write(topic, index, "a")
    done_with.write(topic, 0, "b")
    assert done_with.end(False) == 0
    hang(server, topic, 1)
    commands = [
        f"list --transactional-id-pattern {name}.*",
        f"list --duration-filter 10000000 --transactional-id-pattern {name}.*",
        f"describe --transactional-id {name}",
        f"describe-producers --topic {topic} --partition 0",
        f"describe-producers --topic {topic} --partition 1 --broker-id 1",
        f"find-hanging --topic {topic} --max-transaction-timeout 0",
        f"find-hanging --topic {topic} --partition 1 --max-transaction-timeout 0",
        f"find-hanging --broker-id 1 --topic {topic}",
        f"abort --topic {topic} --partition 1 --start-offset 1",
        f"find-hanging --topic {topic} --max-transaction-timeout 0",
    ]
    ours = [cli(server, *command.split()).stdout for command in commands[:8]]
    words = [server.bootstrap_servers, *(f"{COMMAND} {command}" for command in commands)]
    ran = oracle.java_program(JAVA, words, timeout=100)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    theirs = [part.split("\n", 1)[1] for part in re.split(r"^\$ ", ran.stdout, flags=re.MULTILINE)[1:]]
    assert all(text.endswith("exit 0\n") for text in theirs), ran.stdout
    theirs = [text.removesuffix("exit 0\n") for text in theirs]
    for command, mine, kafkas in zip(commands, ours, theirs[:8], strict=False):
        assert masked(mine) == masked(kafkas), command
    assert len(ours[5].splitlines()) == 2, "the one that hangs"
    assert theirs[8] == "" and len(theirs[9].splitlines()) == 1, "and Kafka's tool has ended it"
    # The words that KIP-664 showed.
    for dashed, plain in (
        (("--list", "--broker", "1"), ("list", "--broker-id", "1")),
        (("--find-hanging", "--broker", "1"), ("find-hanging", "--broker-id", "1")),
        (("--describe-producers", "--topic", topic, "--partition", "0"), tuple(commands[3].split())),
    ):
        assert cli(server, *dashed).stdout == cli(server, *plain).stdout
        assert cli(server, "--bootstrap-server", server.bootstrap_servers, *dashed).stdout
    assert f"{topic}-0,{topic}-1" in cli(server, "--describe", "--transactional-id", name).stdout
    cli(server, "forceTerminateTransaction", "--transactionalId", name, "--yes")
    assert writer.end(True) != 0
