"""The faults that a test can ask a broker for.

`Faults` is the same for a broker in this process (`twofold.embedded.Broker.faults`) and for one that was started with
`twofold serve --test-faults` (`twofold.embedded.RemoteFaults`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twofold.wire.errors import KafkaError

PATIENCE_S = 10.0


class Faults:
    """Each call returns when the broker has done it. A name of an API is Kafka's: `Produce`, `Fetch`, `EndTxn`.

    Where `client_id` is given, only requests of clients with this `client.id` are meant. `times=None` means all
    requests until `clear`.
    """

    def _do(self, operation: str, **arguments: Any) -> Any:
        raise NotImplementedError

    # --- requests ---

    def fail_next(
        self,
        api: str,
        error: str | int | KafkaError | type[KafkaError],
        *,
        times: int | None = 1,
        client_id: str | None = None,
    ) -> None:
        """Answer the next requests of an API with an error, and do not carry them out.

        `error` is Kafka's name of it ("NOT_LEADER_OR_FOLLOWER"), its code, or its class.
        """
        named = error if isinstance(error, str | int) else error.code
        self._do("fail_next", api=api, error=named, times=times, client_id=client_id)

    def drop_next(
        self,
        api: str | None = None,
        *,
        handled: bool = False,
        times: int | None = 1,
        client_id: str | None = None,
    ) -> None:
        """Close the connection of the next requests instead of an answer.

        With `handled` a request is carried out first and only its answer is lost: the client cannot know. Without
        `api` all requests are meant: `drop_next(times=None, client_id="a")` cuts the client "a" off.
        """
        self._do("drop_next", api=api, handled=handled, times=times, client_id=client_id)

    def delay_next(
        self, api: str | None, seconds: float, *, times: int | None = 1, client_id: str | None = None
    ) -> None:
        """Begin the next requests so much later, on the broker's clock."""
        self._do("delay_next", api=api, seconds=seconds, times=times, client_id=client_id)

    def wait_for_request(self, api: str, *, client_id: str | None = None, timeout_s: float = PATIENCE_S) -> None:
        """Return when the broker has taken the next request of an API, or raise TimeoutError."""
        self._do("wait_for_request", api=api, client_id=client_id, timeout_s=timeout_s)

    # --- the network ---

    def drop_connections(self) -> int:
        """Close all connections of clients at once, and return how many there were. Clients may connect again."""
        return int(self._do("drop_connections"))

    def network_down(self) -> None:
        """Close all connections, and every new one, until `network_up`."""
        self._do("network_down")

    def network_up(self) -> None:
        self._do("network_up")

    @contextmanager
    def no_network(self) -> Iterator[None]:
        """`network_down` for the time of the block."""
        self.network_down()
        try:
            yield
        finally:
            self.network_up()

    # --- the process, the disk, the clock ---

    def stop(self) -> None:
        """Stop the broker, as SIGTERM does: what was asked is answered, and everything is on disk."""
        self._do("stop")

    def kill(self) -> None:
        """End the broker at once, as SIGKILL does: nothing is answered or written any more. The next start recovers."""
        self._do("kill")

    def pause(self) -> None:
        """Stop the broker where it is, as SIGSTOP does: connections stay, nothing is answered, until `resume`."""
        self._do("pause")

    def resume(self) -> None:
        self._do("resume")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """`pause` for the time of the block."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def slow_disk(self, *, read_s: float = 0.0, write_s: float = 0.0, sync_s: float = 0.0) -> None:
        """Each read, write and sync of a file takes so much longer. Without arguments the disk is as fast as it is."""
        self._do("slow_disk", read_s=read_s, write_s=write_s, sync_s=sync_s)

    def advance(self, seconds: float) -> None:
        """Move the broker's clock ahead, and return when every timeout that was due has had its turn.

        Clients do not live through that time: a session or a transaction whose timeout is shorter is ended.
        """
        self._do("advance", seconds=seconds)

    def clear(self) -> None:
        """Forget what was planned, resume, mend the network and the disk. The clock stays where it is."""
        self._do("clear")
