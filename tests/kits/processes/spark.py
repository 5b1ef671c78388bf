"""The environment of a process with Spark."""

import functools
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

from oracle.class_archive import CHECKOUT, JAVA_FLAGS, java_flags

TRAINING = Path(__file__).parent / "spark_training.py"
TRAINING_S = 300
HOOKS = CHECKOUT / "tests" / "spark"
"""Its `sitecustomize` has Spark's daemons import what their workers need, once and before they fork."""


@functools.cache
def spark_environment() -> dict[str, str]:
    """Python workers import the installed PySpark, their daemons are warm, and a driver starts from an archive of its
    classes."""
    home = _spark_home()
    python = {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    python["SPARK_LAUNCHER_OPTS"] = " ".join(JAVA_FLAGS)  # of the JVM that puts the command line of the driver together

    def train(flags: list[str]) -> None:
        environment = os.environ | python | {"SPARK_SUBMIT_OPTS": " ".join(flags)}
        command = [sys.executable, str(TRAINING)]
        done = subprocess.run(command, env=environment, timeout=TRAINING_S, check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    path = os.pathsep.join(filter(None, [str(HOOKS), os.environ.get("PYTHONPATH")]))
    return python | {"SPARK_SUBMIT_OPTS": " ".join(java_flags(home / "jars", train)), "PYTHONPATH": path}


def _spark_home() -> Path:
    """Spark without its zipped copy of PySpark, which has no bytecode and costs every Python process a second."""
    installed = importlib.util.find_spec("pyspark")
    assert installed is not None and installed.origin is not None
    home = CHECKOUT / ".cache" / "spark-home"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars"):
        target = Path(installed.origin).parent / name
        if (home / name).is_symlink() and (home / name).readlink() == target:
            continue
        fresh = home / f"{name}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.rename(home / name)
    return home
