"""An archive of the classes of Apache Kafka, and one of Spark's, from which a JVM starts in half the time.

The first JVM of a kind runs alone and writes the archive when it ends; all later ones map it. A JVM that cannot use an
archive (other jars, another release of Java) says nothing and loads its classes as always.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

# C1 only, serial collector: a JVM of a test lives for seconds, and the machine may have two cores.
JAVA_FLAGS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]


def java_flags(jars: Path, write: Callable[[list[str]], None]) -> list[str]:
    """The flags for a JVM whose class path is these jars. `write` runs one with the flags that it is given, once."""
    folder = CHECKOUT / ".cache" / "classes"
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / f"{_digest(jars)}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            being_written = archive.with_suffix(".new")
            being_written.unlink(missing_ok=True)
            write([*JAVA_FLAGS, f"-XX:ArchiveClassesAtExit={being_written}", "-Xlog:disable", "-Xlog:all=error:stderr"])
            if being_written.exists():
                being_written.rename(archive)
            else:
                archive.touch()  # this Java writes none; an empty one is ignored, and nothing is tried again
    return [*JAVA_FLAGS, f"-XX:SharedArchiveFile={archive}"]


def _digest(jars: Path) -> str:
    """Of all that makes an archive fit: the Java, and where which jars are."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    assert java is not None, "the fixture checks for java"
    version = subprocess.run([java, "-version"], capture_output=True, timeout=60, check=False).stderr
    listed = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in sorted(jars.iterdir())]
    return hashlib.sha256("\n".join([version.decode(), str(jars), *listed]).encode()).hexdigest()[:16]
