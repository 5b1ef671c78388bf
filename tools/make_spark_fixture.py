"""Make what a Spark query leaves that was killed in the middle of a batch: its checkpoint and the broker's folder.

    .venv/bin/python tools/make_spark_fixture.py NAME        # tests/fixtures/spark-NAME.tar.gz, needs a JDK

It is made by the code of the checkout that this file lies in: to make one of an older version, copy the file there. The
archive holds `relck`, the checkpoint, which the query named by that relative path; `data`, the broker's folder after a
clean stop; and `expected.json`. The second batch is decided, and one of its two transactions is committed. Beside it a
journal `days` has 34 writeIds, each with one row.
"""

import json
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "spark")]

from sink_kit import SETTINGS, App, Broker, Orders  # noqa: E402

from kits.processes.dead_query import Query  # noqa: E402
from kits.processes.server import TwofoldServer  # noqa: E402
from twofold.sink.names import decision_topic, prefix_of_checkpoint  # noqa: E402
from twofold.sink.register import Participant, Reader  # noqa: E402

SMALL = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.cleaner.enable": "false",
}
ROWS, PER_BATCH, TASKS, DAYS = 120, 50, 2, 34
SOURCE, TARGET, CHECKPOINT = "in", "out", "relck"


def main(name: str) -> None:
    FIXTURES.mkdir(exist_ok=True)
    archive = FIXTURES / f"spark-{name}.tar.gz"
    with tempfile.TemporaryDirectory(prefix="spark-fixture-") as directory:
        work = Path(directory)
        server = TwofoldServer(work, SETTINGS | SMALL)
        server.start()
        try:
            fill(server.bootstrap_servers, work)
        finally:
            server.stop()
        with tarfile.open(archive, "w:gz") as out:
            out.add(server.data, "data", filter=without_owner)
            out.add(work / CHECKPOINT, CHECKPOINT, filter=without_owner)
            out.add(work / "expected.json", "expected.json", filter=without_owner)
    print(f"{archive}: {archive.stat().st_size} bytes")


def fill(bootstrap_servers: str, work: Path) -> None:
    broker = Broker(bootstrap_servers)
    broker.topic(TASKS, SOURCE)
    broker.topic(2, TARGET)
    broker.send(SOURCE, range(ROWS), keys=16)
    write_days(bootstrap_servers, work)
    orders = Orders(work / "orders")
    orders.give("commit: decided", "sleep-0")
    orders.give("commit: decided", "kill-driver")
    app = App(bootstrap_servers, SOURCE, TARGET, work, orders, per_batch=PER_BATCH)
    app.write = {"checkpointLocation": CHECKPOINT}
    assert app.run() != 0 and orders.left == [], app.text
    prefix = prefix_of_checkpoint(CHECKPOINT)
    query = Query(bootstrap_servers, work, prefix)
    query.end(decided(broker, prefix)[0], commit=True)
    query.die()
    visible = len(broker.read(TARGET))
    assert PER_BATCH < visible < 2 * PER_BATCH, visible
    assert len(broker.open_transactions(prefix)) == 1
    expected = {"rows": ROWS, "visible": visible, "days": DAYS}
    (work / "expected.json").write_text(json.dumps(expected))


def decided(broker: Broker, prefix: str) -> list[Participant]:
    """Of the decision that is not done, in whatever form the journal has it."""
    reader = Reader(prefix)
    for offset, (_, key, value) in enumerate(broker.read(decision_topic(prefix))):
        reader.take(key, value, offset)
    assert reader.register is not None and reader.register.pending is not None
    participants = list(reader.register.pending.participants)
    assert len(participants) == TASKS, participants
    return participants


def write_days(bootstrap_servers: str, work: Path) -> None:
    Broker(bootstrap_servers).topic(1, "days-out")
    for number in range(DAYS):
        query = Query(bootstrap_servers, work, "days", query_id=f"day{number}", run_id=f"run{number}")
        query.start()
        query.commit([query.prepare("days-out", [b"day%d" % number])])
        query.die()


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name in ("data/.reserve", "data/.lock"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o200
    return entry


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
