"""Every error of the protocol, as one class tree.

    KafkaError
     +- RetriableError    the same request may succeed later, perhaps at another broker
     +- AbortableError    a transactional producer must abort the transaction, and may go on after that
     +- FatalError        a producer that gets it must be closed
     +- (the rest)        the request itself is wrong, or asks for what is not there

Which class an error of a transaction belongs to is what the stock producer does with it. A message names the id, the
two values that disagree and the setting to change.
"""

from typing import ClassVar

MAX_MESSAGE = 2000  # characters


class KafkaError(Exception):
    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False
    abortable: ClassVar[bool] = False
    fatal: ClassVar[bool] = False

    def __init__(self, message: str = "") -> None:
        if len(message) > MAX_MESSAGE:
            # It quotes what a client sent, perhaps at length, and must fit into the answer's field of 32 KB.
            message = message[:MAX_MESSAGE] + "..."
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


class RetriableError(KafkaError):
    retriable = True


class AbortableError(KafkaError):
    abortable = True


class FatalError(KafkaError):
    fatal = True


class UnknownServerError(KafkaError):
    code = -1
    name = "UNKNOWN_SERVER_ERROR"


class OffsetOutOfRange(KafkaError):
    code = 1
    name = "OFFSET_OUT_OF_RANGE"


class CorruptMessage(RetriableError):
    code = 2
    name = "CORRUPT_MESSAGE"


class UnknownTopicOrPartition(RetriableError):
    code = 3
    name = "UNKNOWN_TOPIC_OR_PARTITION"


class InvalidFetchSize(KafkaError):
    code = 4
    name = "INVALID_FETCH_SIZE"


class LeaderNotAvailable(RetriableError):
    code = 5
    name = "LEADER_NOT_AVAILABLE"


class NotLeaderOrFollower(RetriableError):
    code = 6
    name = "NOT_LEADER_OR_FOLLOWER"


class RequestTimedOut(RetriableError):
    code = 7
    name = "REQUEST_TIMED_OUT"


class BrokerNotAvailable(KafkaError):
    code = 8
    name = "BROKER_NOT_AVAILABLE"


class ReplicaNotAvailable(RetriableError):
    code = 9
    name = "REPLICA_NOT_AVAILABLE"


class MessageTooLarge(KafkaError):
    code = 10
    name = "MESSAGE_TOO_LARGE"


class StaleControllerEpoch(KafkaError):
    code = 11
    name = "STALE_CONTROLLER_EPOCH"


class OffsetMetadataTooLarge(KafkaError):
    code = 12
    name = "OFFSET_METADATA_TOO_LARGE"


class NetworkException(RetriableError):
    code = 13
    name = "NETWORK_EXCEPTION"


class CoordinatorLoadInProgress(RetriableError):
    code = 14
    name = "COORDINATOR_LOAD_IN_PROGRESS"


class CoordinatorNotAvailable(RetriableError):
    code = 15
    name = "COORDINATOR_NOT_AVAILABLE"


class NotCoordinator(RetriableError):
    code = 16
    name = "NOT_COORDINATOR"


class InvalidTopicException(KafkaError):
    code = 17
    name = "INVALID_TOPIC_EXCEPTION"


class RecordListTooLarge(KafkaError):
    code = 18
    name = "RECORD_LIST_TOO_LARGE"


class NotEnoughReplicas(RetriableError):
    code = 19
    name = "NOT_ENOUGH_REPLICAS"


class NotEnoughReplicasAfterAppend(RetriableError):
    code = 20
    name = "NOT_ENOUGH_REPLICAS_AFTER_APPEND"


class InvalidRequiredAcks(KafkaError):
    code = 21
    name = "INVALID_REQUIRED_ACKS"


class IllegalGeneration(AbortableError):
    code = 22
    name = "ILLEGAL_GENERATION"


class InconsistentGroupProtocol(KafkaError):
    code = 23
    name = "INCONSISTENT_GROUP_PROTOCOL"


class InvalidGroupId(KafkaError):
    code = 24
    name = "INVALID_GROUP_ID"


class UnknownMemberId(AbortableError):
    code = 25
    name = "UNKNOWN_MEMBER_ID"


class InvalidSessionTimeout(KafkaError):
    code = 26
    name = "INVALID_SESSION_TIMEOUT"


class RebalanceInProgress(KafkaError):
    code = 27
    name = "REBALANCE_IN_PROGRESS"


class InvalidCommitOffsetSize(KafkaError):
    code = 28
    name = "INVALID_COMMIT_OFFSET_SIZE"


class TopicAuthorizationFailed(KafkaError):
    code = 29
    name = "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationFailed(KafkaError):
    code = 30
    name = "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(FatalError):
    code = 31
    name = "CLUSTER_AUTHORIZATION_FAILED"


class InvalidTimestamp(KafkaError):
    code = 32
    name = "INVALID_TIMESTAMP"


class UnsupportedSaslMechanism(KafkaError):
    code = 33
    name = "UNSUPPORTED_SASL_MECHANISM"


class IllegalSaslState(KafkaError):
    code = 34
    name = "ILLEGAL_SASL_STATE"


class UnsupportedVersion(FatalError):
    code = 35
    name = "UNSUPPORTED_VERSION"


class TopicAlreadyExists(KafkaError):
    code = 36
    name = "TOPIC_ALREADY_EXISTS"


class InvalidPartitions(KafkaError):
    code = 37
    name = "INVALID_PARTITIONS"


class InvalidReplicationFactor(KafkaError):
    code = 38
    name = "INVALID_REPLICATION_FACTOR"


class InvalidReplicaAssignment(KafkaError):
    code = 39
    name = "INVALID_REPLICA_ASSIGNMENT"


class InvalidConfig(KafkaError):
    code = 40
    name = "INVALID_CONFIG"


class NotController(RetriableError):
    code = 41
    name = "NOT_CONTROLLER"


class InvalidRequest(KafkaError):
    code = 42
    name = "INVALID_REQUEST"


class UnsupportedForMessageFormat(FatalError):
    code = 43
    name = "UNSUPPORTED_FOR_MESSAGE_FORMAT"


class PolicyViolation(KafkaError):
    code = 44
    name = "POLICY_VIOLATION"


class OutOfOrderSequenceNumber(AbortableError):
    code = 45
    name = "OUT_OF_ORDER_SEQUENCE_NUMBER"


class DuplicateSequenceNumber(KafkaError):
    code = 46
    name = "DUPLICATE_SEQUENCE_NUMBER"


class InvalidProducerEpoch(AbortableError):
    code = 47
    name = "INVALID_PRODUCER_EPOCH"


class InvalidTxnState(FatalError):
    code = 48
    name = "INVALID_TXN_STATE"


class InvalidProducerIdMapping(FatalError):
    code = 49
    name = "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeout(KafkaError):
    code = 50
    name = "INVALID_TRANSACTION_TIMEOUT"


class ConcurrentTransactions(RetriableError):
    code = 51
    name = "CONCURRENT_TRANSACTIONS"


class TransactionCoordinatorFenced(FatalError):
    code = 52
    name = "TRANSACTION_COORDINATOR_FENCED"


class TransactionalIdAuthorizationFailed(FatalError):
    code = 53
    name = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class SecurityDisabled(KafkaError):
    code = 54
    name = "SECURITY_DISABLED"


class OperationNotAttempted(AbortableError):
    code = 55
    name = "OPERATION_NOT_ATTEMPTED"


class KafkaStorageError(RetriableError):
    code = 56
    name = "KAFKA_STORAGE_ERROR"


class LogDirNotFound(KafkaError):
    code = 57
    name = "LOG_DIR_NOT_FOUND"


class SaslAuthenticationFailed(FatalError):
    code = 58
    name = "SASL_AUTHENTICATION_FAILED"


class UnknownProducerId(KafkaError):
    code = 59
    name = "UNKNOWN_PRODUCER_ID"


class ReassignmentInProgress(KafkaError):
    code = 60
    name = "REASSIGNMENT_IN_PROGRESS"


class DelegationTokenAuthDisabled(KafkaError):
    code = 61
    name = "DELEGATION_TOKEN_AUTH_DISABLED"


class DelegationTokenNotFound(KafkaError):
    code = 62
    name = "DELEGATION_TOKEN_NOT_FOUND"


class DelegationTokenOwnerMismatch(KafkaError):
    code = 63
    name = "DELEGATION_TOKEN_OWNER_MISMATCH"


class DelegationTokenRequestNotAllowed(KafkaError):
    code = 64
    name = "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"


class DelegationTokenAuthorizationFailed(KafkaError):
    code = 65
    name = "DELEGATION_TOKEN_AUTHORIZATION_FAILED"


class DelegationTokenExpired(KafkaError):
    code = 66
    name = "DELEGATION_TOKEN_EXPIRED"


class InvalidPrincipalType(KafkaError):
    code = 67
    name = "INVALID_PRINCIPAL_TYPE"


class NonEmptyGroup(KafkaError):
    code = 68
    name = "NON_EMPTY_GROUP"


class GroupIdNotFound(AbortableError):
    code = 69
    name = "GROUP_ID_NOT_FOUND"


class FetchSessionIdNotFound(RetriableError):
    code = 70
    name = "FETCH_SESSION_ID_NOT_FOUND"


class InvalidFetchSessionEpoch(RetriableError):
    code = 71
    name = "INVALID_FETCH_SESSION_EPOCH"


class ListenerNotFound(RetriableError):
    code = 72
    name = "LISTENER_NOT_FOUND"


class TopicDeletionDisabled(KafkaError):
    code = 73
    name = "TOPIC_DELETION_DISABLED"


class FencedLeaderEpoch(RetriableError):
    code = 74
    name = "FENCED_LEADER_EPOCH"


class UnknownLeaderEpoch(RetriableError):
    code = 75
    name = "UNKNOWN_LEADER_EPOCH"


class UnsupportedCompressionType(KafkaError):
    code = 76
    name = "UNSUPPORTED_COMPRESSION_TYPE"


class StaleBrokerEpoch(KafkaError):
    code = 77
    name = "STALE_BROKER_EPOCH"


class OffsetNotAvailable(RetriableError):
    code = 78
    name = "OFFSET_NOT_AVAILABLE"


class MemberIdRequired(KafkaError):
    code = 79
    name = "MEMBER_ID_REQUIRED"


class PreferredLeaderNotAvailable(RetriableError):
    code = 80
    name = "PREFERRED_LEADER_NOT_AVAILABLE"


class GroupMaxSizeReached(KafkaError):
    code = 81
    name = "GROUP_MAX_SIZE_REACHED"


class FencedInstanceId(AbortableError):
    code = 82
    name = "FENCED_INSTANCE_ID"


class EligibleLeadersNotAvailable(RetriableError):
    code = 83
    name = "ELIGIBLE_LEADERS_NOT_AVAILABLE"


class ElectionNotNeeded(RetriableError):
    code = 84
    name = "ELECTION_NOT_NEEDED"


class NoReassignmentInProgress(KafkaError):
    code = 85
    name = "NO_REASSIGNMENT_IN_PROGRESS"


class GroupSubscribedToTopic(KafkaError):
    code = 86
    name = "GROUP_SUBSCRIBED_TO_TOPIC"


class InvalidRecord(KafkaError):
    code = 87
    name = "INVALID_RECORD"

    def __init__(self, message: str = "", record_errors: tuple[tuple[int, str], ...] = ()) -> None:
        """`record_errors`: (index in the batch, what is wrong with it), for Produce version 8 and above."""
        super().__init__(message)
        self.record_errors = record_errors


class UnstableOffsetCommit(RetriableError):
    code = 88
    name = "UNSTABLE_OFFSET_COMMIT"


class ThrottlingQuotaExceeded(RetriableError):
    code = 89
    name = "THROTTLING_QUOTA_EXCEEDED"


class ProducerFenced(FatalError):
    code = 90
    name = "PRODUCER_FENCED"


class ResourceNotFound(KafkaError):
    code = 91
    name = "RESOURCE_NOT_FOUND"


class DuplicateResource(KafkaError):
    code = 92
    name = "DUPLICATE_RESOURCE"


class UnacceptableCredential(KafkaError):
    code = 93
    name = "UNACCEPTABLE_CREDENTIAL"


class InconsistentVoterSet(KafkaError):
    code = 94
    name = "INCONSISTENT_VOTER_SET"


class InvalidUpdateVersion(KafkaError):
    code = 95
    name = "INVALID_UPDATE_VERSION"


class FeatureUpdateFailed(KafkaError):
    code = 96
    name = "FEATURE_UPDATE_FAILED"


class PrincipalDeserializationFailure(KafkaError):
    code = 97
    name = "PRINCIPAL_DESERIALIZATION_FAILURE"


class SnapshotNotFound(KafkaError):
    code = 98
    name = "SNAPSHOT_NOT_FOUND"


class PositionOutOfRange(KafkaError):
    code = 99
    name = "POSITION_OUT_OF_RANGE"


class UnknownTopicId(RetriableError):
    code = 100
    name = "UNKNOWN_TOPIC_ID"


class DuplicateBrokerRegistration(KafkaError):
    code = 101
    name = "DUPLICATE_BROKER_REGISTRATION"


class BrokerIdNotRegistered(KafkaError):
    code = 102
    name = "BROKER_ID_NOT_REGISTERED"


class InconsistentTopicId(RetriableError):
    code = 103
    name = "INCONSISTENT_TOPIC_ID"


class InconsistentClusterId(KafkaError):
    code = 104
    name = "INCONSISTENT_CLUSTER_ID"


class TransactionalIdNotFound(KafkaError):
    code = 105
    name = "TRANSACTIONAL_ID_NOT_FOUND"


class FetchSessionTopicIdError(RetriableError):
    code = 106
    name = "FETCH_SESSION_TOPIC_ID_ERROR"


class IneligibleReplica(KafkaError):
    code = 107
    name = "INELIGIBLE_REPLICA"


class NewLeaderElected(KafkaError):
    code = 108
    name = "NEW_LEADER_ELECTED"


class OffsetMovedToTieredStorage(KafkaError):
    code = 109
    name = "OFFSET_MOVED_TO_TIERED_STORAGE"


class FencedMemberEpoch(KafkaError):
    code = 110
    name = "FENCED_MEMBER_EPOCH"


class UnreleasedInstanceId(KafkaError):
    code = 111
    name = "UNRELEASED_INSTANCE_ID"


class UnsupportedAssignor(KafkaError):
    code = 112
    name = "UNSUPPORTED_ASSIGNOR"


class StaleMemberEpoch(AbortableError):
    code = 113
    name = "STALE_MEMBER_EPOCH"


class MismatchedEndpointType(KafkaError):
    code = 114
    name = "MISMATCHED_ENDPOINT_TYPE"


class UnsupportedEndpointType(KafkaError):
    code = 115
    name = "UNSUPPORTED_ENDPOINT_TYPE"


class UnknownControllerId(KafkaError):
    code = 116
    name = "UNKNOWN_CONTROLLER_ID"


class UnknownSubscriptionId(KafkaError):
    code = 117
    name = "UNKNOWN_SUBSCRIPTION_ID"


class TelemetryTooLarge(KafkaError):
    code = 118
    name = "TELEMETRY_TOO_LARGE"


class InvalidRegistration(KafkaError):
    code = 119
    name = "INVALID_REGISTRATION"


class TransactionAbortable(AbortableError):
    code = 120
    name = "TRANSACTION_ABORTABLE"


class InvalidRecordState(KafkaError):
    code = 121
    name = "INVALID_RECORD_STATE"


class ShareSessionNotFound(RetriableError):
    code = 122
    name = "SHARE_SESSION_NOT_FOUND"


class InvalidShareSessionEpoch(RetriableError):
    code = 123
    name = "INVALID_SHARE_SESSION_EPOCH"


class FencedStateEpoch(KafkaError):
    code = 124
    name = "FENCED_STATE_EPOCH"


class InvalidVoterKey(KafkaError):
    code = 125
    name = "INVALID_VOTER_KEY"


class DuplicateVoter(KafkaError):
    code = 126
    name = "DUPLICATE_VOTER"


class VoterNotFound(KafkaError):
    code = 127
    name = "VOTER_NOT_FOUND"


class InvalidRegularExpression(KafkaError):
    code = 128
    name = "INVALID_REGULAR_EXPRESSION"


class RebootstrapRequired(KafkaError):
    code = 129
    name = "REBOOTSTRAP_REQUIRED"


class StreamsInvalidTopology(KafkaError):
    code = 130
    name = "STREAMS_INVALID_TOPOLOGY"


class StreamsInvalidTopologyEpoch(KafkaError):
    code = 131
    name = "STREAMS_INVALID_TOPOLOGY_EPOCH"


class StreamsTopologyFenced(KafkaError):
    code = 132
    name = "STREAMS_TOPOLOGY_FENCED"


class ShareSessionLimitReached(RetriableError):
    code = 133
    name = "SHARE_SESSION_LIMIT_REACHED"


_BY_CODE: dict[int, type[KafkaError]] = {
    error.code: error
    for base in (KafkaError, RetriableError, AbortableError, FatalError)
    for error in base.__subclasses__()
    if error not in (RetriableError, AbortableError, FatalError)
}

NONE = 0


def error_for(code: int) -> type[KafkaError]:
    """The class of a code; codes that are newer than this table are unknown server errors."""
    return _BY_CODE.get(code, UnknownServerError)


def error_named(name: str) -> type[KafkaError]:
    """The class of Kafka's name, for example NOT_LEADER_OR_FOLLOWER."""
    for error in _BY_CODE.values():
        if error.name == name:
            return error
    from difflib import get_close_matches  # only where a message needs it

    near = get_close_matches(name.upper(), [error.name for error in _BY_CODE.values()], 1, 0.0)
    raise ValueError(f"there is no error {name!r}: perhaps {near[0]}")


def raise_for(code: int, message: str | None = None) -> None:
    """Raise the error of a code; do nothing for NONE."""
    if code != NONE:
        raise error_for(code)(message or "")
