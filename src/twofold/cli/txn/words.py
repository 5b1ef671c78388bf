"""The words of `kafka-transactions.sh`, for users and scripts that know them. Pure.

Its verbs and flags are ours too; this page has what differs: options before the verb, verbs with dashes as KIP-664
showed them, names in camel case, and the form of its tables.
"""

from collections.abc import Iterable, Sequence

VERBS = ("list", "describe", "describe-producers", "find-hanging", "abort")
DASHED = {f"--{verb}": verb for verb in VERBS} | {"--forceTerminateTransaction": "terminate"}
OTHER_NAMES = {
    "forceTerminateTransaction": "terminate",
    "--transactionalId": "--transactional-id",
    "--broker": "--broker-id",
}
BEFORE_THE_VERB = ("--bootstrap-server", "-b", "--timeout", "--format")


def normalize(arguments: Sequence[str]) -> list[str]:
    """The words after `twofold txn` in the order and the spelling of our own commands."""
    renamed = [_renamed(word) for word in arguments]
    front: list[str] = []
    while renamed and renamed[0].partition("=")[0] in BEFORE_THE_VERB:
        count = 1 if "=" in renamed[0] else 2
        front += renamed[:count]
        renamed = renamed[count:]
    dashed = next((word for word in renamed if word in DASHED), None)
    if dashed is not None and renamed[0].startswith("-"):
        renamed.remove(dashed)
        renamed.insert(0, DASHED[dashed])
    return [*renamed[:1], *front, *renamed[1:]] if renamed else front


def _renamed(word: str) -> str:
    name, equals, value = word.partition("=")
    return f"{OTHER_NAMES.get(name, name)}{equals}{value}"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Every cell as wide as the widest of its column and followed by a tab, the last one too."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(lines)
