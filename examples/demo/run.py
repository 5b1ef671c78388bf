"""Orders through an exactly-once Spark pipeline, while a task, the broker and the driver are killed with -9.

Run it with `make demo`. Beside the exactly-once sink the same rows are written by one without transactions. The verdict
is computed from what a stock client reads at read_committed, against what was sent. Only the picture stays behind.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from orders import Generator
from pipeline import ENRICHED, ORDERS, PLAIN, REVENUE
from plot import draw
from processes import Broker, Driver, Failed
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from verdict import Verdict, of_enriched, of_revenue
from watch import PARTITIONS, Watcher, read_all

PATIENCE_S = 120.0
LABELS = {ENRICHED: "exactly once", PLAIN: "exactlyOnce=off"}
BROKEN = os.environ.get("TWOFOLD_DEMO_BREAK") == "1"


class Demo:
    def __init__(self, directory: Path, per_second: float, console: Console, stack: ExitStack) -> None:
        """Whatever starts here is ended by the stack, however the demo ends."""
        self.console = console
        self.broker = Broker(directory)
        stack.callback(self.broker.kill)
        self.driver = Driver(directory, self.broker.address)
        stack.callback(self.driver.kill)
        self.broker.start()
        admin = AdminClient({"bootstrap.servers": self.broker.address, "log_level": 0})
        for done in admin.create_topics(
            [NewTopic(t, PARTITIONS, 1) for t in (ORDERS, ENRICHED, REVENUE, PLAIN)]
        ).values():
            done.result(30)
        self.orders = Generator(self.broker.address, ORDERS, per_second)
        self.watcher = Watcher(self.broker.address, [ENRICHED, REVENUE, PLAIN], self.orders.acknowledged)
        columns = (TextColumn("{task.description:>24}"), BarColumn(), TextColumn("{task.completed:>6,.0f}"))
        self.progress = stack.enter_context(Progress(*columns, TimeElapsedColumn(), console=console))
        self.bars = {name: self.progress.add_task(label) for name, label in {ORDERS: "orders sent", **LABELS}.items()}
        self.orders.start()
        self.watcher.start()

    def run(self) -> None:
        with self.step("Spark starts, the first rows are visible"):
            self.driver.start()
            self.wait(lambda: all(self.watcher.visible[topic] for topic in LABELS))
        with self.step("a task killed with -9, and all caught up"):
            self.driver.kill_task(ENRICHED, PATIENCE_S)
            self.watcher.mark("task killed")
            self.catch_up()
        with self.step("the broker killed with -9, started again, and all caught up"):
            self.broker.kill()
            self.watcher.mark("broker killed")
            time.sleep(1.0)
            self.broker.start()
            self.catch_up()
        with self.step("the driver killed with -9 in the middle of a batch"):
            self.driver.kill_between(ENRICHED if BROKEN else PLAIN, PATIENCE_S)
            self.watcher.mark("driver killed")
        with self.step("the driver started again, and all caught up"):
            self.driver.start()
            self.catch_up()
        with self.step("no more orders: what is left is read, the pipeline ends"):
            self.orders.stop()
            self.driver.drain(PATIENCE_S)
        self.watcher.stop()
        self.show()

    def catch_up(self) -> None:
        """Until what was sent before is visible."""
        sent = len(self.orders.acknowledged)
        self.wait(lambda: all(self.watcher.visible[topic] >= sent for topic in LABELS))

    def wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            self.driver.check()
            self.broker.check()
            if time.monotonic() > deadline:
                raise Failed(f"this took more than {PATIENCE_S:.0f} s: see {self.driver.log} and {self.broker.log}")
            self.show()
            time.sleep(0.1)

    def show(self) -> None:
        sent = len(self.orders.acknowledged)
        for name, bar in self.bars.items():
            self.progress.update(bar, total=sent, completed=sent if name == ORDERS else self.watcher.visible[name])

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        self.console.print(f"[dim]{self.watcher.now_s:6.1f} s[/]  {what} ...")
        yield
        self.console.print(f"[dim]{self.watcher.now_s:6.1f} s[/]  [green]done after {time.monotonic() - started:.1f} s")


def judge(demo: Demo) -> bool:
    sent, address = demo.orders.acknowledged, demo.broker.address
    exact = of_enriched(sent, read_all(address, ENRICHED))
    windows = of_revenue(sent, read_all(address, REVENUE))
    plain = of_enriched(sent, read_all(address, PLAIN))
    table = Table(title="what a stock client read at read_committed")
    for heading in ("", LABELS[ENRICHED], "revenue by window, exactly once", LABELS[PLAIN]):
        table.add_column(heading, justify="right")
    columns: tuple[Verdict, ...] = (exact, windows, plain)
    table.add_row("rows expected", *(f"{column.expected:,}" for column in columns))
    table.add_row("rows read", *(f"{column.read:,}" for column in columns))
    table.add_row("lost", *(f"{column.lost:,}" for column in columns))
    table.add_row("doubled", *(f"{column.doubled:,}" for column in columns))
    demo.console.print(table)
    for refused in demo.orders.refused[:1]:
        raise Failed(f"the broker refused orders: {refused}")
    return exact.good and windows.good and windows.read > 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-second", type=float, default=50, help="orders sent (default 50)")
    parser.add_argument(
        "--plot", type=Path, default=Path("build/demo.png"), help="the picture (default build/demo.png)"
    )
    wanted = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="twofold-demo-"))
    good = False
    try:
        with ExitStack() as stack:
            demo = Demo(directory, wanted.per_second, console, stack)
            demo.run()
            good = judge(demo)
        draw(wanted.plot, demo.watcher.samples, demo.watcher.marks, LABELS)
        console.print(f"the run as a picture: {wanted.plot}")
        console.print("[bold green]nothing lost, nothing doubled" if good else "[bold red]rows were lost or doubled")
    finally:
        if good:
            shutil.rmtree(directory, ignore_errors=True)
        else:
            console.print(f"logs are in {directory}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
    except (Failed, KafkaException) as error:
        sys.exit(f"the demo failed: {error}")
