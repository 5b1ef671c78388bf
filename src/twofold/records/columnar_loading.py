"""Which way the columnar codec goes in this process, and where compiled kernels are kept between processes.

1. numba is imported when enough rows have come that loading the kernels (a third of a second) pays. Until then, and
   where numba is missing or does not work, the plain way is taken: the results are the same.
2. Compiling takes seconds, so it is done once per host. numba keeps its files beside the source that it compiled, which
   cannot be where the package is read-only, and is forgotten where Spark unpacks it anew for each application. The
   source is therefore written into a directory of its own, named after its content: under NUMBA_CACHE_DIR, or the
   user's cache, or the directory for temporary files, whichever is first that can be written.
3. What is loaded from there is executed. A directory that others may write into is not used.
"""

import hashlib
import logging
import os
import pkgutil
import shutil
import stat
import sys
import tempfile
import threading
from pathlib import Path
from types import ModuleType

from twofold.records.columnar_arrays import Backend
from twofold.records.columnar_plain import Plain

log = logging.getLogger("twofold.records")

PATIENCE = 200_000
"""Rows that are done the plain way before the kernels are loaded: about as long as loading takes."""
KEPT_VERSIONS = 8
_PACKAGE, _FILE = "twofold.records", "columnar_kernels.py"
_NAME = "twofold.records.columnar_kernels"


class _Process:
    """What this process has decided."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.plain: Backend = Plain()
        self.loaded: Backend | None = None
        self.rows = 0


_process = _Process()


def backend_for(rows: int) -> Backend:
    """The way for the next `rows` rows."""
    if _process.loaded is not None:
        return _process.loaded
    _process.rows += rows
    return _process.plain if _process.rows < PATIENCE else load()


def load() -> Backend:
    """The compiled way at once, for callers that know it will pay; the plain way where there is no numba."""
    with _process.lock:
        if _process.loaded is None:
            _process.loaded = _compiled() or _process.plain
        return _process.loaded


def _compiled() -> Backend | None:
    if sys.byteorder != "little":
        return None
    try:
        import numba
    except ImportError as error:
        log.info("columnar codec without compiled kernels: %s", error)
        return None
    if numba.config.DISABLE_JIT:
        return None
    source = pkgutil.get_data(_PACKAGE, _FILE)
    directory = None if source is None else cache_directory(source)
    if source is None or directory is None:
        log.warning("columnar codec without compiled kernels: no directory to keep them in, set NUMBA_CACHE_DIR to one")
        return None
    from twofold.records.columnar_compiled import Compiled

    try:
        return Compiled(_import_from(directory, source))
    except Exception:
        log.warning("columnar codec without compiled kernels: numba cannot compile them", exc_info=True)
        return None


def _import_from(directory: Path, source: bytes) -> ModuleType:
    path = directory / _FILE
    module = ModuleType(_NAME)
    module.__file__ = str(path)
    sys.modules[_NAME] = module  # numba looks for the module of what it loads
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[_NAME]
        raise
    return module


# -- the cache --------------------------------------------------------------------------------------------------------


def cache_directory(source: bytes) -> Path | None:
    """A directory that holds this source and takes numba's files, None where there is none."""
    name = f"kernels-{hashlib.sha256(source).hexdigest()[:16]}"
    for parent, is_given in _parents():
        directory = parent / name
        try:
            _fill(directory, source, is_private=not is_given)
        except OSError as error:
            log.debug("no cache of kernels in %s: %s", parent, error)
            continue
        _forget_old(parent)
        return directory
    return None


def _parents() -> list[tuple[Path, bool]]:
    """Where to look, and whether the environment names the place."""
    found = []
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        found.append((Path(given), True))
    try:
        found.append((Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twofold", False))
    except RuntimeError:
        log.debug("this user has no home")
    try:
        user = os.getuid() if hasattr(os, "getuid") else "user"
        found.append((Path(tempfile.gettempdir()) / f"twofold-{user}", False))
    except FileNotFoundError:
        log.debug("there is no directory for temporary files")
    return found


def _fill(directory: Path, source: bytes, *, is_private: bool) -> None:
    """OSError where it cannot be."""
    directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    if is_private:
        _check_private(directory.parent)
        _check_private(directory)
    path = directory / _FILE
    if path.exists() and path.read_bytes() == source:
        tempfile.TemporaryFile(dir=directory).close()  # numba needs to write, too
        return
    with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
        file.write(source)
    os.replace(file.name, path)


def _check_private(directory: Path) -> None:
    found = directory.lstat()
    if hasattr(os, "getuid") and (
        not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022
    ):
        raise PermissionError(f"{directory} belongs to another user, or others may write into it")


def _forget_old(parent: Path) -> None:
    """Each version of the kernels has its own directory: the latest few stay."""
    try:
        versions = sorted(parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for version in versions[KEPT_VERSIONS:]:
        shutil.rmtree(version, ignore_errors=True)


def warm_up() -> str:
    """Compile and load the kernels; one line on what came of it."""
    backend = load()
    module = sys.modules.get(_NAME)
    if module is None:
        return f"columnar codec: {type(backend).__name__.lower()}, without compiled kernels"
    return f"columnar codec: compiled kernels in {Path(str(module.__file__)).parent}"
