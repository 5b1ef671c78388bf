"""Copies the topic `in` to `out` with Quix Streams, exactly once: address, directory of the state, session in ms."""

import sys

from quixstreams import Application

address, state, session_ms = sys.argv[1:]
app = Application(
    broker_address=address,
    consumer_group="quix",
    processing_guarantee="exactly-once",
    commit_interval=0.3,
    auto_offset_reset="earliest",
    state_dir=state,
    consumer_extra_config={"session.timeout.ms": int(session_ms), "heartbeat.interval.ms": 1000},
)
texts = {"key_deserializer": "str", "value_deserializer": "str"}
rows = app.dataframe(app.topic("in", **texts))
rows.to_topic(app.topic("out", key_serializer="str", value_serializer="str"))
app.run()
