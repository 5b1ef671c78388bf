"""One dataclass per message: the union of the fields of all its versions. Written by a tool."""
