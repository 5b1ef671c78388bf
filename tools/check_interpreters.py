"""Which Pythons Twofold runs on: the core of the tests on every one that is here, and wheels for the others.

    python tools/check_interpreters.py            # both, as a table
    python tools/check_interpreters.py --write    # and into docs/guide/install.md; what was not asked stays there
    python tools/check_interpreters.py --resolve  # only the wheels
    python tools/check_interpreters.py --run      # only the interpreters that are here

An interpreter that is here gets an environment of its own in build/interpreters, with wheels only, and runs the core of
the tests there. For every version and platform pip then proves that each dependency has a wheel
(`pip install --dry-run --only-binary=:all: --python-version ... --platform ...`): nothing is downloaded but metadata.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "install.md"
BEGIN, END = "<!-- interpreters: begin -->", "<!-- interpreters: end -->"
VERSIONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
# name -> the tags that pip there would take
PLATFORMS = {
    "Linux x86-64": ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64"),
    "Linux arm64": ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64"),
    "musl x86-64 (Alpine)": ("musllinux_1_2_x86_64", "musllinux_1_1_x86_64"),
    "macOS arm64": ("macosx_14_0_arm64",),
}
# What decides, speaks and replays, and the client: these need nothing but pytest, hypothesis and the package.
CORE = ("machine", "coordinator", "controller", "replication", "config", "wire", "metadata_log", "client")
NEEDS_MORE = "tests/client/producer/test_client_columns.py"  # pyarrow
NOT_CORE = "not slow and not interop and not oracle and not spark"
TOOLS = ("pytest", "pytest-timeout", "hypothesis")
# A broker, a client and the command line, as a user has them.
SMOKE = """
import subprocess, sys
from twofold import Producer
from twofold.embedded import Broker
with Broker() as broker:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("orders", b"first")
        producer.flush()
    listed = [sys.executable, "-m", "twofold", "topic", "list", "--bootstrap-server", broker.bootstrap_servers]
    assert "orders" in subprocess.run(listed, capture_output=True, text=True, check=True).stdout
"""


@dataclass(frozen=True, slots=True)
class Ran:
    version: str  # all of it: 3.12.1
    verdict: str
    is_good: bool


def requirements(*extras: str) -> list[str]:
    """What the package and these extras need, the package itself left out: no index needs to have it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"]]
    for extra in extras:
        named += project["optional-dependencies"][extra]
    found: list[str] = []
    for one in named:
        own = re.match(r"twofold\[([\w,]+)\]", one)
        found += requirements(*own[1].split(","))[len(project["dependencies"]) :] if own else [one]
    return list(dict.fromkeys(found))


# Those that are here


def interpreters() -> dict[str, str]:
    """Version to path, the first of each minor version: in PATH, and those of pyenv."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, _pyenv_folders())]
    found: dict[str, str] = {}
    for minor in VERSIONS:
        for folder in folders:
            path = shutil.which(f"python{minor}", path=folder)
            version = None if path is None or "shims" in folder else _version(path)
            if path is not None and version is not None and version.startswith(f"{minor}."):
                found[version] = path
                break
    return found


def _pyenv_folders() -> Iterator[Path]:
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return (folder / "bin" for folder in sorted(root.glob("3.*")))


def _version(path: str) -> str | None:
    command = [path, "-c", "import sys, venv, ensurepip, ssl; print(sys.version.split()[0])"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def run_core(version: str, path: str, tests: Sequence[str]) -> Ran:
    folder = ROOT / "build" / "interpreters" / version
    python = folder / "bin" / "python"
    subprocess.run([path, "-m", "venv", "--clear", str(folder)], check=True)
    extras = ["server", "re2"] if is_resolved(version, (), "server", "re2") else ["server"]
    install = [
        *(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--only-binary=:all:", f"{ROOT}[{','.join(extras)}]", *TOOLS),
    ]
    if subprocess.run(install, cwd=folder, check=False).returncode != 0:
        return Ran(version, "does not install", False)
    if subprocess.run([str(python), "-c", SMOKE], cwd=folder, check=False).returncode != 0:
        return Ran(version, "does not run", False)
    options = ["-p", "no:cacheprovider", "-m", NOT_CORE, f"--ignore={NEEDS_MORE}"]
    command = [str(python), "-m", "pytest", *options, *tests]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "tests"), "COLUMNS": "120"}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else f"exit code {done.returncode}"
    if done.returncode != 0:
        print(done.stdout[-6000:])
    return Ran(version, re.sub(r"(, \d+ (warnings?|deselected))* in [\d.]+s.*", "", last), done.returncode == 0)


# The others


def is_resolved(version: str, tags: Sequence[str], *extras: str) -> bool:
    """Whether pip finds a wheel of everything; without tags, for this machine."""
    with tempfile.TemporaryDirectory() as nowhere:
        command = [
            *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
            *("--dry-run", "--ignore-installed", "--only-binary=:all:", "--target", nowhere),
            *("--python-version", minor(version)),
            *(word for tag in tags for word in ("--platform", tag)),
            *requirements(*extras),
        ]
        return subprocess.run(command, capture_output=True, timeout=600, check=False).returncode == 0


def resolve() -> dict[tuple[str, str], str]:
    """Version and platform to what installs there from wheels alone."""
    found = {}
    for version in VERSIONS:
        for name, tags in PLATFORMS.items():
            if is_resolved(version, tags, "server", "re2"):
                found[version, name] = "all"
            elif is_resolved(version, tags, "server"):
                found[version, name] = "all but `[re2]`"
            else:
                found[version, name] = "client" if is_resolved(version, tags) else "no"
            print(f"{version}, {name}: {found[version, name]}", flush=True)
    return found


# The page


def cells_of_page() -> dict[tuple[str, str], str]:
    """Version and column to what the page says: another machine may have had other interpreters."""
    _, _, rest = PAGE.read_text().partition(BEGIN)
    lines = [line for line in rest.partition(END)[0].splitlines() if line.startswith("|")]
    if len(lines) < 3:
        return {}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], column): cell for row in rows[2:] for column, cell in zip(rows[0], row, strict=True)}


def table(ran: Sequence[Ran], resolved: dict[tuple[str, str], str]) -> str:
    """What was not asked this time stays as it was."""
    today = datetime.now(UTC).date().isoformat()
    known = cells_of_page()
    known |= {(minor(one.version), "run"): f"{one.version}, {today}: {one.verdict}" for one in ran}
    known |= {(version, f"wheels, {name}"): f"{verdict}" for (version, name), verdict in resolved.items()}
    columns = ["run", *(f"wheels, {name}" for name in PLATFORMS)]
    lines = [f"| Python | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for version in VERSIONS:
        lines.append(f"| {version} | {' | '.join(known.get((version, column), 'no') for column in columns)} |")
    return "\n".join(lines)


def minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def write_page(text: str) -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--resolve", action="store_true", help="only ask for wheels")
    parser.add_argument("--run", action="store_true", help="only run the core of the tests")
    parser.add_argument("--write", action="store_true", help=f"write the table to {PAGE.relative_to(ROOT)}")
    parser.add_argument("tests", nargs="*", help=f"instead of the core: {' '.join(CORE)}")
    options = parser.parse_args()
    tests = options.tests or [f"tests/{name}" for name in CORE]
    ran = [] if options.resolve else [run_core(version, path, tests) for version, path in interpreters().items()]
    text = table(ran, {} if options.run else resolve())
    print(text)
    if options.write:
        write_page(text)
    return 0 if all(one.is_good for one in ran) else 1


if __name__ == "__main__":
    sys.exit(main())
