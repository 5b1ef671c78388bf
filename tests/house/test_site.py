"""The site of the docs is built without a warning, and has every public name."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PUBLIC = ("twofold", "twofold.aio", "twofold.errors")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` builds it; `--strict` makes an error of every warning."""
    folder: Path = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    return folder


def names_of(site: Path, page: str) -> set[str]:
    return set(re.findall(r'id="([\w.]+)"', (site / "reference" / f"{page}.html").read_text()))


def test_every_public_name_has_its_place_in_the_reference(site: Path) -> None:
    for module in PUBLIC:
        page = names_of(site, module.rpartition(".")[2])
        for name in importlib.import_module(module).__all__:
            assert f"{module}.{name}" in page, f"docs/reference has no {module}.{name}"
    assert "twofold.embedded.Broker" in names_of(site, "embedded")
    assert "pyspark_twofold.DefaultSource" in names_of(site, "spark")
    assert "twofold.pytest_plugin.twofold_broker" in names_of(site, "pytest")


def test_every_page_of_the_repository_is_on_the_site(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    outside = [Path(name) for name in ("index", "contributing", "changelog", "security", "examples")]
    for page in [*pages, *outside]:
        built = page.with_suffix(".html") if page.name != "README.md" else page.with_name("index.html")
        assert (site / built).exists(), f"{page} is not on the site"


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        for tag in re.findall(r"<(?:script|link|img)\b[^>]*", path.read_text()):
            assert not re.search(r'(?:src|href)="(?:https?:)?//', tag), f"{path.relative_to(site)}: {tag}"


def test_no_link_of_the_site_leads_nowhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        for target in re.findall(r'<a[^>]+href="([^"#?]+)', path.read_text()):
            if "://" not in target and not target.startswith("mailto:") and path.name != "404.html":
                assert os.path.exists(path.parent / target), f"{path.relative_to(site)} leads to {target}"
