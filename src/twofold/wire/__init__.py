"""Messages of the Kafka protocol, on top of `kio`.

kio carries the schemas and a native reader. It also imports hypothesis where that is installed, which costs a
server two seconds and 200 MB at start-up for nothing: unless a test has loaded hypothesis already, kio is imported
here with that name hidden.
"""

import sys


def _import_kio_without_hypothesis() -> None:
    names = ("hypothesis", "hypothesis.strategies")
    if any(name in sys.modules for name in names):
        import kio.serial

        return
    hidden: dict[str, None] = dict.fromkeys(names)
    sys.modules.update(hidden)  # type: ignore[arg-type]
    try:
        import kio.serial  # noqa: F401
    finally:
        for name in names:
            del sys.modules[name]


_import_kio_without_hypothesis()
