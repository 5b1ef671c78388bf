"""The user's file: imported by its path, asked for `transform` and perhaps `configure`."""

import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from twofold.pipeline.config import PipelineConfigError, PipelineFailed, PipelineSink

EXAMPLE = "def transform(df):\n    return df.selectExpr('key', 'upper(cast(value as string)) value')"


NO_SESSION = "SESSION_OR_CONTEXT_NOT_EXISTS"


class NeedsSession(Exception):
    """The file asks Spark for something while it is loaded, as a function that is decorated with udf does."""


@dataclass(frozen=True, slots=True)
class Transformation:
    path: Path
    module: ModuleType
    transform: Callable[..., Any]
    configure: Callable[[Any], object] | None

    def prepare(self, spark: Any) -> None:
        """What the file wants of the session; and the file's functions travel to executors, which do not have it."""
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(self.module)  # type: ignore[no-untyped-call]
        if self.configure is not None:
            try:
                self.configure(spark)
            except Exception as error:
                raise PipelineFailed(f"configure() in {self.path.name} failed: {where(self.path, error)}") from error

    def apply(self, frames: Mapping[str, Any], sinks: tuple[PipelineSink, ...]) -> dict[str, Any]:
        """What goes to each sink. One source is handed over as it is, several by their names."""
        try:
            made = self.transform(*frames.values()) if len(frames) == 1 else self.transform(**frames)
        except Exception as error:
            raise PipelineFailed(f"transform() in {self.path.name} failed: {where(self.path, error)}") from error
        names = [sink.name for sink in sinks]
        if isinstance(made, Mapping):
            if set(made) != set(names):
                raise PipelineFailed(
                    f"transform() in {self.path.name} returned frames for {', '.join(map(str, made)) or 'no sink'}: "
                    f"the sinks are {', '.join(names)}"
                )
        elif len(names) > 1:
            raise PipelineFailed(
                f"transform() in {self.path.name} must return a dict with a DataFrame for each of the sinks "
                f"{', '.join(names)}, not a {type(made).__name__}"
            )
        else:
            made = {names[0]: made}
        for name, frame in made.items():
            self._check_frame(name, frame)
        return dict(made)

    def _check_frame(self, name: str, frame: Any) -> None:
        if not hasattr(type(frame), "writeStream"):  # of the class: a batch's own raises
            hint = ": is a `return` missing?" if frame is None else ""
            raise PipelineFailed(
                f"transform() in {self.path.name} returned a {type(frame).__name__} for the sink {name}, not a "
                f"DataFrame{hint}"
            )
        if getattr(frame, "isStreaming", True) is False:
            raise PipelineFailed(
                f"transform() in {self.path.name} returned for the sink {name} a DataFrame that is not made from a "
                "source: a pipeline writes streams"
            )


def check_file(path: Path) -> None:
    """ConfigError for what cannot be a Python file, before anything else is asked for."""
    if path.is_dir():
        raise PipelineConfigError(
            f"{path} is a directory: name the Python file in it that has a function transform(df)"
        )
    if not path.is_file():
        near = [other.name for other in sorted(path.parent.glob("*.py"))] if path.parent.is_dir() else []
        hint = f" ({path.parent} has {', '.join(near[:5])})" if near else ""
        raise PipelineConfigError(f"{path} is not there: name a Python file that has a function transform(df){hint}")
    if path.suffix == ".toml":
        raise PipelineConfigError(
            f"{path} is a TOML file: name the Python file first, and this one with --config {path}"
        )
    if path.suffix != ".py":
        raise PipelineConfigError(f"{path} is not a Python file: its name must end in .py")


def load(path: Path, source_names: tuple[str, ...]) -> Transformation:
    """ConfigError for a file that is no pipeline; NeedsSession for one that can be loaded later only."""
    check_file(path)
    path = path.resolve()
    module = _import(path)
    transform = getattr(module, "transform", None)
    if not callable(transform):
        raise PipelineConfigError(f"{path} has no function transform: write one, such as\n\n{EXAMPLE}\n")
    _check_signature(path, transform, source_names)
    configure = getattr(module, "configure", None)
    if configure is not None and not callable(configure):
        raise PipelineConfigError(f"configure in {path} must be a function that takes the SparkSession")
    return Transformation(path, module, transform, configure)


def _import(path: Path) -> ModuleType:
    # A file may be called as a module that others import: json.py is a pipeline about JSON.
    name = f"twofold_pipeline_{path.stem}" if path.stem in {*sys.modules, *sys.stdlib_module_names} else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None, "its name ends in .py"
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # for what the file imports beside itself
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        sys.path.remove(str(path.parent))
        del sys.modules[name]
        if NO_SESSION in str(error):
            raise NeedsSession from error
        raise PipelineConfigError(f"{path} cannot be loaded: {where(path, error)}") from error
    return module


def _check_signature(path: Path, transform: Callable[..., Any], names: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(transform)
        if len(names) == 1:
            signature.bind(object())
        else:
            signature.bind(**dict.fromkeys(names))
    except TypeError:
        wanted = "one DataFrame" if len(names) == 1 else f"the DataFrames {', '.join(names)} by these names"
        raise PipelineConfigError(f"transform{inspect.signature(transform)} in {path} must take {wanted}") from None
    except ValueError:
        return  # a function of C does not tell how it is called


def where(path: Path, error: BaseException) -> str:
    """The error in one line, and the line of the user's files that it comes from."""
    text = (error.msg if isinstance(error, SyntaxError) else str(error)).strip().splitlines()
    places = [
        (Path(frame.filename).name, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == path.parent
    ]
    if isinstance(error, SyntaxError) and error.filename:
        places.append((Path(error.filename).name, error.lineno))
    place = f" ({places[-1][0]}:{places[-1][1]})" if places and places[-1][1] else ""
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
