"""What pyproject.toml cannot say: the README as an index shows it, and the addresses of the project.

On an index page a link or a picture needs an address. `TWOFOLD_REPOSITORY` says where the repository is; `make dist`
takes it from the remote "origin". A build that does not know it leaves pictures out and keeps the text of links, so
that nothing on the page leads nowhere.
"""

import os
import re
from pathlib import Path

ROOT = Path(__file__).parent
PICTURE = re.compile(r"!\[([^\]]*)\]\((?!\w+:)([^)]+)\)\n*")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)]+)\)")
CODE = re.compile(r"(^```.*?^```$)", re.M | re.S)


def index_readme(text: str, repository: str, version: str) -> str:
    """The README with every link and picture by its full address, or without, where the repository has none."""
    parts = CODE.split(text)
    return "".join(part if CODE.match(part) else _with_addresses(part, repository, version) for part in parts)


def _with_addresses(text: str, repository: str, version: str) -> str:
    if not repository:
        return LINK.sub(r"\1", PICTURE.sub("", text))
    text = PICTURE.sub(rf"![\1]({repository}/raw/v{version}/\2)\n\n", text)
    return LINK.sub(rf"[\1]({repository}/blob/v{version}/\2)", text)


def addresses(repository: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/tree/main/docs",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


def version_of(text: str) -> str:
    found = re.search(r'^VERSION = "([^"]+)"', text, re.M)
    assert found is not None, "src/twofold/version.py has no VERSION"
    return found[1]


if __name__ == "__main__":
    from setuptools import setup

    REPOSITORY = os.environ.get("TWOFOLD_REPOSITORY", "").removesuffix(".git").rstrip("/")
    VERSION = version_of((ROOT / "src" / "twofold" / "version.py").read_text())
    setup(
        long_description=index_readme((ROOT / "README.md").read_text(), REPOSITORY, VERSION),
        long_description_content_type="text/markdown",
        project_urls=addresses(REPOSITORY),
    )
