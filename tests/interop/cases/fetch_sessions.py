"""Fetch in sessions (KIP-227): ids, epochs, what is told, forgotten, deleted, limited, waited for."""

import time
from typing import Any

from interop.cases.fetch import UNKNOWN_ID, body, part
from oracle.batches import Record, batch
from oracle.compare import Cases, Probe, Topic
from oracle.driver import Connection
from oracle.wire import decode_response

CASES = Cases("FetchSession")
case = CASES.case

NAMES, IDS = (7, 11, 12), (13, 18)


class Session:
    """Asks in one session and keeps ids, which are random, out of the record."""

    def __init__(self, probe: Probe, version: int) -> None:
        self.probe, self.version = probe, version
        self.id = 0

    def ask(self, label: str, session: int, epoch: int, *topics: tuple[Topic, Any], **more: Any) -> Any:
        request = body(self.version, *topics, session_id=session, session_epoch=epoch, **more)
        answer = self.probe.ask(label, "Fetch", self.version, request, keep=self._keep)
        if answer["session_id"]:
            self.id = answer["session_id"]
        return answer

    def _keep(self, answer: dict[str, Any]) -> dict[str, Any]:
        session = answer["session_id"]
        known = {0: "none", self.id: "the same"} if self.id else {0: "none"}
        return {**answer, "session_id": known.get(session, "new")}


def gone(topic: Topic, *partitions: int) -> dict[str, Any]:
    return {"topic": topic.name, "topic_id": topic.id, "partitions": list(partitions)}


@case()
def a_session_tells_only_what_changed(probe: Probe) -> None:
    one, two = probe.topic("one"), probe.topic("two")
    for version in (*NAMES, *IDS):
        session = Session(probe, version)
        ends = [probe.produce(topic.name)["base_offset"] + 1 for topic in (one, two)]
        at_end = [(topic, [part(offset=end)]) for topic, end in zip((one, two), ends, strict=True)]
        session.ask(f"v{version} open", 0, 0, *at_end)
        session.ask(f"v{version} nothing new", session.id, 1)
        probe.produce(one.name)
        session.ask(f"v{version} one is new", session.id, 2)
        session.ask(f"v{version} and stays so", session.id, 3)
        session.ask(f"v{version} one moves on", session.id, 4, (one, [part(offset=ends[0] + 1)]))
        session.ask(f"v{version} close", session.id, -1)
        session.ask(f"v{version} closed", session.id, 5)


@case()
def session_ids_and_epochs_that_do_not_fit(probe: Probe) -> None:
    topic = probe.topic()
    parts = (topic, [part()])
    for version in (7, 12, 18):
        session = Session(probe, version)
        session.ask(f"v{version} no session", 0, -1, parts)
        for number, epoch in ((0, 3), (12345, 3), (12345, -5), (12345, -1), (0, -2), (-1, 1), (12345, 2**31 - 1)):
            session.ask(f"v{version} unknown {number} with epoch {epoch}", number, epoch, parts)
        session.ask(f"v{version} open", 0, 0, parts)
        kept = session.id
        for epoch in (2, -2, 2**31 - 1):
            session.ask(f"v{version} epoch {epoch}", kept, epoch, parts)
        session.ask(f"v{version} right epoch", kept, 1)
        session.ask(f"v{version} old epoch", kept, 1)
        session.ask(f"v{version} renewed", kept, 0, parts)
        session.ask(f"v{version} old id is gone", kept, 2)
        session.ask(f"v{version} closed with a list", session.id, -1, parts)


@case()
def sessions_forget_partitions(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    for version in (7, 12, 13, 18):
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (topic, [part(0), part(1)]))
        session.ask(f"v{version} forget 0", session.id, 1, forgotten_topics_data=[gone(topic, 0)])
        probe.produce(topic.name, partition=0)
        session.ask(f"v{version} 0 is forgotten", session.id, 2)
        session.ask(f"v{version} 0 is back", session.id, 3, (topic, [part(0)]))
        kept = session.id
        session.ask(f"v{version} forget all, twice", kept, 4, forgotten_topics_data=[gone(topic, 1, 0, 1)])
        session.ask(f"v{version} nothing left", kept, 5)


@case()
def forgetting_what_is_not_there(probe: Probe) -> None:
    topic = probe.topic()
    for version in (7, 13):
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (topic, [part(0)]))
        unknown = {"topic": probe.name("none"), "topic_id": UNKNOWN_ID, "partitions": [0]}
        session.ask(f"v{version} another", session.id, 1, forgotten_topics_data=[gone(topic, 7, -1), unknown])
        session.ask(f"v{version} goes on", session.id, 2)
        session.ask(f"v{version} named", session.id, 3, (topic, [part(0)]), forgotten_topics_data=[gone(topic, 0)])
        session.ask(f"v{version} in a full one", 0, 0, (topic, [part(0)]), forgotten_topics_data=[gone(topic, 0)])


@case()
def errors_repeat_in_a_session(probe: Probe) -> None:
    topic = probe.topic()
    session = Session(probe, 11)
    session.ask("open", 0, 0, (topic, [part(0), part(9)]))
    session.ask("again", session.id, 1)
    session.ask("and again", session.id, 2)
    unknown = Session(probe, 18)
    unknown.ask("unknown id", 0, 0, (Topic("", UNKNOWN_ID), [part(0)]))
    unknown.ask("unknown id again", unknown.id, 1)


@case()
def errors_that_end_are_told_once_more(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (12, 18):
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (topic, [part(offset=1)]))
        session.ask(f"v{version} out of range", session.id, 1, (topic, [part(offset=9)]))
        session.ask(f"v{version} still", session.id, 2)
        session.ask(f"v{version} fenced", session.id, 3, (topic, [part(offset=1, current_leader_epoch=7)]))
        session.ask(f"v{version} well again", session.id, 4, (topic, [part(offset=1)]))
        session.ask(f"v{version} quiet", session.id, 5)


@case()
def a_topic_that_appears_in_a_session(probe: Probe) -> None:
    name = probe.name("later")
    session = Session(probe, 12)
    session.ask("open", 0, 0, (Topic(name, UNKNOWN_ID), [part()]))
    later = probe.topic("later")
    session.ask("it is there", session.id, 1)
    session.ask("quiet", session.id, 2)
    probe.produce(later.name)
    session.ask("and has something", session.id, 3)


@case()
def a_topic_that_is_deleted_and_made_anew_in_a_session(probe: Probe) -> None:
    for version in (12, 13, 18):
        kept, topic = probe.topic(f"kept-{version}"), probe.topic(f"topic-{version}")
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (kept, [part()]), (topic, [part()]))
        probe.tell("DeleteTopics", 5, topic_names=[topic.name], timeout=10000)
        probe.await_gone(topic.name)
        session.ask(f"v{version} deleted", session.id, 1)
        probe.topic(f"topic-{version}")
        probe.produce(topic.name)
        session.ask(f"v{version} made anew", session.id, 2)
        session.ask(f"v{version} once more", session.id, 3)


@case()
def a_session_that_waits_hears_that_a_topic_is_deleted(probe: Probe) -> None:
    """First while it waits; then, when the topic was made anew, by name of the new one and by id of the mistake."""
    for version in (7, 12, 13, 16, 18):
        kept, doomed = probe.topic(f"kept-{version}"), probe.topic(f"doomed-{version}")
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (kept, [part()]), (doomed, [part()]))
        probe.connection.send("Fetch", version, body(version, session_id=session.id, session_epoch=1, max_wait=9000))
        time.sleep(0.05)
        with Connection(probe.server.host, probe.server.port) as admin:
            admin.ask("DeleteTopics", 5, topic_names=[doomed.name], timeout=10000)
        payload = probe.connection.receive()
        probe.record(f"v{version} lives", payload is not None)
        assert payload is not None
        probe.record(f"v{version} told", decode_response("Fetch", version, payload)[1]["responses"])
        probe.await_gone(doomed.name)
        probe.topic(f"doomed-{version}")
        session.ask(f"v{version} made anew", session.id, 2)


@case()
def a_session_does_not_change_between_names_and_ids(probe: Probe) -> None:
    topic = probe.topic()
    for first, second in ((12, 13), (13, 12), (7, 18), (18, 7)):
        session = Session(probe, first)
        session.ask(f"v{first} opens", 0, 0, (topic, [part()]))
        session.version = second
        session.ask(f"v{first} to v{second}", session.id, 1, (topic, [part()]))
        session.version = first
        session.ask(f"v{first} after v{second}", session.id, 1)


@case()
def versions_that_name_topics_alike_share_a_session(probe: Probe) -> None:
    topic = probe.topic()
    session = Session(probe, 7)
    session.ask("v7 opens", 0, 0, (topic, [part()]))
    for epoch, version in enumerate((8, 11, 12, 7), 1):
        session.version = version
        session.ask(f"{epoch}: v{version}", session.id, epoch)


@case()
def a_session_without_partitions(probe: Probe) -> None:
    topic = probe.topic()
    for version in (11, 18):
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0)
        session.ask(f"v{version} go on", session.id, 1)
        session.ask(f"v{version} open again", 0, 0)
        session.ask(f"v{version} with one", session.id, 1, (topic, [part()]))


@case()
def a_partition_twice_in_a_session(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name, batch(2))
    probe.produce(topic.name, batch(2))
    session = Session(probe, 12)
    session.ask("open", 0, 0, (topic, [part(offset=0), part(offset=4)]))
    session.ask("the last counts", session.id, 1)
    session.ask("change twice", session.id, 2, (topic, [part(offset=4), part(offset=2)]))
    session.ask("the last counts again", session.id, 3)


@case()
def isolation_levels_change_in_a_session(probe: Probe) -> None:
    topic = probe.topic()
    probe.produce(topic.name)
    for version in (12, 18):
        session = Session(probe, version)
        session.ask(f"v{version} open", 0, 0, (topic, [part()]))
        session.ask(f"v{version} committed", session.id, 1, isolation_level=1)
        session.ask(f"v{version} no such level", session.id, 2, (topic, [part()]), isolation_level=5)
        session.ask(f"v{version} the epoch has moved", session.id, 3)
        session.ask(f"v{version} opened with no such level", 0, 0, (topic, [part()]), isolation_level=5)


@case()
def everybody_has_a_turn_within_the_limits(probe: Probe) -> None:
    topic = probe.topic(partitions=3)
    session = Session(probe, 12)
    session.ask("open", 0, 0, (topic, [part(index) for index in range(3)]))
    for index in range(3):
        for _ in range(2):
            probe.produce(topic.name, batch([Record(value=b"x" * 1000)]), partition=index)
    turns = []
    offsets = [0, 0, 0]
    moved: list[dict[str, Any]] = []
    for epoch in range(1, 7):
        request = body(12, (topic, moved), session_id=session.id, session_epoch=epoch, max_bytes=1)
        answer = probe.ask(f"turn {epoch}", "Fetch", 12, request, keep=lambda answer: None)
        rows = [row for found in answer["responses"] for row in found["partitions"] if row["records"]]
        turns.append([row["partition_index"] for row in rows])
        moved = []
        for row in rows:
            offsets[row["partition_index"]] += 1
            moved.append(part(row["partition_index"], offsets[row["partition_index"]]))
    probe.record("turns", turns)


@case()
def a_session_waits_for_data(probe: Probe) -> None:
    topic = probe.topic(partitions=2)
    session = Session(probe, 12)
    session.ask("open", 0, 0, (topic, [part(0), part(1)]))
    start = time.monotonic()
    session.ask("nothing comes", session.id, 1, max_wait=400)
    probe.record("it waits", time.monotonic() - start > 0.35)
    probe.produce(topic.name, partition=1)
    start = time.monotonic()
    session.ask("something is there", session.id, 2, max_wait=5000)
    session.ask("an error does not wait", session.id, 3, (topic, [part(1, 1), part(0, 99)]), max_wait=5000)
    probe.record("neither waits", time.monotonic() - start < 3)
    start = time.monotonic()
    session.ask("unknown ones wait", session.id, 4, (topic, [part(0, 0), part(9)]), max_wait=400)
    probe.record("so it does", time.monotonic() - start > 0.35)


@case()
def what_moves_without_records_is_told(probe: Probe) -> None:
    """A reader that asks beyond what fits hears of the new end although it gets nothing of it."""
    topic = probe.topic(partitions=2)
    session = Session(probe, 12)
    session.ask("open", 0, 0, (topic, [part(0, limit=1), part(1, limit=1)]))
    probe.produce(topic.name, partition=0)
    probe.produce(topic.name, partition=1)
    answer = session.ask("the first fits, the other does not", session.id, 1, max_bytes=1)
    rows = [row for found in answer["responses"] for row in found["partitions"]]
    probe.record("ends", sorted((row["partition_index"], row["high_watermark"]) for row in rows))


@case()
def a_full_fetch_ends_the_session_it_names_and_no_other(probe: Probe) -> None:
    topic = probe.topic()
    first, second = Session(probe, 12), Session(probe, 12)
    first.ask("first opens", 0, 0, (topic, [part()]))
    second.ask("second opens", 0, 0, (topic, [part()]))
    kept = first.id
    first.ask("first is closed", kept, -1, (topic, [part()]))
    second.ask("second goes on", second.id, 1)
    first.ask("first is gone", kept, 1)
