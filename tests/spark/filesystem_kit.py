"""File systems that are not local, for checkpoints: a server of S3 (moto) with Hadoop's connector, and HDFS (one name
node and one data node in a JVM). Jars come from Maven Central and are kept in `.cache`.

The connector asks for a bundle of Amazon's SDK with half a gigabyte. The modules that S3 needs are 16 MB.
"""

import fcntl
import glob
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from connector import CHECKOUT

HADOOP = "3.5.0"
SDK = "2.35.4"
PATIENCE_S = 90
HOME = CHECKOUT / ".cache" / "hadoop-test"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>t</groupId><artifactId>t</artifactId><version>1</version>
<dependencies>{}</dependencies></project>"""
BARE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars(name: str, *dependencies: tuple[str, str, str]) -> list[str]:
    """With what they need, except the connector, which would bring the bundle along."""
    home = HOME / name
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = home / "complete", repr(dependencies)
        if not done.exists() or done.read_text() != wanted:
            _fetch(home, dependencies)
            done.write_text(wanted)
    return sorted(glob.glob(f"{home}/*.jar"))


def _fetch(home: Path, dependencies: tuple[tuple[str, str, str], ...]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        pytest.skip("the jars of Hadoop need Maven to fetch them: install maven")
    rows = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{BARE if group == 'org.apache.hadoop' else ''}</dependency>"
        for group, artifact, version in dependencies
    )
    pom = home / "pom.xml"
    pom.write_text(POM.format(rows))
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={home}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        pytest.skip(f"Maven could not fetch the jars of {home.name} (check the network): {done.stdout[:200]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class S3:
    """An S3 server whose answers survive nothing: it is the checkpoint's disk, and no test kills it."""

    scheme = "s3a"

    def __init__(self, directory: Path) -> None:
        if importlib.util.find_spec("moto") is None:
            pytest.skip("S3 needs moto: pip install 'moto[server,s3]'")
        self.port = free_port()
        self._log = (directory / "s3.log").open("wb")
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)
        wait_until(lambda: _answers(self.port), "the S3 server answers")
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/checkpoints", method="PUT")
        request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=me/20260101/us-east-1/s3/aws4_request")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200

    @property
    def conf(self) -> dict[str, str]:
        """What a user gives to Spark, and to nothing else."""
        found = jars(
            "s3a",
            ("org.apache.hadoop", "hadoop-aws", HADOOP),
            ("software.amazon.awssdk", "s3", SDK),
            ("software.amazon.awssdk", "sts", SDK),
            ("software.amazon.awssdk", "s3-transfer-manager", SDK),
            ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
        )
        return {"spark.jars": ",".join(found)} | self.settings

    @property
    def settings(self) -> dict[str, str]:
        return {
            "spark.hadoop.fs.s3a.endpoint": f"http://127.0.0.1:{self.port}",
            "spark.hadoop.fs.s3a.access.key": "me",
            "spark.hadoop.fs.s3a.secret.key": "mine",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        }

    def uri(self, name: str) -> str:
        return f"s3a://checkpoints/{name}"

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> "S3":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Hdfs:
    """A name node and a data node, in a JVM that ends with this process."""

    scheme = "hdfs"

    def __init__(self, directory: Path) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from pyspark.find_spark_home import _find_spark_home

        if shutil.which("java") is None:
            pytest.skip("HDFS needs a JDK: install openjdk-17-jdk-headless")
        spark = f"{_find_spark_home()}/jars"
        mini = jars("hdfs", ("org.apache.hadoop", "hadoop-client-minicluster", HADOOP), ("junit", "junit", "4.13.2"))
        port, token = launch_gateway(
            jarpath=glob.glob(f"{spark}/py4j-*.jar")[0],
            classpath=os.pathsep.join([*mini, f"{spark}/*"]),
            javaopts=["-Xmx400m", f"-Dtest.build.data={directory}"],
            die_on_exit=True,
            enable_auth=True,
        )
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
        jvm = self._gateway.jvm
        configuration = jvm.org.apache.hadoop.conf.Configuration()
        configuration.set("hdfs.minidfs.basedir", str(directory / "dfs"))
        builder: Any = getattr(jvm.org.apache.hadoop.hdfs, "MiniDFSCluster$Builder")(configuration)
        self._cluster = builder.numDataNodes(1).format(True).build()
        self._cluster.waitActive()
        self.port = int(self._cluster.getNameNodePort())

    conf: dict[str, str] = {}

    def uri(self, name: str) -> str:
        return f"hdfs://127.0.0.1:{self.port}/checkpoints/{name}"

    def close(self) -> None:
        self._cluster.shutdown()
        self._gateway.shutdown()

    def __enter__(self) -> "Hdfs":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.1)
