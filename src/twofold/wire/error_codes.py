"""Which error codes a response holds: at its top, and in its rows.

Most answers hold none, and all of them are looked at: the look is compiled for each class of messages into loops that
read nothing but the fields of error codes and what leads to them.
"""

import typing
from collections.abc import Callable, Sequence
from typing import Any

from .compile import entity_in

NAMES = ("error_code", "partition_error_code")  # and not topic_config_error_code, which is no failure


def compile_look(shape: type) -> Callable[[Any], Sequence[int]]:
    """A function that finds the codes which are not NONE, one per row, in messages of this class."""
    lines = _look(shape, "m", 1)
    if not lines:
        return _nothing
    source = "\n".join(["def look(m):", "    found = []", *lines, "    return found"])
    scope: dict[str, Any] = {}
    exec(compile(source, f"<error codes of {shape.__name__}>", "exec"), scope)
    look: Callable[[Any], Sequence[int]] = scope["look"]
    return look


def _nothing(_: Any) -> Sequence[int]:
    return ()


def _look(shape: type, name: str, depth: int) -> list[str]:
    """The lines that look into `name`, which is a message of this class."""
    indent = "    " * depth
    lines = []
    for field, hint in typing.get_type_hints(shape).items():
        if field in NAMES:
            lines.append(f"{indent}if {name}.{field}: found.append({name}.{field})")
            continue
        inner = entity_in(hint)
        if inner is None:
            continue
        row = f"r{depth}"
        of_row = _look(inner, row, depth + 1)
        if of_row:
            rows = f"{name}.{field} or ()" if _is_array(hint) else f"({name}.{field},) if {name}.{field} else ()"
            lines += [f"{indent}for {row} in {rows}:", *of_row]
    return lines


def _is_array(hint: Any) -> bool:
    return typing.get_origin(hint) is Sequence or any(map(_is_array, typing.get_args(hint)))
