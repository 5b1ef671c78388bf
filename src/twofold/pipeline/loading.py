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

from twofold.pipeline.config import ConfigError, Sink

EXAMPLE = "def transform(df):\n    return df.selectExpr('key', 'upper(cast(value as string)) value')"


@dataclass(frozen=True, slots=True)
class Transformation:
    path: Path
    transform: Callable[..., Any]
    configure: Callable[[Any], object] | None

    def apply(self, frames: Mapping[str, Any], sinks: tuple[Sink, ...]) -> dict[str, Any]:
        """What goes to each sink. One source is handed over as it is, several by their names."""
        try:
            made = self.transform(*frames.values()) if len(frames) == 1 else self.transform(**frames)
        except Exception as error:
            raise ConfigError(f"transform() in {self.path} failed: {_where(self.path, error)}") from error
        names = [sink.name for sink in sinks]
        if isinstance(made, Mapping):
            if set(made) != set(names):
                raise ConfigError(
                    f"transform() in {self.path} returned frames for {', '.join(map(str, made)) or 'no sink'}: the "
                    f"sinks are {', '.join(names)}"
                )
            return dict(made)
        if len(names) > 1:
            raise ConfigError(
                f"transform() in {self.path} is to return a dict with a DataFrame for each of the sinks "
                f"{', '.join(names)}, not a {type(made).__name__}"
            )
        if not hasattr(made, "writeStream"):
            raise ConfigError(f"transform() in {self.path} returned a {type(made).__name__}, not a DataFrame")
        return {names[0]: made}


def load(path: Path, source_names: tuple[str, ...]) -> Transformation:
    """ConfigError for a file that is no pipeline."""
    if not path.is_file():
        raise ConfigError(f"{path} is not there: name a Python file that has a function transform(df)")
    module = _import(path)
    transform = getattr(module, "transform", None)
    if not callable(transform):
        raise ConfigError(f"{path} has no function transform: write one, such as\n\n{EXAMPLE}\n")
    _check_signature(path, transform, source_names)
    configure = getattr(module, "configure", None)
    if configure is not None and not callable(configure):
        raise ConfigError(f"configure in {path} is to be a function that takes the SparkSession")
    return Transformation(path, transform, configure)


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file: its name is to end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))  # for what the file imports beside itself
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {_where(path, error)}") from error
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
        raise ConfigError(f"transform{inspect.signature(transform)} in {path} is to take {wanted}") from None
    except ValueError:
        return  # nobody can tell how a function of C is called


def _where(path: Path, error: BaseException) -> str:
    """The error in one line, and the line of the user's file that it comes from."""
    text = str(error).strip().splitlines()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    place = f" (line {lines[-1]})" if lines and lines[-1] else ""
    return f"{type(error).__name__}: {text[0] if text else 'no message'}{place}"
