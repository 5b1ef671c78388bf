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
server.properties`), the default. A value that is not allowed stops the start (exit code 2; an exception from
`Broker(settings=...)`). So does an unknown key, and the message names the nearest known one: on the command line,
in `Broker(settings=...)`, and in the environment where it is a near miss of a key. In a file it is ignored with a line
in the log, because the file may have been written for another version, or for Apache Kafka.

- **dynamic**: may also be changed while the broker runs, for one broker or for all (IncrementalAlterConfigs).
- **no effect**: accepted, kept and shown by DescribeConfigs, so that files and tools made for Kafka work, but Twofold
  does nothing with it yet.
- **refused**: without effect too, but its user would rely on it. It stops the start, from whatever source, and cannot
  be set while the broker runs (INVALID_CONFIG), until Twofold has what it asks for. The message names the setting, the
  missing part and what to do. To run a file of Apache Kafka all the same, take the settings out, or override each with
  a value that passes: `-o authorizer.class.name=`.

Three things differ from Kafka: `node.id` has a default, `log.dir` is `./twofold-data`, and replication factor and min
ISR of the internal topics, unless set, are at most the number of brokers.

## What is refused, and why

Twofold is one node, broker and controller at once, open to every client. An operator relies on a
setting that says otherwise, because a broker that starts without a complaint seems to obey it. Where that would let
clients in, leave a node alone that should be part of a cluster, or lose records, the start is refused.

"""

# Settings, the values that pass, and why all others are refused.
REFUSED = (
    (
        "`listeners` with another security protocol than PLAINTEXT (by `listener.security.protocol.map`)",
        "a protocol in the map that no listener for clients has",
        "clients would be let in without TLS or SASL",
    ),
    (
        "`ssl.*`, `sasl.*`, also as `listener.name.NAME.*`; `security.inter.broker.protocol`, `security.providers`, "
        "`connections.max.reauth.ms`, `delegation.token.secret.key`",
        "empty, or the default",
        "the same",
    ),
    (
        "`authorizer.class.name`, `super.users`, `allow.everyone.if.no.acl.found`, `principal.builder.class`",
        "empty, or the default of `principal.builder.class`",
        "every client could do everything, whatever rules are meant",
    ),
    (
        "`create.topic.policy.class.name`, `alter.config.policy.class.name`, `max.connections.per.ip.overrides`",
        "empty",
        "what they forbid would be allowed",
    ),
    ("`process.roles`", "both roles", "a broker or a controller alone needs others"),
    (
        "`controller.quorum.voters`",
        "this node's `node.id` alone",
        "the node would start a cluster of its own",
    ),
    (
        "`controller.quorum.bootstrap.servers`",
        "addresses of this node: a host of its listeners, `localhost` or its own name, with the port of its listener "
        "for controllers",
        "the same",
    ),
    ("`controller.quorum.auto.join.enable`, `zookeeper.connect`", "`false`; empty", "the same"),
    (
        "`min.insync.replicas`, `default.replication.factor`, `offsets.topic.replication.factor`, "
        "`transaction.state.log.replication.factor`, `transaction.state.log.min.isr`",
        "1, or not set",
        "each record has one copy",
    ),
    ("`remote.log.storage.system.enable`", "`false`", "no record is copied to remote storage"),
    (
        "`metadata.log.dir`",
        "the data directory",
        "the metadata in it would not be found, and the topics would be forgotten",
    ),
    ("`config.providers`", "empty", "`${...}` would be taken as it is written, perhaps as the name of a directory"),
)

NOT_REFUSED = """\
Not refused, because nothing is lost by believing them: `unclean.leader.election.enable` (there is one replica, and it
is the leader), `log.flush.*` (they are obeyed), `min.insync.replicas` of a topic (a partition with one replica never
asks for more, as in Apache Kafka, and the client that creates the topic is told its replication factor), quotas,
numbers of threads, sizes of buffers, intervals of what Twofold does not do, share and Streams groups. A folder of
Apache Kafka in which a refused setting was changed while it ran keeps it, without effect; a line in the log at the
start says so.

`transactional.id.expiration.ms` must be longer than `transaction.max.timeout.ms` (KIP-98): an id must not be forgotten
before its transaction times out.
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
    if isinstance(key, SettingKey) and key.refused is not None:
        notes.append(f"**refused** (no {key.refused.missing.what} yet) unless {key.refused.unless}")
    elif not key.effect:
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
    rows = "\n".join(f"| {' | '.join(row)} |" for row in REFUSED)
    parts = [f"{HEAD}| settings | passes | why it is refused otherwise |\n|---|---|---|\n{rows}\n", NOT_REFUSED]
    parts += [f"## {title}\n\n{table(keys)}\n" for title, keys in SECTIONS.items()]
    parts.append(
        "## Topics\n\nConfigurations of one topic. Where a topic does not set one, the first of the broker's settings "
        f"named under notes that is set is used, else the default.\n\n{table(DEFINITIONS.values())}\n"
    )
    return "\n".join(parts)


def main() -> int:
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.exists() and PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
