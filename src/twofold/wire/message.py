"""What the generated messages have in common.

They are plain classes with slots and a written-out `__init__`, not dataclasses: a broker that starts makes a hundred
of these classes, and a dataclass costs a millisecond to make. A message is not changed after it was made; `replace`
copies.
"""

from typing import Any, ClassVar, TypeVar

M = TypeVar("M", bound="Message")


class Message:
    __slots__: ClassVar[tuple[str, ...]] = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.__slots__)))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({values})"


def replace(message: M, **changes: Any) -> M:
    """A copy with some fields changed."""
    values = {name: getattr(message, name) for name in message.__slots__}
    return type(message)(**(values | changes))
