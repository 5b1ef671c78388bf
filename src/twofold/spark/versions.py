"""What the installed PySpark has of the Python Data Source API, which grew from version to version.

1. 4.2 and newer have all that is used here. What 4.0 and 4.1 lack is refused where a query starts, and the message
   names the version that has it. Everything else works there, by other ways of the same API.
2. Which versions were run is in docs/guide/install.md (tools/check_pysparks.py).
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.types import StructType

from twofold.spark.errors import OptionError

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_LIMITS = VERSION >= (4, 2)
HAS_ARROW_STREAMS = VERSION >= (4, 1)
HAS_FILTERS = VERSION >= (4, 1)
ROWS_PER_BATCH = 10_000

if TYPE_CHECKING or HAS_ARROW_STREAMS:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase
else:
    from pyspark.sql.datasource import DataSourceStreamWriter as StreamWriterBase

if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Stands in for a class that this PySpark lacks: nothing asks for it there."""

        def __init__(self, *_: int) -> None:
            pass

    class ReadAllAvailable(ReadLimit):
        pass

    class ReadMaxRows(ReadLimit):
        pass

    class ReadMinRows(ReadLimit):
        pass

    class SupportsTriggerAvailableNow:
        pass


__all__ = [
    "HAS_LIMITS",
    "ONE_BATCH",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "StreamWriterBase",
    "SupportsTriggerAvailableNow",
    "as_batches",
    "check_reading",
]

ONE_BATCH = (
    f"PySpark {pyspark.__version__} reads everything in one batch for trigger(availableNow=True), because a Python "
    "source has no place for several before 4.2: windows that this batch closes are written by a later one"
)
LIMITS = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")


def check_reading(options: Mapping[str, str], *, streaming: bool) -> None:
    """Refuse what this PySpark has no place for."""
    given = {name.lower(): value for name, value in options.items()}
    if streaming and not HAS_LIMITS:
        for name in LIMITS:
            if name.lower() in given:
                raise _lacks(f"{name}={given[name.lower()]}", "4.2", "a Python source cannot limit what a batch reads")
    if not streaming and not HAS_FILTERS and given.get("pushdownfilters", "").strip().lower() == "true":
        raise _lacks("pushDownFilters=true", "4.1", "a Python source is not told the filters of a query")


def _lacks(what: str, version: str, why: str) -> OptionError:
    return OptionError(
        f"{what} needs PySpark {version} or newer, and this is {pyspark.__version__}, in which {why}: leave the option "
        f"out, or install pyspark>={version}"
    )


def as_batches(rows: Iterator[Any], schema: StructType) -> Iterator[Any]:
    """What a task of a stream gets, as Arrow batches: PySpark 4.0 has rows for it."""
    if HAS_ARROW_STREAMS:
        yield from rows
        return
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = to_arrow_schema(schema)
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row.asDict(recursive=True))
        if len(some) == ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(some, columns)
            some = []
    if some:
        yield pa.RecordBatch.from_pylist(some, columns)
