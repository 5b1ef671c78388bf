"""`twofold txn ...` at a terminal, as a process: it asks, the world moves, somebody answers."""

import os
import pty
import subprocess
import sys
import threading
from typing import NamedTuple

QUESTION = "[y/N]"
PATIENCE_S = 60


class Answered(NamedTuple):
    stdout: str
    stderr: str  # with the question
    code: int


class Asked:
    """A command that has asked its question and waits. `answer` lets it go on; leaving the block ends it."""

    def __init__(self, bootstrap_servers: str, *words: str) -> None:
        self._ours, self._theirs = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "twofold", "txn", *words],
            stdin=self._theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "TWOFOLD_BOOTSTRAP_SERVER": bootstrap_servers},
        )
        self.question = ""

    def __enter__(self) -> "Asked":
        assert self._process.stderr is not None
        watchdog = threading.Timer(PATIENCE_S, self._process.kill)
        watchdog.start()
        try:
            while not self.question.endswith(QUESTION):
                letter = self._process.stderr.read(1)
                assert letter, f"it ended without a question: {self.question}"
                self.question += letter
        finally:
            watchdog.cancel()
        return self

    def answer(self, text: str) -> Answered:
        os.write(self._ours, f"{text}\n".encode())
        output, errors = self._process.communicate(timeout=PATIENCE_S)
        return Answered(output.strip(), self.question + errors, self._process.returncode)

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
        os.close(self._ours)
        os.close(self._theirs)
