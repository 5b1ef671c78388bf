"""Java programs of the tests, compiled once and kept: a JVM that is given a source compiles it at every start, which
costs more than most programs do."""

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from oracle.class_archive import CHECKOUT

COMPILE_S = 120


@functools.cache
def compiled(source: Path, jars: Path, text: bytes) -> Path:
    """The folder of the classes of this source, whose text is given. What it was compiled with is part of the name."""
    compiler = shutil.which("javac")
    assert compiler is not None, "Java programs are compiled by a JDK: install openjdk-17-jdk-headless"
    home = CHECKOUT / ".cache" / "programs"
    home.mkdir(parents=True, exist_ok=True)
    with_these = f"{Path(compiler).resolve()} {jars}".encode()
    folder = home / f"{source.stem}-{hashlib.sha256(with_these + text).hexdigest()[:16]}"
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=home) as made:
                command = [compiler, "-nowarn", "-cp", f"{jars}/*", "-d", f"{made}/classes", str(source)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S, check=False)
                assert done.returncode == 0, done.stderr
                os.rename(f"{made}/classes", folder)
    return folder


def program(source: Path, jars: Path, *more_jars: Path) -> list[str]:
    """What follows the flags of the JVM. The jars come first: its archive of classes is for a path that begins so."""
    path = [f"{folder}/*" for folder in (jars, *more_jars)]
    path.append(str(compiled(source, jars, source.read_bytes())))
    return ["-cp", os.pathsep.join(path), source.stem]
