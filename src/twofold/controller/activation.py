"""What a controller writes before anything else when it begins to lead.

| metadata.version                | a transaction is open | written                                              |
|---------------------------------|-----------------------|------------------------------------------------------|
| none yet, the first is >= 13    | no                    | Begin, the first records, End                        |
| none yet, the first is < 13     | no                    | the first records, in one batch                      |
| none yet, the first is >= 13    | yes                   | Abort, Begin, the first records, End                 |
| known, >= 13                    | yes                   | Abort                                                |
| known                           | no                    | nothing                                              |
| < 13                            | yes                   | nothing: such a log cannot be, and no node may lead it |

1. A log is empty as long as no stable state has a metadata.version: half of a bootstrap counts as none.
2. The first records are those that the directory was prepared with, else the levels of a new cluster. The
   level that counts is the one among them.
3. Eligible leader replicas need a min.insync.replicas that holds for the whole cluster, so one is added to them.
"""

from collections.abc import Sequence

from twofold.controller.context import Answer
from twofold.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, initial_levels, metadata_version
from twofold.controller.image import BROKER_RESOURCE, CLUSTER_DEFAULT, METADATA_VERSION
from twofold.controller.levels import TRANSACTIONS, describe
from twofold.controller.records import (
    AbortTransaction,
    BeginTransaction,
    Config,
    EndTransaction,
    FeatureLevel,
    MetadataRecord,
)
from twofold.controller.replay import ControllerState
from twofold.machine.runtime import Result
from twofold.metadata_log.errors import UnusableMetadata

MIN_INSYNC_REPLICAS = "min.insync.replicas"


def activate(
    state: ControllerState, bootstrap: Sequence[MetadataRecord] = (), *, min_insync_replicas: int = 1
) -> Answer[None]:
    """Abort what a predecessor left open, and give an empty log its first records."""
    problem = activation_problem(state, bootstrap)
    if problem is not None:
        raise UnusableMetadata(problem)
    image = state.image if state.transaction is None else state.transaction.before
    records: list[MetadataRecord] = [] if state.transaction is None else [AbortTransaction("Controller failover")]
    if image.is_empty:
        first = _first_records(bootstrap, min_insync_replicas)
        if _level(first) < TRANSACTIONS:
            records += first
        else:
            records += [BeginTransaction("Bootstrap records"), *first, EndTransaction()]
    return Result(records, None)


def activation_problem(state: ControllerState, bootstrap: Sequence[MetadataRecord] = ()) -> str | None:
    """Why no node may lead this log: what was found, and what to do. Asked before anything is written."""
    opened = state.transaction
    image = state.image if opened is None else opened.before
    level = _level(bootstrap or initial_levels()) if image.is_empty else metadata_version(image)
    if level == 0:
        return (
            f"the records that the directory was formatted with name no {METADATA_VERSION}: format it again with "
            "kafka-storage.sh format"
        )
    if opened is None or level >= TRANSACTIONS:
        return None
    found = (
        f"the metadata transaction that begins at offset {opened.start_offset} is open, and {METADATA_VERSION} "
        f"{describe(level)} knows no transactions, which come with {describe(TRANSACTIONS)}"
    )
    if image.is_empty:
        return (
            f"{found}: the log holds nothing else; remove its directory and format again with kafka-storage.sh format "
            "--release-version 3.6 or newer"
        )
    return f"{found}: let the software that wrote the log end it, or go back to a copy of the directory from before"


def _first_records(bootstrap: Sequence[MetadataRecord], min_insync_replicas: int) -> list[MetadataRecord]:
    records: list[MetadataRecord] = list(bootstrap or initial_levels())
    if _level(records, ELIGIBLE_LEADER_REPLICAS_VERSION):
        records.append(Config(BROKER_RESOURCE, CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS, str(min_insync_replicas)))
    return records


def _level(records: Sequence[MetadataRecord], name: str = METADATA_VERSION) -> int:
    """At which level the records leave a feature."""
    levels = [record.feature_level for record in records if isinstance(record, FeatureLevel) and record.name == name]
    return levels[-1] if levels else 0
