"""Write docs/settings.md from the tables of `twofold.config`.

python tools/generate_settings.py            writes the page
python tools/generate_settings.py --check    exit code 1 where the page is not what the tables say
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from twofold.config.definition import ConfigKey, text_of
from twofold.config.keys import SECTIONS, SettingKey
from twofold.config.topic import DEFINITIONS, TopicConfigKey

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

HEAD = """\
# Settings

Generated from the tables in `src/twofold/config` by `tools/generate_settings.py`; edit those.

Names, types and defaults are those of Apache Kafka 4.3. A setting is taken from the first of these that has it: the
command line (`-o num.partitions=3`), the environment (`TWOFOLD_NUM_PARTITIONS=3`), the file (`--config
server.properties`), the default. A key that nobody knows is ignored with a line in the log that names the nearest
known one; a value that is not allowed stops the start.

- **dynamic**: may also be changed while the broker runs, for one broker or for all (IncrementalAlterConfigs).
- **no effect**: accepted, kept and shown by DescribeConfigs, so that files and tools made for Kafka work, but Twofold
  does nothing with it yet.

Three things differ from Kafka: `node.id` has a default, `log.dir` is `./twofold-data`, and replication factor and min
ISR of the internal topics, where nobody set them, are at most the number of brokers.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("__", "\\_\\_")


def default_of(key: ConfigKey) -> str:
    text = text_of(key.default)
    if text is None:
        return ""
    return f"`{cell(text)}`" if text else '`""`'


def notes_of(key: SettingKey | TopicConfigKey) -> str:
    notes = [key.rule.text] if key.rule else []
    if isinstance(key, SettingKey) and key.dynamic:
        notes.append("**dynamic**")
    if not key.effect:
        notes.append("**no effect**")
    if isinstance(key, TopicConfigKey) and key.synonyms:
        notes.append("broker: " + ", ".join(f"`{synonym.setting}`" for synonym in key.synonyms))
    return "; ".join(notes)


def table(keys: Iterable[SettingKey | TopicConfigKey]) -> str:
    lines = ["| name | type | default | what it does | notes |", "|---|---|---|---|---|"]
    for key in sorted(keys, key=lambda key: key.name):
        cells = (f"`{key.name}`", key.type.name.lower(), default_of(key), cell(key.doc), cell(notes_of(key)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def page() -> str:
    parts = [HEAD]
    parts += [f"## {title}\n\n{table(keys)}\n" for title, keys in SECTIONS.items()]
    parts.append(
        "## Topics\n\nConfigurations of one topic. Where a topic does not set one, the first of the broker's settings "
        f"named under notes that somebody set is used, else the default.\n\n{table(DEFINITIONS.values())}\n"
    )
    return "\n".join(parts)


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
