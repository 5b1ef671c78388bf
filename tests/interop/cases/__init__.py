"""The differential cases, one module an API or a theme. Every later feature adds its own."""

from interop.cases import (
    api_versions,
    cluster,
    configs,
    fetch,
    list_offsets,
    metadata,
    produce,
    producers,
    protocol,
    topics,
    versions,
)
from oracle.compare import Case

MODULES = (
    protocol,
    api_versions,
    metadata,
    topics,
    configs,
    produce,
    producers,
    fetch,
    list_offsets,
    cluster,
    versions,
)

ALL: list[Case] = [case for module in MODULES for case in module.CASES.all]
