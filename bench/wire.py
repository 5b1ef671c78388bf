"""A raw connection for measurements: requests in a window of pipelined frames, answers decoded."""

import sys
from pathlib import Path
from typing import Any

from twofold.wire import codec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from oracle.driver import Connection

WINDOW = 20


class Client:
    def __init__(self, host: str, port: int) -> None:
        self.connection = Connection(host, port, timeout_s=60)

    def ask(self, message: object, key: int, version: int) -> Any:
        return self.many([message], key, version)[0]

    def many(self, messages: list[Any], key: int, version: int) -> list[Any]:
        answers: list[Any] = []
        waiting = 0
        for message in messages:
            self.connection.send_raw(bytes(codec.encode_request(message, key, version, 1, "bench")))
            waiting += 1
            if waiting == WINDOW:
                answers.append(self.receive(key, version))
                waiting -= 1
        answers += [self.receive(key, version) for _ in range(waiting)]
        return answers

    def repeat(self, message: object, key: int, version: int, times: int) -> int:
        """The same request over and over, answers not looked at; the bytes of one answer."""
        data = bytes(codec.encode_request(message, key, version, 1, "bench"))
        size = 0
        for number in range(times + WINDOW):
            if number < times:
                self.connection.send_raw(data)
            if number >= WINDOW:
                size = len(self.payload())
        return size

    def receive(self, key: int, version: int) -> Any:
        return codec.decode_response(key, version, self.payload())[1]

    def payload(self) -> bytes:
        payload = self.connection.receive()
        if payload is None:
            raise RuntimeError("the broker closed the connection")
        return payload

    def close(self) -> None:
        self.connection.close()
