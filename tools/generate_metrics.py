"""Write the tables of docs/guide/metrics.md from `twofold.broker.metrics.families`.

python tools/generate_metrics.py            writes the tables
python tools/generate_metrics.py --check    exit code 1 where the page is not what the code says
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from twofold.broker.metrics.families import FAMILIES, Family

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "metrics.md"
BEGIN, END = "<!-- generated: {} -->", "<!-- end of generated -->"


def table(families: Iterable[Family]) -> str:
    lines = ["| metric | type | labels | what it tells |", "|---|---|---|---|"]
    for family in families:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        note = " Not in a released Kafka." if family.proposed else ""
        lines.append(f"| `{family.sample}` | {family.kind} | {labels} | {family.help}{note} |")
    return "\n".join(lines)


TABLES = {
    "kafka": table(family for family in FAMILIES if family.mbean),
    "twofold": table(family for family in FAMILIES if not family.mbean),
}


def page(text: str) -> str:
    for name, rows in TABLES.items():
        head, begin, rest = text.partition(BEGIN.format(name))
        _, end, tail = rest.partition(END)
        if not begin or not end:
            raise SystemExit(f"{PAGE} has no place for the table of {name}: {BEGIN.format(name)} ... {END}")
        text = f"{head}{begin}\n{rows}\n{end}{tail}"
    return text


def main() -> int:
    written = PAGE.read_text()
    wanted = page(written)
    if "--check" in sys.argv[1:]:
        return 0 if written == wanted else 1
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
