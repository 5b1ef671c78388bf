"""The driver's JVM, as its Python processes find it: they are below it, and it tells them nothing about itself.

1. Spark's settings, as far as they were known when the JVM started, are on its command line: spark-submit, and PySpark
   when it starts the JVM itself, put them there. What a program sets later is not.
2. The jars that Spark has loaded, also those of `spark.jars.packages`, are files that the JVM has open.
3. Where there is no /proc, nothing of this is known, and the environment alone counts.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DEFAULTS = "spark-defaults.conf"
LOAD_DEFAULTS = "--load-spark-defaults"
FLAGS = ("--supervise", "--verbose", "-v", "--version", "--help", "-h", "--usage-error", LOAD_DEFAULTS)
"""Of spark-submit: options without a value."""
TAKES_A_VALUE = ("-cp", "-classpath", "--class-path")
KEPT = ("-D", "--add-opens", "--add-exports", "--enable-native-access")
NOT_KEPT = ("-Dcom.sun.management", "-Djdk.attach")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Of a JVM that runs Spark. `conf` is what `--conf` says, `properties_file` what `--properties-file` names."""

    java: str = ""
    class_path: str = ""
    options: tuple[str, ...] = ()
    conf: dict[str, str] = field(default_factory=dict)
    properties_file: str | None = None
    loads_defaults: bool = False

    @property
    def properties_files(self) -> list[str]:
        """What Spark reads before `conf`; the last one counts most. A file that is named takes the place of the
        defaults, unless Spark was told to load both."""
        defaults = _defaults_file() if self.loads_defaults or self.properties_file is None else None
        return [path for path in (defaults, self.properties_file) if path is not None]


def _defaults_file() -> str | None:
    home = os.environ.get("SPARK_HOME", "")
    directory = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else "")
    path = f"{directory}/{DEFAULTS}"
    return path if directory and os.path.exists(path) else None


def find() -> int | None:
    """The process id of the JVM that this process is below."""
    pid = os.getppid()
    while command_of(pid) not in ("", "java"):
        pid = int(stat_of(pid)[1])
    return pid if command_of(pid) else None


def command_of(pid: int) -> str:
    """Empty if the system does not tell."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def stat_of(pid: int) -> list[str]:
    """State, parent, ... as proc(5) numbers them from 3."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def command_line_of(pid: int) -> CommandLine:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        java = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return CommandLine()
    return parse([java, *words[1:]])


def parse(words: list[str]) -> CommandLine:
    """What stands before the main class is Java's, and what stands after it Spark's, up to the program."""
    class_path, options, rest = "", [], iter(words[1:])
    for word in rest:
        if word in TAKES_A_VALUE:
            class_path = next(rest, "")
        elif not word.startswith("-"):
            break  # the main class
        elif word.startswith(KEPT) and not word.startswith(NOT_KEPT):
            options.append(word)
    conf: dict[str, str] = {}
    properties_file, loads_defaults = None, False
    for name, value in _submitted(rest):
        if name in ("--conf", "-c"):
            key, _, setting = value.partition("=")
            conf[key.strip()] = setting
        elif name == "--properties-file":
            properties_file = value
        elif name == LOAD_DEFAULTS:
            loads_defaults = True
    return CommandLine(words[0], class_path, tuple(options), conf, properties_file, loads_defaults)


def _submitted(rest: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Every option of spark-submit; a flag has an empty value."""
    for word in rest:
        if not word.startswith("-"):
            return  # the program; what follows is its
        name, is_joined, value = word.partition("=")
        if is_joined:
            yield name, value
        else:
            yield name, "" if name in FLAGS else next(rest, "")


def open_jars(pid: int) -> list[str]:
    """In the order in which the JVM opened them."""
    found: dict[str, None] = {}
    try:
        for descriptor in sorted(os.listdir(f"/proc/{pid}/fd"), key=int):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            except OSError:
                continue  # closed meanwhile
            if target.endswith(".jar"):
                found[target] = None
    except OSError:
        return []
    return list(found)
