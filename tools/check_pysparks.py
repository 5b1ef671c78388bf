"""Which PySparks `format("twofold")` works with: each from the registry, in an environment of its own.

    python tools/check_pysparks.py                 # all of VERSIONS, as a table
    python tools/check_pysparks.py 4.1.4           # only that
    python tools/check_pysparks.py --write         # and into docs/guide/install.md; what was not asked stays there

Each environment has 1 GB and stays in .cache/pyspark. `make test` runs the newest PySpark alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path

from pyspark_core import CHECKS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "install.md"
BEGIN, END = "<!-- pysparks: begin -->", "<!-- pysparks: end -->"
VERSIONS = ("4.3.0", "4.2.1", "4.1.4", "4.0.5")
PATIENCE_S = 3600


def environment(version: str) -> Path:
    """Its Python."""
    home = ROOT / ".cache" / "pyspark" / version
    python = home / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    if not python.exists():
        subprocess.run([*uv, "venv", "-q", "-p", sys.executable, str(home)], check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["server"], *extras["spark"]]
    wanted = [one for one in needed if not one.startswith(("pyspark", "twofold"))]
    subprocess.run([*uv, "pip", "install", "-q", "-p", str(python), f"pyspark=={version}", *wanted], check=True)
    return python


def run(version: str) -> dict[str, str]:
    """What each check came to, as the table shows it."""
    python = environment(version)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env |= {"PYTHONPATH": str(ROOT / "src"), "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(python), str(ROOT / "tools" / "pyspark_core.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    said = [json.loads(line[1:]) for line in done.stdout.splitlines() if line.startswith("@")]
    found = {row["check"]: row for row in said}
    for row in said:
        if row["outcome"] == "failed":
            print(f"{version}: {row['check']}: {row['why']}", file=sys.stderr)
    if len(found) < len(CHECKS):
        print(f"{version}: ended with {done.returncode}: {done.stderr[-2000:]}", file=sys.stderr)
    return {name: _cell(found.get(name)) for name in CHECKS}


def _cell(row: dict[str, str] | None) -> str:
    if row is None or row["outcome"] == "failed":
        return "**failed**"
    return "yes" if row["outcome"] == "passed" else f"needs {row['why'].split(' ')[0]}"


def table(rows: dict[str, list[str]]) -> str:
    names = ["PySpark", *CHECKS.values()]
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    newest_first = sorted(rows, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    lines += ["| " + " | ".join([rows[version][0], *rows[version][1:]]) + " |" for version in newest_first]
    return "\n".join(lines)


def known(text: str) -> dict[str, list[str]]:
    """The rows that the page has."""
    rows = {}
    for line in text.partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if cells[0][:1].isdigit():
            rows[cells[0].partition(",")[0]] = cells
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    today = datetime.now(UTC).date().isoformat()
    rows = {version: [f"{version}, {today}", *run(version).values()] for version in given.versions}
    print(table(rows))
    if given.write:
        text = PAGE.read_text()
        before, after = text.partition(BEGIN)[0], text.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(known(text) | rows)}\n\n{END}{after}")
    return any("failed" in cell for cells in rows.values() for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
