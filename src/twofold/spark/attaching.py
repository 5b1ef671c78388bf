"""`attach(spark)`: what Spark's JVM decides before it asks a Python source, decided in the program's own process.

1. A write without a mode appends, as with Spark's own connector. The JVM refuses it for every Python source.
2. A stream without the option checkpointLocation has it from the session, however late that was set.
3. A thread of Python may write. The JVM looks Python sources up in the session that is active in its own thread.

Nothing changes for other formats.
"""

import functools
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from twofold.spark.checkpoints.driver_process import CHECKPOINTS
from twofold.spark.datasource import TwofoldDataSource

_NOTED = "_twofold_noted"
_APPENDING = ("error", "errorifexists", "default")
"""What a mode unset is. Spark's own connector appends then, too."""


def attach(spark: SparkSession) -> None:
    """Once for a program, before it writes: all of its sessions and threads have it."""
    spark.dataSource.register(TwofoldDataSource)
    for writer in (DataFrameWriter, DataStreamWriter):
        if hasattr(writer, _NOTED):
            continue
        setattr(writer, _NOTED, True)
        for name in ("format", "option", "options", "mode", "queryName"):
            if hasattr(writer, name):
                setattr(writer, name, _noting(name, getattr(writer, name)))
    if not hasattr(DataFrameWriter.save, _NOTED):
        DataFrameWriter.save = _before(_prepare_batch, DataFrameWriter.save)  # type: ignore[method-assign]
        DataStreamWriter.start = _before(_prepare_stream, DataStreamWriter.start)  # type: ignore[method-assign]


def _noting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """The method; what it was called with is kept beside the writer."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        noted = _noted(self)
        if name == "option":
            key, value = (*args, *options.values())[:2]
            noted[str(key).lower()] = value
        elif name == "options":
            noted.update({key.lower(): value for key, value in options.items()})
        elif args:
            noted[f".{name}"] = args[0]
        return method(self, *args, **options)

    return call


def _noted(writer: Any) -> dict[str, Any]:
    noted: dict[str, Any] = writer.__dict__.setdefault("_twofold", {})
    return noted


def _before(prepare: Callable[[Any, dict[str, Any]], None], method: Callable[..., Any]) -> Any:
    @functools.wraps(method)
    def call(self: Any, path: str | None = None, format: str | None = None, *args: Any, **options: Any) -> Any:
        chosen = format or _noted(self).get(".format")
        if str(chosen).lower() == TwofoldDataSource.name():
            names = ("mode", "partitionBy") if method.__name__ == "save" else ("outputMode", "partitionBy", "queryName")
            given = _noted(self) | dict(zip(names, args, strict=False)) | {k.lower(): v for k, v in options.items()}
            self._spark.createDataFrame([], "nothing int")  # makes the session active in this thread of the JVM
            prepare(self, given)
            if str(options.get("mode")).lower() in _APPENDING:
                del options["mode"]
        return method(self, path, format, *args, **options)

    setattr(call, _NOTED, True)
    return call


def _prepare_batch(writer: DataFrameWriter, given: dict[str, Any]) -> None:
    mode = given.get("mode") or given.get(".mode") or "default"
    if str(mode).lower() in _APPENDING:
        writer.mode("append")


def _prepare_stream(writer: Any, given: dict[str, Any]) -> None:
    root = writer._spark.conf.get(CHECKPOINTS, None)
    if root and "checkpointlocation" not in given:
        # Without a name Spark takes a new place for every start, too.
        name = given.get("queryName") or given.get("queryname") or given.get(".queryName") or uuid.uuid4()
        writer.option("checkpointLocation", f"{str(root).rstrip('/')}/{name}")
