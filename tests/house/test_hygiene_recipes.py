"""CONTRIBUTING.md tells the truth: every step of a recipe is found done for everything that was made by it.

A row of a recipe names a file and what stands there. The placeholders of the row are filled in with every API, setting,
metric, record type, world and command that exists; the text has to be found in the file, or in one of the files that
the pattern finds.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from twofold.broker.metrics import families
from twofold.cli.app import make_root
from twofold.config.keys import DEFINITIONS
from twofold.controller import kept_records, records
from twofold.wire.apis import APIS

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
SOURCE = ROOT / "src" / "twofold"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
NOT_IN_KAFKA = {"TxnHeartbeat"}  # so there is nothing to compare with
WITHOUT_EFFECT_HERE = {name for name, key in DEFINITIONS.items() if not key.effect or key.refused}
Fields = Mapping[str, str]


def rows(recipe: str) -> list[tuple[str, str]]:
    """File and text of each step."""
    _, _, section = PAGE.partition(f"### Add {recipe}\n")
    assert section, f"CONTRIBUTING.md has no recipe to add {recipe}"
    table = re.split(r"^#", section, maxsplit=1, flags=re.M)[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        if len(cells) == 3 and cells[0].startswith("`"):
            found.append((cells[0].strip("`"), re.sub(r"^(`` | ``|`)|(`| ``)$", "", cells[2])))
    assert len(found) >= 5, f"the recipe to add {recipe} has lost its steps"
    return found


def filled(text: str, fields: Fields) -> str:
    for name, value in fields.items():
        text = text.replace(f"<{name}>", value)
    return text


@cache
def files(pattern: str) -> tuple[Path, ...]:
    """A file by its path, a pattern of paths, or a module of the tests by its name, wherever it stands."""
    where = ROOT if "/" in pattern or pattern.endswith(".md") else ROOT / "tests"
    found = where.glob(pattern) if where == ROOT else where.rglob(pattern)
    return tuple(path for path in sorted(found) if path.is_file()) or tuple(
        path for folder in ROOT.glob(pattern) if folder.is_dir() for path in sorted(folder.rglob("*.py"))
    )


@cache
def text_of(pattern: str) -> str:
    found = files(pattern)
    if pattern.endswith("*"):
        found += tuple(path for folder in ROOT.glob(pattern) if folder.is_dir() for path in folder.rglob("*.py"))
    assert found, f"CONTRIBUTING.md names {pattern}, which is not there"
    return "\n".join(path.read_text() for path in found)


def walk(recipe: str, things: Mapping[str, Fields], skip: Mapping[str, set[str]] | None = None) -> None:
    for pattern, wanted in rows(recipe):
        for name, fields in things.items():
            if name not in (skip or {}).get(pattern, set()):
                place = filled(pattern, fields)
                assert filled(wanted, fields) in text_of(place), f"{recipe}, {name}: {place} lacks {wanted}"


def test_the_steps_to_add_an_api_are_found_done_for_every_api() -> None:
    served = {path.stem for path in (ROOT / "src/twofold/broker/api").glob("[a-z]*.py")}
    things = {api.name: {"Name": api.name, "module": api.module} for api in APIS.values() if api.module in served}
    assert len(things) >= 40
    walk("an API", things, {"tests/interop/cases/*.py": NOT_IN_KAFKA})


def test_the_steps_to_add_a_setting_are_found_done_for_every_setting() -> None:
    things = {name: {"name": name} for name in DEFINITIONS}
    walk("a setting", things, {"src/twofold/**/*.py": WITHOUT_EFFECT_HERE})


def test_the_steps_to_add_a_metric_are_found_done_for_every_metric() -> None:
    constants = {name: value for name, value in vars(families).items() if isinstance(value, families.Family)}
    assert set(constants.values()) == set(families.FAMILIES)
    walk("a metric", {name: {"CONSTANT": name, "name": value.sample} for name, value in constants.items()})


def test_the_steps_to_add_a_record_type_are_found_done_for_every_record_type() -> None:
    kept = {cls.__name__ for _, cls, _ in kept_records.KEPT}
    names = {cls.__name__ for cls in records._BY_CLASS}
    walk("a record type", {name: {"Class": name} for name in names}, {"src/twofold/controller/replay.py": kept})


def worlds() -> Iterator[tuple[str, list[str]]]:
    """Name, module, function of the plan and function of the run, read without importing the simulator."""
    (path,) = files("tests/sim/worlds.py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KINDS":
            assert isinstance(node.value, ast.Dict)
            for key, value in zip(node.value.keys, node.value.values, strict=True):
                assert isinstance(value, ast.Call)
                yield ast.literal_eval(key or ""), [ast.literal_eval(argument) for argument in value.args[:3]]


def test_the_steps_to_add_a_simulator_world_are_found_done_for_every_world() -> None:
    names = ("module", "make_plan", "simulate")
    things = {world: {"world": world} | dict(zip(names, found, strict=True)) for world, found in worlds()}
    for fields in things.values():
        fields["path"] = fields["module"].replace(".", "/")
    assert len(things) >= 5
    walk("a simulator world", things)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All that have a noun, as `twofold --help` shows them."""
    for name, command in ((name, group.get_command(None, name)) for name in group.list_commands(None)):
        if getattr(command, "commands", None):
            yield from commands(command, (*path, name))
        elif path and not command.hidden:
            yield (*path, name)


def test_the_steps_to_add_a_command_are_found_done_for_every_command() -> None:
    things = {
        " ".join(path): {"noun": path[0], "verb": path[-1], "command": " ".join(path)} for path in commands(make_root())
    }
    assert len(things) >= 30
    walk("a CLI command", things)


def test_every_file_that_contributing_names_is_there() -> None:
    for name in re.findall(r"`((?:src|tests|tools|docs|deploy)/[\w./-]+|[\w-]+\.(?:py|md|lock))`", PAGE):
        assert files(name) or (ROOT / name).exists() or [*SOURCE.rglob(name)], f"CONTRIBUTING.md names {name}"
    for target in re.findall(r"\bmake ([a-z]+)", PAGE):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), f"no target make {target}"
