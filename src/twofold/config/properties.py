"""The syntax of a `.properties` file, as Java reads it.

1. A line ends at a line feed, a carriage return, or both. Blank lines and lines that begin with # or ! are comments.
2. An odd number of backslashes at the end of a line continues it on the next, whose leading blanks are dropped.
   A comment is never continued.
3. The key ends at the first =, : or blank that is not escaped; blanks around the separator are dropped.
4. Escapes: \\t \\n \\r \\f, \\uXXXX (a pair of them for a character beyond 16 bits), any other character is itself.
5. The last of two lines with one key wins.
"""

import re
from collections.abc import Iterator

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")


def parse_properties(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        values[_unescape(key, number)] = _unescape(value, number)
    return values


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    lines = iter(enumerate(_LINE_END.split(text), start=1))
    for number, natural in lines:
        line = natural.lstrip(_BLANKS)
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            _, following = next(lines, (0, ""))
            line = line[:-1] + following.lstrip(_BLANKS)
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=:" + _BLANKS:
        position += 2 if line[position] == "\\" else 1
    rest = line[position:].lstrip(_BLANKS)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANKS)
    return line[:position], rest


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    units: list[str] = []
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character != "\\":
            units.append(character)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            digits = text[position : position + 4]
            if not re.fullmatch("[0-9a-fA-F]{4}", digits):
                raise ValueError(f"line {number}: \\u{digits} is not \\u and four hexadecimal digits")
            units.append(chr(int(digits, 16)))
            position += 4
        else:
            units.append(_ESCAPES.get(escaped, escaped))
    # Java's escapes are UTF-16 units: two of them may be one character.
    return "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
