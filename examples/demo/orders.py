"""The stream of orders: what an order is, what the products are, and the stock client that sends them."""

import itertools
import json
import random
import threading
import time
from dataclasses import asdict, dataclass

from confluent_kafka import Producer

CUSTOMERS = 40
# product -> (name, price in cents)
PRODUCTS = {
    "p1": ("espresso", 220),
    "p2": ("cappuccino", 340),
    "p3": ("filter coffee", 290),
    "p4": ("croissant", 260),
    "p5": ("carrot cake", 450),
}


@dataclass(frozen=True, slots=True)
class Order:
    order_id: int
    customer: str
    product: str
    quantity: int


@dataclass(frozen=True, slots=True)
class Sent:
    """An order that the broker has acknowledged, and its timestamp."""

    order: Order
    at_ms: int


class Generator(threading.Thread):
    """Sends orders at a steady rate until it is stopped; a broker that is away for a while gets them later."""

    def __init__(self, client: dict[str, str], topic: str, per_second: float) -> None:
        """`client`: settings of confluent-kafka that reach the broker."""
        super().__init__(name="orders", daemon=True)
        self.acknowledged: list[Sent] = []
        self.refused: list[str] = []
        self._topic, self._per_second = topic, per_second
        self._producer = Producer(client | {"enable.idempotence": True, "linger.ms": 20, "log_level": 0})
        self._over = threading.Event()

    def run(self) -> None:
        chance = random.Random(8)
        started = time.monotonic()
        for number in itertools.count():
            while (early_s := started + number / self._per_second - time.monotonic()) > 0 and not self._over.is_set():
                self._producer.poll(min(early_s, 0.1))
            if self._over.is_set():
                return
            self._send(
                Order(
                    order_id=number,
                    customer=f"customer-{chance.randrange(CUSTOMERS)}",
                    product=chance.choice(list(PRODUCTS)),
                    quantity=chance.randint(1, 4),
                )
            )

    def stop(self) -> None:
        """Returns when the broker has everything."""
        self.abandon()
        if left := self._producer.flush(60):
            self.refused.append(f"{left} orders were never acknowledged")

    def abandon(self) -> None:
        """Does not wait for the broker."""
        self._over.set()
        if self.is_alive():
            self.join()

    def _send(self, order: Order) -> None:
        at_ms = time.time_ns() // 1_000_000

        def on_delivery(error, message):
            if error is None:
                self.acknowledged.append(Sent(order, at_ms))
            else:
                self.refused.append(str(error))

        value = json.dumps(asdict(order))
        self._producer.produce(self._topic, value, order.customer, timestamp=at_ms, on_delivery=on_delivery)
