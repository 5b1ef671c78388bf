"""What a connection speaks that does not speak Kafka, by its first bytes. Pure.

A message of Kafka begins with its length. The first bytes of these protocols, read as a length, are above every bound
of a message, so no message of Kafka is taken for one of them.
"""

LONGEST_GREETING = 8
_HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"TRAC", b"CONN", b"HTTP")
_TLS_RECORDS = (0x15, 0x16)  # an alert, a handshake
_TLS_MAJOR = 3


def other_protocol(beginning: bytes) -> str | None:
    """The name of the protocol, or None where it is none that is known."""
    if len(beginning) >= 2 and beginning[0] in _TLS_RECORDS and beginning[1] == _TLS_MAJOR:
        return "TLS"
    if beginning.startswith(b"PRI "):
        return "HTTP/2"
    if beginning.startswith(_HTTP):
        return "HTTP"
    return "SSH" if beginning.startswith(b"SSH-") else None
