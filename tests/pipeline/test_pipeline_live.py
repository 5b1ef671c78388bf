"""Where a pipeline says that it tells its numbers, and what is made of what it tells."""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from twofold.cli.pipeline.live import ProcessAnswer, answer_of, rate
from twofold.pipeline.live import LiveProcess, announced, ask, processes, start_of
from twofold.sink.decided import DecidedEntry
from twofold.sink.inspection import FoundJournal
from twofold.sink.register import Register

NOW_MS = 1_000_000


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = tmp_path / "twofold" / "pipelines"
    folder.mkdir(parents=True)
    return folder / "shop-1.log"


def test_a_pipeline_is_found_as_long_as_it_runs(log: Path) -> None:
    with announced("shop", "127.0.0.1:9465", log):
        (found,) = processes()
        assert found == LiveProcess("shop", "127.0.0.1:9465", os.getpid(), start_of(os.getpid()))
        assert not found.is_gone
    assert processes() == []


def test_a_process_that_was_killed_is_told_from_another_with_its_number_until_the_next_run(log: Path) -> None:
    with announced("shop", "127.0.0.1:1", log):
        path = log.with_suffix(".live.json")
        other = log.with_name("shop-2.live.json")
        other.write_text(path.read_text().replace(start_of(os.getpid()), "1"))
        os.utime(other, (1, 1))
        assert [process.is_gone for process in processes()] == [False], "a later run has its place"
        os.utime(path, (0, 0))
        path.write_text(other.read_text())
        assert all(process.is_gone for process in processes())
    with announced("shop", "127.0.0.1:1", log):
        assert not other.exists()


def test_a_process_that_has_ended_and_was_not_asked_for_its_end_is_gone() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    started = start_of(child.pid)
    assert child.wait() == 0
    assert LiveProcess("shop", "127.0.0.1:1", child.pid, started or "1").is_gone


def test_a_file_that_cannot_be_read_or_written_stops_nothing(log: Path) -> None:
    log.with_suffix(".live.json").write_text("{")
    assert processes() == []
    with announced("shop", "127.0.0.1:1", log / "not a directory" / "x.log"):
        assert processes() == []


def test_a_port_where_nothing_listens_or_another_program_answers_is_no_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n<html>hello</html>")

        thread = threading.Thread(target=answer)
        thread.start()
        process = LiveProcess("shop", f"127.0.0.1:{server.getsockname()[1]}")
        assert ask(process, 20) is None
        thread.join()
    assert ask(process, 1) is None


# What the journal tells


def entry(batch: int, at_ms: int, end: int, name: str = "q") -> DecidedEntry:
    return DecidedEntry(name, batch, at_ms=at_ms, ends=f'{{"orders":{{"0":{end}}}}}')


def test_a_rate_is_what_was_decided_lately_by_the_time_that_has_passed() -> None:
    decided = [entry(0, NOW_MS - 60_000, 100), entry(1, NOW_MS - 20_000, 400), entry(2, NOW_MS - 10_000, 700)]
    assert rate(decided, NOW_MS) == pytest.approx(600 / 30)


def test_a_rate_of_batches_that_began_lately_counts_from_the_first_of_them() -> None:
    assert rate([entry(0, NOW_MS - 10_000, 100), entry(1, NOW_MS - 5_000, 400)], NOW_MS) == pytest.approx(300 / 10)


def test_a_pipeline_that_decided_nothing_lately_has_no_speed() -> None:
    assert rate([entry(0, NOW_MS - 90_000, 100), entry(1, NOW_MS - 60_000, 400)], NOW_MS) == 0


def test_offsets_of_another_query_under_the_same_prefix_do_not_count() -> None:
    decided = [entry(0, NOW_MS - 9_000, 5_000, "old"), entry(0, NOW_MS - 6_000, 100), entry(1, NOW_MS - 5_000, 150)]
    assert rate(decided, NOW_MS) == pytest.approx(50 / 6)


def test_a_journal_without_offsets_tells_no_rate() -> None:
    assert rate([DecidedEntry("q", 3, at_ms=NOW_MS)], NOW_MS) is None


# What a process tells


def found_of(name: str = "shop.totals", query: str = "q") -> FoundJournal:
    return FoundJournal("p", "p.decisions", Register(query_name=name, decided=(entry(0, NOW_MS, 1, query),)))


def query(**more: Any) -> dict[str, Any]:
    return {"id": "q", "name": "shop.totals", "progress_age_s": 1.0, **more}


def test_a_query_is_found_among_those_of_all_processes() -> None:
    one, other = LiveProcess("shop", "a:1"), LiveProcess("rest", "b:1")
    answer = answer_of(found_of(), [(one, [query(id="x"), query()]), (other, [query(name="rest.out", id="y")])])
    assert answer == ProcessAnswer(one, answers=True, query=query()) and answer.is_live


def test_a_process_that_does_not_answer_is_named_where_it_had_the_pipeline() -> None:
    process = LiveProcess("shop", "a:1")
    assert answer_of(found_of(), [(process, None)]) == ProcessAnswer(process, answers=False)
    assert answer_of(found_of("shops.totals"), [(process, None)]) is None


def test_what_spark_has_not_told_for_a_minute_is_not_live() -> None:
    answer = answer_of(found_of(), [(LiveProcess("shop", "a:1"), [query(progress_age_s=90.0)])])
    assert answer is not None and answer.is_silent and not answer.is_live
