"""The users of SCRAM as logins ask for them: those of the newest image. A new password counts at the next login."""

from collections import Counter
from collections.abc import Callable, Mapping

from twofold.controller.image import MetadataImage
from twofold.security.scram import CredentialForm, ScramCredential, ScramMechanism, ScramUsers


class StoredUsers(ScramUsers):
    """Counts the forms of their credentials anew when one has changed, and a client asks for an unknown user."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        self._image = image
        self._counted = image().scram
        self._forms: dict[ScramMechanism, Counter[CredentialForm]] = {}

    def credential_of(self, name: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self._image().scram_credential(name, mechanism)

    def forms_of(self, mechanism: ScramMechanism) -> Mapping[CredentialForm, int]:
        stored = self._image().scram
        if stored is not self._counted:
            self._counted = stored
            self._forms = {}
            for key, found in stored.items():
                forms = self._forms.setdefault(ScramMechanism(key.mechanism), Counter())
                forms[CredentialForm.of(found.salt, found.iterations)] += 1
        return self._forms.get(mechanism, {})
