"""`twofold` with a clock that is behind: `python late_clock.py SECONDS serve ...` is a broker of some time ago."""

import sys

from twofold.cli.main import main
from twofold.runtime.real import RealClock

if __name__ == "__main__":
    behind_ms = int(sys.argv[1]) * 1000
    told = RealClock.wall_ms
    RealClock.wall_ms = lambda self: told(self) - behind_ms  # type: ignore[method-assign]
    sys.exit(main(sys.argv[2:]))
