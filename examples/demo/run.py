"""Orders through an exactly-once Spark pipeline, while a task, the broker and the driver are killed with -9.

Run it with `make demo`; `make demo SECURE=1` does the same over TLS, with users and access control. Beside the
exactly-once sink the same rows are written by one without transactions. The verdict is computed from what a stock
client reads at read_committed, against what was sent. Only the picture stays behind.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from access import ADMIN, READER, SHOP, Access, SecureAccess
from display import Display
from names import ENRICHED, EXACT, JOURNAL, ORDERS, PARTITIONS, PLAIN, REVENUE
from orders import Generator
from plot import draw
from processes import Broker, Driver, Failed, check_java
from verdict import Verdict, of_enriched, of_revenue
from watch import Watcher, read_all

PATIENCE_S = 180.0
STEADY_S = 4
LABELS = {ENRICHED: "exactly once", PLAIN: "exactlyOnce=off"}
ROWS = {"rows in": "expected", "rows out": "read", "lost": "lost", "doubled": "doubled", "out of order": "disordered"}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Demo:
    """Whatever it starts is ended by the stack, however the demo ends."""

    def __init__(self, directory: Path, per_second: float, stack: ExitStack, *, secure: bool) -> None:
        self.per_second = per_second
        self.broker = Broker(directory)
        stack.callback(self.broker.kill)
        self.is_secure = secure
        self.access = (SecureAccess if secure else Access)(directory, self.broker.address)
        self.access.prepare()
        self.driver = Driver(directory, self.access)
        stack.callback(self.driver.kill)
        self.orders = Generator(self.access.client(SHOP), ORDERS, per_second)
        stack.callback(self.orders.abandon)
        self.watcher = Watcher(self.access.client(READER), [ENRICHED, REVENUE, PLAIN], self.orders.acknowledged)
        stack.callback(self.watcher.stop)

    def run(self, display: Display) -> None:
        how = "two-phase commit, TLS and access control" if self.is_secure else "two-phase commit"
        with display.step(f"a broker started with {how}, orders are coming"):
            self.broker.start(self.access)
            self.create_topics()
            self.orders.start()
            self.watcher.start()
        with display.step("Spark started, the first rows are visible"):
            self.driver.start()
            self.wait(lambda: all(self.visible(topic) for topic in LABELS))
        with display.step("a task killed with -9, all caught up"):
            self.driver.kill_task(ENRICHED, PATIENCE_S)
            self.watcher.mark("task killed")
            self.catch_up()
        with display.step("the broker killed with -9 and started again, all caught up"):
            self.broker.kill()
            self.watcher.mark("broker killed")
            time.sleep(1.0)
            self.broker.start(self.access)
            self.catch_up()
        with display.step("the driver killed with -9 in the middle of a batch"):
            # It hits the other sink at any moment; in the test of the verdict it is to hurt the one that is judged.
            self.driver.kill_between(ENRICHED if is_broken() else PLAIN, PATIENCE_S)
            self.watcher.mark("driver killed")
        with display.step("the driver started again, all caught up"):
            self.driver.start()
            self.catch_up()
        with display.step("no more orders: the rest is read, the pipeline ended"):
            self.orders.stop()
            self.driver.drain(PATIENCE_S)

    def create_topics(self) -> None:
        """The journals of the sinks as well: a pipeline that may not make topics finds them there."""
        admin = AdminClient(self.access.client(ADMIN) | {"log_level": 0})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (ORDERS, ENRICHED, REVENUE, PLAIN)]
        topics += [NewTopic(f"{name}.decisions", 1, 1, config=JOURNAL) for name in EXACT]
        for created in admin.create_topics(topics).values():
            created.result(30)

    @property
    def sent(self) -> int:
        return len(self.orders.acknowledged)

    def visible(self, topic: str) -> int:
        return self.watcher.visible[topic]

    def counts(self) -> dict[str, int]:
        return {"orders sent": self.sent} | {label: self.visible(topic) for topic, label in LABELS.items()}

    def catch_up(self) -> None:
        """Until what was sent before is visible, and some seconds of what was sent since."""
        enough = self.sent + STEADY_S * self.per_second
        self.wait(lambda: all(self.visible(topic) >= enough for topic in LABELS))

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            self.driver.check()
            self.broker.check()
            if time.monotonic() > deadline:
                raise Failed(f"this took more than {PATIENCE_S:.0f} s: see {self.driver.log} and {self.broker.log}")
            time.sleep(0.1)


def is_broken() -> bool:
    """A switch for tests: the sink that should write exactly once does not, and the verdict has to say so."""
    return os.environ.get("TWOFOLD_DEMO_BREAK") == "1"


def judge(demo: Demo) -> dict[str, Verdict]:
    """By what a stock client reads now, and nothing else."""
    if demo.orders.refused:
        raise Failed(f"the broker did not take an order: {demo.orders.refused[0]}")
    sent, client = demo.orders.acknowledged, demo.access.client(READER)
    return {
        LABELS[ENRICHED]: of_enriched(sent, read_all(client, ENRICHED)),
        "its revenue windows": of_revenue(sent, read_all(client, REVENUE)),
        LABELS[PLAIN]: of_enriched(sent, read_all(client, PLAIN)),
    }


def table_of(columns: dict[str, Verdict]) -> Table:
    table = Table("", title="what a stock client read at read_committed")
    for heading in columns:
        table.add_column(heading, justify="right")
    for label, name in ROWS.items():
        counts = [getattr(verdict, name) for verdict in columns.values()]
        table.add_row(label, *("" if count is None else f"{count:,}" for count in counts))
    return table


def run(directory: Path, wanted: argparse.Namespace, console: Console) -> bool:
    with ExitStack() as stack:
        demo = Demo(directory, wanted.per_second, stack, secure=wanted.secure)
        for number in SIGNALS:  # a second Ctrl-C does not keep the first from ending everything
            stack.callback(signal.signal, number, signal.SIG_IGN)
        with Display(console, demo.counts) as display:
            demo.run(display)
            with display.step("read by a stock client, compared with what was sent"):
                columns = judge(demo)
                doubled = {topic: columns[label].doubled for topic, label in LABELS.items()}
                draw(wanted.plot, demo.watcher.samples, demo.watcher.marks, LABELS, doubled)
        console.print(table_of(columns))
    exact, windows, _ = columns.values()
    good = exact.good and windows.good and exact.read > 0 and windows.read > 0
    console.print(f"the run as a picture: {wanted.plot}", soft_wrap=True)
    right = "nothing lost, nothing doubled, every key in its order, every window right"
    console.print(f"[bold green]{right}" if good else "[bold red]rows were lost, doubled, or out of order")
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-second", type=float, default=50, help="orders sent (default 50)")
    parser.add_argument("--plot", type=Path, default=Path("build/demo.png"), help="where the picture goes")
    parser.add_argument("--secure", action="store_true", help="over TLS, each part as a user with the least rights")
    wanted = parser.parse_args()
    for number in SIGNALS[1:]:
        signal.signal(number, lambda signum, _: sys.exit(128 + signum))
    console = Console()
    try:
        check_java()
    except Failed as error:
        console.print(f"[bold red]the demo cannot run:[/] {error}", soft_wrap=True)
        return 1
    directory = Path(tempfile.mkdtemp(prefix="twofold-demo-"))
    keep = False
    try:
        good = run(directory, wanted, console)
        keep = not good
    except (Failed, KafkaException, TimeoutError) as error:
        console.print(f"[bold red]the demo failed:[/] {error}", soft_wrap=True)
        good, keep = False, True
    finally:
        if keep:
            console.print(f"its logs and data are in {directory}", soft_wrap=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
