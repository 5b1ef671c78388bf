"""Kills a process when a log has grown to a size: a process of its own, for which nobody's threads are in the way.

    python metadata_kills_watch.py PID DIRECTORY BYTES DELAY_S

It says `ready` and, once it has killed, when that was. Nothing is left to do for it when the process has ended.
"""

import os
import signal
import sys
import time


def size_of(directory: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(directory) if entry.name.endswith(".log"))


def main() -> None:
    pid, directory, wanted, delay_s = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    print("ready", flush=True)
    while size_of(directory) < wanted:
        time.sleep(0.0003)
    time.sleep(delay_s)
    began = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    print(began, flush=True)


if __name__ == "__main__":
    main()
