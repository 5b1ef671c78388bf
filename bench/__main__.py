"""`python -m bench [start] [throughput] [growth] [groups]`: all of them when none is named."""

import argparse

from bench import groups, growth, start, throughput
from bench.report import Report, console

SUITES = {"start": start.run, "throughput": throughput.run, "growth": growth.run, "groups": groups.run}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)} (default: all)")
    options = parser.parse_args()
    unknown = [name for name in options.suites if name not in SUITES]
    if unknown:
        parser.error(f"no suite {unknown[0]!r}: choose from {', '.join(SUITES)}")
    report = Report()
    for name in options.suites or SUITES:
        SUITES[name](report)
    console.print(f"[dim]results in {report.save()}")


if __name__ == "__main__":
    main()
