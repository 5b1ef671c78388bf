"""deploy/docker, deploy/compose and deploy/systemd where no container engine runs: linters read the files, and every
command in them runs outside, on ports and in folders of the test's own."""

import fnmatch
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from confluent_kafka.admin import AdminClient

from kits.processes import commands
from kits.processes.images import COMPOSE, DOCKERFILE, ROOT, read_compose, read_dockerfile
from kits.processes.prometheus import program
from kits.processes.server import TwofoldServer
from oracle.processes import free_port, spawn, stop

pytestmark = pytest.mark.interop

BIN = Path(sys.executable).parent
UNIT = ROOT / "deploy" / "systemd" / "twofold.service"
RECOVERY_UNIT = ROOT / "deploy" / "systemd" / "twofold-recover.service"
PROPERTIES = ROOT / "deploy" / "systemd" / "server.properties"
GRAFANA = ROOT / "deploy" / "grafana"
SETUP = (ROOT / "setup.py").read_text()
LONG = pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="takes minutes: TWOFOLD_LONG=1, or make interop")
PATIENCE_S = 30
SMALL_BYTES = 90_000_000


def check(*words: str | Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=600, check=False, env=env, cwd=cwd
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def replaced(text: str, places: Mapping[str, str]) -> str:
    for inside, outside in places.items():
        text = text.replace(inside, outside)
    return text


@contextmanager
def started(words: list[str], environment: Mapping[str, str], output: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """As compose starts it: without a capability, and without a way to get one."""
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"] if os.geteuid() == 0 else []
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TWOFOLD_")}
    env = [f"{name}={value}" for name, value in (clean | dict(environment)).items()]
    process = spawn(["env", "-i", *env, *drop, *words], output=output)
    try:
        yield process
    finally:
        stop(process)


def until_healthy(check: list[str], process: "subprocess.Popen[bytes]", output: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while subprocess.run(check, capture_output=True, check=False).returncode:
        assert process.poll() is None and time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)


# The image


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    check(BIN / "hadolint", DOCKERFILE)


def test_no_stage_that_runs_does_so_as_root() -> None:
    stages = read_dockerfile()
    for name in ("broker", "spark"):
        assert stages[name].last["USER"] == "10001:10001", name
        assert stages[name].parent == "base", "what builds is not in the image that runs"
    assert list(stages)[-1] == "broker", "the last stage is the one that is built where none is named"


def test_only_what_the_package_is_built_from_goes_to_the_builder(tmp_path: Path) -> None:
    make_context(tmp_path)
    built_from = {"pyproject.toml", "setup.py", "README.md", "LICENSE", "src"}
    assert {path.name for path in tmp_path.iterdir()} == built_from
    assert {path.name for path in ROOT.glob("*.py")} | {*re.findall(r'ROOT / "([\w.]+)"', SETUP)} <= built_from
    for instruction, rest in read_dockerfile()["build"].steps:
        if instruction == "COPY":
            for name in rest.split()[:-1]:
                assert (tmp_path / name).exists(), f"COPY {rest}"


def make_context(folder: Path) -> None:
    """What Dockerfile.dockerignore lets through."""
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert "*" in ignored
    everywhere = [line.removeprefix("**/") for line in ignored if line.startswith("**/")]
    for name in (line[1:] for line in ignored if line.startswith("!")):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*everywhere))
        elif not any(fnmatch.fnmatch(name, pattern) for pattern in everywhere):
            shutil.copy(ROOT / name, folder / name)


def run_image(tmp_path: Path, environment: Mapping[str, str], binaries: Path) -> None:
    """Start what the image starts, ask as its health check asks, stop it as the engine stops it."""
    broker = read_dockerfile()["broker"]
    places = {
        "0.0.0.0:9092": f"127.0.0.1:{free_port()}",
        "0.0.0.0:9464": (metrics := f"127.0.0.1:{free_port()}"),
        "/var/lib/twofold": str(tmp_path / "state"),
        "/opt/twofold/bin": str(binaries),
    }
    (tmp_path / "state").mkdir()
    settings = {name: replaced(value, places) for name, value in (broker.environment | dict(environment)).items()}
    health = [word.replace("127.0.0.1:9464", metrics) for word in broker.health_check]
    health[0] = str(binaries / health[0])
    words = [*broker.words("ENTRYPOINT"), *broker.words("CMD")]
    output = tmp_path / "output.log"
    assert subprocess.run(health, capture_output=True, check=False).returncode, "nothing answers before it runs"
    with started([str(binaries / words[0]), *words[1:]], settings, output) as process:
        until_healthy(health, process, output)
        assert (tmp_path / "state" / "data" / "meta.properties").exists()
        assert stop(process, how=signal.Signals[broker.last["STOPSIGNAL"]], patience_s=PATIENCE_S) == 0
    assert subprocess.run(health, capture_output=True, check=False).returncode, "it is stopped"


def test_the_broker_of_the_image_starts_and_passes_its_health_check_and_stops(tmp_path: Path) -> None:
    run_image(tmp_path, {}, BIN)


@LONG
@pytest.mark.timeout(900)
def test_every_command_that_builds_the_image_runs_and_what_it_builds_serves(tmp_path: Path) -> None:
    stages = read_dockerfile()
    context, system = tmp_path / "context", tmp_path / "system"
    context.mkdir()
    make_context(context)
    (system / "etc").mkdir(parents=True)
    for name in ("passwd", "group", "shadow", "gshadow"):
        (system / "etc" / name).touch()
    places = {
        "/opt/twofold": str(system / "opt" / "twofold"),
        "install -d -o 10001 -g 10001 -m 0750 /var/lib/twofold": f"install -d -m 0750 {system}/var/lib/twofold",
        "groupadd ": f"groupadd --prefix {system} ",
        "useradd ": f"useradd --prefix {system} ",
        "apt-get install -y": "apt-get install --simulate",
        "apt-get update": "true",
        "rm -rf /var/lib/apt/lists/*": "true",
    }
    runs = [(name, rest) for name, stage in stages.items() for instruction, rest in stage.steps if instruction == "RUN"]
    assert [name for name, _ in runs] == ["build", "build-spark", "base", "spark"]
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    for name, command in runs:
        if name == "build-spark":
            command = command.replace(" install ", " install --dry-run ")  # half a gigabyte: that it resolves is enough
        check("bash", "-ec", replaced(command, places), env=environment, cwd=context)
    assert re.search(r"^twofold:x:10001:10001:", (system / "etc" / "passwd").read_text(), re.M)
    installed = system / "opt" / "twofold"
    assert not list(installed.glob("bin/pip*")), "what is copied cannot install anything"
    size = sum(path.stat().st_size for path in installed.rglob("*") if path.is_file() and not path.is_symlink())
    assert size < SMALL_BYTES, f"{size / 1e6:.0f} MB"
    run_image(tmp_path, {}, installed / "bin")


# Compose


def test_compose_files_are_what_the_specification_allows() -> None:
    check(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *sorted(COMPOSE.glob("*.yml")))


def test_compose_files_are_one_project_so_that_they_share_the_broker_and_its_data() -> None:
    assert {yaml.safe_load(path.read_text())["name"] for path in COMPOSE.glob("*.yml")} == {"twofold"}


@pytest.mark.parametrize("name", sorted(path.name for path in COMPOSE.glob("*.yml")))
def test_what_a_compose_file_names_is_there(name: str) -> None:
    services = read_compose(name)
    assert "broker" in services
    volumes = {key for path in COMPOSE.glob("*.yml") for key in yaml.safe_load(path.read_text())["volumes"]}
    for key, service in services.items():
        build = service.given.get("build")
        if build is not None:
            assert (COMPOSE / build["context"] / build["dockerfile"]).resolve() == DOCKERFILE
            assert build["target"] in read_dockerfile()
        for inside, outside in service.mounts.items():
            assert outside.exists() if isinstance(outside, Path) else outside in volumes, f"{key}: {inside}"
        for other, how in service.given.get("depends_on", {}).items():
            assert other in services, f"{key} depends on {other}"
            stage = services[other].stage
            has_check = "healthcheck" in services[other].given or (stage is not None and "HEALTHCHECK" in stage.last)
            assert how["condition"] != "service_healthy" or has_check, f"{other} has no health check"


def test_a_client_reaches_the_broker_of_the_compose_file_inside_and_outside(tmp_path: Path) -> None:
    """Each listener tells its own address: a name of the network to containers, localhost to programs beside them."""
    service = read_compose("broker.yml")["broker"]
    inside, outside, metrics = (free_port() for _ in range(3))
    places = {
        "0.0.0.0:29092": f"127.0.0.1:{inside}",
        "0.0.0.0:9092": f"127.0.0.1:{outside}",
        "0.0.0.0:9464": f"127.0.0.1:{metrics}",
        "localhost:9092": f"localhost:{outside}",
        "/var/lib/twofold": str(tmp_path),
        "/opt/twofold/bin": str(BIN),
    }
    environment = {name: replaced(value, places) for name, value in service.environment.items()}
    health = ["curl", "-fsS", f"http://127.0.0.1:{metrics}/readyz"]
    words = [str(BIN / service.command[0]), *service.command[1:]]
    with started(words, environment, tmp_path / "output.log") as process:
        until_healthy(health, process, tmp_path / "output.log")
        told = {}
        for port in (inside, outside):
            admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
            (broker,) = admin.list_topics(timeout=20).brokers.values()
            told[port] = f"{broker.host}:{broker.port}"
        assert told == {inside: "broker:29092", outside: f"localhost:{outside}"}
        listed = commands.run("topic", "create", "orders", server=f"127.0.0.1:{outside}")
        assert listed.returncode == 0, listed.stderr


def test_the_prometheus_of_the_compose_file_starts_with_its_own_command_and_watches_the_broker(tmp_path: Path) -> None:
    services = read_compose("monitoring.yml")
    prometheus = services["prometheus"]
    port = free_port()
    (tmp_path / "tsdb").mkdir()
    places = {
        "/etc/prometheus": str(prometheus.mounts["/etc/prometheus"]),
        "=/prometheus": f"={tmp_path / 'tsdb'}",
        "0.0.0.0:9090": f"127.0.0.1:{port}",
        "127.0.0.1:9090": f"127.0.0.1:{port}",
    }
    words = [program("prometheus"), *(replaced(word, places) for word in prometheus.command)]
    kind, *health = [replaced(word, places) for word in prometheus.given["healthcheck"]["test"]]
    assert kind == "CMD"
    if shutil.which(health[0]) is None:
        pytest.skip(f"{health[0]} is not installed: it is what the health check of Prometheus runs")
    with started(words, {}, tmp_path / "output.log") as process:
        until_healthy(health, process, tmp_path / "output.log")
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"][0]
    (target,) = scraped["static_configs"][0]["targets"]
    host, _, target_port = target.partition(":")
    assert services[host].environment["TWOFOLD_METRICS_LISTENER"].endswith(f":{target_port}")


def test_the_grafana_of_the_compose_file_finds_its_data_source_and_every_dashboard() -> None:
    services = read_compose("monitoring.yml")
    mounts = services["grafana"].mounts
    provisioning = mounts["/etc/grafana/provisioning"]
    assert isinstance(provisioning, Path)
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    host, _, port = source["url"].removeprefix("http://").partition(":")
    assert source["type"] == "prometheus" and source["isDefault"]
    assert any(word.endswith(f":{port}") for word in services[host].command)
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "twofold.yml").read_text())["providers"]
    shown = {outside for inside, outside in mounts.items() if inside.startswith(provider["options"]["path"] + "/")}
    assert shown == set(GRAFANA.glob("*.json"))
    assert services["grafana"].environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] in mounts


def test_the_pipeline_of_the_compose_file_is_the_one_that_pipeline_init_makes(tmp_path: Path) -> None:
    done = commands.run("pipeline", "init", "pipeline", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("transform.py", "pipeline.toml"):
        assert (COMPOSE / "pipeline" / name).read_text() == (tmp_path / "pipeline" / name).read_text(), name


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TwofoldServer]:
    environment = read_compose("broker.yml")["broker"].environment
    settings = {
        name.removeprefix("TWOFOLD_").lower().replace("_", "."): value
        for name, value in environment.items()
        if name.startswith("TWOFOLD_TRANSACTION")
    }
    with TwofoldServer(tmp_path / "broker", settings) as running:
        yield running


def test_the_topics_of_the_pipeline_are_made_and_may_be_there_already(server: TwofoldServer) -> None:
    service = read_compose("spark.yml")["topics"]
    assert service.environment["TWOFOLD_BOOTSTRAP_SERVER"] == "broker:29092"
    for _ in range(2):
        done = commands.run(*service.command[1:], server=server.bootstrap_servers)
        assert done.returncode == 0, done.stderr


@LONG
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_spark_pipeline_of_the_compose_file_carries_orders_to_totals(server: TwofoldServer, tmp_path: Path) -> None:
    services = read_compose("spark.yml")
    places = {
        "broker:29092": server.bootstrap_servers,
        "/pipeline/": f"{services['pipeline'].mounts['/pipeline']}/",
        "/var/lib/twofold": str(tmp_path),
    }
    commands.run(*services["topics"].command[1:], server=server.bootstrap_servers)
    order = '{"customer": "ann", "amount": 10}\n'
    commands.run("produce", "orders", stdin=order, server=server.bootstrap_servers)
    words = [replaced(word, places) for word in services["pipeline"].command]
    with started([str(BIN / words[0]), *words[1:]], {}, tmp_path / "output.log") as process:
        read = ("consume", "totals", "--from-beginning", "--exit", "--isolation", "read_committed")
        deadline = time.monotonic() + 300
        while '"with_tax":12.0' not in (found := commands.run(*read, server=server.bootstrap_servers)).stdout:
            assert process.poll() is None and time.monotonic() < deadline, (tmp_path / "output.log").read_text()
            time.sleep(1)
        assert found.stdout.count("with_tax") == 1
        assert stop(process, how=signal.SIGTERM, patience_s=120) == 130


# systemd


@pytest.fixture(params=[UNIT, RECOVERY_UNIT], ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """With the program of these tests in place of the one that an operator has installed."""
    path = tmp_path / str(request.param.name)
    path.write_text(request.param.read_text().replace("/opt/twofold/bin", str(BIN)))
    return path


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (Debian: systemd)"
)
def test_systemd_accepts_the_unit_and_finds_it_well_confined(unit: Path) -> None:
    assert check("systemd-analyze", "verify", "--man=no", unit) == ""
    shown = check("systemd-analyze", "security", "--offline=true", "--no-pager", unit)
    level = re.search(rf"exposure level for {unit.name}: ([\d.]+)", shown)
    assert level is not None and float(level[1]) < 2, shown


def test_the_command_of_the_unit_tells_systemd_when_clients_are_served_and_when_it_stops(tmp_path: Path) -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", UNIT.read_text(), re.M)
    port, metrics = free_port(), free_port()
    places = {
        "0.0.0.0:9092": f"127.0.0.1:{port}",
        "localhost:9092": f"127.0.0.1:{port}",
        "127.0.0.1:9464": f"127.0.0.1:{metrics}",
        "/var/lib/twofold": str(tmp_path),
        "/opt/twofold/bin": str(BIN),
        "/etc/twofold": str(tmp_path),
    }
    (tmp_path / PROPERTIES.name).write_text(replaced(PROPERTIES.read_text(), places))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify")}
        with started(replaced(command, places).split(), environment, tmp_path / "output.log") as process:
            assert manager.recv(1000) == b"READY=1"
            assert check("curl", "-fsS", f"http://127.0.0.1:{metrics}/readyz").startswith("ready\n")
            assert stop(process, how=signal.SIGTERM, patience_s=PATIENCE_S) == 0
        assert manager.recv(1000) == b"STOPPING=1"
    assert (tmp_path / "data" / "meta.properties").exists()


def test_a_service_manager_that_does_not_listen_costs_a_line_in_the_log_and_no_more(tmp_path: Path) -> None:
    words = [str(BIN / "twofold"), "serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    output = tmp_path / "output.log"
    with started(words, {"NOTIFY_SOCKET": str(tmp_path / "nothing")}, output) as process:
        while "cannot be told READY=1" not in output.read_text():
            assert process.poll() is None, output.read_text()
            time.sleep(0.02)
        assert stop(process, how=signal.SIGTERM, patience_s=PATIENCE_S) == 0
