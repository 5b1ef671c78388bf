"""What MkDocs has to be told: pages that live outside of docs/, and the list of decisions.

The README is the first page of the site. CONTRIBUTING, CHANGELOG, SECURITY and the page of the examples stay where a
forge looks for them too. Here they become pages, and their links lead where they led before.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
    "examples/README.md": "examples.md",
}
_LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#:\s]+)(#[^)]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    decisions = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    pages: list[Any] = [{"All decisions": "decisions/README.md"}]
    pages += [f"decisions/{path.name}" for path in decisions]
    for entry in config.nav or []:
        if "Decisions" in entry:
            entry["Decisions"] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=moved(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page inside of docs/ may link to one of those outside."""
    if page.file.generated_by is not None:
        return markdown
    return linked(markdown, (ROOT / "docs" / page.file.src_uri).parent, "../" * page.file.src_uri.count("/"))


def moved(path: Path) -> str:
    """A page outside of docs/, with the links of a page at the top of the site."""
    return linked(path.read_text(), path.parent, "")


def linked(text: str, folder: Path, up: str) -> str:
    """Links of the repository become links of the site; what is not on the site is named only."""

    def replace(link: "re.Match[str]") -> str:
        place = _place((folder / link[2]).resolve())
        return link[1].strip("[]") if place is None else f"{link[1]}({up}{place}{link[3] or ''})"

    return _LINK.sub(replace, text)


def _place(found: Path) -> str | None:
    if found.is_dir():
        pages = [found / "README.md", *sorted(found.glob("*.md"))]
        found = next((path for path in pages if path.exists()), found)
    inside = found.relative_to(ROOT).as_posix()
    if inside in OUTSIDE:
        return OUTSIDE[inside]
    return inside.removeprefix("docs/") if inside.startswith("docs/") else None
