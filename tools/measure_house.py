"""Measure how the sources are built, so that a change of their form can be compared with what was before.

    python tools/measure_house.py [--format json] [--source DIR]

Per package: files, lines, and the longest chain of our own classes that inherit from each other. Over the whole tree:
class names that stand for more than one class, and functions of more than 50 lines.
"""

import argparse
import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parent.parent / "src" / "twofold"
LONG_FUNCTION = 50
WIRE_MESSAGES = ("messages", "schema", "generated")
"""Packages of wire messages, below `wire`. Their classes have Apache Kafka's names, which repeat from API to API."""


@dataclass(frozen=True, slots=True)
class ClassFound:
    name: str
    module: str
    bases: tuple[str, ...]
    """The names of the bases, each as the module that declares it knows it: `module.Name`, or `Name` if unknown."""

    @property
    def full_name(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    package: str
    lines: int
    has_wire_messages: bool
    classes: tuple[ClassFound, ...]
    long_functions: tuple[tuple[str, int], ...]
    """Each with its lines."""


def read_tree(source: Path = SOURCE) -> list[Module]:
    return [_read(path, source) for path in sorted(source.rglob("*.py"))]


def _read(path: Path, source: Path) -> Module:
    inside = path.relative_to(source).with_suffix("").parts
    name = ".".join((source.name, *inside)).removesuffix(".__init__")
    text = path.read_text()
    tree = ast.parse(text)
    imported = dict(_imported(tree))
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    known = imported | {one: f"{name}.{one}" for one in own}
    return Module(
        name=name,
        package=inside[0] if len(inside) > 1 else "(top)",
        lines=text.count("\n"),
        has_wire_messages=inside[0] == "wire" and any(part in WIRE_MESSAGES for part in inside[1:-1]),
        classes=tuple(
            ClassFound(node.name, name, tuple(_bases(node, known)))
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        ),
        long_functions=tuple(_long_functions(tree, name)),
    )


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _bases(node: ast.ClassDef, known: dict[str, str]) -> Iterator[str]:
    for base in node.bases:
        written = ast.unparse(base).partition("[")[0]
        first, _, rest = written.partition(".")
        yield f"{known.get(first, first)}{'.' + rest if rest else ''}"


def _long_functions(tree: ast.Module, module: str) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONG_FUNCTION:
                yield f"{module}.{node.name}", lines


def longest_chain(modules: list[Module], package: str) -> list[str]:
    """Names of classes, the youngest first, that begins in the package. Classes of others are not counted."""
    classes = {found.full_name: found for module in modules for found in module.classes}

    def chain(name: str) -> list[str]:
        found = classes[name]
        above = [chain(base) for base in found.bases if base in classes and base != name]
        return [found.name, *max(above, key=len, default=[])]

    chains = [chain(found.full_name) for module in modules if module.package == package for found in module.classes]
    return max(chains, key=len, default=[])


def duplicated_classes(modules: list[Module]) -> dict[str, list[str]]:
    """Names of public classes that stand for more than one class, with the modules that have one. Helpers that begin
    with `_` are known only in their module, and generated wire messages have Apache Kafka's names."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for found in module.classes:
            if not found.name.startswith("_") and not module.has_wire_messages:
                places[found.name].append(module.name)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def measure(source: Path = SOURCE) -> dict[str, Any]:
    modules = read_tree(source)
    packages: dict[str, dict[str, Any]] = {}
    for package in sorted({module.package for module in modules}):
        mine = [module for module in modules if module.package == package]
        packages[package] = {
            "files": len(mine),
            "lines": sum(module.lines for module in mine),
            "lines_of_wire_messages": sum(module.lines for module in mine if module.has_wire_messages),
            "longest_chain": longest_chain(modules, package),
        }
    long = sorted((item for module in modules for item in module.long_functions), key=lambda item: -item[1])
    return {
        "packages": packages,
        "files": len(modules),
        "lines": sum(module.lines for module in modules),
        "duplicated_classes": duplicated_classes(modules),
        "long_functions": dict(long),
    }


def as_table(measured: dict[str, Any]) -> str:
    rows = ["| package | files | lines | longest chain |", "|---|---|---|---|"]
    for package, found in measured["packages"].items():
        chain = found["longest_chain"]
        text = f"{len(chain)}: {' < '.join(chain)}" if len(chain) > 1 else "1"
        rows.append(f"| {package} | {found['files']} | {found['lines']:,} | {text} |")
    rows.append(f"| all | {measured['files']} | {measured['lines']:,} | |")
    duplicated, long = measured["duplicated_classes"], measured["long_functions"]
    rows += ["", f"{len(duplicated)} class names stand for more than one class:"]
    rows += [f"- {name}: {', '.join(places)}" for name, places in duplicated.items()]
    rows += ["", f"{len(long)} functions have more than {LONG_FUNCTION} lines:"]
    rows += [f"- {name}: {lines}" for name, lines in long.items()]
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--format", choices=["table", "json"], default="table")
    parser.add_argument("--source", type=Path, default=SOURCE)
    chosen = parser.parse_args()
    measured = measure(chosen.source)
    print(json.dumps(measured, indent=2) if chosen.format == "json" else as_table(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
