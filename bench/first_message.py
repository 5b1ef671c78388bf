"""The first message of a new group, by a stock client. It imports nothing of Twofold: its process is measured."""

import time


def first_message(bootstrap_servers: str) -> float:
    """Seconds until a consumer of a new group has a record that was sent before; the topic is made on the way."""
    from confluent_kafka import Consumer, Producer

    started = time.perf_counter()
    servers = {"bootstrap.servers": bootstrap_servers}
    producer = Producer(servers)
    producer.produce("first", b"first")
    assert producer.flush(60) == 0
    consumer = Consumer(servers | {"group.id": "new", "auto.offset.reset": "earliest"})
    consumer.subscribe(["first"])
    (message,) = consumer.consume(1, 60)
    assert message.value() == b"first"
    took = time.perf_counter() - started
    consumer.close()
    return took
