"""A line of `sasl.jaas.config`: `org.apache....PlainLoginModule required username="u" password="p" user_bob="pw";`

1. Words are cut as Java cuts them: quotes are `"` or `'`, a backslash in quotes escapes, `//` and `/* */` are comments.
2. One login module, a control flag, options `key=value`, and a semicolon at the end.
3. No error quotes a value, because it may be a secret.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_FLAGS = ("required", "requisite", "sufficient", "optional")
_USER = "user_"
_TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/|(?P<quoted>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<sign>[=;])"""
    r"""|(?P<word>[^\s=;"'/]+(?:/(?![/*])[^\s=;"'/]*)*)""",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "b": "\b", "a": "\a", "v": "\v"}


class JaasError(ValueError):
    """A line that cannot be read. It shows no value of it."""


@dataclass(frozen=True, slots=True)
class JaasEntry:
    """What a line says. Its text shows no value."""

    login_module: str
    control_flag: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def username(self) -> str | None:
        return self.options.get("username")

    @property
    def password(self) -> str | None:
        return self.options.get("password")

    @property
    def users(self) -> dict[str, str]:
        """The passwords of `user_NAME="password"` by NAME."""
        return {key.removeprefix(_USER): value for key, value in self.options.items() if key.startswith(_USER)}


def parse_jaas(line: str) -> JaasEntry:
    words = _words(line)
    if len(words) < 3 or words[-1] != (";", True):
        raise JaasError('must be `LOGIN_MODULE required KEY="value" ...;`, with a semicolon at the end')
    if (";", True) in words[:-1]:
        raise JaasError("names more than one login module; one is allowed")
    module, flag = words[0], words[1]
    if module[1] or flag[1] or flag[0].lower() not in _FLAGS:
        raise JaasError(f"needs one of {', '.join(_FLAGS)} after the name of the login module")
    options: dict[str, str] = {}
    rest = words[2:-1]
    while rest:
        if len(rest) < 3 or rest[0][1] or rest[1] != ("=", True) or rest[2][1]:
            raise JaasError(f'option {len(options) + 1} is not KEY="value"')
        options[rest[0][0]] = rest[2][0]
        rest = rest[3:]
    return JaasEntry(module[0], flag[0].lower(), options)


def _words(line: str) -> list[tuple[str, bool]]:
    """Each word, and whether it is a sign."""
    words: list[tuple[str, bool]] = []
    position = 0
    while position < len(line):
        found = _TOKEN.match(line, position)
        if found is None:
            raise JaasError(f"cannot be read from character {position + 1} on: is a quote missing?")
        position = found.end()
        if found["quoted"] is not None:
            words.append((_ESCAPE.sub(_unescaped, found["quoted"][1:-1]), False))
        elif found["sign"] is not None:
            words.append((found["sign"], True))
        elif found["word"] is not None:
            words.append((found["word"], False))
    return words


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8) & 0xFF)
    return _ESCAPES.get(escaped, escaped)
