"""A client of one node that asks something small all the time, as a process of its own: how long it waits at most is
how long the node serves no client.

Prints `ready`; each line on its standard input is answered with the longest wait since the one before, in milliseconds.
"""

import subprocess
import sys
from pathlib import Path
from types import TracebackType

from bench.metadata_probes import API_VERSIONS, StallProbe
from bench.wire import Client
from twofold.wire.messages.api_versions import ApiVersionsRequest

ROOT = Path(__file__).parent.parent


class Pings:
    """The process, beside a measurement."""

    def __init__(self, host: str, port: int) -> None:
        command = [sys.executable, "-m", "bench.pings", host, str(port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise RuntimeError("no pings")

    def longest_ms(self) -> float:
        """Since it was asked last."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def __enter__(self) -> "Pings":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


def main() -> None:
    ping = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
    client = Client(sys.argv[1], int(sys.argv[2]))
    probe = StallProbe(client, ping, (API_VERSIONS, 3), lambda answer: int(answer.error_code))
    probe.start()
    print("ready", flush=True)
    for _ in sys.stdin:
        if probe.failure:
            raise RuntimeError(probe.failure)
        times, probe.times = probe.times, []
        print(max((answered - sent) * 1000 for sent, answered in times) if times else "inf", flush=True)


if __name__ == "__main__":
    main()
