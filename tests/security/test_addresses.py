"""Addresses as Java writes them: what ACLs compare with."""

import pytest

from twofold.security.addresses import is_address, java_address


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("2001:DB8::00ff", "2001:db8:0:0:0:0:0:ff"),
        ("fe80::1%eth0", "fe80:0:0:0:0:0:0:1%eth0"),
        ("node-1", "node-1"),
        ("a:b", "a:b"),
    ],
)
def test_an_address_is_written_as_java_writes_it(given: str, written: str) -> None:
    assert java_address(given) == written


def test_a_name_is_no_address() -> None:
    assert is_address("::1") and is_address("10.0.0.1") and not is_address("localhost") and not is_address("")
