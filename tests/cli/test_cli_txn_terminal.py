"""`twofold txn list|describe|blocked` at a terminal of 80 columns, and into a pipe."""

import re
from collections.abc import Iterator
from datetime import datetime

import pytest

from kits.processes import commands
from kits.processes.terminal import COLUMNS, run_at_terminal
from twofold import Producer
from twofold.cli.txn.shown import STATE_WORDS, local_time
from twofold.client.admin.transaction_model import TransactionState
from twofold.embedded import Broker

LONG_ID = "warehouse.orders-to-invoices.exactly-once.writer-0000000017"
TOPIC = "orders-of-the-warehouse-in-the-north"
CLOCK = r"\d\d:\d\d:\d\d \(\d[\d.]* s\)"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """A broker with an id whose transaction is open, and one whose transaction is committed."""
    with Broker() as broker:
        address = broker.bootstrap_servers
        with Producer(bootstrap_servers=address, transactional_id="done") as done:
            done.init_transactions()
            with done.transaction():
                done.send("payments", b"1").result()
        producer = Producer(bootstrap_servers=address, transactional_id=LONG_ID, transaction_timeout_ms=600_000)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"2").result()
        yield address
        producer.close()


def shown(server: str, *words: str) -> list[str]:
    done = run_at_terminal("txn", *words, server=server)
    assert done.code == 0, done.text
    assert max(map(len, done.lines)) <= COLUMNS, done.text
    return done.lines


def test_a_list_at_a_terminal_fits_it_and_has_words_and_local_times(server: str) -> None:
    lines = shown(server, "list")
    assert lines[0].split("  ")[0] == "TRANSACTIONAL ID" and "Ongoing" not in "".join(lines)
    (done,) = [line for line in lines if line.startswith("done ")]
    assert done.split()[1:3] == ["committed", "-"]
    text = " ".join(lines)
    assert re.search(rf" open +{CLOCK}", text), text


def test_the_words_of_a_state_choose_as_its_name_does(server: str) -> None:
    for word in ("open", "Ongoing", "ongoing"):
        assert "done" not in "".join(shown(server, "list", "--state", word))


def test_a_description_at_a_terminal_fits_it_and_has_words_and_local_times(server: str) -> None:
    lines = shown(server, "describe", LONG_ID, "done")
    found = {line[:18].strip(): line[18:] for line in lines[:6]}
    assert found["transactional id"] == LONG_ID
    assert re.fullmatch(f"open since {CLOCK}", found["state"]), found
    assert re.fullmatch(r"10 min, ends at (\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?", found["timeout"]), found
    assert found["partitions"] == f"1: {TOPIC}-0"
    assert "state             committed" in lines


def test_what_readers_wait_for_fits_a_terminal_and_has_local_times(server: str) -> None:
    lines = [line for line in shown(server, "blocked") if line]  # the bar that went leaves an empty one
    assert lines[0] == "readers of committed records wait in 1 partition"
    assert lines[1].split("  ")[0] == "PARTITION"
    assert re.search(r"\d\d:\d\d:\d\d", " ".join(lines[2:])), lines


def test_into_a_pipe_transactions_are_printed_as_the_tools_of_apache_kafka_do(server: str) -> None:
    listed = commands.run("txn", "list", server=server).stdout.splitlines()
    assert [cell.strip() for cell in listed[0].split("\t")] == [
        "TransactionalId",
        "Coordinator",
        "ProducerId",
        "TransactionState",
        "",
    ]
    assert any(line.split() == [LONG_ID, "1", line.split()[2], "Ongoing"] for line in listed)
    described = commands.run("txn", "describe", LONG_ID, server=server).stdout.splitlines()
    cells = dict(zip(described[0].split(), described[1].split(), strict=True))
    assert cells["TransactionState"] == "Ongoing" and cells["TransactionTimeoutMs"] == "600000"
    assert cells["CurrentTransactionStartTimeMs"].isdecimal() and cells["TopicPartitions"] == f"{TOPIC}-0"
    blocked = commands.run("txn", "blocked", server=server).stdout.splitlines()
    waiting = dict(zip(blocked[0].split(), blocked[1].split(), strict=True))
    assert (waiting["Topic"], waiting["Partition"], waiting["TransactionalId"]) == (TOPIC, "0", LONG_ID)
    assert waiting["TransactionDurationMs"].isdecimal()


def test_two_phase_transactions_at_a_terminal_have_words_and_into_a_pipe_the_names_of_states() -> None:
    with Broker(settings={"transaction.two.phase.commit.enable": "true"}) as broker:
        address = broker.bootstrap_servers
        with Producer(
            bootstrap_servers=address, transactional_id="pay", transaction_two_phase_commit_enable=True
        ) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("payments", b"1").result()
            producer.prepare_transaction()
            _, row = shown(address, "list", "--two-phase")
            assert re.fullmatch(r"pay +open +\d+:\d+ +[\d.]+ s +1", row), row
            assert "Ongoing" in commands.run("txn", "list", "--two-phase", server=address).stdout


def test_an_empty_list_at_a_terminal_says_that_it_is_empty(server: str) -> None:
    assert shown(server, "list", "--state", "expired") == [f"no transactional id at {server} that matches"]


def test_a_time_of_today_is_a_clock_and_one_of_another_day_has_its_date() -> None:
    noon = int(datetime(2026, 7, 1, 12, 0, 5).timestamp() * 1000)
    assert local_time(noon - 60_000, noon) == "11:59:05"
    assert local_time(noon - 86_400_000, noon) == "2026-06-30 12:00"
    assert local_time((1 << 63) - 1, noon) == f"{(1 << 63) - 1} ms", "no calendar has it"


def test_an_id_that_would_steer_the_terminal_is_shown_as_what_it_is() -> None:
    hostile = "\x1b[2J\x1b]0;owned\x07\rorders-1\nfake"
    with Broker() as broker, Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=hostile) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("orders", b"1").result()
        for words in (("list",), ("describe", hostile), ("blocked",)):
            told = run_at_terminal("txn", *words, server=broker.bootstrap_servers)
            assert told.code == 0 and "\\x1b" in told.text, told.text
            assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", told.text), repr(told.text)


def test_every_state_has_a_word_of_its_own() -> None:
    assert set(STATE_WORDS) == set(TransactionState) and len(set(STATE_WORDS.values())) == len(STATE_WORDS)
