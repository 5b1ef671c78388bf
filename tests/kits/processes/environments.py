"""Environments that have some packages and no others, without installing anything.

Links to what this interpreter has, in a folder that is all a `python -S` finds: as an environment into which pip has
put the package and the requirements of some extras.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Environment:
    def __init__(self, folder: Path, *extras: str) -> None:
        """With what the package and these extras need, and with the package itself, as from a checkout."""
        self.folder = folder
        folder.mkdir(parents=True)
        for requirement in requirements(extras):
            self._link(Requirement(requirement))

    def _link(self, wanted: Requirement) -> None:
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            return
        found = distribution(wanted.name)
        for file in found.files or ():
            top = file.parts[0]
            if not top.startswith("..") and top != "__pycache__" and not (self.folder / top).exists():
                os.symlink(str(found.locate_file(top)), self.folder / top)
        for further in found.requires or ():
            self._link(Requirement(further))

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-S", *arguments]

    @property
    def variables(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": f"{self.folder}{os.pathsep}{ROOT / 'src'}", "COLUMNS": "80"}

    def python(self, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            env=self.variables,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def twofold(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.python("-m", "twofold", *arguments)


def requirements(extras: Sequence[str]) -> list[str]:
    """Of the package and of extras, which may name each other."""
    named = [*PROJECT["dependencies"]]
    for extra in extras:
        for one in PROJECT["optional-dependencies"][extra]:
            own = re.match(r"twofold\[([\w,]+)\]", one)
            named += requirements(own[1].split(",")) if own else [one]
    return list(dict.fromkeys(named))
