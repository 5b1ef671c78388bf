"""The sums of quotas, against a literal copy of Apache Kafka's classes and against vectors of its own tests."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.broker.quotas.bucket import TokenBucket
from twofold.broker.quotas.ledger import MAX_BUDGETS, QuotaLedger
from twofold.broker.quotas.limits import Budget, QuotaKind, limits_of, user_of
from twofold.broker.quotas.samples import SampledRate, Windows
from twofold.controller.quota_records import QuotaEntity

BOUND = 1000.0


class KafkaSample:
    def __init__(self, now):
        self.reset(now)

    def reset(self, now):
        self.start = self.last = now
        self.value = 0.0


class KafkaRate:
    """Rate, SampledStat and WindowedSum of Apache Kafka 4.3.1, line by line: a ring that is used again."""

    def __init__(self, windows):
        self.windows = windows
        self.samples = []
        self.current = 0

    def record(self, value, now):
        if not self.samples:
            self.samples.append(KafkaSample(now))
        sample = self.samples[self.current]
        if now - sample.start >= self.windows.window_ms:
            self.current = (self.current + 1) % (self.windows.samples + 1)
            if self.current >= len(self.samples):
                self.samples.append(KafkaSample(now))
            else:
                self.samples[self.current].reset(now)
            sample = self.samples[self.current]
        sample.value += value
        sample.last = now

    def purge(self, now):
        for sample in self.samples:
            if now - sample.last >= self.windows.samples * self.windows.window_ms:
                sample.reset(now)

    def throttle_ms(self, bound, now):
        self.purge(now)
        total = sum(sample.value for sample in self.samples)
        elapsed = now - min(sample.start for sample in self.samples)
        full, least = elapsed // self.windows.window_ms, self.windows.samples - 1
        if full < least:
            elapsed += (least - full) * self.windows.window_ms
        size = max(elapsed, 1)
        rate = total / (size / 1000)
        return 0 if rate <= bound else math.floor((rate - bound) / bound * size + 0.5)


steps = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 1500), st.integers(0, 30_000)),  # ms since the step before
        st.integers(1, 30_000),  # what is taken
        st.booleans(),  # and given back
    ),
    max_size=60,
)


@given(steps=steps, samples=st.integers(1, 12), window_ms=st.sampled_from([1, 1000, 2000]))
def test_a_rate_waits_as_long_as_apache_kafkas(steps, samples, window_ms):
    windows = Windows(samples, window_ms)
    ours, theirs = SampledRate(), KafkaRate(windows)
    now = 5_000_000
    for pause_ms, value, returned in steps:
        now += pause_ms
        ours.record(value, now, windows)
        theirs.record(value, now)
        assert ours.wait_ms(BOUND, now, windows) == theirs.throttle_ms(BOUND, now)
        if returned:
            ours.record(-value, now, windows)
            theirs.record(-value, now)


@given(values=st.lists(st.integers(1, 30_000), min_size=1, max_size=200))
def test_a_client_that_waits_as_it_is_told_takes_its_bound_and_one_burst(values):
    windows, rate, now, taken = Windows(), SampledRate(), 0, 0
    for value in values:
        assert taken <= BOUND * (now / 1000 + windows.burst_s + 1) + max(values)
        taken += value
        rate.record(value, now, windows)
        now += rate.wait_ms(BOUND, now, windows)


def test_a_silent_client_has_the_burst_again():
    windows, rate = Windows(), SampledRate()
    rate.record(10_000, 0, windows)
    assert not rate.is_silent(10_999, windows)
    assert rate.is_silent(11_000, windows)
    rate.record(10_000, 11_000, windows)
    assert rate.wait_ms(BOUND, 11_000, windows) == 0


def test_a_bucket_holds_its_burst_is_overdrawn_once_and_fills_up():
    bucket = TokenBucket()
    assert bucket.tokens(5, 10, 0) == 10
    bucket.take(60, 5, 10, 0)
    assert bucket.tokens(5, 10, 0) == -50
    assert bucket.wait_ms(5, 10, 0) == 10_000
    assert bucket.tokens(5, 10, 4_000) == -30
    assert bucket.wait_ms(5, 10, 10_000) == 0
    assert bucket.tokens(5, 10, 60_000) == 10


# --- which quota binds ---


def owner(**names):
    return frozenset(QuotaEntity(kind.replace("_", "-"), name) for kind, name in names.items())


PRECEDENCE = [
    (owner(user="alice", client_id="app"), Budget("alice", "app")),
    (owner(user="alice", client_id=None), Budget("alice", "app")),
    (owner(user="alice"), Budget("alice", "")),
    (owner(user=None, client_id="app"), Budget("alice", "app")),
    (owner(user=None, client_id=None), Budget("alice", "app")),
    (owner(user=None), Budget("alice", "")),
    (owner(client_id="app"), Budget("", "app")),
    (owner(client_id=None), Budget("", "app")),
]


@pytest.mark.parametrize("first", range(len(PRECEDENCE)))
def test_the_most_specific_quota_binds(first):
    rest = PRECEDENCE[first:]
    quotas = [(found, {"producer_byte_rate": float(number)}) for number, (found, _) in enumerate(rest, 1)]
    limit = limits_of(quotas)[QuotaKind.PRODUCE].find("alice", "app")
    assert limit is not None
    assert (limit.budget, limit.bound) == (rest[0][1], 1.0)


def test_quotas_of_others_bind_nothing():
    quotas = [
        (owner(user="bob"), {"producer_byte_rate": 1.0}),
        (owner(client_id="other"), {"producer_byte_rate": 1.0}),
        (owner(user="alice"), {"consumer_byte_rate": 1.0}),
        (owner(ip="10.0.0.1"), {"connection_creation_rate": 1.0}),
    ]
    assert limits_of(quotas)[QuotaKind.PRODUCE].find("alice", "app") is None


def test_a_client_without_an_id_is_bound_by_the_defaults():
    """In Apache Kafka such a client passes by the quota of a user and any client id."""
    quotas = [(owner(user="alice", client_id=None), {"producer_byte_rate": 7.0})]
    limit = limits_of(quotas)[QuotaKind.PRODUCE].find("alice", "")
    assert limit is not None and limit.bound == 7.0


def test_the_name_of_a_user_is_without_the_type():
    assert user_of("User:CN=a:b,O=c") == "CN=a:b,O=c"


# --- the ledger ---


def ledger_with(now, **limits):
    ledger = QuotaLedger(lambda: now[0])
    ledger.limit([(owner(client_id=None), limits)])
    return ledger


def test_a_new_limit_binds_at_once_with_what_was_taken_before():
    now = [0.0]
    ledger = ledger_with(now, producer_byte_rate=1000.0)
    assert ledger.take(QuotaKind.PRODUCE, "u", "c", 9000) == 0
    ledger.limit([(owner(client_id=None), {"producer_byte_rate": 100.0})])
    assert ledger.take(QuotaKind.PRODUCE, "u", "c", 0) == 80_000


def test_no_wait_is_longer_than_its_field_on_the_wire():
    ledger = ledger_with([0.0], producer_byte_rate=1.0)
    assert ledger.take(QuotaKind.PRODUCE, "u", "c", 1e15) == 2**31 - 1


def test_budgets_are_bounded_and_those_in_use_are_remembered():
    now = [0.0]
    ledger = ledger_with(now, producer_byte_rate=1.0)
    ledger.take(QuotaKind.PRODUCE, "u", "busy", 100)
    for number in range(2 * MAX_BUDGETS):
        ledger.take(QuotaKind.PRODUCE, "u", f"c{number}", 1)
        if number % 1000 == 0:
            assert ledger.take(QuotaKind.PRODUCE, "u", "busy", 0) > 0
    assert len(ledger._rates[QuotaKind.PRODUCE]) == MAX_BUDGETS


def test_new_transactional_ids_are_paid_with_time_beyond_the_burst():
    now = [0.0]
    ledger = QuotaLedger(lambda: now[0])
    assert not ledger.enforced
    ledger.configure(Windows(), Windows(), 2.0)
    assert ledger.enforced
    assert [ledger.take_new_id("User:a") for _ in range(22)] == [0] * 22
    assert ledger.take_new_id("User:a") == 500
    assert ledger.take_new_id("User:b") == 0
    now[0] = 11.5
    assert ledger.take_new_id("User:a") == 0
