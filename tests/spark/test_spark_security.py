"""A real Spark over SASL_SSL to Apache Kafka: rows arrive, and what Spark shows or stores has no secret in it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kits.security.oracle import BOB, BOBS_PASSWORD, SecureOracle, running_secure_oracle
from twofold import Admin, NewTopic, Producer

ROWS = [f"order {number}" for number in range(20)]
APP = Path(__file__).parent / "secure_app.py"
PATIENCE_S = 300

pytestmark = pytest.mark.skipif(not os.environ.get("TWOFOLD_LONG"), reason="a minute with Spark; set TWOFOLD_LONG=1")


@pytest.fixture(scope="module")
def oracle() -> Iterator[SecureOracle]:
    with running_secure_oracle() as running:
        yield running


def connection(oracle: SecureOracle, password: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": oracle.address("SASL_SSL"),
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": BOB,
        "kafka.sasl.password": password,
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": oracle.authority.truststore,
    }


def write_rows(oracle: SecureOracle) -> None:
    with Admin(bootstrap_servers=oracle.address("PLAINTEXT")) as admin:
        admin.create_topics([NewTopic("orders", 1), NewTopic("copies", 1)]).get()
    with Producer(bootstrap_servers=oracle.address("PLAINTEXT")) as producer:
        for row in ROWS:
            producer.send("orders", row.encode())


def run_app(folder: Path, options: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    chosen = folder / "options.json"
    chosen.write_text(json.dumps(options))
    command = [sys.executable, str(APP), str(chosen), str(folder)]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    env = {**os.environ, **python, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=env)


def everything_stored(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def test_neither_plan_nor_ui_nor_event_log_nor_checkpoint_has_the_secret(oracle: SecureOracle, tmp_path: Path) -> None:
    write_rows(oracle)
    secret = tmp_path / "password"
    secret.write_text(BOBS_PASSWORD + "\n")
    folder = tmp_path / "app"
    folder.mkdir()
    reference = f"${{file:{secret}}}"
    done = run_app(folder, connection(oracle, reference) | {"topic": "orders", "copies": "copies"})
    (tmp_path / "stderr.txt").write_text(done.stderr)
    assert done.returncode == 0, [line for line in done.stderr.splitlines() if "Error" in line][:10]
    found = json.loads((folder / "found.json").read_text())
    assert found["batch"] == sorted(ROWS)
    assert found["copies"] == sorted(ROWS)
    shown = everything_stored(folder) + done.stdout + done.stderr
    assert "kafka.sasl.password" in shown or "sasl.password" in shown  # what is searched does show the options
    assert reference in shown
    assert BOBS_PASSWORD not in shown
