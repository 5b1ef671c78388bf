"""PEM text as Kafka's settings hold it: in a file, or inline, where a line of properties has blanks for line ends."""

import re

_BLOCK = re.compile(r"-+BEGIN ([A-Z0-9 ]+?)-+\s*(.*?)\s*-+END \1-+", re.DOTALL)
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
CERTIFICATE = "CERTIFICATE"


def blocks(text: str) -> list[tuple[str, str]]:
    """The label of each block, and the block in the form that OpenSSL reads."""
    return [(found[1].strip(), _normal(found[1].strip(), found[2])) for found in _BLOCK.finditer(text)]


def _normal(label: str, body: str) -> str:
    if _BASE64.fullmatch(body):
        packed = "".join(body.split())
        body = "\n".join(packed[start : start + 64] for start in range(0, len(packed), 64))
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"


def certificates(text: str) -> str:
    """All certificates of a text, empty where there is none."""
    return "".join(block for label, block in blocks(text) if label == CERTIFICATE)


def private_key(text: str) -> str:
    """The first private key of a text, empty where there is none."""
    return next((block for label, block in blocks(text) if label.endswith("PRIVATE KEY")), "")
