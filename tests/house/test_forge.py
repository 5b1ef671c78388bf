"""What a public forge runs and shows: workflows, templates, hooks, metadata of the package, the lock file."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from twofold.version import VERSION

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if path.stem != "config"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LOCK = ROOT / "requirements-dev.lock"


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))


def script(package: str) -> str:
    found = [path.locate() for path in importlib.metadata.files(package) or () if path.name == package]
    assert found, f"{package} has installed no program of its name"
    return str(found[0])


def test_workflows_and_templates_are_what_the_forge_expects() -> None:
    assert {path.stem for path in WORKFLOWS} == {"check", "test", "nightly"}
    for schema, paths in (("github-workflows", WORKFLOWS), ("github-issue-forms", FORMS)):
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        done = run(*command, *map(str, paths))
        assert done.returncode == 0, done.stdout + done.stderr


def test_workflows_have_no_known_weakness() -> None:
    done = run(script("zizmor"), "--offline", "--quiet", ".github")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_targets_of_the_makefile_and_nothing_else(path: Path) -> None:
    """So what the forge runs can be run at home, and the tests of the targets are the tests of the workflows."""
    commands = [
        step["run"]
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    assert commands
    for command in commands:
        word, *targets = command.split()
        assert word == "make"
        assert set(targets) <= make_targets(), f"{path.name}: no target for {command}"
        done = run("make", "--dry-run", "--no-print-directory", *targets)
        assert done.returncode == 0, done.stderr


def test_hooks_are_valid_and_need_no_network() -> None:
    done = run(sys.executable, "-m", "pre_commit", "validate-config", ".pre-commit-config.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repository["repo"] for repository in hooks["repos"]} == {"local"}


def test_the_version_has_one_place() -> None:
    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "twofold.version.VERSION"}
    places = [path for path in (ROOT / "src").rglob("*.py") if f'"{VERSION}"' in path.read_text()]
    assert places == [ROOT / "src" / "twofold" / "version.py"]


def test_the_command_and_the_package_tell_the_same_version() -> None:
    assert run(sys.executable, "-m", "twofold", "--version").stdout.split() == ["twofold", VERSION]
    assert importlib.metadata.version("twofold") == VERSION, "the package was installed before the version was changed"


def test_the_package_says_what_it_is() -> None:
    classifiers = PROJECT["project"]["classifiers"]
    assert "Typing :: Typed" in classifiers
    assert not [line for line in classifiers if line.startswith("License ::")], "the licence is an expression (PEP 639)"
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in classifiers


def test_the_lock_names_no_address() -> None:
    """Neither of an index, from which others may not be able to install, nor of a folder of one machine."""
    text = LOCK.read_text()
    for word in ("index-url", "http", "://", "find-links", "trusted-host", "file:", "(/"):
        assert word not in text, f"{LOCK.name} contains {word}: renew it with `make lock`"


def test_the_lock_holds_every_dependency_with_hashes() -> None:
    text = LOCK.read_text()
    extras = PROJECT["project"]["optional-dependencies"]
    for requirement in [
        *PROJECT["project"]["dependencies"],
        *(x for name in ("dev", "spark", "demo") for x in extras[name]),
    ]:
        name = re.split(r"[<>=;\[ ]", requirement)[0]
        if name == PROJECT["project"]["name"]:
            continue  # another of its extras
        assert re.search(rf"^{re.escape(name)}==\S+", text, re.M | re.I), f"{name} is not locked: `make lock`"
    pinned = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)[1:]
    for entry in pinned:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
