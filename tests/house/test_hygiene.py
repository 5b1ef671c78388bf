"""The code's own rules: layers, module headers, documented settings, file sizes."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "twofold"

# Each package may import those below it in this list, and itself. Packages on one line do not know each other.
LAYERS = [
    ("__main__", "__init__", "pytest_plugin"),
    ("aio", "cli", "embedded", "errors"),
    ("pipeline",),
    ("spark",),
    ("dualwrite", "sink"),
    ("client", "broker"),
    ("cluster",),
    ("quorum",),
    ("connections",),
    ("coordinator", "controller", "replication"),
    ("machine",),
    ("metadata_log",),
    ("log",),
    ("records",),
    ("config",),
    ("security",),
    ("wire",),
    ("runtime",),
    ("types", "version", "logging", "extras"),
]
LEVEL = {name: depth for depth, names in enumerate(reversed(LAYERS)) for name in names}
PURE = ("coordinator", "controller", "replication")  # decisions and replay: no event loop either
MACHINES = (*PURE, "machine", "quorum")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imports_of(path: Path) -> set[str]:
    """Top-level names below `twofold` that a module imports, wherever in its text."""
    found = set()
    inside = path.relative_to(SOURCE).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = ("twofold", *inside)[: len(inside) + 2 - node.level]
                names = [".".join(filter(None, (*base, node.module)))]
                if not node.module:
                    names = [f"{'.'.join(base)}.{alias.name}" for alias in node.names]
            elif node.module == "twofold":
                names = [f"twofold.{alias.name}" for alias in node.names]
            else:
                names = [node.module or ""]
        for name in names:
            parts = name.split(".")
            if parts[0] == "twofold" and len(parts) > 1:
                found.add(parts[1])
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_layers_import_downwards_only(path):
    package = package_of(path)
    assert package in LEVEL, f"{package} has no place in the layers: add it to LAYERS and to docs/architecture.md"
    for name in imports_of(path) - {package}:
        if name.startswith("__version"):
            continue
        assert LEVEL.get(name, 99) < LEVEL[package], f"{package} (layer {LEVEL[package]}) imports {name}"


def test_machines_know_no_input_or_output():
    """Pure machines: no sockets, files, clock, threads or randomness of their own; decisions know no event loop."""
    outside = {"socket", "os", "time", "random", "threading", "pathlib", "subprocess", "uvloop"}
    for path in modules():
        forbidden = outside | {"asyncio"} if package_of(path) in PURE else outside
        if package_of(path) in MACHINES:
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.level == 0:
                    names = [node.module or ""]
                for name in names:
                    assert name.split(".")[0] not in forbidden, f"{path}: imports {name}"


def test_time_and_randomness_come_from_the_runtime():
    allowed = ("runtime", "cli", "embedded", "pipeline", "pytest_plugin")
    banned = re.compile(
        r"\btime\.(time|monotonic|sleep)\(|\basyncio\.sleep\(|(?<![.\w])random\.(random|randint|choice)\("
    )
    for path in modules():
        if package_of(path) not in allowed:
            for number, line in enumerate(path.read_text().splitlines(), 1):
                assert not banned.search(line), (
                    f"{path.name}:{number} takes time or chance past the runtime: {line.strip()}"
                )


def test_no_part_of_a_broker_knows_the_broker():
    """A part takes `BrokerCore`, `Services` or the parts that it needs; only what starts a broker imports `Broker`."""
    starts_a_broker = {"broker.py", "run.py"}
    for path in sorted((SOURCE / "broker").rglob("*.py")):
        if path.relative_to(SOURCE / "broker").as_posix() in starts_a_broker:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if isinstance(node, ast.ImportFrom) and node.module == "twofold.broker":
                names = [f"twofold.broker.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            assert "twofold.broker.broker" not in names, f"{path} imports Broker: let it take what it needs"


def test_generated_code_is_in_one_room_and_says_so():
    """A message that nothing imports says what it waits for; one that is used does not say so."""
    others = [path.read_text() for path in modules() if path.parent.name != "messages"]
    for path in sorted((SOURCE / "wire" / "messages").glob("*.py")):
        head = path.read_text().split('"""')[1]
        assert head.startswith("Generated by tools/generate_messages.py"), (
            f"{path} is not generated: it belongs elsewhere"
        )
        if path.stem != "__init__":
            used = re.compile(rf"wire\.messages\.{path.stem}\b|wire\.messages import [^\n]*\b{path.stem}\b")
            is_used = any(used.search(text) for text in others)
            assert is_used != ("Not used yet: waits for" in head), f"{path}: mend NOT_USED_YET of the generator"


def api_modules() -> list[Path]:
    return [p for p in sorted((SOURCE / "broker" / "api").glob("*.py")) if not p.name.startswith("_")]


@pytest.mark.parametrize("path", api_modules(), ids=lambda p: p.stem)
def test_every_api_module_opens_with_its_key_versions_and_rules(path):
    from twofold.wire.apis import APIS

    module = importlib.import_module(f"twofold.broker.api.{path.stem}")
    api = APIS[module.KEY]
    assert api.module == path.stem
    head = (module.__doc__ or "").split("\n\n")[0]
    first, last = api.min_version, api.max_version
    versions = f"versions {first}-{last}" if first != last else f"version {first}"
    assert f"API key {api.key}" in head, "the header names the API key"
    assert versions in head, f"the header says '{versions}'"
    assert re.search(r"^\s*1\.", module.__doc__ or "", re.M), "the header numbers its rules"
    assert callable(module.handle)


def test_every_api_authorizes():
    exempt = {"api_versions"}  # asked before anyone is known
    exempt |= {"sasl_handshake", "sasl_authenticate"}  # refused, or how a client becomes known
    exempt |= {"consumer_group_heartbeat", "consumer_group_describe"}  # refused whatever they ask for
    for path in api_modules():
        if path.stem not in exempt:
            assert "authoriz" in path.read_text(), f"{path.name} never asks the authorizer"


def test_every_setting_is_documented():
    from twofold.config import settings, topic

    page = (ROOT / "docs" / "settings.md").read_text()
    for name in [*settings.DEFINITIONS, *topic.DEFINITIONS]:
        assert f"`{name}`" in page, f"{name} is not in docs/settings.md: run `make docs`"


def test_every_dependency_has_its_reason():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "dependencies.md").read_text()
    wanted = project["dependencies"] + [x for extra in project["optional-dependencies"].values() for x in extra]
    for requirement in wanted:
        name = re.split(r"[<>=;\[ ]", requirement)[0]
        assert name == project["name"] or f"`{name}`" in page, f"{name} has no row in docs/dependencies.md"


def test_files_stay_readable():
    tables = {"wire/errors.py"}  # a class for each of Kafka's error codes
    for path in modules():
        lines = len(path.read_text().splitlines())
        limit = 800 if path.relative_to(SOURCE).as_posix() in tables else 650
        assert lines <= limit, f"{path.relative_to(ROOT)} has {lines} lines: look for a seam"


def test_rooms_have_few_modules():
    """The listing of a package is its map: with many modules it has sub-packages."""
    lists = {"broker/api", "wire/messages"}  # a module for each API: the listing is the table of what is served
    for folder in sorted({path.parent for path in modules()}):
        name = folder.relative_to(SOURCE).as_posix()
        count = len([path for path in folder.glob("*.py") if path.stem != "__init__"])
        assert name in lists or count <= 20, f"{name} has {count} modules: divide it by subject"


def test_functions_fit_a_screen():
    # Each is a loop over the bytes of records: a call per field would cost more than the field.
    loops = {
        "records/batch.py: parse_framed",
        "records/columnar_kernels.py: scan",
        "records/columnar_kernels.py: write",
    }
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(SOURCE).as_posix()}: {node.name}"
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                assert lines <= 60 or name in loops, f"{name} has {lines} lines: look for a seam"


def test_every_rule_of_the_kip_pages_names_a_test_that_exists():
    texts = {p: p.read_text() for p in (ROOT / "tests").rglob("*.py")}
    for page in sorted((ROOT / "docs" / "kips").glob("*.md")):
        for line in page.read_text().splitlines():
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) < 3 or cells[1] not in ("done", "differs"):
                continue
            names = re.findall(r"`(test_\w+)`", cells[-1])
            assert names, f"{page.name}: no test named for: {line}"
            for name in names:
                assert any(f"def {name}(" in text for text in texts.values()), f"{page.name}: {name} does not exist"


def test_every_threat_of_the_security_page_names_tests_that_exist() -> None:
    texts = [path.read_text() for path in (ROOT / "tests").rglob("*.py")]
    page = (ROOT / "docs" / "security.md").read_text()
    threats = page[page.index("| threat |") :].split("\n\n")[0].splitlines()[2:]
    assert len(threats) > 20
    for row in threats:
        assert re.search(r"`test_\w+(\.py)?`", row.strip("|").split("|")[-1]), f"no test is named for: {row}"
    for name in re.findall(r"`(test_\w+)`", page):
        assert any(f"def {name}(" in text for text in texts), f"security.md: {name} does not exist"


def test_no_two_test_modules_share_a_name() -> None:
    """A test is found by the name of its file, whatever room it is in; tests/spark is imported by bare names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_tests_stand_in_the_room_of_what_they_test() -> None:
    """Below `tests` as below `src/twofold`, except where the whole program is tested."""
    whole = {"fuzz", "house", "interop", "mutants", "sim", "soak", "stories"}
    for folder in sorted({path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}):
        room = SOURCE / folder
        assert folder.parts[0] in whole or room.is_dir() or room.with_suffix(".py").exists(), f"tests/{folder}"


def test_mypy_reads_every_module() -> None:
    """Two modules cannot have one name: of the two called `conftest` mypy reads that of tests/."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert {"tests", "tools", "bench"} <= set(settings["files"])
    assert settings["exclude"] == [r"^tests/spark/conftest\.py$"]
    skipped = [row["module"] for row in settings["overrides"] if row.get("ignore_errors")]
    assert not skipped, f"mypy is to read these too: {skipped}"
    for folder in ("src", "tests", "tools", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "# mypy: " not in path.read_text() or path == Path(__file__), f"{path} asks mypy for less"
