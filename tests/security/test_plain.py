"""PLAIN: what a token must have, and what no answer tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kits.security.sasl_wire import plain_token
from twofold.security.plain import PlainServer
from twofold.security.sasl import Authenticated, SaslError

USERS = {"alice": "opens", "bob": "pässword"}


def test_a_user_with_the_right_password_is_let_in() -> None:
    for name, password in USERS.items():
        made = PlainServer(USERS)
        assert made.step(plain_token(name, password)) == b""
        assert made.authenticated == Authenticated(name)
    made = PlainServer(USERS)
    made.step(b"alice\0alice\0opens")
    assert made.authenticated == Authenticated("alice")


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0wrong",
        b"\0nobody\0opens",
        b"bob\0alice\0opens",
        b"\0alice\0",
        b"\0\0opens",
        b"alice\0opens",
        b"\0alice\0opens\0",
        b"\0alice\0\xff",
        b"",
    ],
)
def test_any_other_token_is_refused_without_a_secret(token: bytes) -> None:
    made = PlainServer(USERS)
    with pytest.raises(SaslError) as caught:
        made.step(token)
    assert made.authenticated is None
    assert "opens" not in str(caught.value) and "wrong" not in str(caught.value)


def test_an_unknown_user_fails_with_the_words_of_a_known_one() -> None:
    texts = set()
    for name in ("alice", "nobody"):
        with pytest.raises(SaslError) as caught:
            PlainServer(USERS).step(plain_token(name, "wrong"))
        texts.add(str(caught.value))
    assert texts == {"Authentication failed: Invalid username or password"}


@given(st.binary(max_size=100))
def test_bytes_without_a_meaning_are_refused_and_nothing_else(token: bytes) -> None:
    made = PlainServer(USERS)
    with pytest.raises(SaslError):
        made.step(token)
