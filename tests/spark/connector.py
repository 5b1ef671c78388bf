"""Spark's own Kafka connector, for tests that ask both for the same: its jars from Maven Central, kept in `.cache`.

There is none of Spark 4.3; that of 4.2 works with it. Transitive resolution does not, so the jars are named one by one.
"""

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
JARS = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.12.1",
)
LONG = os.environ.get("TWOFOLD_LONG") == "1"
# For what says little more than its neighbours: it runs when there is time to compare.
when_long = pytest.mark.skipif(not LONG, reason="TWOFOLD_LONG=1 runs all")


def connector_jars() -> list[Path]:
    """The jars, downloaded once; a skip says what is missing."""
    home = CHECKOUT / ".cache" / "spark-kafka"
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return [_fetch(home, artifact) for artifact in JARS]


def _fetch(home: Path, artifact: str) -> Path:
    _, name, version = artifact.split(":")
    jar = home / f"{name}-{version}.jar"
    if jar.exists():
        return jar
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("Spark's own connector needs Maven to fetch it: install maven")
    command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={home}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0 or not jar.exists():
        pytest.skip(f"Maven could not fetch {artifact} (check the network): {done.stdout[:200]}")
    return jar
