"""A table and a topic that must have the same orders."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, text

import twofold
from twofold.client import Consumer, LoopThread, TopicPartition
from twofold.dualwrite import DualWrite
from twofold.dualwrite.steps import Reached, unobserved
from twofold.embedded import Broker

TOPIC = "orders"
SETTINGS = {"transaction.two.phase.commit.enable": True}
PATIENCE_S = 60.0
QUICK = {"max_block_ms": 2_000, "request_timeout_ms": 1_500, "delivery_timeout_ms": 2_000, "linger_ms": 0}
"""For a broker that is away."""


class Shop:
    """`address` of a broker, and the URL of a database that has no tables yet."""

    def __init__(self, address: str, url: str, **engine_options: Any) -> None:
        self.address = address
        self.url = url
        self.engine: Engine = create_engine(url, **engine_options)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (item VARCHAR(80) PRIMARY KEY)"))

    def dual(self, transactional_id: str = "shop", observer: Reached = unobserved, **options: Any) -> DualWrite:
        return DualWrite(
            self.engine,
            bootstrap_servers=self.address,
            transactional_id=transactional_id,
            observer=observer,
            **options,
        )

    @staticmethod
    def sell(db: Any, log: Any, item: str) -> None:
        """One order, in both."""
        log.send(TOPIC, item.encode())
        db.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})

    def order(self, dual: DualWrite, item: str) -> None:
        with dual.transaction() as (db, log):
            self.sell(db, log, item)

    @staticmethod
    def block(dual: DualWrite, *actions: Callable[[Any, Any], object], session: Any = None) -> None:
        """The actions in one block."""
        with dual.transaction(session=session) as (db, log):
            for action in actions:
                action(db, log)

    def of(self, item: str) -> Callable[[Any, Any], None]:
        """For `block`: one order, in both."""
        return lambda db, log: self.sell(db, log, item)

    def table(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(connection.execute(text("SELECT item FROM orders")).scalars())

    def topic(self) -> list[str]:
        return sorted(topic_values(self.address))

    def row(self, transactional_id: str = "shop", table: str = "twofold_prepared") -> Any:
        with self.engine.connect() as connection:
            found = connection.execute(
                text(f"SELECT * FROM {table} WHERE transactional_id = :id"), {"id": transactional_id}
            )
            return found.one_or_none()

    def state(self, transactional_id: str = "shop") -> str:
        row = self.row(transactional_id)
        return "" if row.producer_id < 0 else f"{row.producer_id}:{row.producer_epoch}"

    def close(self) -> None:
        self.engine.dispose()


def topic_values(address: str, topic: str = TOPIC) -> list[str]:
    """What a consumer with read_committed sees when every transaction has ended: markers come after the decision."""

    async def read() -> list[str]:
        tp = TopicPartition(topic, 0)
        async with (
            Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer,
            Consumer(bootstrap_servers=address) as uncommitted,
        ):
            consumer.assign([tp])
            consumer.seek(tp, 0)
            end = (await uncommitted.end_offsets([tp]))[tp]
            async with asyncio.timeout(PATIENCE_S):
                while (await consumer.end_offsets([tp]))[tp] < end:
                    await asyncio.sleep(0.01)
            found: list[str] = []
            while await consumer.position(tp) < end:
                found += [(record.value or b"").decode() for record in await consumer.poll(100)]
            return found

    with LoopThread() as loop:
        return loop.run(read())


def open_state(address: str, transactional_id: str = "shop") -> str:
    """The state of the transaction that is open in the log; empty where none is."""
    with twofold.Admin(bootstrap_servers=address) as admin:
        found = admin.describe_transactions([transactional_id]).get()[transactional_id]
        return f"{found.producer_id}:{found.producer_epoch}" if found.is_ongoing else ""


def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    """Look until it is so."""
    never = threading.Event()
    for _ in range(int(seconds / 0.05)):
        if condition():
            return
        never.wait(0.05)
    raise AssertionError(f"not within {seconds} s: {condition}")


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'shop.db'}"


def broker_with_two_phase(data: Path | None = None) -> Broker:
    return Broker(data=None if data is None else str(data), settings=SETTINGS)
