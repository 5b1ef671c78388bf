"""An operation of the controller at once, for tests that have no writer."""

from typing import TypeVar

from twofold.controller.context import Answer
from twofold.controller.operation import Operation, advance
from twofold.controller.records import MetadataRecord
from twofold.machine.runtime import Result

T = TypeVar("T")


def perform(operation: Operation[T]) -> Answer[T]:
    """The whole operation at once."""
    records: list[MetadataRecord] = []
    while True:
        response, is_done = advance(operation, records, 1000)
        if is_done:
            return Result(records, response)
