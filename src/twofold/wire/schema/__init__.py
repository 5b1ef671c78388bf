"""Where the schema of a message is: kio's, or for what kio lacks one of ours in its form.

`_OWN` names those of ours: TxnHeartbeat and InitProducerId 7 (KIP-1309, a draft; the API key is provisional),
InitProducerId 6 and 7 with the transaction that an administrator has seen,
AddPartitionsToTxn 5, whose answer also says which transactions are two-phase ones, DescribeTransactions, whose answers
kio does not always read and which tell how two-phase transactions ended, DescribeProducers, whose answers tell since
when transactions are open, and WriteTxnMarkers with the start offsets of KIP-664.
"""

import importlib

_OWN = {
    ("add_partitions_to_txn", 5): "add_partitions_to_txn_v5",
    ("describe_producers", 0): "describe_producers_v0",
    ("describe_transactions", 0): "describe_transactions_v0",
    ("init_producer_id", 6): "init_producer_id_v6",
    ("init_producer_id", 7): "init_producer_id_v7",
    ("txn_heartbeat", 0): "txn_heartbeat_v0",
    ("write_txn_markers", 1): "write_txn_markers_v1",
    ("write_txn_markers", 2): "write_txn_markers_v2",
}


def own_versions(api: str) -> list[int]:
    return [version for name, version in _OWN if name == api]


def schema_of(api: str, version: int, kind: str) -> type:
    """The class of a request or response; ModuleNotFoundError for a version that has no schema."""
    own = _OWN.get((api, version))
    name = f"kio.schema.{api}.v{version}.{kind}" if own is None else f"{__name__}.{own}"
    module = importlib.import_module(name)
    camel = "".join(part.capitalize() for part in api.split("_"))
    return getattr(module, camel + kind.capitalize())  # type: ignore[no-any-return]
