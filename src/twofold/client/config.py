"""Settings of the clients: Kafka's names in snake case, Kafka's defaults.

A client takes them as keyword arguments, or `from_config({"bootstrap.servers": ...})` with the dotted names and values
that may be strings. What is wrong is refused here, before anything connects.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypedDict, TypeVar

from twofold.client.consumer.assignors import assignor_named
from twofold.connections.connection import Address, ConnectionLimits, parse_addresses
from twofold.connections.security import REFUSED, WITHOUT_EFFECT, ConnectionSecurity, TokenProvider
from twofold.connections.waiting import Backoff
from twofold.records.compression import Codec

C = TypeVar("C", bound="ClientConfig")
Serializer: TypeAlias = Callable[[Any], bytes]
Deserializer: TypeAlias = Callable[[bytes], Any]

DEFAULT_BOOTSTRAP_SERVERS = "127.0.0.1:9092"
MAX_IN_FLIGHT = 5  # how many batches of a producer a broker remembers per partition
DEFAULT_TRANSACTION_TIMEOUT_MS = 60_000
DEFAULT_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
OFFSET_RESETS = ("earliest", "latest", "none")
MAY_BE_NEGATIVE = ("acks", "compression_gzip_level", "compression_zstd_level")
DEFAULT_STRATEGY = "range,cooperative-sticky"
CLASSIC_PROTOCOL, CONSUMER_PROTOCOL = "classic", "consumer"
ASSIGNED_BY_MEMBERS = ("partition_assignment_strategy", "heartbeat_interval_ms")
"""Those that have no effect with group_protocol='consumer', where the broker decides."""
GROUP_SETTINGS = (
    "group_instance_id",
    "group_protocol",
    "group_remote_assignor",
    "partition_assignment_strategy",
    "session_timeout_ms",
    "heartbeat_interval_ms",
    "max_poll_interval_ms",
    "auto_commit_interval_ms",
)
"""Those that have no effect without group_id."""
ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}


class ClientOptions(TypedDict, total=False):
    bootstrap_servers: str
    client_id: str | None
    request_timeout_ms: int
    default_api_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    socket_connection_setup_timeout_ms: int
    metadata_max_age_ms: int
    security_protocol: str
    sasl_mechanism: str | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    sasl_oauthbearer_token: str | None
    sasl_oauthbearer_token_file: str | None
    sasl_oauthbearer_token_endpoint_url: str | None
    sasl_oauth_token_provider: TokenProvider | None
    ssl_truststore_type: str | None
    ssl_truststore_location: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_type: str | None
    ssl_keystore_location: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_key_password: str | None
    ssl_endpoint_identification_algorithm: str | None
    ssl_enabled_protocols: str | None
    ssl_cipher_suites: str | None


class ProducerOptions(ClientOptions, total=False):
    acks: str | int
    enable_idempotence: bool | None
    batch_size: int
    linger_ms: float
    compression_type: str
    max_request_size: int
    buffer_memory: int
    max_block_ms: int
    delivery_timeout_ms: int
    max_in_flight_requests_per_connection: int
    retries: int
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    partitioner_ignore_keys: bool
    partitioner_adaptive_partitioning_enable: bool
    transactional_id: str | None
    transaction_timeout_ms: int | None
    transaction_two_phase_commit_enable: bool
    transaction_heartbeat_interval_ms: int
    key_serializer: Serializer | None
    value_serializer: Serializer | None


class ConsumerOptions(ClientOptions, total=False):
    isolation_level: str
    auto_offset_reset: str
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    check_crcs: bool
    allow_auto_create_topics: bool
    client_rack: str
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str
    group_remote_assignor: str | None
    partition_assignment_strategy: str | Sequence[str]
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    bootstrap_servers: str = DEFAULT_BOOTSTRAP_SERVERS
    client_id: str | None = "twofold"
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1_000
    socket_connection_setup_timeout_ms: int = 10_000
    metadata_max_age_ms: int = 300_000
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sasl_jaas_config: str | None = field(default=None, repr=False)
    sasl_oauthbearer_token: str | None = field(default=None, repr=False)
    sasl_oauthbearer_token_file: str | None = None
    sasl_oauthbearer_token_endpoint_url: str | None = None
    sasl_oauth_token_provider: TokenProvider | None = None
    ssl_truststore_type: str | None = None
    ssl_truststore_location: str | None = None
    ssl_truststore_certificates: str | None = field(default=None, repr=False)
    ssl_keystore_type: str | None = None
    ssl_keystore_location: str | None = None
    ssl_keystore_key: str | None = field(default=None, repr=False)
    ssl_keystore_certificate_chain: str | None = field(default=None, repr=False)
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_endpoint_identification_algorithm: str | None = None  # None: https, which compares the name
    ssl_enabled_protocols: str | None = None
    ssl_cipher_suites: str | None = None

    def __post_init__(self) -> None:
        parse_addresses(self.bootstrap_servers)
        security = self.security
        if not security.is_plain:
            security.check()
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in MAY_BE_NEGATIVE or not isinstance(value, int | float) or isinstance(value, bool):
                continue
            if value < 0:
                raise ValueError(f"{one.name}={value} is negative")

    @property
    def addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.bootstrap_servers)

    @property
    def retry_backoff(self) -> Backoff:
        return Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms)

    @property
    def reconnect_backoff(self) -> Backoff:
        return Backoff(self.reconnect_backoff_ms, self.reconnect_backoff_max_ms)

    @property
    def security(self) -> ConnectionSecurity:
        """How connections are made safe. What stands elsewhere is read by each of them."""
        return ConnectionSecurity.of({name.replace("_", "."): getattr(self, name) for name in SECURITY_SETTINGS})

    @property
    def limits(self) -> ConnectionLimits:
        return ConnectionLimits(self.client_id, self.socket_connection_setup_timeout_ms, self.request_timeout_ms)


SECURITY_SETTINGS = tuple(
    one.name for one in fields(ClientConfig) if one.name.startswith(("security_", "sasl_", "ssl_"))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    acks: str | int = "all"
    enable_idempotence: bool | None = None  # None: yes, unless another setting that was chosen rules it out
    batch_size: int = 16_384
    linger_ms: float = 5
    compression_type: str = "none"
    max_request_size: int = 1_048_576
    buffer_memory: int = 33_554_432
    max_block_ms: int = 60_000
    delivery_timeout_ms: int = 120_000
    max_in_flight_requests_per_connection: int = MAX_IN_FLIGHT
    retries: int = 2_147_483_647
    compression_gzip_level: int = DEFAULT_LEVELS["gzip"]
    compression_lz4_level: int = DEFAULT_LEVELS["lz4"]
    compression_zstd_level: int = DEFAULT_LEVELS["zstd"]
    partitioner_ignore_keys: bool = False
    partitioner_adaptive_partitioning_enable: bool = True
    transactional_id: str | None = None
    transaction_timeout_ms: int | None = None  # None: 60,000, or for ever with two-phase commit
    transaction_two_phase_commit_enable: bool = False
    transaction_heartbeat_interval_ms: int = 0  # 0: no heartbeats
    key_serializer: Serializer | None = None
    value_serializer: Serializer | None = None

    def __post_init__(self) -> None:
        # Not super(): a slotted dataclass is a second class object, which the zero-argument form does not know.
        ClientConfig.__post_init__(self)
        if str(self.acks) not in ACKS:
            raise ValueError(f"acks={self.acks!r} is none of all, 1, 0")
        _check_one_of("compression_type", self.compression_type, [codec.name.lower() for codec in Codec])
        if self.max_in_flight_requests_per_connection < 1:
            raise ValueError("max_in_flight_requests_per_connection must be at least 1")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise ValueError(
                f"delivery_timeout_ms={self.delivery_timeout_ms} is less than linger_ms + request_timeout_ms = "
                f"{self.linger_ms + self.request_timeout_ms:g}: no request would have the time it is allowed"
            )
        self._check_levels()
        for name in ("key_serializer", "value_serializer"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"{name}={value!r} is not callable: it takes what is sent and returns bytes")
        if self.transactional_id is not None:
            self._check_transactions()
        elif self.transaction_two_phase_commit_enable or self.transaction_heartbeat_interval_ms:
            name = "heartbeat_interval_ms" if self.transaction_heartbeat_interval_ms else "two_phase_commit_enable"
            raise ValueError(f"transaction_{name} is about transactions: set transactional_id, too")
        elif self.enable_idempotence:
            self._check_idempotence("an idempotent producer", "or set enable_idempotence=False")

    def _check_idempotence(self, what: str, way_out: str) -> None:
        if self.required_acks != -1:
            raise ValueError(f"acks={self.acks} does not go with {what}: use acks='all', {way_out}")
        if self.max_in_flight_requests_per_connection > MAX_IN_FLIGHT:
            raise ValueError(
                f"max_in_flight_requests_per_connection={self.max_in_flight_requests_per_connection} does not go with "
                f"{what}: use at most {MAX_IN_FLIGHT}, {way_out}"
            )
        if self.retries == 0:
            raise ValueError(f"retries=0 does not go with {what}: use more, {way_out}")

    def _check_transactions(self) -> None:
        if not self.transactional_id:
            raise ValueError("transactional_id is empty: name the producer, or leave the setting out")
        with_id = f"transactional_id={self.transactional_id!r}"
        if self.enable_idempotence is False:
            raise ValueError(f"enable_idempotence=False does not go with {with_id}: leave one of them out")
        self._check_idempotence(with_id, "or leave transactional_id out")
        timeout_ms, interval_ms = self.transaction_timeout_ms, self.transaction_heartbeat_interval_ms
        if timeout_ms == 0:
            raise ValueError("transaction_timeout_ms=0 leaves a transaction no time")
        if self.transaction_two_phase_commit_enable:
            never = "does not go with transaction_two_phase_commit_enable: a prepared transaction has no timeout"
            if timeout_ms is not None:
                raise ValueError(f"transaction_timeout_ms={timeout_ms} {never}")
            if interval_ms:
                raise ValueError(f"transaction_heartbeat_interval_ms={interval_ms} {never} and waits for its owner")
        elif interval_ms > self.transaction_timeout:
            raise ValueError(
                f"transaction_heartbeat_interval_ms={interval_ms} is above transaction_timeout_ms="
                f"{self.transaction_timeout}: the transaction would be over before its first heartbeat"
            )

    def _check_levels(self) -> None:
        for name, lowest, highest in (("gzip", 1, 9), ("lz4", 1, 17), ("zstd", -131_072, 22)):
            level: int = getattr(self, f"compression_{name}_level")
            if not lowest <= level <= highest and (name, level) != ("gzip", -1):
                raise ValueError(f"compression_{name}_level={level} is not between {lowest} and {highest}")

    @property
    def transaction_timeout(self) -> int:
        """In milliseconds; what counts when none was chosen."""
        return DEFAULT_TRANSACTION_TIMEOUT_MS if self.transaction_timeout_ms is None else self.transaction_timeout_ms

    @property
    def compression_level(self) -> int | None:
        """Of the chosen codec; None where it has no levels or its own default was not changed."""
        if self.compression_type not in DEFAULT_LEVELS:
            return None
        level: int = getattr(self, f"compression_{self.compression_type}_level")
        return None if level == DEFAULT_LEVELS[self.compression_type] else level

    @property
    def idempotent(self) -> bool:
        if self.enable_idempotence is not None:
            return self.enable_idempotence
        few = self.max_in_flight_requests_per_connection <= MAX_IN_FLIGHT
        return self.required_acks == -1 and few and self.retries > 0

    @property
    def required_acks(self) -> int:
        return ACKS[str(self.acks)]

    @property
    def codec(self) -> Codec:
        return Codec[self.compression_type.upper()]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    isolation_level: str = "read_uncommitted"
    auto_offset_reset: str = "latest"
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 52_428_800
    max_partition_fetch_bytes: int = 1_048_576
    max_poll_records: int = 500
    check_crcs: bool = True
    allow_auto_create_topics: bool = True
    client_rack: str = ""
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    group_id: str | None = None
    group_instance_id: str | None = None
    group_protocol: str = CLASSIC_PROTOCOL
    group_remote_assignor: str | None = None
    partition_assignment_strategy: str | Sequence[str] = DEFAULT_STRATEGY
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    max_poll_interval_ms: int = 300_000
    enable_auto_commit: bool | None = None  # None: yes, where there is a group
    auto_commit_interval_ms: int = 5_000

    def __post_init__(self) -> None:
        ClientConfig.__post_init__(self)
        _check_one_of("isolation_level", self.isolation_level, list(ISOLATION_LEVELS))
        _check_one_of("auto_offset_reset", self.auto_offset_reset, OFFSET_RESETS)
        if self.max_poll_records < 1:
            raise ValueError("max_poll_records must be at least 1")
        for name in ("key_deserializer", "value_deserializer"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise ValueError(f"{name}={value!r} is not callable: it takes bytes and returns what they mean")
        if self.group_id is None:
            self._check_no_group()
        else:
            self._check_group()

    def _check_no_group(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in GROUP_SETTINGS and value != one.default:
                raise ValueError(f"{one.name}={value!r} is about groups: set group_id, too")
        if self.enable_auto_commit:
            raise ValueError("enable_auto_commit=True commits the offsets of a group: set group_id, too")

    def _check_group(self) -> None:
        for name in ("group_id", "group_instance_id"):
            if getattr(self, name) == "":
                raise ValueError(f"{name} is empty: give it a name, or leave the setting out")
        for name in ("session_timeout_ms", "heartbeat_interval_ms", "max_poll_interval_ms", "auto_commit_interval_ms"):
            if getattr(self, name) == 0:
                raise ValueError(f"{name}=0 leaves no time")
        if not self.is_assigned_by_broker and self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ValueError(
                f"heartbeat_interval_ms={self.heartbeat_interval_ms} is not below session_timeout_ms="
                f"{self.session_timeout_ms}: the session would be over before the next heartbeat"
            )
        if self.enable_auto_commit is False and self.auto_commit_interval_ms != 5_000:
            raise ValueError(
                f"auto_commit_interval_ms={self.auto_commit_interval_ms} has no effect with enable_auto_commit=False: "
                "leave one of them out"
            )
        _ = self.assignors
        self._check_protocol()

    def _check_protocol(self) -> None:
        _check_one_of("group_protocol", self.group_protocol, (CLASSIC_PROTOCOL, CONSUMER_PROTOCOL))
        if not self.is_assigned_by_broker:
            if self.group_remote_assignor is not None:
                raise ValueError(
                    f"group_remote_assignor={self.group_remote_assignor!r} is for group_protocol='consumer': set that, "
                    "or choose a partition_assignment_strategy"
                )
            return
        if self.group_remote_assignor == "":
            raise ValueError("group_remote_assignor is empty: name one, or leave the setting out")
        for one in fields(self):
            if one.name in ASSIGNED_BY_MEMBERS and getattr(self, one.name) != one.default:
                raise ValueError(
                    f"{one.name}={getattr(self, one.name)!r} has no effect with group_protocol='consumer', where the "
                    "broker decides: leave it out"
                )

    @property
    def is_assigned_by_broker(self) -> bool:
        return self.group_protocol == CONSUMER_PROTOCOL

    @property
    def auto_commits(self) -> bool:
        return self.group_id is not None if self.enable_auto_commit is None else self.enable_auto_commit

    @property
    def assignors(self) -> tuple[str, ...]:
        """The names of the chosen strategies, the preferred one first."""
        given = self.partition_assignment_strategy
        names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]
        try:
            chosen = tuple(dict.fromkeys(assignor_named(name).name for name in names if name))
        except ValueError as error:
            raise ValueError(f"partition_assignment_strategy: {error}") from None
        if not chosen:
            raise ValueError(f"partition_assignment_strategy is empty: {DEFAULT_STRATEGY} is the default")
        return chosen

    @property
    def isolation(self) -> int:
        return ISOLATION_LEVELS[self.isolation_level]


def security_options(config: ClientConfig) -> dict[str, Any]:
    """As keyword arguments, for another client of the same application."""
    return {name: getattr(config, name) for name in SECURITY_SETTINGS}


def _check_one_of(name: str, value: str, allowed: "list[str] | tuple[str, ...]") -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r} is none of {', '.join(allowed)}")


def from_keywords(config: type[C], values: Mapping[str, Any]) -> C:
    """A config from keyword arguments; TypeError names the one that is unknown and the nearest that is not."""
    known = [one.name for one in fields(config)]
    for name in values:
        if name not in known:
            raise TypeError(f"unknown setting {name!r}{_nearest(name, known)}")
    return config(**values)


def from_dotted(config: type[C], values: Mapping[str, Any]) -> C:
    """A config from Kafka's own names, whose values may be strings as in a properties file."""
    known = {one.name.replace("_", "."): one for one in fields(config)}
    keywords: dict[str, Any] = {}
    for name, value in values.items():
        setting = known.get(name)
        if setting is None:
            if name in WITHOUT_EFFECT:
                continue
            if name in REFUSED:
                raise ValueError(f"{name} is not supported: {REFUSED[name]}")
            raise ValueError(f"unknown setting {name!r}{_nearest(name, list(known))}")
        keywords[setting.name] = _PARSERS[str(setting.type)](name, value)
    return config(**keywords)


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _parse_bool(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name}={value!r} is neither true nor false")
    return text == "true"


def _parse_number(kind: Callable[[str], float]) -> Callable[[str, Any], float]:
    def parse(name: str, value: Any) -> float:
        try:
            return kind(str(value).strip())
        except ValueError:
            raise ValueError(f"{name}={value!r} is not a number") from None

    return parse


_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    str(bool): _parse_bool,
    str(bool | None): lambda name, value: None if value is None else _parse_bool(name, value),
    str(int): _parse_number(int),
    str(float): _parse_number(float),
    str(str): lambda _, value: str(value),
    str(str | None): lambda _, value: None if value is None else str(value),
    str(str | int): lambda _, value: str(value),
    str(str | Sequence[str]): lambda _, value: value,
    str(Serializer | None): lambda _, value: value,
    str(Deserializer | None): lambda _, value: value,
    str(TokenProvider | None): lambda _, value: value,
    str(int | None): lambda name, value: None if value is None else _parse_number(int)(name, value),
}
