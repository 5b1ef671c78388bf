"""The errors with which the transaction coordinator refuses a request, with what a user needs to see why."""

from collections.abc import Callable

from twofold.coordinator.transaction.records import TransactionMetadata
from twofold.coordinator.transaction.transitions import client_pair
from twofold.types import ProducerEpoch, ProducerId
from twofold.wire.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    UnsupportedVersion,
)


def check_id(transactional_id: str) -> None:
    """Call before the id is looked up: an empty one belongs to no coordinator."""
    if not transactional_id:
        raise InvalidRequest("the transactional id is empty")


class TooManyOpen(ConcurrentTransactions):
    """A principal has as many open transactions as it may have. Clients ask again, as for any transaction in the way;
    but nothing of this id is under way that a request could wait for."""


def check_room(transactional_id: str, principal: str, most: int, count: Callable[[str], int]) -> None:
    """Call where a transaction begins. `count` tells how many are open of a principal; 0 is no limit."""
    if most and (open_now := count(principal)) >= most:
        holder = repr(principal) if principal else "clients that did not log in"
        raise TooManyOpen(
            f"{transactional_id!r} cannot begin a transaction: {holder} may have {most:,} open here and have "
            f"{open_now:,}: quota.open.transactions.max"
        )


def being_aborted(transactional_id: str) -> KafkaError:
    """For a client that has no patience left while the transaction in its way is aborted."""
    return ConcurrentTransactions(f"the open transaction of {transactional_id!r} is being aborted")


def busy(transactional_id: str) -> KafkaError:
    return ConcurrentTransactions(f"the last transition of {transactional_id!r} is not finished")


def too_old(transactional_id: str, does: str, server_version: int) -> KafkaError:
    """Below TV2 the transactions of an id share a pair: a stored state would name them all."""
    return UnsupportedVersion(
        f"{transactional_id!r} {does}: that needs transaction.version 2, the cluster has {server_version}"
    )


def unknown(transactional_id: str) -> KafkaError:
    return InvalidProducerIdMapping(f"{transactional_id!r} has no producer id: it never had one, or it expired")


def wrong_id(transactional_id: str, entry: TransactionMetadata, producer_id: ProducerId) -> KafkaError:
    return InvalidProducerIdMapping(
        f"{transactional_id!r} has producer id {client_pair(entry)[0]}, the request {producer_id}"
    )


def fenced(
    transactional_id: str, entry: TransactionMetadata, producer_id: ProducerId, producer_epoch: ProducerEpoch
) -> KafkaError:
    holder, epoch = client_pair(entry)
    return ProducerFenced(
        f"{transactional_id!r} belongs to producer id {holder} with epoch {epoch}, the request has {producer_id} with "
        f"epoch {producer_epoch}"
    )


def wrong_state(transactional_id: str, entry: TransactionMetadata, commit: bool) -> KafkaError:
    verb = "committed" if commit else "aborted"
    return InvalidTxnState(f"the transaction of {transactional_id!r} is {entry.state.wire_name}: it cannot be {verb}")
