"""The way to a user as a pure machine: each row is a script of frames, and what comes of each."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kits.security.sasl_wire import api_versions, authenticate, handshake, metadata, plain_token, read
from twofold.broker.network.authentication import (
    Authentication,
    AuthenticationPolicy,
    CloseAtOnce,
    PassOn,
    SendAtOnce,
    SendLateAndClose,
    SendRefusal,
)
from twofold.security.plain import PlainServer
from twofold.security.sasl import Authenticated

GOOD, BAD, OTHER = plain_token("alice", "opens"), plain_token("alice", "wrong"), plain_token("bob", "opens")
USERS = {"alice": "opens", "bob": "opens"}
ALL_DAY = 86_400_000


class Token:
    """A mechanism of two messages whose credential expires at 5,000 ms by the wall clock."""

    def __init__(self) -> None:
        self.authenticated: Authenticated | None = None
        self.seen = 0

    def step(self, token: bytes) -> bytes:
        self.seen += 1
        if self.seen == 2:
            self.authenticated = Authenticated("alice", 5000)
        return b"more"


def machine(max_reauth_ms: int = 0) -> Authentication:
    return Authentication(
        AuthenticationPolicy(
            mechanisms=("PLAIN", "TOKEN"),
            new_exchange=lambda name: PlainServer(USERS) if name == "PLAIN" else Token(),
            max_reauth_ms={"PLAIN": max_reauth_ms},
        )
    )


def outcome(step: object, key: int = 36) -> object:
    """A step in short: the error code that is sent, and whether it is the last."""
    if isinstance(step, PassOn):
        return "pass"
    if isinstance(step, CloseAtOnce):
        return "close"
    if isinstance(step, SendRefusal):
        return (step.error.code, "late" if step.reason else "open")
    assert isinstance(step, SendAtOnce | SendLateAndClose)
    is_last = isinstance(step, SendLateAndClose)
    if step.frame is None or len(step.frame) < 10:
        return ("raw", "late" if is_last else "open")
    body = bytes(step.frame[4:])
    code = read(body, key, {17: 1, 36: 2}[key]).error_code
    return (code, "late" if is_last else "open")


def run(made: Authentication, frames: Sequence[bytes], now_ms: int = 0, wall_ms: int = 0) -> list[object]:
    return [outcome(made.receive(sent, now_ms, wall_ms), sent[1] if len(sent) > 1 else 36) for sent in frames]


@pytest.mark.parametrize(
    ("frames", "outcomes"),
    [
        pytest.param([handshake("PLAIN"), authenticate(GOOD)], [(0, "open"), (0, "open")], id="1 PLAIN"),
        pytest.param([handshake("PLAIN"), authenticate(BAD)], [(0, "open"), (58, "late")], id="2 bad password"),
        pytest.param([handshake("GSSAPI")], [(33, "late")], id="4 another mechanism"),
        pytest.param([metadata()], ["close"], id="5 Metadata first"),
        pytest.param([authenticate(GOOD)], ["close"], id="6 SaslAuthenticate first"),
        pytest.param([api_versions(), api_versions()], ["pass", "close"], id="7 ApiVersions twice"),
        pytest.param(
            [api_versions(4)[:2] + b"\0\x63" + api_versions(4)[4:], api_versions(), api_versions()],
            ["pass", "pass", "close"],
            id="8 an unknown version first",
        ),
        pytest.param(
            [api_versions(3, "-"), api_versions(), handshake("PLAIN"), authenticate(GOOD)],
            ["pass", "pass", (0, "open"), (0, "open")],
            id="9 a bad software name first",
        ),
        pytest.param(
            [handshake("PLAIN"), api_versions()], [(0, "open"), (34, "late")], id="10 ApiVersions for a token"
        ),
        pytest.param([handshake("PLAIN"), handshake("PLAIN")], [(0, "open"), (34, "late")], id="11 handshake twice"),
        pytest.param([handshake("PLAIN"), metadata()], [(0, "open"), (34, "late")], id="Metadata for a token"),
        pytest.param([b"garbage"], ["close"], id="garbage"),
        pytest.param([b"\x7f\xff" + bytes(20)], ["close"], id="an API that does not exist"),
        pytest.param([handshake("PLAIN")[:2] + b"\0\x09" + handshake("PLAIN")[4:]], ["close"], id="handshake v9"),
        pytest.param(
            [handshake("PLAIN"), authenticate(GOOD)[:2] + b"\0\x09" + authenticate(GOOD)[4:]],
            [(0, "open"), "close"],
            id="authenticate v9",
        ),
        pytest.param([handshake("PLAIN"), authenticate(b"")], [(0, "open"), (58, "late")], id="an empty token"),
    ],
)
def test_before_there_is_a_user(frames: list[bytes], outcomes: list[object]) -> None:
    assert run(machine(), frames) == outcomes


def test_raw_tokens_follow_a_handshake_of_version_0() -> None:
    good, bad = machine(), machine()
    for made in (good, bad):
        step = made.receive(handshake("PLAIN", 0), 0, 0)
        assert isinstance(step, SendAtOnce) and read(bytes(step.frame[4:]), 17, 0).error_code == 0
    step = good.receive(GOOD, 0, 0)
    assert step == SendAtOnce(bytes(4)) and good.user == "alice"
    step = bad.receive(BAD, 0, 0)
    assert isinstance(step, SendLateAndClose) and step.frame is None and bad.user is None
    assert isinstance(bad.receive(GOOD, 0, 0), CloseAtOnce)


def test_the_two_ends_of_a_login_by_another_user_are_told_in_the_same_words() -> None:
    texts = []
    for token in (BAD, plain_token("nobody", "opens")):
        made = machine()
        made.receive(handshake("PLAIN"), 0, 0)
        step = made.receive(authenticate(token), 0, 0)
        assert isinstance(step, SendLateAndClose) and step.frame is not None
        texts.append((read(bytes(step.frame[4:]), 36, 2).error_message, step.reason))
    assert texts[0] == texts[1]


def test_a_connection_without_a_lifetime_is_done_with_this_machine() -> None:
    made = machine()
    assert made.max_frame_bytes == 524_288
    run(made, [handshake("PLAIN"), authenticate(GOOD)])
    assert made.is_finished and made.user == "alice" and made.max_frame_bytes is None
    assert made.passes(handshake("PLAIN")[:2], 0) is False
    assert run(made, [handshake("PLAIN"), authenticate(GOOD), metadata()]) == ["pass"] * 3


@pytest.mark.parametrize(("max_reauth_ms", "version", "told"), [(0, 2, 0), (ALL_DAY, 2, ALL_DAY), (3000, 1, 3000)])
def test_the_lifetime_is_told(max_reauth_ms: int, version: int, told: int) -> None:
    made = machine(max_reauth_ms)
    made.receive(handshake("PLAIN"), 0, 0)
    step = made.receive(authenticate(GOOD, version), 0, 0)
    assert isinstance(step, SendAtOnce)
    assert read(bytes(step.frame[4:]), 36, version).session_lifetime_ms == told


def test_the_lifetime_is_what_is_left_of_the_credential_where_that_is_shorter() -> None:
    made = machine()
    made.receive(handshake("TOKEN"), 100, 2000)
    made.receive(authenticate(b"one"), 100, 2000)
    assert made.user is None
    step = made.receive(authenticate(b"two"), 100, 2000)
    assert isinstance(step, SendAtOnce) and read(bytes(step.frame[4:]), 36, 2).session_lifetime_ms == 3000
    assert run(made, [metadata()], now_ms=3099) == ["pass"]
    assert run(made, [metadata()], now_ms=3100) == ["close"]


def reopened(max_reauth_ms: int = 3000) -> Authentication:
    made = machine(max_reauth_ms)
    run(made, [handshake("PLAIN"), authenticate(GOOD)])
    return made


def test_a_request_after_the_lifetime_ends_the_connection_also_where_version_0_did_not_tell_it() -> None:
    made = machine(3000)
    run(made, [handshake("PLAIN")])
    step = made.receive(authenticate(GOOD, 0), 0, 0)
    assert isinstance(step, SendAtOnce)
    assert made.passes(b"\0\x03", 2999) and not made.passes(b"\0\x03", 3000)
    assert run(made, [metadata()], now_ms=3000) == ["close"]


@pytest.mark.parametrize("now_ms", [1000, 2999, 3000, 100_000])
def test_an_authentication_is_renewed_before_and_after_its_end(now_ms: int) -> None:
    made = reopened()
    assert run(made, [handshake("PLAIN"), authenticate(GOOD)], now_ms) == [(0, "open"), (0, "open")]
    assert run(made, [metadata()], now_ms + 2999) == ["pass"]
    assert run(made, [metadata()], now_ms + 3000) == ["close"]


@pytest.mark.parametrize(
    ("now_ms", "frames", "outcomes"),
    [
        pytest.param(999, [handshake("PLAIN"), metadata()], [(34, "open"), "pass"], id="within a second"),
        pytest.param(1000, [handshake("PLAIN"), authenticate(OTHER)], [(0, "open"), (58, "late")], id="another user"),
        pytest.param(1000, [handshake("PLAIN"), authenticate(BAD)], [(0, "open"), (58, "late")], id="a bad password"),
        pytest.param(1000, [handshake("TOKEN"), authenticate(b"x")], [(0, "open"), ("raw", "late")], id="mechanism"),
        pytest.param(1000, [handshake("GSSAPI")], [(33, "late")], id="an unknown mechanism"),
        pytest.param(1000, [handshake("PLAIN"), metadata()], [(0, "open"), (34, "late")], id="another request"),
        pytest.param(1000, [authenticate(GOOD)], ["pass"], id="without a handshake"),
    ],
)
def test_an_authentication_that_is_renewed_keeps_its_user_and_its_mechanism(
    now_ms: int, frames: list[bytes], outcomes: list[object]
) -> None:
    made = reopened()
    assert run(made, frames, now_ms) == outcomes
    assert made.user == "alice"


FRAMES = st.one_of(
    st.sampled_from(
        [handshake("PLAIN"), handshake("PLAIN", 0), handshake("TOKEN"), api_versions(), metadata(), authenticate(BAD)]
    ),
    st.binary(max_size=60),
    st.builds(lambda head, rest: head[:4] + rest, st.sampled_from([handshake("X"), api_versions()]), st.binary()),
)


@settings(max_examples=300)
@given(frames=st.lists(FRAMES, max_size=8))
def test_no_frames_but_a_good_token_lead_to_a_user(frames: list[bytes]) -> None:
    """And nothing but ApiVersions reaches the dispatcher, whatever comes."""
    made = machine()
    for sent in frames:
        step = made.receive(sent, 0, 0)
        assert not isinstance(step, PassOn) or sent[:2] == b"\0\x12"
        if not isinstance(step, PassOn | SendAtOnce):
            assert isinstance(made.receive(handshake("PLAIN"), 0, 0), CloseAtOnce)
            break
    if b"TOKEN" not in b"".join(frames):
        assert made.user is None and not made.is_open
