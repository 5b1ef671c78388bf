"""SCRAM at both ends: beside another implementation, its refusals, and bytes that mean nothing."""

import base64
import hashlib
import hmac
from collections import Counter

import pytest
import scramp  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from kits.security.credentials import credential_from_password
from twofold.security.sasl import Authenticated, SaslError
from twofold.security.scram import (
    MIN_ITERATIONS,
    SALT_BYTES,
    CredentialForm,
    ScramClient,
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUsers,
    credential_from_salted_password,
    salted_password,
)

SALT = b"0123456789abcdef"
BOTH = pytest.mark.parametrize("mechanism", list(ScramMechanism))
CREDENTIALS = {
    mechanism: credential_from_password(mechanism, "pencil", SALT, MIN_ITERATIONS) for mechanism in ScramMechanism
}


class Users(ScramUsers):
    """Users with one credential, and the forms that the credentials of these and of others have."""

    def __init__(
        self, *names: str, credential: ScramCredential | None = None, forms: dict[CredentialForm, int] | None = None
    ) -> None:
        self.names = names
        self.credential = credential
        self.forms = forms

    def credential_of(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return (self.credential or CREDENTIALS[mechanism]) if name in self.names else None

    def forms_of(self, mechanism: ScramMechanism) -> dict[CredentialForm, int]:
        if self.forms is not None:
            return self.forms
        found = self.credential or CREDENTIALS[mechanism]
        return {CredentialForm.of(found.salt, found.iterations): len(self.names)}


def server(mechanism: ScramMechanism = ScramMechanism.SHA_256, nonce: str = "ofTheServer") -> ScramServer:
    return ScramServer(mechanism, Users("al,i=ce", "bob"), nonce, b"secret")


def last_of(client: ScramClient, made: ScramServer) -> bytes:
    return client.answer(made.step(client.first()))


@BOTH
def test_a_client_of_another_implementation_logs_in(mechanism: ScramMechanism) -> None:
    made = server(mechanism)
    client = scramp.ScramClient([mechanism.mechanism_name], "al,i=ce", "pencil")
    client.set_server_first(made.step(client.get_client_first().encode()).decode())
    client.set_server_final(made.step(client.get_client_final().encode()).decode())
    assert made.authenticated == Authenticated("al,i=ce")


@BOTH
def test_a_server_of_another_implementation_takes_our_client(mechanism: ScramMechanism) -> None:
    theirs = scramp.ScramMechanism(mechanism.mechanism_name)
    stored = theirs.make_auth_info("pencil", iteration_count=MIN_ITERATIONS)
    made = theirs.make_server(lambda name: stored)
    client = ScramClient(mechanism, "bob", "pencil", "ofTheClient")
    made.set_client_first(client.first().decode())
    made.set_client_final(client.answer(made.get_server_first().encode()).decode())
    client.check(made.get_server_final().encode())


def test_the_example_of_rfc_7677_is_reproduced() -> None:
    salt = b"[m\x99h\x9d\x125\x8e\xec\xa0K\x14\x126\xfa\x81"
    credential = credential_from_password(ScramMechanism.SHA_256, "pencil", salt, 4096)
    made = ScramServer(
        ScramMechanism.SHA_256, Users("user", credential=credential), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""
    )
    assert made.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert made.step(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert made.authenticated == Authenticated("user")


@BOTH
def test_the_salted_password_makes_the_same_credential(mechanism: ScramMechanism) -> None:
    salted = salted_password(mechanism, "pencil", SALT, MIN_ITERATIONS)
    assert credential_from_salted_password(mechanism, salted, SALT, MIN_ITERATIONS) == CREDENTIALS[mechanism]


def test_an_unknown_user_is_answered_like_a_known_one_and_fails_at_the_same_step() -> None:
    answers = [server().step(b"n,,n=%s,r=x" % name).split(b",") for name in (b"bob", b"nobody", b"nobody", b"other")]
    assert [answer[0] for answer in answers] == [b"r=xofTheServer"] * 4
    assert answers[1] == answers[2] != answers[3], "the salt is the name's own, and stays"
    assert {(len(answer[1]), answer[2]) for answer in answers} == {(2 + 24, b"i=4096")}, "salts of 16 bytes, as bob's"
    texts = []
    for name in ("bob", "nobody"):
        made = server()
        client = ScramClient(ScramMechanism.SHA_256, name, "wrong", "x")
        with pytest.raises(SaslError) as caught:
            made.step(last_of(client, made))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def pretended(name: str, forms: dict[CredentialForm, int]) -> tuple[bytes, int]:
    made = ScramServer(ScramMechanism.SHA_512, Users(forms=forms), "s", b"secret")
    _, salt, iterations = made.step(f"n,,n={name},r=x".encode()).decode().split(",")
    return base64.b64decode(salt.removeprefix("s=")), int(iterations.removeprefix("i="))


def test_users_that_do_not_exist_have_salts_and_iterations_as_those_that_do() -> None:
    """Each form as often as users have it: no length, alphabet or number tells that a name is a user's."""
    ours, of_kafka, other = CredentialForm(), CredentialForm(8192, None), CredentialForm(16384, 70)
    forms = {ours: 700, of_kafka: 250, other: 50}
    found = [pretended(f"user-{number}", forms) for number in range(2000)]
    counts = Counter(CredentialForm.of(salt, iterations) for salt, iterations in found)
    assert counts.keys() == forms.keys()
    assert all(abs(counts[form] / 2000 - share / 1000) < 0.05 for form, share in forms.items())
    texts = [salt for salt, iterations in found if iterations == 8192]
    assert {len(text) for text in texts} <= set(range(20, 27)) and max(map(len, texts)) >= 25
    assert {text[:1] for text in texts if len(text) == 26} == {b"1"}, "a number of 130 bits"
    assert len({salt for salt, _ in found}) == 2000
    assert pretended("nobody", {}) == pretended("nobody", {}) and len(pretended("nobody", {})[0]) == SALT_BYTES


def test_one_user_more_changes_what_few_unknown_names_are_answered() -> None:
    before = {CredentialForm(): 70, CredentialForm(8192): 30}
    after = before | {CredentialForm(8192): 31}
    names = [f"user-{number}" for number in range(500)]
    assert sum(pretended(name, before) != pretended(name, after) for name in names) <= 10


@pytest.mark.parametrize(
    "first",
    [
        b"y,,n=bob,r=x",
        b"p=tls-unique,,n=bob,r=x",
        b"n,a=other,n=bob,r=x",
        b"n,,m=needed,n=bob,r=x",
        b"n,,n=bob,r=x,tokenauth=true",
        "n,,n=jürgen,r=x".encode(),
        b"n,,n=b=b,r=x",
        b"n,,n=,r=x",
        b"n,,n=bob,r=",
        b"",
    ],
)
def test_a_first_message_that_asks_for_something_else_is_refused(first: bytes) -> None:
    with pytest.raises(SaslError):
        server().step(first)


@pytest.mark.parametrize("first", [b"n,a=bob,n=bob,r=x", b"n,,n=bob,r=x,k=v,other=1"])
def test_the_own_name_as_authorization_id_and_extensions_pass(first: bytes) -> None:
    assert server().step(first).startswith(b"r=xofTheServer,")


def test_extensions_are_part_of_what_is_signed() -> None:
    made = server()
    client = ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x", {"k": "v"})
    client.check(made.step(last_of(client, made)))
    assert made.authenticated == Authenticated("bob")


def test_the_header_that_is_repeated_must_be_the_one_that_was_sent() -> None:
    made = server()
    final = last_of(ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x"), made)
    assert final.startswith(b"c=biws,")
    with pytest.raises(SaslError, match="another header"):
        made.step(final.replace(b"c=biws,", b"c=eSws,"))


def final_with_nonce(made: ScramServer, nonce: str) -> bytes:
    """The last message of a client that knows the password and signs that nonce. "{}" stands for the right one."""
    bare = "n=bob,r=x"
    first = made.step(f"n,,{bare}".encode()).decode()
    without_proof = f"c=biws,r={nonce.format(first[2 : first.index(',')])}"
    salted = salted_password(ScramMechanism.SHA_256, "pencil", SALT, MIN_ITERATIONS)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    stored_key = hashlib.sha256(client_key).digest()
    signature = hmac.digest(stored_key, f"{bare},{first},{without_proof}".encode(), "sha256")
    proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("nonce", ["{}", "x{}"], ids=["right", "librdkafka before 2.6.1"])
def test_the_nonce_of_the_last_message_ends_with_that_of_the_exchange(nonce: str) -> None:
    made = server()
    assert made.step(final_with_nonce(made, nonce)).startswith(b"v=")
    assert made.authenticated == Authenticated("bob")


@pytest.mark.parametrize("nonce", ["x", "{}x", "xofTheServe", "ofTheServer"])
def test_another_nonce_is_refused_whatever_the_proof(nonce: str) -> None:
    made = server()
    with pytest.raises(SaslError, match="the nonce of its last message is another"):
        made.step(final_with_nonce(made, nonce))
    assert made.authenticated is None


def test_a_credential_with_too_few_iterations_lets_no_client_in() -> None:
    weak = credential_from_password(ScramMechanism.SHA_256, "pencil", SALT, 4095)
    made = ScramServer(ScramMechanism.SHA_256, Users("bob", credential=weak), "s", b"secret")
    client = ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x")
    with pytest.raises(SaslError):
        made.step(last_of(client, made))


@pytest.mark.parametrize("iterations", [b"1", b"4095", b"1000001", b"9" * 500])
def test_a_client_computes_neither_too_little_nor_too_much_for_a_server(iterations: bytes) -> None:
    client = ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x")
    with pytest.raises(SaslError, match="iterations"):
        client.answer(b"r=xs,s=c2FsdA==,i=" + iterations)


def test_a_client_refuses_a_server_that_does_not_know_the_password() -> None:
    made = server()
    client = ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x")
    made.step(last_of(client, made))
    with pytest.raises(SaslError, match="does not know the password"):
        client.check(b"v=" + b"A" * 43 + b"=")
    with pytest.raises(SaslError, match="continue the client's nonce"):
        ScramClient(ScramMechanism.SHA_256, "bob", "pencil", "x").answer(b"r=other,s=c2FsdA==,i=4096")


def test_a_credential_shows_nothing_of_itself() -> None:
    assert repr(CREDENTIALS[ScramMechanism.SHA_256]) == "ScramCredential(iterations=4096)"


@given(first=st.binary(max_size=200), final=st.binary(max_size=200))
def test_bytes_without_a_meaning_are_refused_and_nothing_else(first: bytes, final: bytes) -> None:
    made = server()
    for token in (first, b"n,,n=bob,r=x", final):
        try:
            made.step(token)
        except SaslError:
            continue
    assert made.authenticated is None
