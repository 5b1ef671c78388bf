"""`twofold recover` as a process, against a broker and a SQLite file: it ends what has a row here, and nothing else."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import twofold
from kits.dualwrite.shop import TOPIC, Shop, broker_with_two_phase, open_state, sqlite_url, topic_values, until
from twofold.cli.app import run_app

pytestmark = pytest.mark.slow


class Crash(BaseException):
    """The program of a writer stops where it is."""


@pytest.fixture(scope="module")
def broker():
    with broker_with_two_phase() as running:
        running.create_topic(TOPIC)
        yield running


@pytest.fixture
def shop(broker, tmp_path):
    made = Shop(broker.bootstrap_servers, sqlite_url(tmp_path))
    yield made
    made.close()


def leave_open(shop, transactional_id, item, step):
    """A writer that died at a step; its database rolls back what was not committed."""

    def stop(reached):
        if reached == step:
            raise Crash

    dual = shop.dual(transactional_id, observer=stop)
    dual._keep_settling = lambda: None
    with pytest.raises(Crash):
        shop.block(dual, shop.of(item), lambda db, log: until(lambda: open_state(shop.address, transactional_id) != ""))
    dual.log._producer._thread.close()  # nothing is said to the broker
    return open_state(shop.address, transactional_id)


def expire(shop, transactional_id):
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE twofold_prepared SET lease_until_ms = 0 WHERE transactional_id = '{transactional_id}'"
        )


def arguments_for(shop, *arguments, db=True):
    where = ["--db", shop.url] if db else []
    return ["recover", *where, "--bootstrap-server", shop.address, "--timeout", "30", *arguments]


@pytest.fixture
def recover(capsys):
    """The command in this process: exit code, output, errors."""

    def run(shop, *arguments, db=True):
        capsys.readouterr()
        code = run_app(arguments_for(shop, *arguments, db=db))
        return code, *capsys.readouterr()

    return run


def watcher(shop):
    command = [sys.executable, "-m", "twofold", *arguments_for(shop, "--watch", "--interval", "0.2")]
    return subprocess.Popen(
        [*command, "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_the_command_is_one_of_the_program(shop, recover):
    with shop.dual("process") as dual:
        dual.take_over()
    command = [sys.executable, "-m", "twofold", *arguments_for(shop)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=110)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"nothing is open: 1 id in twofold_prepared, cluster {shop.row('process').cluster_id}\n"


def test_what_a_dead_writer_left_is_ended_by_its_row(shop, recover):
    left = leave_open(shop, "north", "a teapot", "write: complete log")
    other = leave_open(shop, "south", "a kettle", "write: commit database")
    code, out, err = recover(shop, "--format", "json")
    assert (code, err) == (0, "")
    found = {row["transactional_id"]: row for row in json.loads(out)["transactions"]}
    assert (found["north"]["state"], found["north"]["outcome"]) == (left, "committed")
    assert (found["south"]["state"], found["south"]["outcome"]) == (other, "aborted")
    assert "a teapot" in topic_values(shop.address) and "a kettle" not in topic_values(shop.address)
    assert shop.table() == ["a teapot"]
    assert recover(shop)[:2] == (
        0,
        f"nothing is open: 2 ids in twofold_prepared, cluster {shop.row('north').cluster_id}\n",
    )


def test_a_dry_run_shows_and_ends_nothing(shop, recover):
    left = leave_open(shop, "dry", "a cup", "write: complete log")
    code, out, _ = recover(shop, "--dry-run")
    assert code == 0 and "would be committed" in out and left in out
    assert open_state(shop.address, "dry") == left
    assert recover(shop)[0] == 0 and open_state(shop.address, "dry") == ""


def test_transactions_without_a_row_and_of_another_cluster_are_listed_and_left_alone(shop, recover):
    left = leave_open(shop, "elsewhere", "a pan", "write: complete log")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE twofold_prepared SET cluster_id = 'far away'")
    with twofold.Producer(
        bootstrap_servers=shop.address, transactional_id="foreign", transaction_two_phase_commit_enable=True
    ) as foreign:
        foreign.init_transactions()
        foreign.begin_transaction()
        foreign.send(TOPIC, b"not ours").result()
        code, out, _ = recover(shop)
        assert code == 0
        assert "left alone: no row in this table" in out
        assert "left alone: its row belongs to cluster far away" in out
        assert open_state(shop.address, "elsewhere") == left and open_state(shop.address, "foreign")
        foreign.abort_transaction()
    with shop.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE twofold_prepared SET cluster_id = ''")
    assert recover(shop)[0] == 0 and open_state(shop.address, "elsewhere") == ""


def test_a_wrong_url_a_missing_table_and_an_empty_table_end_nothing(shop, recover, tmp_path):
    left = leave_open(shop, "careful", "a pot", "write: complete log")
    code, out, err = recover(shop, "--db", f"sqlite:///{tmp_path / 'nowhere.db'}", db=False)
    assert (code, out) == (2, "") and "there is no such file" in err
    assert not (tmp_path / "nowhere.db").exists()
    empty = Shop(shop.address, f"sqlite:///{tmp_path / 'empty.db'}")
    code, out, err = recover(empty)
    assert (code, out) == (1, "") and "has no table twofold_prepared" in err and "Nothing was ended" in err
    with empty.dual("unused") as dual:
        dual.take_over()
    with empty.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM twofold_prepared")
    code, out, err = recover(empty)
    assert code == 1 and "has no rows" in err and "left alone: no row in this table" in out
    assert open_state(shop.address, "careful") == left
    empty.close()
    assert recover(shop)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "none was given"),
        (("--db", "sqlite:///x.db", "--db-env", "X"), "--db and --db-env was given"),
        (("--db-env", "NO_SUCH_VARIABLE"), "no such variable"),
        (("--db-file", "/no/such/file"), "No such file"),
        (("--db", "not a url with pa55word"), "is not of the form"),
        (("--db", "strange://user:pa55word@host/db"), "no kind of database"),
        (("--db", "postgresql+asyncpg://user:pa55word@host/db"), "a driver for asyncio"),
        (("--db", "sqlite:///x.db", "--dry-run", "--watch"), "one of --dry-run, --watch"),
        (("--db", "sqlite:///x.db", "--metrics", "127.0.0.1:0"), "--metrics goes with --watch"),
    ],
)
def test_what_is_wrong_is_said_without_the_password(shop, recover, arguments, message):
    code, out, err = recover(shop, *arguments, db=False)
    assert (code, out) == (2, "") and message in err
    assert "pa55word" not in err and "Traceback" not in err


def test_a_database_that_does_not_answer_is_named_without_its_password(shop, recover, monkeypatch):
    url = "postgresql+psycopg://user:pa55word@127.0.0.1:1/shop"
    monkeypatch.setenv("SHOP_DATABASE", url)
    code, out, err = recover(shop, "--db-env", "SHOP_DATABASE", db=False)
    assert (code, out) == (3, "") and "postgresql+psycopg://user:***@127.0.0.1:1/shop" in err
    assert "pa55word" not in err and "Nothing was ended" in err


def test_a_password_behind_the_question_mark_is_not_shown_either(shop, recover, monkeypatch):
    monkeypatch.setenv("SHOP_DATABASE", "postgresql+psycopg://127.0.0.1:1/shop?user=user&password=pa55word")
    code, out, err = recover(shop, "--db-env", "SHOP_DATABASE", db=False)
    assert (code, out) == (3, "") and "postgresql+psycopg://127.0.0.1:1/shop does not answer" in err
    assert "pa55word" not in err


def test_the_url_may_be_in_a_file(shop, recover, tmp_path):
    (tmp_path / "url").write_text(shop.url + "\n")
    with shop.dual("filed") as dual:
        dual.take_over()
    code, out, _ = recover(shop, "--db-file", str(tmp_path / "url"), db=False)
    assert code == 0 and out.startswith("nothing is open: 1 id in twofold_prepared")


def test_a_disagreement_is_shown_accepted_after_a_look_and_then_gone(shop, recover):
    with shop.dual("restored") as dual:
        shop.order(dual, "a jar")
        saved = shop.row("restored")
        shop.order(dual, "a lid")
    with shop.engine.begin() as connection:
        connection.exec_driver_sql(
            f"UPDATE twofold_prepared SET producer_epoch = {saved.producer_epoch} WHERE transactional_id = 'restored'"
        )
    code, out, _ = recover(shop)
    assert code == 1 and "left alone: the log has committed" in out
    code, out, err = recover(shop, "--accept", "other")
    assert code == 1 and "'other' has no disagreement" in err
    code, out, _ = recover(shop, "--accept", "restored")
    assert code == 0 and out.startswith("accepted for restored: the log has committed")
    assert recover(shop)[0] == 0
    with shop.dual("restored") as dual:
        shop.order(dual, "a spoon")
    assert "a spoon" in topic_values(shop.address)


def test_a_watcher_leaves_a_live_lease_alone_ends_an_expired_one_and_stops_at_a_signal(shop):
    left = leave_open(shop, "watched", "a fork", "write: complete log")
    process = watcher(shop)
    try:
        assert process.stdout is not None and process.stderr is not None
        numbers = process.stderr.readline().split()[0]
        assert process.stderr.readline().startswith("watching twofold_prepared of sqlite")
        until(lambda: 'twofold_recover_found{action="wait"} 1.0' in page(numbers))
        assert open_state(shop.address, "watched") == left
        expire(shop, "watched")
        assert process.stdout.readline() == f"watched {left} committed\n"
        assert 'twofold_recover_ended_total{outcome="committed"} 1.0' in page(numbers)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "a fork" in topic_values(shop.address)


def test_a_watcher_does_not_fence_a_slow_writer_whose_lease_has_run_out_while_it_holds_the_row(shop):
    with shop.dual("slow", lease_s=0) as dual:
        with dual.transaction() as (db, log):
            shop.sell(db, log, "a plate")
            until(lambda: open_state(shop.address, "slow") != "")
            process = watcher(shop)
            assert process.stderr is not None
            numbers = process.stderr.readline().split()[0]
            until(lambda: 'twofold_recover_found{action="abort"} 1.0' in page(numbers))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0 and "slow" not in out, err
        shop.order(dual, "a bowl")
    assert {"a plate", "a bowl"} <= set(topic_values(shop.address))


def test_the_command_of_the_systemd_unit_watches_and_tells_systemd(shop, tmp_path):
    with shop.dual("unit") as dual:
        dual.take_over()
    (tmp_path / "database").write_text(shop.url)
    unit = Path(__file__).parents[2] / "deploy" / "systemd" / "twofold-recover.service"
    (command,) = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    command = command.replace("%d", str(tmp_path)).replace("127.0.0.1:9092", shop.address)
    words = command.replace("127.0.0.1:9645", "127.0.0.1:0").split()
    assert words[0] == "/opt/twofold/bin/twofold"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environment = os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        process = subprocess.Popen([sys.executable, "-m", "twofold", *words[1:]], env=environment)
        try:
            assert manager.recv(1000) == b"READY=1"
            process.send_signal(signal.SIGTERM)
            assert manager.recv(1000) == b"STOPPING=1" and process.wait(60) == 0
        finally:
            process.kill()
            process.wait()


def page(url):
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()
