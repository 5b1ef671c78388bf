"""The parts of Twofold that `pip install twofold` leaves out: which extra brings each, and the command to install it.

The package alone is the client. The command that is shown works for the Twofold that is running: one from an index is
named by its name, one from a checkout or a wheel by its path.
"""

import os
import sys
from importlib.util import find_spec

# extra -> the modules that its part cannot do without
MODULES = {
    "server": ("click", "prometheus_client", "rich", "xxhash"),
    "re2": ("re2",),
    "security": ("cryptography", "jwt"),
    "dualwrite": ("sqlalchemy",),
    "spark": ("pyspark", "pyarrow", "numpy"),
}


class MissingExtra(ImportError):
    """A part of Twofold was used that is not installed. The message has the command that installs it."""


def missing(extra: str) -> list[str]:
    """The modules of the extra that are not installed."""
    return [name for name in MODULES[extra] if sys.modules.get(name) is None and find_spec(name) is None]


def require(extra: str, part: str) -> None:
    """Raise `MissingExtra` unless the extra is installed; `part` is what needs it."""
    if absent := missing(extra):
        raise MissingExtra(f"{part} needs {' and '.join(absent)}: {install_command(extra)}")


def install_command(extra: str) -> str:
    checkout = _checkout()
    if checkout is not None:
        return f"{_pip()} install -e '{checkout}[{extra}]'"
    return f"{_pip()} install '{_installed_from() or 'twofold'}[{extra}]'"


def _pip() -> str:
    """The one that installs for this interpreter: the first in PATH may belong to another."""
    import shutil

    found = shutil.which("pip")
    here = os.path.dirname(sys.executable)
    return "pip" if found is not None and os.path.dirname(found) == here else f"{sys.executable} -m pip"


def _checkout() -> str | None:
    folder = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
    return folder if os.path.exists(os.path.join(folder, "pyproject.toml")) else None


def _installed_from() -> str | None:
    """The folder or file that pip has noted (PEP 610), while it is still there."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import unquote, urlsplit

    try:
        noted = distribution("twofold").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    if noted is None:
        return None
    address = urlsplit(json.loads(noted)["url"])
    if address.scheme != "file":
        return None
    path = unquote(address.path)
    return path if os.path.exists(path) else None
