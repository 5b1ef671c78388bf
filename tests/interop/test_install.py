"""What is installed and what is not: the package alone is the client, and what lacks its extra names it.

The long forms build the wheel and the sdist, and follow the README in an empty environment.
"""

import importlib.util
import json
import os
import re
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from kits.processes.environments import PROJECT, ROOT, Environment, requirements
from kits.processes.server import TwofoldServer
from twofold.extras import MODULES

pytestmark = pytest.mark.interop

LONG = bool(os.environ.get("TWOFOLD_LONG"))
long = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 installs into empty environments")
HERE = f"install -e '{ROOT}["  # the command that fits a checkout

EMBEDDED = "from twofold.embedded import Broker\nwith Broker() as broker: print(broker.bootstrap_servers)"
SEND = """
import sys
from twofold import Admin, Producer
with Producer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send("orders", b"first")
    producer.flush()
with Admin(bootstrap_servers=sys.argv[1]) as admin:
    print(*admin.list_topics())
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("client") / "site")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("server") / "site", "server")


# Extras


def test_the_package_alone_is_the_client(client: Environment, tmp_path: Path) -> None:
    with TwofoldServer(tmp_path / "data") as broker:
        done = client.python("-c", SEND, broker.bootstrap_servers)
    assert (done.stdout, done.returncode) == ("orders\n", 0), done.stderr
    assert client.twofold("--version").stdout.startswith("twofold ")


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["--help"], ["serve", "--data", "nowhere"], ["pipeline", "run"]], ids=" ".join
)
def test_a_command_without_its_extra_names_it(client: Environment, arguments: list[str]) -> None:
    done = client.twofold(*arguments)
    assert done.returncode == 1 and done.stdout == ""
    assert f"{HERE}server]'" in done.stderr and "click" in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (client.folder / "nowhere").exists()


def test_an_embedded_broker_without_its_extra_names_it(client: Environment) -> None:
    done = client.python("-c", EMBEDDED)
    assert done.returncode == 1 and "MissingExtra: the broker needs" in done.stderr and f"{HERE}server]'" in done.stderr


def test_the_server_extra_runs_broker_command_line_and_embedded_broker(server: Environment) -> None:
    assert re.fullmatch(r"127\.0\.0\.1:\d+\n", server.python("-c", EMBEDDED).stdout)
    done = server.twofold("topic", "list", "--bootstrap-server", "127.0.0.1:1", "--timeout", "0.2")
    assert done.returncode == 3, done.stderr


def test_every_extra_brings_the_modules_that_its_part_needs() -> None:
    owners = packages_distributions()
    for extra, modules in MODULES.items():
        brought = {re.split(r"[<>=;\[ ]", one)[0].lower().replace("_", "-") for one in requirements([extra])}
        for module in modules:
            assert {name.lower().replace("_", "-") for name in owners[module]} & brought, f"{extra}: {module}"


def test_pyspark_that_is_missing_is_named_with_its_extra(server: Environment, tmp_path: Path) -> None:
    assert server.twofold("pipeline", "init", str(tmp_path / "shop")).returncode == 0
    run = ["pipeline", "run", str(tmp_path / "shop/transform.py"), "--config", str(tmp_path / "shop/pipeline.toml")]
    assert f"{HERE}spark]'" in server.twofold(*run).stderr


# Patterns


def test_a_broker_without_re2_refuses_a_pattern_and_names_the_extra(server: Environment, tmp_path: Path) -> None:
    """Never with Python's `re`, which would take this one."""
    command = server.command("-m", "twofold", "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"))
    broker = subprocess.Popen(
        command, env=server.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    try:
        assert broker.stdout is not None
        where = ("--bootstrap-server", broker.stdout.readline().split(" ready on ")[1].split(",")[0])
        refused = server.twofold("txn", "list", "--transactional-id-pattern", "orders-.*", *where)
        listed = server.twofold("txn", "list", *where)
    finally:
        broker.terminate()
        _, log = broker.communicate(timeout=30)
    assert refused.returncode == 1 and "without RE2" in refused.stderr and "twofold[re2]" in refused.stderr
    assert listed.returncode == 0, listed.stderr
    assert "patterns need RE2" in log and f"{HERE}re2]'" in log


# The command that is printed


def printed(folder: Path, note: Mapping[str, object] | None) -> str:
    """By a package that is installed in this folder; `note` is what pip has written down about where it came from."""
    package, info = folder / "twofold", folder / "twofold-0.1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (package / "__init__.py").write_text("")
    shutil.copy(ROOT / "src/twofold/extras.py", package)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twofold\nVersion: 0.1.0\n")
    if note is not None:
        (info / "direct_url.json").write_text(json.dumps(note))
    program = "from twofold.extras import install_command; print(install_command('spark'))"
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip().partition(" install ")[2]


def test_the_printed_command_installs_from_where_the_package_came_from(tmp_path: Path) -> None:
    wheel = tmp_path / "a folder" / "twofold-0.1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    wheel.touch()
    for name, note, wanted in (
        ("wheel", {"url": wheel.as_uri(), "archive_info": {}}, f"'{wheel}[spark]'"),
        ("folder", {"url": ROOT.as_uri(), "dir_info": {}}, f"'{ROOT}[spark]'"),
        ("index", None, "'twofold[spark]'"),
        ("gone", {"url": "file:///no/such.whl", "archive_info": {}}, "'twofold[spark]'"),
    ):
        site = tmp_path / name
        site.mkdir()
        assert printed(site, note) == wanted


def test_the_docs_show_no_install_command_that_needs_an_index() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), ROOT / "examples/README.md"]
    shown = 0
    for page in pages:
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.M | re.S):
            for command in re.findall(r"^pip install .*", block, re.M):
                ours = [word for word in shlex.split(command)[2:] if word.startswith("twofold")]
                assert not ours, f"{page.name}: {command}"
                shown += 1
    assert shown >= 3


# What a call costs

CALLS = {("version",): 0.15, ("--help",): 0.15, ("topic", "list"): 0.3}
TIMES = 10


@pytest.mark.parametrize("arguments", CALLS, ids=" ".join)
def test_a_call_costs_no_more_than_twice_its_goal(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """User and system time, the median of ten, warm. The machine may be busy: that is what the factor is for."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with TwofoldServer(tmp_path / "data") as broker:
        environment["TWOFOLD_BOOTSTRAP_SERVER"] = broker.bootstrap_servers
        command = [sys.executable, "-m", "twofold", *arguments]
        costs = []
        for _ in range(1 + TIMES):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, timeout=60, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            costs.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert statistics.median(costs[1:]) <= 2 * CALLS[arguments], costs


# The wheel, the sdist and the page of an index


def packaging_code() -> Any:
    spec = importlib.util.spec_from_file_location("twofold_setup", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pictures_and_links_of_the_readme_have_addresses_on_an_index_page() -> None:
    setup = packaging_code()
    text = (ROOT / "README.md").read_text()
    assert "](docs/" in text
    page = setup.index_readme(text, "https://forge.example/twofold", "1.2.3")
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert targets and all(target.startswith("https://forge.example/twofold/") for target in targets)
    for path in re.findall(r"!\[[^\]]*\]\(https://forge.example/twofold/raw/v1.2.3/([^)]+)\)", page):
        assert (ROOT / path).exists()
    alone = setup.index_readme(text, "", "1.2.3")
    assert not re.findall(r"\]\((?!https?:)[^)]+\)", alone), "without an address nothing leads nowhere"
    for code in re.findall(r"^```.*?^```", text, re.M | re.S):
        assert code in page and code in alone, "code stays as it is"


def test_the_metadata_of_the_package_is_complete() -> None:
    for key in ("name", "description", "requires-python", "license", "authors", "keywords", "classifiers", "scripts"):
        assert PROJECT[key], key
    assert set(PROJECT["dynamic"]) == {"version", "readme", "urls"}
    names = {name.partition(" :: ")[0] for name in PROJECT["classifiers"]}
    wanted = {"Development Status", "Intended Audience", "Operating System", "Programming Language", "Topic", "Typing"}
    assert names >= wanted
    setup = packaging_code()
    assert set(setup.addresses("https://forge.example/x")) == {"Source", "Documentation", "Changelog", "Issues"}


def test_the_page_says_of_every_python_whether_it_was_run() -> None:
    page = (ROOT / "docs/guide/install.md").read_text()
    named = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    for version in named:
        row = re.search(rf"^\| {re.escape(version)} \| ([^|]+) \|(.*)\|$", page, re.M)
        assert row is not None, f"docs/guide/install.md has no row for {version}: make interpreters"
        passed = rf"{re.escape(version)}\.\d+, [\d-]+: \d+ passed(, \d+ skipped)*"
        assert re.fullmatch(rf"no|{passed}", row[1]), row[0]
        assert "client" not in row[2] and "| no" not in row[2], f"no wheels for {version}: {row[0]}"


@long
@pytest.mark.timeout(1200)
def test_wheels_resolve_for_pythons_and_platforms_that_are_not_here() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    import check_interpreters

    for version in ("3.14", "3.15"):
        for name, tags in check_interpreters.PLATFORMS.items():
            assert check_interpreters.is_resolved(version, tags, "server"), f"{version}, {name}"


@long
@pytest.mark.timeout(1800)
def test_wheel_and_sdist_install_and_run_in_an_empty_environment(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--outdir", str(tmp_path), str(ROOT)]
    environment = os.environ | {"TWOFOLD_REPOSITORY": "https://forge.example/twofold"}
    subprocess.run(build, env=environment, stdout=subprocess.DEVNULL, check=True)
    files = sorted(map(str, tmp_path.glob("twofold-*")))
    assert [Path(name).suffix for name in files] == [".whl", ".gz"]
    subprocess.run([sys.executable, str(ROOT / "tools/try_dist.py"), *files], check=True)


@long
@pytest.mark.timeout(600)
def test_from_an_empty_environment_to_the_first_message_by_the_readme_takes_less_than_a_minute(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    blocks = [block for block in re.findall(r"^```bash\n(.*?)^```", readme, re.M | re.S) if "twofold" in block]
    install, serve = blocks[0].splitlines()
    shown = blocks[1].splitlines()
    assert install.startswith("pip install") and serve.startswith("twofold serve") and "produce" in shown[1]
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    bash = ["bash", "-c"]
    environment = os.environ | {"PATH": f"{tmp_path / 'env/bin'}{os.pathsep}{os.environ['PATH']}"}
    started = time.monotonic()
    subprocess.run([*bash, install], cwd=ROOT, env=environment, check=True)
    port = serve.replace("127.0.0.1:9092", "127.0.0.1:0")
    broker = subprocess.Popen([*bash, f"exec {port}"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        environment["TWOFOLD_BOOTSTRAP_SERVER"] = broker.stdout.readline().split(" ready on ")[1].split(",")[0]
        told = [
            subprocess.run([*bash, line], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
            for line in shown[:3]
        ]
    finally:
        broker.terminate()
        broker.wait(timeout=60)
    took = time.monotonic() - started
    assert "first order" in told[-1].stdout
    shared = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # a machine that does other work gives a share only
    assert took < 60 * shared, f"{took:.0f} s, on a machine with {shared:.1f} times the work that it has cores for"
