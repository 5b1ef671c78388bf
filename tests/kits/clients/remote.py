"""Transactional clients of other languages: a program that takes one JSON object a line and answers with one."""

import json
import os
import selectors
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from kits.clients.transactional import LIMIT, PATIENCE_S, SESSION_MS, Refused, Row, Source
from oracle.java_programs import program
from oracle.kafka import jars_or_skip, java_or_fail, oracle_flags
from oracle.processes import stop

INTEROP = Path(__file__).resolve().parents[2] / "interop"
GO_BUILD_S = 300
FENCED = {"ProducerFencedException", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}
"""What its client treats as the end. The Java producer recovers from InvalidProducerEpochException with an abort."""


def java_command() -> list[str]:
    jars = jars_or_skip()
    return [java_or_fail(), *oracle_flags(jars), *program(INTEROP / "java" / "TransactionalClient.java", jars)]


def go_command() -> list[str]:
    return go_program("client")


def go_program(name: str) -> list[str]:
    """The program is built once and kept; a machine without Go or without a way to the modules skips."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("franz-go needs Go 1.26 or newer: install it from go.dev/dl")
    built = INTEROP.parents[1] / ".cache" / f"franz-{name}"
    built.parent.mkdir(parents=True, exist_ok=True)
    command = [go, "build", "-buildvcs=false", "-o", str(built), "." if name == "client" else f"./{name}"]
    done = subprocess.run(command, cwd=INTEROP / "go", capture_output=True, text=True, timeout=GO_BUILD_S, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        pytest.skip(f"franz-go could not be built (Go 1.26 or newer and its module proxy are needed): {reason}")
    return [str(built)]


class Remote:
    """The program, and the answers to what it is asked."""

    def __init__(self, command: Sequence[str], address: str, env: Mapping[str, str] = {}) -> None:
        setpriv = shutil.which("setpriv")
        prefix = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        self._process = subprocess.Popen(
            [*prefix, *command, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | dict(env),
        )
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        self._rest = b""

    def ask(self, question: dict[str, Any], patience_s: float = 2 * PATIENCE_S) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line(patience_s))
        if "error" in answer:
            names = answer["error"]
            kind = "fenced" if FENCED & set(names) else "abortable"
            raise Refused(kind, names[0], answer.get("text", ""))
        return answer

    def _line(self, patience_s: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            if not self._selector.select(patience_s):
                raise Refused("fatal", "Timeout", f"no answer within {patience_s} s")
            chunk = os.read(self._process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise Refused("fatal", "Ended", f"the client ended with {self._process.wait(5)}")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def stop(self) -> None:
        stop(self._process)
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class RemoteClient:
    """One handle of a program. The program may be shared; who owns it alone stops it with the client."""

    _count = 0

    def __init__(self, remote: Remote, *, owned: bool = False) -> None:
        RemoteClient._count += 1
        self._remote, self._owned = remote, owned
        self._handle = f"{RemoteClient._count}"

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        return self._remote.ask({"op": op, "handle": self._handle, **fields})

    def open(self, transactional_id: str, timeout_ms: int, source: Source | None = None) -> None:
        reading: dict[str, Any] = {}
        if source is not None:
            reading = {"group": source.group, "topic": source.topic, "limit": LIMIT, "session_ms": SESSION_MS}
            reading["protocol"] = source.protocol
        self._topic = source.topic if source is not None else ""
        self._ask("open", id=transactional_id, timeout_ms=timeout_ms, **reading)

    def reopen(self) -> None:
        self._ask("reopen")

    def begin(self) -> None:
        self._ask("begin")

    def send(self, topic: str, rows: Sequence[tuple[int, str]]) -> None:
        self._ask("send", topic=topic, rows=rows)

    def flush(self) -> None:
        self._ask("flush")

    def send_offsets(self, group: str, topic: str, positions: Mapping[int, int]) -> None:
        self._ask("offsets", group=group, topic=topic, positions=list(positions.items()))

    def commit(self) -> bool:
        return bool(self._ask("commit").get("committed", True))

    def abort(self) -> None:
        self._ask("abort")

    def poll(self, wait_s: float) -> list[Row]:
        rows = self._ask("poll", wait_ms=int(wait_s * 1000), limit=LIMIT).get("rows") or []
        return [Row(*row) for row in rows]

    def rewind(self, positions: Mapping[int, int]) -> None:
        self._ask("rewind", topic=self._topic, positions=list(positions.items()))

    def read(self, topic: str, partitions: int, *, committed: bool) -> list[Row]:
        rows = self._ask("read", topic=topic, partitions=partitions, committed=committed).get("rows") or []
        return [Row(*row) for row in rows]

    def close(self) -> None:
        try:
            self._ask("close")
        except Refused:
            pass
        finally:
            if self._owned:
                self._remote.stop()
