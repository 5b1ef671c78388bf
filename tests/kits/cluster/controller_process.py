"""`ControllerNode` as a process: python controller_process.py DIRECTORY HOST PORT [key=value ...]."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from kits.cluster.controller_node import ControllerNode
from twofold.runtime.real import real_runtime


async def main(directory: str, host: str, port: str, *options: str) -> None:
    settings: dict[str, Any] = dict(option.split("=", 1) for option in options)
    node = await ControllerNode(real_runtime(), host=host, port=int(port), directory=directory, **settings).start()
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print("ready", flush=True)
    await stopped.wait()
    await node.stop()


asyncio.run(main(*sys.argv[1:]))
