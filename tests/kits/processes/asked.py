"""`twofold ...` at a terminal, as a process: it asks, the world moves, somebody answers."""

import os
import pty
import threading
from collections.abc import Mapping
from typing import NamedTuple

from kits.processes.commands import Command, environment

QUESTION = "[y/N]"
PATIENCE_S = 60


class Answered(NamedTuple):
    stdout: str
    stderr: str  # with the question
    code: int


class Asked:
    """A command that has asked its question and waits. `answer` lets it go on; leaving the block ends it."""

    def __init__(self, bootstrap_servers: str, *words: str, env: Mapping[str, str] = {}) -> None:
        self._ours, theirs = pty.openpty()
        output, writing = os.pipe()
        errors, complaining = os.pipe()
        self._output, self._errors = os.fdopen(output), os.fdopen(errors)
        self._process = Command(
            words, stdin=theirs, stdout=writing, stderr=complaining, env=environment(bootstrap_servers, env)
        )
        for descriptor in (theirs, writing, complaining):
            os.close(descriptor)
        self.question = ""

    def __enter__(self) -> "Asked":
        watchdog = threading.Timer(PATIENCE_S, self._process.kill)
        watchdog.start()
        try:
            while not self.question.endswith(QUESTION):
                letter = self._errors.read(1)
                assert letter, f"it ended without a question: {self.question}"
                self.question += letter
        finally:
            watchdog.cancel()
        return self

    def answer(self, text: str) -> Answered:
        os.write(self._ours, f"{text}\n".encode())
        watchdog = threading.Timer(PATIENCE_S, self._process.kill)
        watchdog.start()
        try:
            output, errors = self._output.read(), self._errors.read()
        finally:
            watchdog.cancel()
        return Answered(output.strip(), self.question + errors, self._process.wait(PATIENCE_S))

    def __exit__(self, *_: object) -> None:
        self._process.__exit__(None, None, None)
        for stream in (self._output, self._errors):
            stream.close()
        os.close(self._ours)
