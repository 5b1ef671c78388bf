"""A line of sasl.jaas.config as Kafka's documentation writes it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.security.jaas import PLAIN_MODULE, SCRAM_MODULE, JaasError, parse_jaas


def test_the_lines_of_kafkas_documentation_are_read() -> None:
    plain = parse_jaas(
        f'{PLAIN_MODULE} required \n username="admin" password="admin-secret" \n'
        ' user_admin="admin-secret" user_alice="alice-secret";'
    )
    assert (plain.login_module, plain.username, plain.password) == (PLAIN_MODULE, "admin", "admin-secret")
    assert plain.users == {"admin": "admin-secret", "alice": "alice-secret"}
    scram = parse_jaas(f"{SCRAM_MODULE} REQUIRED username='a' password='b' ;")
    assert (scram.control_flag, scram.options) == ("required", {"username": "a", "password": "b"})


def test_quotes_hold_every_character() -> None:
    line = f'{PLAIN_MODULE} required user_a="1;=\\"2\\\\3" user_b=\'x y"z\' /* none */ user_c=bare // the end\n;'
    assert parse_jaas(line).users == {"a": '1;="2\\3', "b": 'x y"z', "c": "bare"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        ";",
        f"{PLAIN_MODULE};",
        f'{PLAIN_MODULE} user_a="hidden";',
        f'{PLAIN_MODULE} required user_a="hidden"',
        f'{PLAIN_MODULE} required user_a="hidden;',
        f'{PLAIN_MODULE} required user_a "hidden";',
        f'{PLAIN_MODULE} required user_a="hidden"; {PLAIN_MODULE} required user_b="hidden";',
    ],
)
def test_another_line_is_refused_without_a_secret(line: str) -> None:
    with pytest.raises(JaasError) as caught:
        parse_jaas(line)
    assert "hidden" not in str(caught.value)


def test_an_entry_shows_no_value() -> None:
    assert "hidden" not in repr(parse_jaas(f'{PLAIN_MODULE} required user_a="hidden";'))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(JaasError):
        parse_jaas(text)
