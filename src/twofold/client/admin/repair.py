"""Markers that partitions have lost (a power cut took their last bytes): a part of `twofold.client.admin.admin.Admin`.

The broker compares what is asked for with the record of the transaction's coordinator in the turn in which it writes
the marker. A repair can therefore never end a transaction otherwise than it was decided. A broker of Apache Kafka does
not tell what was decided, so there is nothing to ask it for.
"""

from abc import ABC

from twofold.client.admin.transaction_model import RepairTransactionSpec
from twofold.client.cluster.cluster import Cluster
from twofold.wire.errors import InvalidTxnState, error_for
from twofold.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

ADMINISTRATOR = -1
"""The coordinator epoch of a marker that comes from no coordinator."""


class TransactionRepairCalls(ABC):
    _cluster: Cluster

    async def repair_transaction(self, spec: RepairTransactionSpec) -> None:
        """Write the marker of a decided transaction to a partition that has lost it. INVALID_TXN_STATE, and nothing is
        written, where it was not decided so, or is not open there any more."""
        topic = WritableTxnMarkerTopic(
            name=spec.tp.topic,
            partition_indexes=[spec.tp.partition],
            txn_start_offsets=[spec.start_offset],
            repair=True,
        )
        marker = WritableTxnMarker(
            producer_id=spec.producer_id,
            producer_epoch=spec.producer_epoch,
            transaction_result=spec.commit,
            topics=[topic],
            coordinator_epoch=ADMINISTRATOR,
        )
        deadline = self._cluster.deadline()

        async def attempt() -> None:
            leader = (await self._cluster.leader(spec.tp, deadline)).leader
            request = WriteTxnMarkersRequest(markers=[marker])
            response: WriteTxnMarkersResponse = await self._cluster.request(
                leader, request, "WriteTxnMarkers", deadline
            )
            code = response.markers[0].topics[0].partitions[0].error_code
            if code == InvalidTxnState.code:
                raise InvalidTxnState(
                    f"{spec.tp}: the transaction of producer {spec.producer_id}, epoch {spec.producer_epoch} that "
                    f"began at offset {spec.start_offset} has its marker meanwhile, or the coordinator's record does "
                    f"not show that it was {'committed' if spec.commit else 'aborted'}: nothing was written"
                )
            if code:
                raise error_for(code)(f"{spec.tp}: the marker of producer {spec.producer_id} was not written")

        await self._cluster.retry(f"WriteTxnMarkers to {spec.tp}", attempt, deadline)
