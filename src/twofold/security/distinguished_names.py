"""The name of a client's certificate as Java writes it, and the user that `ssl.principal.mapping.rules` makes of it.

1. RFC 2253 as Java prints it: the last part first, no blanks. CN, OU, O, L, ST, C, STREET, DC and UID have keywords;
   any other attribute is its number and its value in DER: `1.2.840.113549.1.9.1=#1609626f6240782e6f7267`.
2. Rules are separated by commas: `RULE:pattern/replacement/`, with L or U at its end for lower or upper case, and
   DEFAULT, which is the whole name. The first rule whose pattern matches the whole name counts; none means no user.
3. Patterns are RE2's, because the name is the client's: no name can make one take long.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twofold.extras import require

if TYPE_CHECKING:
    from cryptography import x509

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_CHARSETS = {12: "utf-8", 19: "ascii", 22: "ascii", 20: "latin-1", 28: "utf-32-be", 30: "utf-16-be"}  # by DER tag
_ESCAPED = frozenset(',=+<>#;"\\')
_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|\Z)", re.DOTALL)
_GROUP = re.compile(r"\\(.)|\$([0-9])")


class BadRule(ValueError):
    """A rule that cannot be read or used."""


@dataclass(frozen=True, slots=True)
class MappingRule:
    """`pattern` is None for DEFAULT."""

    pattern: Any
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = _GROUP.sub(lambda part: part[1] or found.group(int(part[2])) or "", self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


def parse_rules(text: str) -> tuple[MappingRule, ...]:
    rules: list[MappingRule] = []
    position = 0
    text = text.strip()
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise BadRule(f"'{text[position:]}' is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        position = found.end()
        rules.append(MappingRule(None) if found[1] else _rule(found[2], found[3], found[4]))
    return tuple(rules) or (MappingRule(None),)


def _rule(pattern: str, replacement: str, case: str) -> MappingRule:
    require("re2", "RULE: in ssl.principal.mapping.rules")
    import re2

    try:
        compiled = re2.compile(pattern.replace("\\/", "/"))
    except re2.error:
        raise BadRule(f"the pattern '{pattern}' is none of RE2's (no look-around, no back-references)") from None
    groups = [int(found[2]) for found in _GROUP.finditer(replacement) if found[2]]
    if max(groups, default=0) > compiled.groups:
        raise BadRule(f"'{replacement}' refers to a group that '{pattern}' does not have")
    return MappingRule(compiled, replacement, case)


def mapped_user(rules: Sequence[MappingRule], name: str) -> str | None:
    """The user by the first rule that fits; None where none does, or where it leaves an empty name."""
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return mapped or None
    return None


def certificate_name(der: bytes) -> str:
    """The subject of a certificate."""
    from cryptography import x509

    return java_name(x509.load_der_x509_certificate(der).subject)


def java_name(name: "x509.Name") -> str:
    return ",".join("+".join(_attribute(one) for one in part) for part in reversed(name.rdns))


def _attribute(attribute: "x509.NameAttribute[Any]") -> str:
    number = attribute.oid.dotted_string
    tag = int(attribute._type.value)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _CHARSETS:
        return f"{keyword or number}=#{_der(tag, attribute.value).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _der(tag: int, value: str | bytes) -> bytes:
    data = value if isinstance(value, bytes) else value.encode(_CHARSETS.get(tag, "utf-8"))
    if len(data) < 0x80:
        return bytes((tag, len(data))) + data
    length = len(data).to_bytes((len(data).bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + data


def _escaped(value: str) -> str:
    inner = "".join("\\00" if one == "\0" else f"\\{one}" if one in _ESCAPED else one for one in value)
    stripped = inner.strip(" ")
    start = len(inner) - len(inner.lstrip(" "))
    end = len(inner) - len(inner.rstrip(" ")) if stripped else 0
    return "\\ " * start + stripped + "\\ " * end
