"""ApplyOnce: records are applied to a database, each once, by whichever member of the group has their partition."""

import contextlib
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import IntegrityError

import twofold
from twofold.client.errors import CommitFailed
from twofold.dualwrite.applied_rows import AppliedRows, PartitionClaim, make_table
from twofold.dualwrite.apply_once import ApplyOnce, needs_confirmation
from twofold.dualwrite.errors import OtherTopic, Unsuitable
from twofold.embedded import Broker
from twofold.types import TopicPartition

TOPIC = "orders"
FIRST = TopicPartition(TOPIC, 0)
SETTINGS = {"group.min.session.timeout.ms": 100, "group.initial.rebalance.delay.ms": 0}
NUMBERS = list(range(20))
FIXTURE = Path(__file__).parent.parent / "fixtures" / "applied-754e2ba.sql"


@pytest.fixture
def engine(tmp_path):
    made = create_engine(f"sqlite:///{tmp_path / 'bills.db'}")
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE bills (number INTEGER)"))
    yield made
    made.dispose()


@pytest.fixture
def rows(engine):
    made = AppliedRows(engine, "twofold_applied", "billing")
    made.create()
    made.insert(FIRST, 5)
    return made


@pytest.fixture
def broker():
    with Broker(settings=SETTINGS) as running:
        running.create_topic(TOPIC, partitions=2)
        yield running


def claim(rows, generation, owner):
    with rows.transaction() as db:
        found = rows.lock(db, FIRST)
        return rows.own(db, FIRST, PartitionClaim(generation, owner, found.next_offset))


def move(rows, held, following):
    with rows.transaction() as db:
        return rows.move(db, FIRST, held, following)


def test_a_batch_moves_the_row_from_the_offset_of_the_claim(rows):
    held = claim(rows, 1, "a")
    assert held.next_offset == 5
    assert move(rows, held, 8)
    assert claim(rows, 1, "a").next_offset == 8


def test_an_offset_that_is_not_the_next_changes_nothing(rows):
    held = claim(rows, 1, "a")
    assert move(rows, held, 8)
    assert not move(rows, held, 8)
    assert not move(rows, held._replace(next_offset=9), 10)
    assert claim(rows, 1, "a").next_offset == 8


def test_an_older_generation_changes_nothing(rows):
    zombie = claim(rows, 1, "a")
    claim(rows, 2, "b")
    assert not move(rows, zombie, 8)
    assert claim(rows, 2, "b").next_offset == 5


def test_a_row_that_two_members_insert_at_once_is_there_once(rows):
    rows.insert(FIRST, 9)
    assert claim(rows, 1, "a").next_offset == 5


@pytest.mark.parametrize(
    ("found", "generation", "needed"),
    [
        (PartitionClaim(-1, "", 0), 1, False),
        (PartitionClaim(3, "b", 0), 4, False),
        (PartitionClaim(3, "a", 0), 3, False),
        (PartitionClaim(3, "b", 0), 3, True),  # a static member that was started again, or the one before it
        (PartitionClaim(9, "b", 0), 1, True),  # a zombie, or a group that was forgotten and counts anew
        (PartitionClaim(9, "a", 0), 1, False),
    ],
)
def test_a_claim_that_is_not_later_needs_the_word_of_the_coordinator(found, generation, needed):
    assert needs_confirmation(found, generation, "a") is needed


def test_a_name_of_a_table_may_have_a_schema_and_must_have_a_name():
    assert make_table("app.applied").fullname == "app.applied"
    with pytest.raises(ValueError, match="no name of a table"):
        make_table("app.")


def test_an_engine_in_autocommit_mode_and_automatic_commits_are_refused(engine):
    given: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1", "group_id": "billing", "topics": [TOPIC]}
    with pytest.raises(Unsuitable, match="autocommit"):
        ApplyOnce(engine.execution_options(isolation_level="AUTOCOMMIT"), **given)
    with pytest.raises(ValueError, match="enable_auto_commit"):
        ApplyOnce(engine, enable_auto_commit=True, **given)
    unknown: Any = "latest"
    with pytest.raises(ValueError, match="neither 'stop' nor 'begin'"):
        ApplyOnce(engine, on_new_topic=unknown, **given)


class Billing:
    """Sends numbers, and applies them."""

    def __init__(self, broker, engine) -> None:
        self.address = broker.bootstrap_servers
        self.engine = engine

    def send(self, numbers) -> None:
        with twofold.Producer(bootstrap_servers=self.address) as producer:
            for number in numbers:
                producer.send(TOPIC, str(number).encode(), partition=number % 2)

    def worker(self, **options) -> ApplyOnce:
        given = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 200, "max_poll_records": 3, **options}
        return ApplyOnce(self.engine, bootstrap_servers=self.address, group_id="billing", topics=[TOPIC], **given)

    def bills(self) -> list[int]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT number FROM bills")).scalars())

    @staticmethod
    def apply(db, records) -> None:
        for record in records:
            db.execute(text("INSERT INTO bills VALUES (:number)"), {"number": int(record.value)})

    def until(self, worker: ApplyOnce, count: int, apply: Callable | None = None) -> None:
        for _ in range(600):
            if len(self.bills()) >= count:
                return
            worker.step(apply or self.apply, timeout_ms=100)
        raise AssertionError(f"{len(self.bills())} of {count} bills")


@pytest.fixture
def billing(broker, engine):
    return Billing(broker, engine)


def test_every_record_is_applied_once_also_after_a_restart(billing):
    billing.send(NUMBERS[:10])
    with billing.worker() as worker:
        billing.until(worker, 10)
    billing.send(NUMBERS[10:])
    with billing.worker() as worker:
        billing.until(worker, 20)
        assert worker.step(billing.apply, timeout_ms=0) == 0
    assert billing.bills() == NUMBERS


def test_an_error_of_the_application_rolls_its_batch_back_and_the_records_come_again(billing):
    billing.send(NUMBERS)
    failures = [ZeroDivisionError("now"), IntegrityError("then", None, ValueError())]

    def apply(db, records):
        billing.apply(db, records)
        if failures and len(billing.bills()) > 4:
            raise failures.pop()

    with billing.worker() as worker:
        for error in (IntegrityError, ZeroDivisionError):
            with pytest.raises(error):
                billing.until(worker, 20, apply)
        billing.until(worker, 20, apply)
    assert billing.bills() == NUMBERS and not failures


def test_aborted_records_are_not_applied_and_their_offsets_are_passed_over(billing, broker):
    with twofold.Producer(bootstrap_servers=billing.address, transactional_id="seller") as producer:
        producer.init_transactions()
        for number in NUMBERS:
            producer.begin_transaction()
            producer.send(TOPIC, str(number).encode(), partition=0)
            if number % 3:
                producer.commit_transaction()
            else:
                producer.abort_transaction()
    expected = [number for number in NUMBERS if number % 3]
    with billing.worker() as worker:
        billing.until(worker, len(expected))
    with billing.worker() as worker:
        billing.send([99])
        billing.until(worker, len(expected) + 1)
    assert billing.bills() == [*expected, 99]


def test_a_member_that_comes_takes_partitions_over_where_the_row_says(billing):
    billing.send(NUMBERS[:10])
    with billing.worker() as first:
        billing.until(first, 10)
        with billing.worker() as second:
            stop = threading.Event()
            other = threading.Thread(target=lambda: [first.step(billing.apply, 50) for _ in iter(stop.is_set, True)])
            other.start()
            try:
                for _ in range(600):
                    if len(second.consumer.assignment) == 1:
                        break
                    second.step(billing.apply, timeout_ms=50)
                assert len(second.consumer.assignment) == 1
                billing.send(NUMBERS[10:])
                billing.until(second, 20)
            finally:
                stop.set()
                other.join()
    assert billing.bills() == NUMBERS


def test_a_member_whose_row_has_a_later_generation_applies_nothing(billing):
    """As a zombie finds it that does not know yet that the group went on without it."""
    billing.send(NUMBERS[:10])
    with billing.worker() as worker:
        billing.until(worker, 10)
        with billing.engine.begin() as connection:
            connection.execute(
                text("UPDATE twofold_applied SET generation = generation + 1, owner = 'another' WHERE partition >= 0")
            )
        billing.send(NUMBERS[10:])
        applied = []

        def apply(db, records):
            applied.extend(records)

        def refuse(offsets):
            raise CommitFailed("not a member")

        worker.consumer.commit = refuse  # the coordinator's word
        for _ in range(20):
            worker.step(apply, timeout_ms=20)
        assert applied == [] and len(billing.bills()) == 10


def test_a_transaction_that_ended_while_it_was_written_does_not_count(billing):
    """As MariaDB ends it after a deadlock, and SQLite by OR ROLLBACK: the rest would be without an offset."""
    billing.send(NUMBERS)
    with billing.engine.begin() as connection:
        connection.execute(text("CREATE TABLE taken (number INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO taken VALUES (1)"))
    faults = [True]

    def apply(db, records):
        if faults and len(billing.bills()) > 4:
            faults.clear()
            with contextlib.suppress(IntegrityError):
                db.execute(text("INSERT OR ROLLBACK INTO taken VALUES (1)"))
        billing.apply(db, records)

    with billing.worker() as worker:
        with pytest.raises(Unsuitable, match="was passed over"):
            billing.until(worker, 20, apply)
        billing.until(worker, 20, apply)
    assert billing.bills() == NUMBERS and not faults


def test_a_commit_of_the_application_is_refused_and_nothing_is_lost(billing):
    billing.send(NUMBERS)

    def apply(db, records):
        billing.apply(db, records[:1])
        db.commit()

    with billing.worker() as worker:
        with pytest.raises(Unsuitable, match="commit"):
            billing.until(worker, 20, apply)
        assert billing.bills() == []
        billing.until(worker, 20)
    assert billing.bills() == NUMBERS


def test_a_database_that_is_locked_is_waited_for(billing, broker):
    billing.send(NUMBERS[:10])
    quick = create_engine(billing.engine.url, connect_args={"timeout": 0.05})
    impatient = Billing(broker, quick)
    with impatient.worker() as worker:
        billing.until(worker, 10)
        billing.send(NUMBERS[10:])
        with billing.engine.connect() as other:
            other.exec_driver_sql("BEGIN IMMEDIATE")
            assert [worker.step(billing.apply, timeout_ms=200) for _ in range(5)] == [0] * 5
            other.rollback()
        billing.until(worker, 20)
    quick.dispose()
    assert billing.bills() == NUMBERS


def test_a_group_that_counts_its_generations_anew_goes_on_where_the_row_says(billing):
    """The coordinator has forgotten the group: the row's generation is from before."""
    billing.send(NUMBERS[:10])
    with billing.worker() as worker:
        billing.until(worker, 10)
    with billing.engine.begin() as connection:
        connection.execute(text("UPDATE twofold_applied SET generation = 1000 WHERE partition >= 0"))
    billing.send(NUMBERS[10:])
    with billing.worker() as worker:
        billing.until(worker, 20)
    assert billing.bills() == NUMBERS


def test_run_goes_on_until_it_is_stopped(billing):
    billing.send(NUMBERS)
    with billing.worker() as worker:

        def apply(db, records):
            billing.apply(db, records)
            if len(records) and max(int(record.value) for record in records) >= 18:
                worker.stop()

        worker.run(apply)
    assert 0 < len(billing.bills()) <= 20


def make_anew(broker):
    """As another cluster has it as well: the same name, another id."""
    with twofold.Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        admin.delete_topics([TOPIC])
        broker.create_topic(TOPIC, partitions=2)


def test_offsets_of_a_topic_that_was_made_anew_stop_the_member_and_skip_nothing(billing, broker):
    billing.send(NUMBERS[:10])
    with billing.worker() as worker:
        billing.until(worker, 10)
    make_anew(broker)
    billing.send(NUMBERS[10:])
    with billing.worker() as worker, pytest.raises(OtherTopic, match="made anew, or this is another cluster"):
        billing.until(worker, 20)
    assert billing.bills() == NUMBERS[:10]
    with billing.worker(on_new_topic="begin") as worker:
        billing.until(worker, 20)
    assert billing.bills() == NUMBERS
    with billing.worker() as worker:  # the rows have the new id
        assert worker.step(billing.apply, timeout_ms=200) == 0


def test_a_topic_that_is_made_anew_while_a_member_works_stops_it(billing, broker):
    billing.send(NUMBERS[:10])
    # Otherwise its own question for the deleted topic could be what makes it anew.
    with billing.worker(metadata_max_age_ms=200, allow_auto_create_topics=False) as worker:
        billing.until(worker, 10)
        make_anew(broker)
        billing.send(NUMBERS[10:])
        with pytest.raises(OtherTopic):
            billing.until(worker, 20)
    assert billing.bills() == NUMBERS[:10]


def test_a_table_of_the_version_before_goes_on_where_it_was(billing, broker, tmp_path):
    """Made by 754e2ba, which had no topic_id: the offset counts, and the row has the id from then on."""
    billing.engine.dispose()
    (tmp_path / "bills.db").unlink()
    with sqlite3.connect(tmp_path / "bills.db") as database:
        database.executescript(FIXTURE.read_text())
    with twofold.Producer(bootstrap_servers=billing.address) as producer:
        for number in NUMBERS:
            producer.send(TOPIC, str(number).encode(), partition=0)
    with billing.worker() as worker:
        billing.until(worker, 20)
    assert billing.bills() == NUMBERS
    with sqlite3.connect(tmp_path / "bills.db") as database:
        rows = database.execute("SELECT partition, next_offset, topic_id FROM twofold_applied ORDER BY 1").fetchall()
        assert [row[:2] for row in rows] == [(-1, 0), (0, 20), (1, 0)]
        assert len(rows[1][2]) == 36
        # The way back: the version before inserts without the new column.
        columns = "group_id, topic, partition, generation, owner, next_offset, updated_at_ms"
        database.execute(f"INSERT INTO twofold_applied ({columns}) VALUES ('other', 'orders', 0, -1, '', 3, 0)")


def test_a_table_of_a_later_version_is_refused(engine, rows):
    with engine.begin() as connection:
        connection.execute(text("UPDATE twofold_applied SET generation = 7 WHERE partition = -1"))
    with pytest.raises(Unsuitable, match="has version 7, and this Twofold knows 2"):
        AppliedRows(engine, "twofold_applied", "billing").create()


def test_processes_that_create_the_table_at_once_agree(engine):
    errors = []
    together = threading.Barrier(4)

    def create():
        together.wait()
        try:
            AppliedRows(engine, "twofold_applied", "billing").create()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=create) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
