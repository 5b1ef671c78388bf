"""Values that stand elsewhere, in the spelling of Kafka's config providers: `${env:NAME}`, `${file:PATH:KEY}`,
`${file:PATH}` and `${directory:PATH:NAME}`.

1. A reference is read where and when its value is needed: a plan, a log or another process sees no more than that.
2. A file that holds nothing but the value is `${file:PATH}` (ours) or `${directory:PATH:NAME}`; one line end after the
   value does not belong to it. `${file:PATH:KEY}` is a key of a properties file.
3. An error names the setting and where the value should be, and nothing of what was found there.
"""

import os
import re

from twofold.config.properties import parse_properties
from twofold.connections.errors import SecretUnreadable

MAX_FILE_BYTES = 1024 * 1024
_REFERENCE = re.compile(r"\$\{(env|file|directory):([^}]+)\}")


def is_reference(text: str) -> bool:
    """Whether the value stands elsewhere as a whole."""
    return _REFERENCE.fullmatch(text.strip()) is not None


def resolve(setting: str, text: str) -> str:
    """The text with its references replaced by what they refer to; SecretUnreadable where that cannot be read."""
    return _REFERENCE.sub(lambda found: _value(setting, found[0], found[1], found[2]), text)


def _value(setting: str, reference: str, provider: str, place: str) -> str:
    if provider == "env":
        found = os.environ.get(place)
        if not found:
            raise SecretUnreadable(
                f"{setting} is {reference}, and this process has no variable {place}, or an empty one"
            )
        return found
    path, _, key = place.rpartition(":")
    if provider == "directory":
        if not path:
            raise SecretUnreadable(f"{setting} is {reference}: write ${{directory:PATH:NAME}}")
        return _content(setting, reference, os.path.join(path, key))
    if not path:
        return _content(setting, reference, place)
    values = _properties(setting, reference, path)
    if key not in values:
        raise SecretUnreadable(f"{setting} is {reference}, and {path} has no key {key}")
    return values[key]


def _content(setting: str, reference: str, path: str) -> str:
    """Of a file that holds the value alone."""
    text = read_text(f"{setting} is {reference}, and", path)
    text = text.removesuffix("\n").removesuffix("\r")
    if not text:
        raise SecretUnreadable(f"{setting} is {reference}, and the file {path} is empty")
    return text


def _properties(setting: str, reference: str, path: str) -> dict[str, str]:
    text = read_text(f"{setting} is {reference}, and", path)
    try:
        return parse_properties(text)
    except ValueError:
        # The words of the parser could quote a line of the file.
        raise SecretUnreadable(f"{setting} is {reference}, and {path} is no properties file") from None


def read_text(whose: str, path: str) -> str:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SecretUnreadable(f"{whose} the file {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise SecretUnreadable(f"{whose} the file {path} has more than {MAX_FILE_BYTES:,} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SecretUnreadable(f"{whose} the file {path} is no text in UTF-8") from None
