"""ApiVersions: the ranges, the features, and the one request that may have any version."""

import struct
from typing import Any

from oracle.compare import Cases, Differs, Probe
from oracle.wire import decode_response, frame

CASES = Cases("ApiVersions")
case = CASES.case

SERVED = {
    *range(4), *range(8, 22), *range(23, 29), 32, 33, 35, 36, 37, 42, 44, 47, 57, 60, 61, 65, 66, 68, 69,
    74, 75,
}  # fmt: skip
"""The keys that this suite speaks and whose ranges agree; the others join with their features."""
INIT_PRODUCER_ID = 22
FEATURES = {"metadata.version", "transaction.version"}
CLIENT = {"client_software_name": "differential", "client_software_version": "1.0"}


def served(answer: dict[str, Any]) -> dict[str, Any]:
    kept = {"error_code": answer["error_code"]}
    kept["api_keys"] = [row for row in answer["api_keys"] if row["api_key"] in SERVED]
    return kept


def features(answer: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key in ("supported_features", "finalized_features"):
        kept[key] = [row for row in answer[key] if row["name"] in FEATURES]
    kept["epoch is known"] = answer["finalized_features_epoch"] >= 0
    return kept


def unsupported(probe: Probe, version: int) -> None:
    """Whatever the version, the answer is in the form of version 0 and the connection stays usable."""
    request = struct.pack(">hhih", 18, version, 7, -1) + b"\0\x02c\x022\0"
    connection = probe.connection
    connection.send_raw(frame(request))
    payload = connection.receive()
    assert payload is not None
    _, answer = decode_response("ApiVersions", 0, payload)
    probe.record(f"version {version}", answer)


@case()
def unknown_versions_are_told_the_known_ones(probe: Probe) -> None:
    for version in (5, 99, 32767, -1):
        unsupported(probe, version)


@case()
def the_connection_survives_an_unknown_version(probe: Probe) -> None:
    unsupported(probe, 99)
    probe.ask("then", "ApiVersions", 3, CLIENT, keep=lambda answer: answer["error_code"])
    probe.ask("and", "Metadata", 1, {"topics": []}, keep=lambda answer: len(answer["brokers"]))


@case()
def features_of_version_3_leave_out_those_from_level_0(probe: Probe) -> None:
    probe.ask("features", "ApiVersions", 3, CLIENT, keep=features)


TWO_MORE = Differs(
    "InitProducerId 6 and 7 are always served: two-phase commit and transaction heartbeats need no switch to be seen",
    [{"api_key": INIT_PRODUCER_ID, "min_version": 0, "max_version": 7}],
)


@case({"v0": TWO_MORE, "v4": TWO_MORE})
def init_producer_id_goes_further(probe: Probe) -> None:
    def keep(answer: dict[str, Any]) -> list[Any]:
        return [row for row in answer["api_keys"] if row["api_key"] == INIT_PRODUCER_ID]

    probe.ask("v0", "ApiVersions", 0, {}, keep=keep)
    probe.ask("v4", "ApiVersions", 4, CLIENT, keep=keep)


LEVEL_3 = Differs(
    "transaction.version 3 changes nothing but lets clients that demand it use two-phase commit",
    {"supported_features[1].max_version": 3},
)


@case({"features": LEVEL_3})
def features_of_version_4_are_complete(probe: Probe) -> None:
    probe.ask("features", "ApiVersions", 4, CLIENT, keep=features)


@case()
def client_software_is_checked(probe: Probe) -> None:
    for name, version in (
        ("apache-kafka-java", "4.3.1"),
        ("a", "b"),
        ("lib.rd-kafka", "2.6.0-rc1"),
        ("", "1.0"),
        ("name", ""),
        ("-name", "1.0"),
        ("name-", "1.0"),
        ("name", ".1"),
        ("name", "1."),
        ("na me", "1.0"),
        ("name", "1_0"),
        ("naïve", "1.0"),
    ):
        body = {"client_software_name": name, "client_software_version": version}
        for api_version in (3, 4):
            probe.ask(f"{name!r} {version!r} v{api_version}", "ApiVersions", api_version, body, keep=served)
