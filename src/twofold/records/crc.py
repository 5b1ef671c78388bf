"""CRC-32C, from the `crc32c` package without what it drags in.

To know its own version the package imports importlib.metadata, and for its command line argparse: together a tenth of
the time that a server takes to start. While the package is imported, empty modules stand in for both, unless they are
loaded already.
"""

import sys
from types import ModuleType

_UNNEEDED = {"importlib.metadata": "version", "crc32c._cli": "main"}


def _import_package() -> None:
    hidden = []
    for module_name, attribute in _UNNEEDED.items():
        if module_name not in sys.modules:
            stand_in = ModuleType(module_name)
            setattr(stand_in, attribute, lambda *_: "")
            sys.modules[module_name] = stand_in
            hidden.append(module_name)
    try:
        import crc32c  # noqa: F401
    finally:
        for module_name in hidden:
            del sys.modules[module_name]


_import_package()

from crc32c import crc32c  # noqa: E402

__all__ = ["crc32c"]
