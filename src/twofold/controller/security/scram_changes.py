"""AlterUserScramCredentials as an operation on the image, and what DescribeUserScramCredentials tells.

1. A row per user. A user that is named twice, even with two mechanisms: DUPLICATE_RESOURCE (92). An empty name, fewer
   than 4,096 iterations or more than 16,384, an empty salt, an empty salted password: UNACCEPTABLE_CREDENTIAL (93). An
   unknown mechanism: UNSUPPORTED_SASL_MECHANISM (33). A deletion of what is not there: RESOURCE_NOT_FOUND (91).
2. A metadata.version that knows no SCRAM: UNSUPPORTED_VERSION (35).
3. The client sends the salted password. What is stored are the keys made of it, from which it cannot be found.
4. The good rows of a request are written together. The order of the rows is that of the request.
"""

from collections import Counter
from collections.abc import Iterable

from twofold.controller.context import Context, error_row
from twofold.controller.features import metadata_version
from twofold.controller.image import METADATA_VERSION, MetadataImage, ScramKey
from twofold.controller.levels import SCRAM_CREDENTIALS, describe
from twofold.controller.operation import Operation
from twofold.controller.security.records import RemoveUserScramCredential, UserScramCredential
from twofold.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_from_salted_password,
)
from twofold.wire.errors import (
    NONE,
    DuplicateResource,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    UnsupportedVersion,
)
from twofold.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from twofold.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResult,
)


def alter_scram(
    image: MetadataImage, request: AlterUserScramCredentialsRequest, context: Context
) -> Operation[AlterUserScramCredentialsResponse]:
    rows: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions, *request.upsertions]
    counts = Counter(row.name for row in rows)
    results: dict[str, AlterUserScramCredentialsResult] = {}
    for row in rows:
        if row.name in results:
            continue
        code, message = NONE, None
        try:
            if metadata_version(image) < SCRAM_CREDENTIALS:
                raise UnsupportedVersion(
                    f"{METADATA_VERSION} {describe(metadata_version(image))} cannot hold SCRAM credentials: upgrade it "
                    f"to {describe(SCRAM_CREDENTIALS)} or newer"
                )
            if counts[row.name] > 1:
                raise DuplicateResource(f"the user {row.name!r} is named more than once")
            record = _removal(image, row) if isinstance(row, ScramCredentialDeletion) else _credential(row)
        except KafkaError as error:
            code, message = error_row(error)
        else:
            yield record
        results[row.name] = AlterUserScramCredentialsResult(user=row.name, error_code=code, error_message=message)
        yield None
    return AlterUserScramCredentialsResponse(results=list(results.values()))


def _mechanism(name: str, code: int) -> ScramMechanism:
    if not name:
        raise UnacceptableCredential("the name of a user is not empty")
    try:
        return ScramMechanism(code)
    except ValueError:
        raise UnsupportedSaslMechanism(f"there is no SCRAM mechanism {code}") from None


def _removal(image: MetadataImage, row: ScramCredentialDeletion) -> RemoveUserScramCredential:
    mechanism = _mechanism(row.name, row.mechanism)
    if ScramKey(row.name, mechanism) not in image.scram:
        raise ResourceNotFound(f"the user {row.name!r} has no credential for {mechanism.mechanism_name}")
    return RemoveUserScramCredential(row.name, mechanism)


def _credential(row: ScramCredentialUpsertion) -> UserScramCredential:
    mechanism = _mechanism(row.name, row.mechanism)
    if not MIN_ITERATIONS <= row.iterations <= MAX_ITERATIONS:
        raise UnacceptableCredential(
            f"{row.iterations} iterations: a credential has from {MIN_ITERATIONS} to {MAX_ITERATIONS}"
        )
    if not row.salt or not row.salted_password:
        raise UnacceptableCredential("a credential needs a salt and a salted password")
    made = credential_from_salted_password(mechanism, row.salted_password, row.salt, row.iterations)
    return stored(row.name, mechanism, made)


def stored(name: str, mechanism: ScramMechanism, credential: ScramCredential) -> UserScramCredential:
    """The record of a user's credential."""
    return UserScramCredential(
        name, mechanism, credential.salt, credential.stored_key, credential.server_key, credential.iterations
    )


def described(image: MetadataImage, names: Iterable[str]) -> list[DescribeUserScramCredentialsResult]:
    """A row per user: missing ones are RESOURCE_NOT_FOUND, those asked for twice DUPLICATE_RESOURCE; none means all."""
    counts = Counter(names)
    wanted = list(counts) or sorted({key.name for key in image.scram})
    return [_described(image, name, counts[name]) for name in wanted]


def _described(image: MetadataImage, name: str, count: int) -> DescribeUserScramCredentialsResult:
    infos = [
        CredentialInfo(mechanism=mechanism, iterations=found.iterations)
        for mechanism in ScramMechanism
        if (found := image.scram.get(ScramKey(name, mechanism))) is not None
    ]
    error: KafkaError | None = None
    if count > 1:
        error = DuplicateResource(f"the user {name!r} is named more than once")
    elif not infos:
        error = ResourceNotFound(f"there is no SCRAM credential of the user {name!r}")
    code, message = (NONE, None) if error is None else error_row(error)
    return DescribeUserScramCredentialsResult(
        user=name, error_code=code, error_message=message, credential_infos=() if error else infos
    )
