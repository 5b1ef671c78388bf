"""The consume-transform-produce loop as a program, with the client that it is told to use.

It reads numbers, writes each with the name of the attempt, and commits what it has read in the same transaction; some
transactions it aborts on purpose, in some it stops for longer than the transaction may last. It writes down what
happens, one line of JSON an event, before and after each step that decides something:

    open       a producer with its transactional id is there
    sent       an attempt's numbers are acknowledged, in this transaction
    aborting   it is going to abort the attempt; whatever comes, nothing of it may be read
    committing it is going to commit
    committed  the client was told so: all of it must be read
    refused    an error, by the name that the client gives it
    fenced     another instance has taken over; the program ends

SIGTERM lets it finish its transaction and leave.
"""

import faulthandler
import json
import logging
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from kits.clients.transactional import STOCK, Refused, Row, Source, TransactionalClient

OUTPUT_PARTITIONS = 3
POLL_S = 0.2
GIVE_UP_S = 90.0
"""Without a transaction for that long something is broken, and the test should hear of it."""


def client_of(options: SimpleNamespace) -> TransactionalClient:
    if options.client in STOCK:
        return STOCK[options.client](options.address)
    if options.client == "twofold":
        from kits.clients.ours import Twofold

        return Twofold(options.address)
    if options.client == "single-requests":
        from kits.clients.single_requests import SingleRequests

        return SingleRequests(options.address)
    from kits.clients.remote import Remote, RemoteClient

    return RemoteClient(Remote(options.command, options.address), owned=True)


def output_of(number: int, sources: int) -> int:
    """The partition of a number: neither all of a source's in one, nor in step with the sources."""
    return (number // sources) % OUTPUT_PARTITIONS


class Superseded(Exception):
    """The client was fenced and another instance is there."""


class Copier:
    def __init__(self, options: SimpleNamespace) -> None:
        self._options = options
        self._chance = random.Random(options.name)
        self._client = client_of(options)
        self._source = Source(options.group, options.input, options.sources, options.protocol)
        self._journal = Path(options.journal).open("a", buffering=1)  # noqa: SIM115 (as long as the process)
        self._attempts = 0
        self._committing = False
        self._stop = False
        signal.signal(signal.SIGTERM, self._ask_to_stop)

    def _ask_to_stop(self, *_: object) -> None:
        self._stop = True

    def _write(self, event: str, **what: Any) -> None:
        self._journal.write(json.dumps({"event": event, "time": time.monotonic(), **what}) + "\n")

    def run(self) -> None:
        try:
            self._open(lambda: self._client.open(self._options.id, self._options.timeout_ms, self._source))
            self._loop()
        except Superseded as error:
            self._write("fenced", error=str(error))
        self._client.close()
        self._write("left")

    def _loop(self) -> None:
        last = time.monotonic()
        while not self._stop:
            rows = self._poll()
            if not rows:
                continue
            if self._options.pause_s:
                time.sleep(self._options.pause_s)
            try:
                self._transaction(rows)
                last = time.monotonic()
            except Refused as error:
                self._refused(error)
                self._recover(rows, error)
            if time.monotonic() > last + GIVE_UP_S:
                raise RuntimeError(f"no transaction has succeeded for {GIVE_UP_S} s")

    def _poll(self) -> list[Row]:
        try:
            return self._client.poll(POLL_S)
        except Refused as error:
            self._refused(error)
            return []

    def _refused(self, error: Refused) -> None:
        self._write("refused", kind=error.kind, error=error.name, text=str(error)[:200])

    def _transaction(self, rows: list[Row]) -> None:
        self._attempts += 1
        attempt = f"{self._options.name}.{self._attempts}"
        numbers = [int(row.value) for row in rows]
        fate = self._fate()
        self._committing = False
        self._client.begin()
        values = [(output_of(number, self._options.sources), f"{number} {attempt}") for number in numbers]
        self._client.send(self._options.output, values)
        self._client.flush()
        self._write("sent", attempt=attempt, numbers=numbers, fate=fate)
        if fate == "abort":
            self._write("aborting", attempt=attempt)
            self._client.abort()
            self._client.rewind(firsts(rows))
            return
        if fate == "stall":
            time.sleep(self._options.timeout_ms / 1000 + 1)
        self._client.send_offsets(self._source.group, self._source.topic, nexts(rows))
        self._write("committing", attempt=attempt)
        self._committing = True
        if self._client.commit():
            self._write("committed", attempt=attempt)
        else:
            self._write("aborting", attempt=attempt)

    def _fate(self) -> str:
        if self._attempts in self._options.stalls:
            return "stall"
        return "abort" if self._chance.random() < self._options.abort_rate else "commit"

    def _recover(self, rows: list[Row], error: Refused) -> None:
        """Abort where the client says that it can; else begin anew, which ends whatever was open. A commit that failed
        may have happened: only the committed offsets of a new beginning tell."""
        if error.kind == "abortable" and not self._committing:
            try:
                self._client.abort()
                self._client.rewind(firsts(rows))
                return
            except Refused as second:
                self._refused(second)
                error = second
        self._open(self._client.reopen, because=error)

    def _open(self, attempt: Callable[[], None], because: Refused | None = None) -> None:
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            if because is not None and Path(self._options.superseded).exists():
                raise Superseded(because.name)
            try:
                attempt()
                self._write("open")
                return
            except Refused as error:
                self._refused(error)
                if self._stop or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def firsts(rows: list[Row]) -> dict[int, int]:
    return {row.partition: row.offset for row in reversed(rows)}


def nexts(rows: list[Row]) -> dict[int, int]:
    return {row.partition: row.offset + 1 for row in rows}


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("kafka.producer.transaction_manager").setLevel(logging.DEBUG)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it waits, for who asks
    Copier(SimpleNamespace(**json.loads(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
