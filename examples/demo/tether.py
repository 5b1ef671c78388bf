"""Runs Python code that ends with its parent: `python tether.py SCRIPT.py ...` or `python tether.py -m MODULE ...`.

Standard input is a pipe whose other end is in the parent and nowhere else. When the parent is gone, however it went,
the pipe is at its end, and this process kills itself and its group. Processes of Spark that have a group of their own
end with their JVM.
"""

import os
import runpy
import signal
import sys
import threading


def watch() -> None:
    while os.read(0, 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=watch, name="tether", daemon=True).start()
    del sys.argv[0]
    if sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
