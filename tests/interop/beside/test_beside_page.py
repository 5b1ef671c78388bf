"""docs/guide/tools.md tells of the versions and tests that there are."""

import re
from pathlib import Path

from interop.beside.kit import FASTSTREAM, FLINK, FLINK_CONNECTOR, KAFKA, QUIX

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs" / "guide" / "tools.md"


def test_the_page_of_tools_has_every_tested_tool_with_its_version_and_its_test() -> None:
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    versions = {version for row in rows for version in re.findall(r"\d[\d.-]+", row[1])}
    assert versions == {KAFKA, FLINK, FLINK_CONNECTOR, QUIX, FASTSTREAM}
    shown = [name for row in rows for name in re.findall(r"test_\w+", row[-1])]
    pages = {
        name
        for path in HERE.glob("test_beside_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(shown) == len(rows)
    assert set(shown) == pages - {test_the_page_of_tools_has_every_tested_tool_with_its_version_and_its_test.__name__}
