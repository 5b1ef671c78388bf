"""A web shop on FastAPI whose table of orders and topic of orders stay in step.

    python examples/web_shop.py --orders 60

Each request writes a row and sends a record, both or neither, by `AsyncDualWritePool`: as many requests at once as the
pool has slots. The application is `make_app`. Below it a broker and a web server are started, and customers order, all
at once. Some orders have a number that is taken, and some requests fail after the row and the record were written.

At the end the table and the topic must have the same orders, each once, and only those that customers were told of.
"""

import argparse
import asyncio
import json
import socket
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel
from sqlalchemy import Column, MetaData, String, Table, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from twofold.client import Consumer, TopicPartition
from twofold.dualwrite import AsyncDualWritePool, DecidedNotVisible, NotDone, OutcomeUnknown
from twofold.embedded import Broker

TOPIC = "orders"
SLOTS = 4
CUSTOMERS = 12
BROKEN = "a broken cup"
orders = Table("orders", MetaData(), Column("number", String(20), primary_key=True), Column("item", String(80)))


# --- the application ---


class Order(BaseModel):
    """The customer chooses the number, so that an order that is sent again is the same order."""

    number: str
    item: str


def make_app(engine: AsyncEngine, address: str) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncDualWritePool(engine, bootstrap_servers=address, prefix="web", size=SLOTS) as pool:
            app.state.pool = pool
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def order(wanted: Order, response: Response) -> Order:
        try:
            async with app.state.pool.transaction() as (db, log):
                await db.execute(insert(orders).values(number=wanted.number, item=wanted.item))
                await log.send(TOPIC, wanted.item.encode(), key=wanted.number.encode())
                if wanted.item == BROKEN:
                    raise HTTPException(422, "we do not sell what is broken")
        except IntegrityError:
            raise HTTPException(409, "there is an order with this number") from None
        except NotDone:
            raise HTTPException(503, "nothing was ordered: order again", {"Retry-After": "1"}) from None
        except DecidedNotVisible:
            response.status_code = 202  # it is ordered, and the log shows it as soon as it can be reached
        except OutcomeUnknown:
            # With the same number: if it was done, the answer is 409.
            raise HTTPException(500, "it may have been ordered: order again with the same number") from None
        return wanted

    return app


# --- its customers ---


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """The address of the application on a web server of its own."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def order_all(address: str, count: int) -> tuple[list[str], Counter[int]]:
    """Every fifth order has the number of another one, and every seventh is for something broken. Returns those that
    customers were told of, and how often each answer came."""

    def buy(index: int) -> tuple[str, list[int]]:
        number = str(index - 1 if index % 5 == 4 else index)
        item = BROKEN if index % 7 == 6 else f"item {index}"
        answers = [post(f"{address}/orders", {"number": number, "item": item})]
        while answers[-1] == 503:
            answers.append(post(f"{address}/orders", {"number": number, "item": item}))
        return f"{number} {item}", answers

    with ThreadPoolExecutor(CUSTOMERS) as customers:
        bought = list(customers.map(buy, range(count)))
    accepted = sorted(order for order, answers in bought if answers[-1] in (201, 202))
    return accepted, Counter(status for _, answers in bought for status in answers)


def post(url: str, body: dict[str, str]) -> int:
    """The status of the answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def in_table(engine: AsyncEngine) -> list[str]:
    async with engine.connect() as connection:
        return sorted(f"{number} {item}" for number, item in await connection.execute(select(orders)))


async def in_topic(address: str) -> list[str]:
    tp = TopicPartition(TOPIC, 0)
    async with Consumer(bootstrap_servers=address, isolation_level="read_committed") as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        found: list[str] = []
        while (await consumer.lag())[tp]:
            found += [f"{(r.key or b'').decode()} {(r.value or b'').decode()}" for r in await consumer.poll(1_000)]
        return sorted(found)


def make_engine(path: Path) -> AsyncEngine:
    return create_async_engine(f"sqlite+aiosqlite:///{path}", connect_args={"timeout": 60})


async def prepare(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        await connection.run_sync(orders.metadata.create_all)
    await engine.dispose()  # the web server has an event loop of its own


async def look(engine: AsyncEngine, address: str) -> tuple[list[str], list[str]]:
    found = await in_table(engine), await in_topic(address)
    await engine.dispose()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="a web shop whose table and topic are in step")
    parser.add_argument("--orders", type=int, default=60)
    options = parser.parse_args()
    settings = {"transaction.two.phase.commit.enable": True}
    with tempfile.TemporaryDirectory(prefix="twofold-web-shop-") as name, Broker(settings=settings) as broker:
        broker.create_topic(TOPIC)
        path = Path(name) / "shop.db"
        asyncio.run(prepare(make_engine(path)))
        with served(make_app(make_engine(path), broker.bootstrap_servers)) as address:
            accepted, answers = order_all(address, options.orders)
        table, topic = asyncio.run(look(make_engine(path), broker.bootstrap_servers))
    print("answers:", ", ".join(f"{count} x {status}" for status, count in sorted(answers.items())))
    print(f"{len(accepted)} orders accepted, {len(table)} in the table, {len(topic)} in the topic")
    same = table == topic == accepted and len(accepted) > 0
    print("the same orders, each once" if same else "they differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
