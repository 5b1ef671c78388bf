"""The differential cases, one module an API or a theme. Every later feature adds its own."""

from interop.cases import (
    api_versions,
    cluster,
    configs,
    features,
    fetch,
    groups_admin,
    groups_join,
    groups_members,
    groups_offsets,
    groups_static,
    groups_stories,
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
    features,
    groups_join,
    groups_members,
    groups_static,
    groups_stories,
    groups_offsets,
    groups_admin,
    versions,
)

ALL: list[Case] = [case for module in MODULES for case in module.CASES.all]
