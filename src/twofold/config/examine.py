"""What is wrong, and what is worth knowing, about the settings of a start: all of it, where a start tells the first.

1. A problem keeps a broker from starting: a value that its key does not allow, an unknown key outside of a file,
   settings that contradict each other, and what would be believed and is not there (`twofold.config.servable`).
2. A warning does not: a key that is ignored or has no effect, and one that a later source overrules.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from twofold.config.definition import ConfigError
from twofold.config.keys import DEFINITIONS, foreign_family, is_known, listener_key, refused_key
from twofold.config.listener_security import listener_securities
from twofold.config.listeners import ListenerError, advertised_addresses, listen_addresses, parse_host_port
from twofold.config.servable import check_servable
from twofold.config.settings import Settings, Source, data_directory, why_ignored
from twofold.config.topic import LogConfig


class Severity(StrEnum):
    PROBLEM = "problem"
    WARNING = "warning"


class SettingFinding(NamedTuple):
    level: Severity
    setting: str
    source: str
    text: str


class Examined(NamedTuple):
    """`settings` are those that a start would have; None where a problem keeps it from having any."""

    findings: Sequence[SettingFinding]
    settings: Settings | None

    @property
    def problems(self) -> list[SettingFinding]:
        return [finding for finding in self.findings if finding.level is Severity.PROBLEM]


def examine(sources: Sequence[Source], *, hostname: str) -> Examined:
    """Look at every setting alone, then at those that are right together."""
    findings: list[SettingFinding] = []
    usable: list[Source] = []
    for source in sources:
        texts: dict[str, str] = {}
        for name, text in source.texts.items():
            found = list(_alone(source, name, text))
            findings += found
            if is_known(name) and not any(finding.level is Severity.PROBLEM for finding in found):
                texts[name] = text
        usable.append(Source(source.name, texts, source.lenient))
    findings += _overruled(usable)
    try:
        settings = Settings.from_sources(*_without_foreign(usable))
    except ConfigError as error:
        return Examined([*findings, _problem(error)], None)
    findings += _together(settings, hostname)
    return Examined(findings, settings)


def _alone(source: Source, name: str, text: str) -> Iterator[SettingFinding]:
    key = DEFINITIONS.get(name)
    of_listener = listener_key(name)
    if key is not None or of_listener is not None:
        try:
            (key or of_listener.key).parse(text, source=source.name)  # type: ignore[union-attr]
        except ConfigError as error:
            yield _problem(ConfigError(name, error.value, error.allowed, error.source))
            return
    if refused_key(name) is not None or of_listener is not None:
        return
    if key is None and not source.lenient:
        yield SettingFinding(Severity.PROBLEM, name, source.name, why_ignored(name))
    elif key is None or foreign_family(name) is not None:
        yield SettingFinding(Severity.WARNING, name, source.name, f"is ignored: {why_ignored(name)}")
    elif not key.effect:
        yield SettingFinding(Severity.WARNING, name, source.name, "is accepted and has no effect in Twofold")


def _overruled(sources: Sequence[Source]) -> Iterator[SettingFinding]:
    last: dict[str, Source] = {}
    for source in sources:
        for name in source.texts:
            earlier = last.get(name)
            if earlier is not None and earlier.texts[name] != source.texts[name]:
                yield SettingFinding(Severity.WARNING, name, earlier.name, f"is overruled by {source.name}")
            last[name] = source


def _without_foreign(sources: Sequence[Source]) -> list[Source]:
    """They have been told about already, and would be logged."""
    return [
        Source(
            source.name,
            {
                name: text
                for name, text in source.texts.items()
                if refused_key(name) or listener_key(name) or foreign_family(name) is None
            },
            source.lenient,
        )
        for source in sources
    ]


def _together(settings: Settings, hostname: str) -> Iterator[SettingFinding]:
    try:
        check_servable(settings, hostname=hostname)
    except (ConfigError, ListenerError) as error:
        yield _problem(error)
        return
    try:
        advertised_addresses(settings, listen_addresses(settings), hostname)
    except ListenerError as error:
        yield _problem(error)
    try:
        for listener in listener_securities(settings):
            listener.server_context()
    except ConfigError as error:
        yield _problem(error)
    try:
        metrics = settings.optional_string("metrics.listener")
        if metrics:
            parse_host_port(metrics, "metrics.listener")
    except ListenerError as error:
        yield _problem(error)
    try:
        data_directory(settings)
        LogConfig.resolve({}, settings)
    except ConfigError as error:
        yield _problem(error)


def _problem(error: ConfigError | ListenerError) -> SettingFinding:
    if isinstance(error, ListenerError):
        setting, _, _ = str(error).partition("=")
        return SettingFinding(Severity.PROBLEM, setting.split()[0], "", str(error))
    shown = "" if error.value is None else f"{error.value}: "
    return SettingFinding(Severity.PROBLEM, error.key, error.source, f"{shown}{error.allowed}")
