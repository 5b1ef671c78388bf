"""A setting that does nothing is marked so, and one that is marked so does nothing."""

import re
from pathlib import Path

import pytest

from twofold.config import settings, topic

SOURCE = Path(__file__).parent.parent.parent / "src" / "twofold"

# Where keys are defined or listed rather than used.
TABLES = {SOURCE / "config" / "topic.py", SOURCE / "config" / "describe.py", SOURCE / "controller" / "configs.py"}

# Used by other means than their own name in a call.
ALIASES = {"broker.id": "becomes node.id", "internal.segment.bytes": "becomes segment.bytes"}

# A topic configuration is used through a field of LogConfig, or through a question about it.
QUESTIONS = {
    "cleanup.policy": ("is_compacted", "deletes_old_segments"),
    "message.timestamp.type": ("stamps_append_time",),
}


def texts() -> list[str]:
    paths = [path for path in SOURCE.rglob("*.py") if path not in TABLES and path.parent.name != "keys"]
    return [path.read_text() for path in paths]


TEXTS = texts()
SUPPLIED = {synonym.setting: key for key in topic.DEFINITIONS.values() for synonym in key.synonyms}


def is_read(pattern: str) -> bool:
    return any(re.search(pattern, text) for text in TEXTS)


def topic_config_is_used(name: str) -> bool:
    fields = (name.replace(".", "_"), *QUESTIONS.get(name, ()))
    return any(is_read(rf"\.{field}\b") for field in fields)


@pytest.mark.parametrize("name", sorted(topic.DEFINITIONS.keys() - ALIASES.keys()))
def test_topic_configurations_without_effect_are_marked(name):
    assert topic.DEFINITIONS[name].effect == topic_config_is_used(name)


@pytest.mark.parametrize("name", sorted(settings.DEFINITIONS.keys() - ALIASES.keys()))
def test_settings_without_effect_are_marked(name):
    read = is_read(rf"\(\s*\"{re.escape(name)}\"")
    if name in SUPPLIED:
        read = read or topic_config_is_used(SUPPLIED[name].name)
    assert settings.DEFINITIONS[name].effect == read
