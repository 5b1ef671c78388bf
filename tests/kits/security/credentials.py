"""What a server keeps of a password."""

from twofold.security.scram import ScramCredential, ScramMechanism, credential_from_salted_password, salted_password


def credential_from_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> ScramCredential:
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from_salted_password(mechanism, salted, salt, iterations)
