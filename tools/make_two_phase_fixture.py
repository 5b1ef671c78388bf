"""Make a data folder with two-phase transactions in flight, to be kept under tests/fixtures.

    PYTHONPATH=<checkout of an earlier version>/src .venv/bin/python tools/make_two_phase_fixture.py NAME

The archive two-phase-NAME.tar.gz holds `data`, as a broker that was killed left it, and `states.json`: the prepared
states as their owners have stored them. The earlier version is whatever `import twofold` finds, so the script keeps to
what every version has. Archives are never made anew: a version that changes what is stored adds its own.
"""

import asyncio
import json
import os
import sys
import tarfile
import tempfile
from multiprocessing import Process
from pathlib import Path
from typing import Any

import twofold
from twofold.client import Admin, NewTopic, Producer
from twofold.embedded import Broker

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
SETTINGS = {
    "node.id": "1",
    "transaction.two.phase.commit.enable": "true",
    "transaction.heartbeat.enable": "true",
    # One coordinator of each kind is enough, and an archive of a hundred empty directories is of no use.
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}
TOPIC = "orders"


async def fill(servers: str) -> dict[str, str]:
    two_phase: dict[str, Any] = {"transaction_two_phase_commit_enable": True}
    beating = {"transaction_timeout_ms": 600_000, "transaction_heartbeat_interval_ms": 1000}

    async def begin(name: str, **options: Any) -> Producer:
        producer = Producer(bootstrap_servers=servers, transactional_id=name, **options)
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.send(TOPIC, name.encode(), partition=0))
        return producer

    async with Admin(bootstrap_servers=servers) as admin:
        (await admin.create_topics([NewTopic(name=TOPIC, num_partitions=1)])).get()
    states = {}
    for name in ("decided", "prepared", "kept"):
        producer = await begin(name, **two_phase)
        states[name] = str(await producer.prepare_transaction())
    for name in ("kept", "converted"):
        if name == "converted":
            identity = (await begin(name, **beating)).identity
            assert identity is not None
            states[name] = f"{identity.producer_id}:{identity.epoch}"
        heir = Producer(bootstrap_servers=servers, transactional_id=name, **two_phase)
        assert str(await heir.init_transactions(keep_prepared_txn=True)) == states[name]
    decider = Producer(bootstrap_servers=servers, transactional_id="decided", **two_phase)
    await decider.init_transactions(keep_prepared_txn=True)
    await decider.complete_transaction(states["decided"])
    await begin("beating", **beating)
    await begin("timed", transaction_timeout_ms=600_000)
    return states


def serve_and_die(directory: str) -> None:
    """The broker and its clients end as if the machine had been switched off."""
    broker = Broker(data=f"{directory}/data", settings=SETTINGS).start()
    states = asyncio.run(fill(broker.bootstrap_servers))
    Path(directory, "states.json").write_text(json.dumps(states, indent=1))
    os._exit(0)


def main(name: str) -> None:
    archive = FIXTURES / f"two-phase-{name}.tar.gz"
    with tempfile.TemporaryDirectory(prefix="two-phase-fixture-") as directory:
        child = Process(target=serve_and_die, args=(directory,))
        child.start()
        child.join(60)
        with tarfile.open(archive, "w:gz") as out:
            for entry in ("data", "states.json"):
                out.add(Path(directory, entry), entry, filter=without_owner)
    print(f"{archive.name}: {archive.stat().st_size} bytes, made by {twofold.__file__}")


def without_owner(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if entry.name in ("data/.reserve", "data/.lock"):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode |= 0o200  # snapshots of the metadata are read-only, and a copy has to go away again
    return entry


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
