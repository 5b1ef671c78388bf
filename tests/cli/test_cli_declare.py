"""Functions with annotations become commands: how values are read, what is refused, what help says."""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from twofold.cli import declare
from twofold.cli.declare import App, Argument, Context, Option


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


def ran(function: Callable[..., None], *arguments: str) -> int:
    app = App(help="A noun.")
    app.command("do", epilog="The end.")(function)
    app.command("other")(lambda: None)
    return declare.run(app.group, ["do", *arguments], "program")


def test_values_come_as_the_annotations_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def do(
        names: Annotated[list[str], Argument(metavar="NAME...")],
        count: Annotated[int | None, Option("--count", "-c", min=1)] = None,
        seconds: Annotated[float, Option("--seconds", envvar="SECONDS_FOR_A_TEST")] = 1.5,
        colour: Annotated[Colour, Option("--colour")] = Colour.RED,
        path: Annotated[Path | None, Option("--path")] = None,
        more: Annotated[list[int] | None, Option("--more")] = None,
        yes: Annotated[bool, Option("--yes", "-y")] = False,
        commit: Annotated[bool | None, Option("--commit/--abort")] = None,
        plain: Annotated[str, Option()] = "x",
    ) -> None:
        """Do it."""
        seen.append(dict(locals()) | {"seen": None})

    assert ran(do, "a", "b") == 0
    given = ["-c", "2", "--colour", "blue", "--path", "/x", "--more", "1", "--more", "2", "-y", "--abort"]
    assert ran(do, "a", *given) == 0
    monkeypatch.setenv("SECONDS_FOR_A_TEST", "2")
    assert ran(do, "a", "--plain", "y", "--commit") == 0
    first, second, third = seen
    assert first["names"] == ["a", "b"] and first["count"] is None and first["seconds"] == 1.5
    assert first["colour"] is Colour.RED and first["more"] is None and first["yes"] is False and first["commit"] is None
    assert (second["count"], second["colour"], second["path"]) == (2, Colour.BLUE, Path("/x"))
    assert (second["more"], second["yes"], second["commit"]) == ([1, 2], True, False)
    assert (third["seconds"], third["plain"], third["commit"]) == (2.0, "y", True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "Missing argument 'NAME'"),
        (["a", "b"], "unexpected extra argument"),
        (["a", "--count", "0"], "0 is not in the range x>=1"),
        (["a", "--count", "x"], "'x' is not a valid integer"),
        (["a", "--colour", "green"], "'red', 'blue'"),
        (["a", "--no-such"], "No such option"),
    ],
)
def test_what_is_wrong_is_told_with_exit_code_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def do(
        name: Annotated[str, Argument(metavar="NAME")],
        count: Annotated[int, Option("--count", min=1)] = 1,
        colour: Annotated[Colour, Option("--colour")] = Colour.RED,
    ) -> None:
        pytest.fail("it ran")

    assert ran(do, *arguments) == 2
    assert told in capsys.readouterr().err


def test_help_explains_arguments_defaults_and_variables_and_flags_have_no_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def do(
        name: Annotated[str, Argument(metavar="NAME", help="Whose it is.")] = "nobody",
        colour: Annotated[Colour, Option("--colour", envvar="COLOUR", help="Which.")] = Colour.RED,
        yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
        both: Annotated[bool | None, Option("--commit/--abort", help="What.", show_default=False)] = None,
    ) -> None:
        """Do it. With care."""

    assert ran(do, "--help") == 0
    told = " ".join(capsys.readouterr().out.split())
    for text in (
        "Do it. With care.",
        "Arguments: NAME Whose it is. [default: nobody]",
        "--colour [red|blue] Which. [env var: COLOUR; default: red]",
        "--yes Do not ask.",
        "--commit / --abort What.",
        "-h, --help",
        "The end.",
    ):
        assert text in told, told
    assert "bool" not in told.lower()


def test_commands_are_listed_in_the_order_of_their_declaration_by_their_first_sentence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    app = App(help="A noun.", no_args_is_help=True)

    @app.command("zero")
    def zero() -> None:
        """Be first. Not listed."""

    @app.command("alpha")
    def alpha() -> None:
        """Be second,
        on two lines.

        Nor this.
        """

    assert declare.run(app.group, ["--help"], "program") == 0
    told = capsys.readouterr().out
    assert told.index("zero   Be first\n") < told.index("alpha  Be second, on two lines\n")
    assert "listed" not in told and "Nor" not in told


def test_a_callback_runs_alone_or_before_a_command_and_knows_which() -> None:
    seen: list[object] = []
    app = App(help="A noun.")

    @app.callback(invoke_without_command=True)
    def before(context: Context, level: Annotated[int, Option("--level")] = 1) -> None:
        seen.append((context.invoked_subcommand, level))

    @app.command("set")
    def change() -> None:
        seen.append("set")

    outer = App()
    outer.add_app(app, name="inner", epilog="The end.")
    assert declare.run(outer.group, ["inner", "--level", "3"], "program") == 0
    assert declare.run(outer.group, ["inner", "set"], "program") == 0
    assert seen == [(None, 3), ("set", 1), "set"]


def test_exit_codes_and_interrupts_come_through() -> None:
    def leave() -> None:
        raise declare.Exit(7)

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert ran(leave) == 7
    assert ran(interrupted) == 130
