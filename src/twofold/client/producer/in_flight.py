"""How many requests are under way to each broker."""

import asyncio


class InFlight:
    __slots__ = ("_by_node", "_waiters")

    def __init__(self) -> None:
        self._by_node: dict[int, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def count(self, node_id: int) -> int:
        return self._by_node.get(node_id, 0)

    def sent(self, node_id: int) -> None:
        self._by_node[node_id] = self.count(node_id) + 1

    def answered(self, node_id: int) -> None:
        """A waiter of `none_left` runs in a later turn of the loop, so that the answer can be acted on before."""
        self._by_node[node_id] -= 1
        if self._waiters and not any(self._by_node.values()):
            self._tell()

    async def none_left(self) -> None:
        """Wait until no request is under way."""
        while any(self._by_node.values()):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def clear(self) -> None:
        """Answers are not waited for any more."""
        self._by_node.clear()
        self._tell()

    def _tell(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
