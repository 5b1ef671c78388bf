"""The settings of the authorizer, under Kafka's names."""

from dataclasses import dataclass

from twofold.config.definition import ConfigError
from twofold.config.keys.missing import STANDARD_AUTHORIZER
from twofold.config.settings import Settings

CLASS_NAME = "authorizer.class.name"
SUPER_USERS = "super.users"
ALLOW_EVERYONE = "allow.everyone.if.no.acl.found"


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    super_users: frozenset[str]
    allow_everyone: bool
    """Whether every principal may use a resource that no entry is about."""


def authorizer_settings(settings: Settings) -> AuthorizerSettings | None:
    """None where no authorizer is asked for; ConfigError for what cannot be obeyed."""
    given = {name: settings.given.get(name) for name in (SUPER_USERS, ALLOW_EVERYONE)}
    texts = {name: found.text.strip() if found else "" for name, found in given.items()}
    if settings.string("authorizer.class.name") != STANDARD_AUTHORIZER:
        for name, text in texts.items():
            if text:
                advice = f"without {CLASS_NAME} no authorizer obeys it: set {CLASS_NAME}={STANDARD_AUTHORIZER} as well"
                raise _error(settings, name, text, advice)
        return None
    everyone = texts[ALLOW_EVERYONE].lower() or "false"
    if everyone not in ("true", "false"):
        raise _error(settings, ALLOW_EVERYONE, texts[ALLOW_EVERYONE], "must be true or false")
    return AuthorizerSettings(_principals(settings, texts[SUPER_USERS]), everyone == "true")


def _principals(settings: Settings, text: str) -> frozenset[str]:
    names = [part.strip() for part in text.split(";") if part.strip()]
    for name in names:
        kind, colon, rest = name.partition(":")
        if not kind or not colon or not rest:
            advice = f"{name!r} is no principal such as User:alice; several are separated by semicolons"
            raise _error(settings, SUPER_USERS, text, advice)
    return frozenset(names)


def _error(settings: Settings, name: str, text: str, reason: str) -> ConfigError:
    given = settings.given.get(name)
    return ConfigError(name, text, reason, given.source if given else "")
