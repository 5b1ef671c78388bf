"""What a controller writes before anything else when it begins to lead."""

from collections.abc import Sequence

from twofold.controller.context import Answer
from twofold.controller.features import initial_levels
from twofold.controller.records import AbortTransaction, BeginTransaction, EndTransaction, MetadataRecord
from twofold.controller.replay import ControllerState
from twofold.machine.runtime import Result


def activate(state: ControllerState, bootstrap: Sequence[MetadataRecord] = ()) -> Answer[None]:
    """Abort what a predecessor left open, and give an empty log its first records.

    These are `bootstrap` if somebody has prepared the directory, else the levels of a new cluster. A log is empty as
    long as no stable state has a metadata.version: half of a bootstrap counts as none.
    """
    records: list[MetadataRecord] = []
    image = state.image
    if state.transaction is not None:
        records.append(AbortTransaction("Controller failover"))
        image = state.transaction.before
    if image.is_empty:
        records += [BeginTransaction("Bootstrap records"), *(bootstrap or initial_levels()), EndTransaction()]
    return Result(records, None)
