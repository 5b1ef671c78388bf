"""Names of certificates as Java writes them, and rules that make users of them."""

import datetime
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from twofold.security.distinguished_names import BadRule, certificate_name, java_name, mapped_user, parse_rules


def name(*parts: tuple[x509.ObjectIdentifier, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(*part) for part in parts])


@pytest.mark.parametrize(
    ("subject", "written"),
    [
        (name((NameOID.COMMON_NAME, "bob")), "CN=bob"),
        (
            name((NameOID.COUNTRY_NAME, "DE"), (NameOID.ORGANIZATION_NAME, "Ex"), (NameOID.COMMON_NAME, "bob")),
            "CN=bob,O=Ex,C=DE",
        ),
        # As Apache Kafka 4.3.1 shows it (security.md 3).
        (
            name((NameOID.COMMON_NAME, "bob"), (NameOID.EMAIL_ADDRESS, "bob@x.org")),
            "1.2.840.113549.1.9.1=#1609626f6240782e6f7267,CN=bob",
        ),
        (name((NameOID.COMMON_NAME, ' a,b+c="d" ')), 'CN=\\ a\\,b\\+c\\=\\"d\\"\\ '),
        (name((NameOID.COMMON_NAME, "jürgen")), "CN=jürgen"),
        (
            name((NameOID.STREET_ADDRESS, "s"), (NameOID.USER_ID, "u"), (NameOID.DOMAIN_COMPONENT, "d")),
            "DC=d,UID=u,STREET=s",
        ),
        (name((NameOID.TITLE, "x" * 200)), "2.5.4.12=#0c81c8" + "78" * 200),
    ],
)
def test_a_name_is_written_as_java_writes_it(subject: x509.Name, written: str) -> None:
    assert java_name(subject) == written


def test_several_values_of_one_part_are_joined() -> None:
    both = x509.RelativeDistinguishedName(
        [x509.NameAttribute(NameOID.COMMON_NAME, "a"), x509.NameAttribute(NameOID.USER_ID, "b")]
    )
    assert set(java_name(x509.Name([both])).split("+")) == {"CN=a", "UID=b"}


def test_the_name_of_a_certificate_is_its_subject() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder(
        issuer_name=name((NameOID.COMMON_NAME, "ca")),
        subject_name=name((NameOID.COMMON_NAME, "bob")),
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=now,
        not_valid_after=now,
    ).sign(key, hashes.SHA256())
    assert certificate_name(made.public_bytes(serialization.Encoding.DER)) == "CN=bob"


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=bob,O=Ex", "CN=bob,O=Ex"),
        ("", "CN=bob", "CN=bob"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=Bob,O=Ex", "Bob"),
        ("RULE:^CN=(.*?),.*$/$1/L", "CN=Bob,O=Ex", "bob"),
        ("RULE:^CN=(.*?),O=(.*)$/$2-$1/U, DEFAULT", "CN=Bob,O=Ex", "EX-BOB"),
        ("RULE:CN=(\\w+)/$1/", "CN=bob,O=Ex", None),
        ("RULE:^CN=bob,.*/x/", "1.2.840.113549.1.9.1=#16,CN=bob,O=Ex", None),
        ("RULE:CN=(\\w+)/$1/,RULE:.*O=(\\w+)/$1/", "CN=bob,O=Ex", "Ex"),
        ("RULE:CN=a\\/(.*)/$1/", "CN=a/b", "b"),
        ("RULE:CN=(.*)/\\$$1/", "CN=b", "$b"),
        ("RULE:CN=(.*)//", "CN=b", None),
    ],
)
def test_the_first_rule_that_fits_the_whole_name_makes_the_user(rules: str, subject: str, user: str | None) -> None:
    assert mapped_user(parse_rules(rules), subject) == user


@pytest.mark.parametrize(
    "rules", ["nonsense", "RULE:a/b", "RULE:(?=a)/x/", "RULE:(/x/", "RULE:a/$1/", "DEFAULT DEFAULT"]
)
def test_a_rule_that_cannot_be_used_is_refused(rules: str) -> None:
    with pytest.raises(BadRule):
        parse_rules(rules)


def test_no_name_makes_a_rule_take_long() -> None:
    rules = parse_rules("RULE:(a+)+b/x/")
    began = time.process_time()
    assert mapped_user(rules, "a" * 20_000) is None
    assert time.process_time() - began < 1
