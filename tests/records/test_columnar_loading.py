"""The kernels are compiled once per host, wherever the package lies; who does not need them does not pay for them."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from twofold.records import columnar_loading
from twofold.records.columnar_loading import KEPT_VERSIONS, cache_directory
from twofold.records.columnar_plain import Plain

SOURCE = Path(columnar_loading.__file__).parent.parent
USE = """
import sys
import pyarrow as pa
from twofold.records import columnar
backend = columnar.load()
(batch,) = columnar.Columns(pa.array([b"k"]), pa.array([b"v"]), 5).encode()
((rows, _),) = columnar.Decoder("t", 0).decode(bytes(batch.build()))
assert rows["value"].to_pylist() == [b"v"]
kernels = sys.modules.get("twofold.records.columnar_kernels")
print(columnar.__file__)
print(type(backend).__name__)
print(kernels and kernels.__file__)
print(kernels and sum(kernels.plan.stats.cache_misses.values()) + sum(kernels.scan.stats.cache_misses.values()))
"""


def python(script: str, *arguments: str, package: Path | None = None, **environment: str) -> list[str]:
    """The lines that a fresh interpreter prints; the package is found at `package`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_", "PYTHON"))}
    if package is not None:
        environment["PYTHONPATH"] = str(package)
    command = [sys.executable, "-B", *(("-m", script) if script.startswith("twofold.") else ("-c", script))]
    done = subprocess.run(
        [*command, *arguments], env=inherited | environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A home in which nothing can be made, even by root."""
    path = tmp_path_factory.mktemp("home") / "file"
    path.write_text("not a directory")
    return str(path)


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as `spark-submit --py-files` ships it."""
    path = tmp_path_factory.mktemp("py-files") / "twofold.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(SOURCE.rglob("*.py")):
            archive.write(file, Path("twofold") / file.relative_to(SOURCE))
    return path


@pytest.mark.slow
def test_kernels_of_a_zip_are_kept_for_every_other_copy_of_the_package(
    zipped: Path, nowhere: str, tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    where, way, kernels, _ = python(USE, package=zipped, HOME=nowhere, TMPDIR=str(temporary))
    assert where.startswith(str(zipped))
    assert way == "Compiled" and Path(kernels).is_relative_to(temporary)

    installed = tmp_path / "read-only" / "twofold"
    shutil.copytree(SOURCE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    for directory in [installed, *installed.rglob("*")]:
        directory.chmod(0o555 if directory.is_dir() else 0o444)
    where, way, again, compiled = python(USE, package=installed.parent, HOME=nowhere, TMPDIR=str(temporary))
    assert where.startswith(str(installed))
    assert (way, again, compiled) == ("Compiled", kernels, "0")
    assert not list(installed.rglob("__pycache__"))
    (line,) = python("twofold.records.columnar", package=zipped, HOME=nowhere, TMPDIR=str(temporary))
    assert line == f"columnar codec: compiled kernels in {Path(kernels).parent}"


@pytest.mark.parametrize(
    ("prepare", "environment"),
    [("import sys; sys.modules['numba'] = None", {}), ("", {"NUMBA_DISABLE_JIT": "1"})],
    ids=["not installed", "switched off"],
)
def test_without_numba_everything_works(prepare: str, environment: dict[str, str]) -> None:
    _, way, kernels, _ = python(prepare + USE, package=None, **environment)
    assert (way, kernels) == ("Plain", "None")


def test_with_no_directory_to_write_to_everything_works(nowhere: str) -> None:
    script = "import tempfile; tempfile.tempdir = " + repr(nowhere) + USE
    _, way, kernels, _ = python(script, HOME=nowhere)
    assert (way, kernels) == ("Plain", "None")


def test_neither_broker_nor_clients_load_arrow_or_numba() -> None:
    script = """
import sys
import twofold, twofold.client, twofold.broker.broker, twofold.cli.main
print(sorted({"numpy", "pyarrow", "numba", "llvmlite"} & set(sys.modules)))
"""
    assert python(script) == ["[]"]


def test_numba_is_loaded_when_enough_rows_have_come() -> None:
    script = """
import sys
import pyarrow as pa
from twofold.records import columnar, columnar_loading
rows = pa.array([b"x"] * 1_000)
for _ in range(columnar_loading.PATIENCE // 1_000 - 1):
    columnar.Columns(None, rows, 5)
print("numba" in sys.modules)
columnar.Columns(None, rows, 5)
print("numba" in sys.modules)
"""
    assert python(script, HOME=os.environ.get("HOME", "/")) == ["False", "True"]


# -- the directory ----------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The three places that are looked at, in their order."""
    found = SimpleNamespace(given=tmp_path / "given", cache=tmp_path / "cache", temporary=tmp_path / "tmp")
    for path in vars(found).values():
        path.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(found.given))
    monkeypatch.setenv("XDG_CACHE_HOME", str(found.cache))
    monkeypatch.setattr("tempfile.tempdir", str(found.temporary))
    return found


def block(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("not a directory")


def test_the_first_directory_that_can_be_written_is_taken(places: SimpleNamespace) -> None:
    for path in (places.given, places.cache, places.temporary):
        found = cache_directory(b"source")
        assert found is not None and found.is_relative_to(path)
        assert (found / "columnar_kernels.py").read_bytes() == b"source"
        assert found.stat().st_mode & 0o777 == 0o700
        block(path)
    assert cache_directory(b"source") is None


def test_a_directory_that_others_may_write_into_is_not_used(
    places: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    first = cache_directory(b"source")
    assert first is not None and first.is_relative_to(places.cache)
    for path in (first, first.parent):
        path.chmod(0o777)
        second = cache_directory(b"source")
        assert second is not None and second.is_relative_to(places.temporary)
        path.chmod(0o700)
    assert second is not None
    shutil.rmtree(second)
    second.symlink_to(first)
    first.chmod(0o777)
    assert cache_directory(b"source") is None
    monkeypatch.setattr("os.getuid", lambda: 4_711)
    assert cache_directory(b"source") is None or os.name == "nt"


def test_source_that_is_there_is_not_written_again(places: SimpleNamespace) -> None:
    """Older versions of numba take a new file for new source."""
    found = cache_directory(b"source")
    assert found is not None
    path = found / "columnar_kernels.py"
    os.utime(path, (1, 1))
    assert cache_directory(b"source") == found and path.stat().st_mtime == 1
    path.write_bytes(b"damaged")
    assert cache_directory(b"source") == found and path.read_bytes() == b"source"


def test_versions_have_directories_of_their_own_and_few_are_kept(places: SimpleNamespace) -> None:
    found = []
    for version in range(KEPT_VERSIONS + 3):
        directory = cache_directory(b"source %d" % version)
        assert directory is not None
        os.utime(directory, (version, version))
        found.append(directory)
    assert len(set(found)) == len(found)
    assert sorted(places.given.iterdir()) == sorted(found[-KEPT_VERSIONS:])


def test_kernels_that_do_not_compile_are_no_reason_to_fail(
    places: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(columnar_loading, "_process", columnar_loading._Process())
    monkeypatch.setattr("pkgutil.get_data", lambda *_: b"raise ValueError('an llvm that is broken')")
    monkeypatch.delitem(sys.modules, "twofold.records.columnar_kernels", raising=False)
    assert isinstance(columnar_loading.load(), Plain)
    assert "numba cannot compile them" in caplog.text and "an llvm that is broken" in caplog.text
