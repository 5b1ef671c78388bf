"""UpdateFeatures: levels up and down, and the updates that are refused. Every case leaves transaction.version at 2."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from oracle.compare import Cases, Differs, Probe
from oracle.wire import fit

CASES = Cases("features")
case = CASES.case

VERSIONS = (0, 1, 2)
UP, SAFE, UNSAFE = 1, 2, 3
TV, MV = "transaction.version", "metadata.version"
CLIENT = {"client_software_name": "differential", "client_software_version": "1.0"}

Update = tuple[str, int, int]


def body(version: int, *updates: Update, validate_only: bool = False, timeout: int = 10000) -> dict[str, Any]:
    rows = [
        {"feature": name, "max_version_level": level, "upgrade_type": kind, "allow_downgrade": kind != UP}
        for name, level, kind in updates
    ]
    values = {"timeout": timeout, "feature_updates": rows, "validate_only": validate_only}
    return fit("UpdateFeatures", version, values)


def update(probe: Probe, label: str, version: int, *updates: Update, **options: Any) -> None:
    probe.ask(f"{label} v{version}", "UpdateFeatures", version, body(version, *updates, **options))


def level(answer: dict[str, Any]) -> int:
    rows = [row for row in answer["finalized_features"] if row["name"] == TV]
    assert all(row["min_version_level"] == row["max_version_level"] for row in rows)
    return int(rows[0]["max_version_level"]) if rows else 0


def finalized(probe: Probe, label: str, wanted: int) -> int:
    """Record the level once it is known everywhere; return the epoch that came with it."""
    answer = probe.ask(
        label, "ApiVersions", 4, CLIENT, until=lambda answer: level(answer) == wanted, keep=lambda answer: level(answer)
    )
    return int(answer["finalized_features_epoch"])


@contextmanager
def restored(probe: Probe) -> Iterator[None]:
    """Other cases need the level that a cluster starts at."""
    try:
        yield
    finally:
        probe.tell("UpdateFeatures", 2, **body(2, (TV, 1, SAFE)))
        probe.tell("UpdateFeatures", 2, **body(2, (TV, 2, UP)))
        finalized(probe, "restored", 2)


@case()
def nothing_to_update(probe: Probe) -> None:
    for version in VERSIONS:
        update(probe, "nothing", version)
        update(probe, "nothing to validate", version, validate_only=True)


@case()
def unknown_features(probe: Probe) -> None:
    for version in VERSIONS:
        for name in ("no.such", "", "x" * 1000):
            for to, kind in ((1, UP), (0, UP), (0, SAFE)):
                update(probe, f"{name[:8]!r} to {to} type {kind}", version, (name, to, kind))


@case()
def the_level_that_holds(probe: Probe) -> None:
    for version in VERSIONS:
        for name, to in ((TV, 2), (MV, 30)):
            for kind in (UP, SAFE, UNSAFE):
                update(probe, f"{name} type {kind}", version, (name, to, kind))
    finalized(probe, "then", 2)


@case()
def levels_that_do_not_exist(probe: Probe) -> None:
    for version in VERSIONS:
        for to in (-1, -32768, 4, 99, 32767):
            for kind in (UP, SAFE, UNSAFE):
                update(probe, f"to {to} type {kind}", version, (TV, to, kind))


@case()
def upgrade_types_that_are_none(probe: Probe) -> None:
    for version in (1, 2):
        for kind in (0, 4, 127, -1):
            update(probe, f"type {kind}", version, (TV, 1, kind))
            update(probe, f"type {kind} to the same", version, (TV, 2, kind))


@case()
def a_downgrade_must_be_asked_for_as_one(probe: Probe) -> None:
    for version in VERSIONS:
        for to in (0, 1):
            update(probe, f"to {to}", version, (TV, to, UP))
    finalized(probe, "then", 2)


@case()
def version_0_does_not_downgrade(probe: Probe) -> None:
    for to in (0, 1):
        update(probe, f"allowed to {to}", 0, (TV, to, SAFE))
    finalized(probe, "then", 2)


@case()
def down_and_up_again(probe: Probe) -> None:
    with restored(probe):
        epochs = [finalized(probe, "at first", 2)]
        for version in (1, 2):
            for kind in (SAFE, UNSAFE):
                for to in (1, 0):
                    update(probe, f"to {to} type {kind}", version, (TV, to, kind))
                    epochs.append(finalized(probe, f"at {to} type {kind} v{version}", to))
                update(probe, f"up as type {kind}", version, (TV, 2, kind))
                update(probe, f"up after type {kind}", version, (TV, 2, UP))
                epochs.append(finalized(probe, f"up after type {kind} v{version}, seen", 2))
        probe.record("the epoch grew each time", [one < two for one, two in pairwise(epochs)])


@case()
def version_0_upgrades(probe: Probe) -> None:
    with restored(probe):
        update(probe, "down", 2, (TV, 0, SAFE))
        finalized(probe, "at 0", 0)
        update(probe, "up", 0, (TV, 2, UP))
        finalized(probe, "at 2", 2)


@case()
def validation_changes_nothing(probe: Probe) -> None:
    for version in (1, 2):
        update(probe, "down", version, (TV, 1, SAFE), validate_only=True)
        update(probe, "off", version, (TV, 0, UNSAFE), validate_only=True)
        update(probe, "refused", version, (TV, 1, UP), validate_only=True)
        update(probe, "unknown", version, ("no.such", 1, UP), validate_only=True)
    finalized(probe, "then", 2)


@case()
def one_refused_update_stops_all(probe: Probe) -> None:
    for version in (1, 2):
        update(probe, "good, bad", version, (TV, 1, SAFE), ("no.such", 1, UP))
        update(probe, "bad, good", version, ("no.such", 1, UP), (TV, 1, SAFE))
        update(probe, "bad, bad", version, ("no.such", 1, UP), (TV, 1, UP))
    finalized(probe, "then", 2)


@case()
def two_features_at_once(probe: Probe) -> None:
    with restored(probe):
        for version in (1, 2):
            update(probe, "down", version, ("group.version", 0, SAFE), (TV, 1, SAFE))
            finalized(probe, f"down v{version}, seen", 1)
            update(probe, "up", version, ("group.version", 1, UP), (TV, 2, UP))
            finalized(probe, f"up v{version}, seen", 2)


@case()
def of_a_feature_named_twice_the_last_counts(probe: Probe) -> None:
    with restored(probe):
        for version in (1, 2):
            update(probe, "down, same", version, (TV, 1, SAFE), (TV, 2, UP))
            finalized(probe, f"same v{version}", 2)
            update(probe, "same, down", version, (TV, 2, UP), (TV, 1, SAFE))
            finalized(probe, f"down v{version}", 1)
            update(probe, "up", version, (TV, 2, UP))
            finalized(probe, f"up v{version}, seen", 2)


GIVEN_UP = Differs(
    "KIP-778's unsafe downgrade is carried out: what the lower level cannot hold is gone",
    {"error_code": 0, "error_message": None},
)


@case({f"to {to} type {UNSAFE} v2": GIVEN_UP for to in (25, 29)})
def metadata_version_stays(probe: Probe) -> None:
    """At 30, which changed the metadata, no downgrade is safe; below 24 the other features would not hold either."""
    for to in (-1, 0, 1, 6, 7, 13, 25, 29, 31, 33, 99):
        for version in (1, 2):
            for kind in (UP, SAFE):
                update(probe, f"to {to} type {kind}", version, (MV, to, kind), validate_only=True)
                update(probe, f"to {to} type {kind}, meant", version, (MV, to, kind))
        update(probe, f"to {to} type {UNSAFE}", 2, (MV, to, UNSAFE), validate_only=True)


@case()
def the_timeout_is_not_looked_at(probe: Probe) -> None:
    for version in VERSIONS:
        for timeout in (0, -1, 1):
            update(probe, f"timeout {timeout}", version, (TV, 2, UP), timeout=timeout)


ONE_MORE = Differs(
    "transaction.version 3 changes nothing but lets clients that demand it use two-phase commit",
    {"error_code": 0, "error_message": None},
)


@case({"to 3 v2": ONE_MORE})
def level_3_of_transaction_version(probe: Probe) -> None:
    update(probe, "to 3", 2, (TV, 3, UP), validate_only=True)
    update(probe, "to 3 as a downgrade", 2, (TV, 3, SAFE), validate_only=True)
