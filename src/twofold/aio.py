"""The clients for asyncio: `async with twofold.aio.Producer(...) as producer`."""

from twofold.client import Admin, Consumer, Producer

__all__ = ["Admin", "Consumer", "Producer"]
