"""Commands are declared by functions: the parameters and their annotations become options and arguments of click.

    topic_app = App(help="Create and list topics.", no_args_is_help=True)

    @topic_app.command("create")
    def create(name: Annotated[str, Argument()], partitions: Annotated[int, Option("--partitions", min=1)] = 1) -> None:
        '''Create a topic.'''

The type says how a value is read: bool is a flag, an enum a choice among its values, list[...] may be repeated, and
`... | None` may be left out.
"""

import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from click import Context, confirm
from click.exceptions import Exit

__all__ = ["App", "Argument", "Context", "Exit", "Group", "Option", "Verb", "confirm"]

F = TypeVar("F", bound=Callable[..., Any])

INTERRUPTED = 130
HELP_WIDTH = 100
SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": HELP_WIDTH,
    "show_default": True,
}


@dataclass(frozen=True, slots=True)
class _Declared:
    names: tuple[str, ...]
    help: str | None
    metavar: str | None
    envvar: str | None
    min: float | None
    max: float | None
    show_default: bool
    hidden: bool
    beside: "Option | None" = None


class Option(_Declared):
    """`names`: "--partitions", "-p"; "--commit/--abort" is a flag with two sides. Without: `--` and the parameter.

    `beside` is an option that every command with this one has as well. No function takes it: `beside_value` tells it.
    """

    def __init__(
        self,
        *names: str,
        help: str | None = None,
        metavar: str | None = None,
        envvar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        show_default: bool = True,
        hidden: bool = False,
        beside: "Option | None" = None,
    ) -> None:
        super().__init__(names, help, metavar, envvar, min, max, show_default, hidden, beside)


class Argument(_Declared):
    def __init__(
        self,
        *,
        help: str | None = None,
        metavar: str | None = None,
        envvar: str | None = None,
        min: float | None = None,
        max: float | None = None,
        show_default: bool = True,
    ) -> None:
        super().__init__((), help, metavar, envvar, min, max, show_default, False)


class App:
    """A noun: a group of commands."""

    def __init__(self, *, help: str = "", no_args_is_help: bool = False) -> None:
        self.group = Group(
            help=help, short_help=short_help(help), no_args_is_help=no_args_is_help, context_settings=dict(SETTINGS)
        )

    def command(self, name: str, *, epilog: str | None = None, hidden: bool = False) -> Callable[[F], F]:
        def declare(function: F) -> F:
            self.group.add_command(make_command(name, function, epilog=epilog, hidden=hidden))
            return function

        return declare

    def callback(self, *, invoke_without_command: bool = False) -> Callable[[F], F]:
        """The function runs before any command of the noun, and alone where no command is given."""

        def declare(function: F) -> F:
            self.group.callback = _adapted(function)
            self.group.params = parameters_of(function)
            self.group.invoke_without_command = invoke_without_command
            return function

        return declare

    def add_app(self, app: "App", *, name: str, epilog: str | None = None) -> None:
        app.group.name, app.group.epilog = name, epilog
        self.group.add_command(app.group)


def make_command(name: str, function: Callable[..., Any], *, epilog: str | None, hidden: bool = False) -> "Verb":
    text = inspect.getdoc(function) or ""
    return Verb(
        name,
        callback=_adapted(function),
        params=parameters_of(function),
        help=text,
        short_help=short_help(text),
        epilog=epilog,
        hidden=hidden,
        context_settings=dict(SETTINGS),
    )


def short_help(text: str) -> str:
    """The first sentence, for a list of commands."""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].removesuffix(".")


class _WithArguments(click.Command):
    """Help that explains the arguments, too."""

    def format_options(self, ctx: Context, formatter: click.HelpFormatter) -> None:
        shown = [one for one in self.params if isinstance(one, _Argument) and one.text]
        if shown:
            with formatter.section("Arguments"):
                formatter.write_dl([(one.make_metavar(ctx), one.text or "") for one in shown])
        super().format_options(ctx, formatter)


class Verb(_WithArguments):
    pass


class Group(_WithArguments, click.Group):
    def list_commands(self, ctx: Context) -> list[str]:
        return list(self.commands)  # as they were declared: what is wanted most comes first


class _Argument(click.Argument):
    def __init__(self, *args: Any, text: str | None, **more: Any) -> None:
        super().__init__(*args, **more)
        self.text = text


class _Choice(click.Choice[str]):
    """The values of an enum; what is chosen is the member."""

    def __init__(self, members: type[Enum]) -> None:
        super().__init__([str(member.value) for member in members])
        self._members = members

    def convert(self, value: Any, param: click.Parameter | None, ctx: Context | None) -> Any:
        return value if isinstance(value, self._members) else self._members(super().convert(value, param, ctx))


@dataclass(frozen=True, slots=True)
class _Kind:
    """The type of a parameter taken apart."""

    inner: Any
    is_list: bool


def parameters_of(function: Callable[..., Any]) -> list[click.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, parameter in inspect.signature(function).parameters.items():
        if hints[name] is Context:
            continue
        kind, declared = _declared(hints[name])
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        required = parameter.default is inspect.Parameter.empty
        make = _argument if isinstance(declared, Argument) else _option
        found.append(make(name, kind, declared, default, required))
        if declared.beside is not None:
            found.append(_beside(declared.beside))
    return found


def _beside(declared: Option) -> click.Parameter:
    def keep(context: Context, parameter: click.Parameter, value: str | None) -> None:
        context.meta[declared.names[0]] = value

    return click.Option(
        [*declared.names],
        expose_value=False,
        callback=keep,
        help=declared.help,
        metavar=declared.metavar,
        envvar=declared.envvar,
        show_envvar=declared.envvar is not None,
    )


def beside_value(option: Option) -> str | None:
    """What the running command was given for an option that stands beside another."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(option.names[0])


def _declared(hint: Any) -> tuple[_Kind, _Declared]:
    declared: _Declared = Option()
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        declared = next((mark for mark in marks if isinstance(mark, _Declared)), declared)
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (one for one in get_args(hint) if one is not type(None))
    if get_origin(hint) is list:
        return _Kind(get_args(hint)[0], True), declared
    return _Kind(hint, False), declared


def _option(name: str, kind: _Kind, declared: _Declared, default: Any, required: bool) -> click.Parameter:
    names = declared.names or (f"--{name.replace('_', '-')}",)
    return click.Option(
        [name, *names],
        type=_type(kind.inner, declared),
        is_flag=kind.inner is bool,
        multiple=kind.is_list,
        default=() if kind.is_list else default.value if isinstance(default, Enum) else default,
        required=required,
        help=declared.help,
        metavar=declared.metavar,
        envvar=declared.envvar,
        show_envvar=declared.envvar is not None,
        show_default=declared.show_default,
        hidden=declared.hidden,
    )


def _argument(name: str, kind: _Kind, declared: _Declared, default: Any, required: bool) -> click.Parameter:
    given: dict[str, Any] = {} if required or kind.is_list else {"default": default}
    return _Argument(
        [name],
        type=_type(kind.inner, declared),
        nargs=-1 if kind.is_list else 1,
        required=required,
        metavar=declared.metavar,
        envvar=declared.envvar,
        text=declared.help
        if default is None or not declared.show_default
        else f"{declared.help}  [default: {default}]",
        **given,
    )


def _type(inner: Any, declared: _Declared) -> "click.ParamType[Any] | type":
    if isinstance(inner, type) and issubclass(inner, Enum):
        return _Choice(inner)
    if inner is Path:
        return click.Path(path_type=Path)
    if declared.min is not None or declared.max is not None:
        bounds = click.IntRange if inner is int else click.FloatRange
        return bounds(min=declared.min, max=declared.max)  # type: ignore[arg-type]
    return inner  # type: ignore[no-any-return]


def _adapted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Takes what click has read, and calls the function with the types of its annotations."""
    parameters = inspect.signature(function).parameters

    def call(**given: Any) -> Any:
        hints = get_type_hints(function)
        for name, parameter in parameters.items():
            if hints[name] is Context:
                given[name] = click.get_current_context()
            elif isinstance(given.get(name), tuple):
                nothing = parameter.default is None and not given[name]
                given[name] = None if nothing else list(given[name])
        return function(**given)

    return call


def run(group: click.Group, arguments: Sequence[str], program: str) -> int:
    """Run one command line; returns its exit code. An interrupt is quiet, and has the code of a shell."""
    asked = os.environ.get(completion_variable(program))
    if asked:
        from click.shell_completion import shell_complete

        return shell_complete(group, {}, program, completion_variable(program), asked)
    try:
        with group.make_context(program, list(arguments)) as context:
            group.invoke(context)
    except Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except click.Abort:  # at a question: the terminal has no line end behind it yet
        print(file=sys.stderr)
        return INTERRUPTED
    return 0


def completion_variable(program: str) -> str:
    """Where the shell says that it wants completions instead of a run."""
    return f"_{program.upper()}_COMPLETE"
