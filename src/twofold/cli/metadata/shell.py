"""The commands of `twofold metadata shell`, typed at a terminal, named as arguments, or read from a pipe."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from typing import NamedTuple

from twofold.cli.common import FAILED, OK, OutputFormat
from twofold.cli.log.values import Row, json_line, value_text
from twofold.cli.metadata.image import Loaded
from twofold.cli.metadata.tree import Folder, Node, TreeFile, as_values, find, root, transaction_fields, walk

PROMPT = ">> "
MOST_COMPLETIONS = 1000
_FOLDER_MARK = "/"


class RefusedCommand(Exception):
    """A command that cannot be done; the message says why."""


class Leave(Exception):
    """The user wants to leave the shell."""


class Command(NamedTuple):
    """What a command is called with, what it does, and whether its arguments are paths."""

    run: Callable[[list[str]], None]
    usage: str
    help: str
    most: int | None = None  # arguments


class Shell:
    """One image, and a place in it."""

    def __init__(self, loaded: Loaded, output: OutputFormat, *, columns: int | None = None) -> None:
        """`columns`: how wide the terminal is; without one every name has its own line."""
        self.at = "/"
        self.history: list[str] = []
        self._top = root(loaded)
        self._is_json = output is OutputFormat.JSON
        self._columns = columns
        self.commands: dict[str, Command] = {
            "cat": Command(self._cat, "cat PATH...", "Print the value of files."),
            "cd": Command(self._cd, "cd [PATH]", "Go to a folder; without one, to /.", 1),
            "exit": Command(self._exit, "exit", "Leave the shell; so do quit and Ctrl-D.", 0),
            "find": Command(self._find, "find [PATH...]", "Print the paths of all that is below."),
            "help": Command(self._help, "help", "List the commands.", 0),
            "history": Command(self._history, "history [COUNT]", "Print the commands that were typed.", 1),
            "ls": Command(self._ls, "ls [PATH...]", "List folders."),
            "man": Command(self._man, "man COMMAND", "Explain a command.", 1),
            "pwd": Command(self._pwd, "pwd", "Print the folder you are in.", 0),
            "quit": Command(self._exit, "quit", "Leave the shell.", 0),
            "tree": Command(self._tree, "tree [PATH...]", "Print all that is below, with its values."),
        }

    def run_line(self, line: str) -> int:
        """Run what was typed; returns an exit code."""
        if line.strip():
            self.history.append(line.strip())
        try:
            words = shlex.split(line)
        except ValueError as error:
            return self._complain(f"{line.strip()}: {error}")
        return self.run(words)

    def run(self, words: list[str]) -> int:
        if not words:
            return OK
        name, *arguments = words
        command = self.commands.get(name)
        if command is None:
            return self._complain(f"{name}: no such command; there are {', '.join(self.commands)}")
        try:
            if command.most is not None and len(arguments) > command.most:
                raise RefusedCommand(f"{arguments[command.most]!r} is too much; usage: {command.usage}")
            command.run(arguments)
        except RefusedCommand as error:
            return self._complain(f"{name}: {error}")
        return OK

    def _complain(self, message: str) -> int:
        sys.stdout.flush()
        print(message, file=sys.stderr, flush=True)
        return FAILED

    def completions(self, text: str, *, is_first: bool) -> list[str]:
        """What a word may go on as."""
        if is_first:
            return [f"{name} " for name in self.commands if name.startswith(text)]
        folder, slash, prefix = text.rpartition("/")
        places = find(self._top, self._absolute(folder + slash))
        if len(places) != 1 or not isinstance(places[0][1], Folder):
            return []
        node = places[0][1]
        names = islice((name for name in node.names() if name.startswith(prefix)), MOST_COMPLETIONS)
        return [
            f"{folder}{slash}{name}{_FOLDER_MARK if isinstance(node.child(name), Folder) else ' '}" for name in names
        ]

    # -- paths

    def _absolute(self, path: str) -> str:
        steps: list[str] = []
        for step in (path if path.startswith("/") else f"{self.at}/{path}").split("/"):
            if step == "..":
                del steps[-1:]
            elif step not in ("", "."):
                steps.append(step)
        return "/" + "/".join(steps)

    def _resolve(self, path: str) -> list[tuple[str, Node]]:
        found = find(self._top, self._absolute(path))
        if not found:
            raise RefusedCommand(f"{path}: there is nothing of that name")
        return found

    def _all(self, paths: list[str]) -> Iterator[tuple[str, Node]]:
        """Of each path what it leads to. The first that leads nowhere ends it, after what was before it."""
        for path in paths or [self.at]:
            yield from self._resolve(path)

    # -- commands

    def _cat(self, arguments: list[str]) -> None:
        if not arguments:
            raise RefusedCommand("name a file")
        for path, node in self._all(arguments):
            if isinstance(node, Folder):
                raise RefusedCommand(f"{path}: it is a folder")
            self._say({"path": path, "value": node.value}, _text(node.value))

    def _cd(self, arguments: list[str]) -> None:
        found = self._resolve(arguments[0] if arguments else "/")
        if len(found) > 1:
            raise RefusedCommand(f"{arguments[0]}: this is {len(found)} places")
        path, node = found[0]
        if isinstance(node, TreeFile):
            raise RefusedCommand(f"{path}: it is no folder")
        self.at = path

    def _pwd(self, _: list[str]) -> None:
        self._say({"path": self.at}, self.at)

    def _exit(self, _: list[str]) -> None:
        raise Leave

    def _find(self, arguments: list[str]) -> None:
        for top, node in self._all(arguments):
            for path in walk(top, node):
                self._say({"path": path}, _name(path))

    def _ls(self, arguments: list[str]) -> None:
        found = list(self._all(arguments))
        files = [path for path, node in found if isinstance(node, TreeFile)]
        folders = [(path, node) for path, node in found if isinstance(node, Folder)]
        if files and not self._is_json:
            self._print(self._in_columns([path.rpartition("/")[2] for path in files]))
        elif files:
            self._print(json_line({"path": path, "entries": None}) for path in files)
        for number, (path, node) in enumerate(folders):
            names = list(node.names())
            if self._is_json:
                self._print([json_line({"path": path, "entries": names})])
                continue
            if len(found) > 1:
                self._print([*([""] if number or files else []), f"{_name(path)}:"])
            self._print(self._in_columns(names))

    def _tree(self, arguments: list[str]) -> None:
        for path, node in self._all(arguments):
            if self._is_json:
                self._print([json_line({"path": path, "tree": as_values(node)})])
            else:
                self._print(_branches(node, ""))

    def _history(self, arguments: list[str]) -> None:
        count = arguments[0] if arguments else str(len(self.history))
        if not re.fullmatch(r"[0-9]{1,9}", count):
            raise RefusedCommand(f"{count!r} is no number of commands")
        first = max(0, len(self.history) - int(count))
        for number, line in enumerate(self.history[first:], first + 1):
            self._say({"number": number, "command": line}, f"{number:5}  {_name(line)}")

    def _help(self, _: list[str]) -> None:
        self._print(f"{command.usage:18} {command.help}" for command in self.commands.values())
        self._print(["A path may have *, ?, [...] and {a,b} in it."])

    def _man(self, arguments: list[str]) -> None:
        if not arguments:
            raise RefusedCommand(f"name a command: {', '.join(self.commands)}")
        command = self.commands.get(arguments[0])
        if command is None:
            raise RefusedCommand(f"{arguments[0]}: no such command; there are {', '.join(self.commands)}")
        self._print([f"{command.usage}", f"    {command.help}"])

    # -- printing

    def _say(self, row: Row, text: str) -> None:
        self._print([json_line(row) if self._is_json else text])

    def _print(self, lines: Iterable[str]) -> None:
        for line in lines:
            sys.stdout.write(line + "\n")

    def _in_columns(self, names: list[str]) -> Iterable[str]:
        shown = [_name(name) for name in names]
        if self._columns is None or not shown:
            return shown
        width = max(map(len, shown)) + 2
        height = -(-len(shown) // max(1, self._columns // width))
        columns = [shown[start : start + height] for start in range(0, len(shown), height)]
        return ("".join(f"{name:{width}}" for name in row).rstrip() for row in zip_longest(*columns, fillvalue=""))


def _name(name: str) -> str:
    """A terminal gets no control characters from a log."""
    return name if name.isprintable() else value_text(name)


def _text(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else value_text(value)


def _branches(node: Node, indent: str) -> Iterator[str]:
    if isinstance(node, TreeFile):
        yield indent + _text(node.value)
        return
    for name in node.names():
        yield f"{indent}{_name(name)}:"
        child = node.child(name)
        if child is not None:
            yield from _branches(child, indent + "  ")


def warnings(loaded: Loaded) -> list[str]:
    """What a user must know before trusting the image."""
    found = []
    opened = transaction_fields(loaded)
    if opened is not None:
        name = "" if opened["name"] is None else f" {value_text(opened['name'])}"
        count = opened["records"]
        found.append(
            f"OPEN TRANSACTION{name}: begun at offset {opened['start_offset']}, {count} record"
            f"{'' if count == 1 else 's'} so far, not shown: the image is that of offset {loaded.image.offset} "
            "(see /local/transaction)"
        )
    found += loaded.passed_over
    found += map(str, filter(None, (loaded.problem, loaded.torn_end)))
    return found


# -- where commands come from


def interact(loaded: Loaded, output: OutputFormat) -> int:
    """A user types; Ctrl-C gives up a line or a command, Ctrl-D leaves."""
    shell = Shell(loaded, output, columns=shutil.get_terminal_size().columns)
    _edit_lines(shell)
    print(f"Metadata at offset {loaded.image.offset} of {loaded.source}; help lists the commands, Ctrl-D leaves.")
    for warning in warnings(loaded):
        print(f"*** {warning}")
    while True:
        try:
            shell.run_line(input(PROMPT))
        except Leave:
            return OK
        except EOFError:
            print()
            return OK
        except KeyboardInterrupt:
            print()


def _edit_lines(shell: Shell) -> None:
    try:
        import readline
    except ImportError:
        return  # some builds of Python have none: lines can be typed all the same

    found: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            is_first = not readline.get_line_buffer()[: readline.get_begidx()].strip()
            found[:] = shell.completions(text, is_first=is_first)
        return found[state] if state < len(found) else None

    readline.set_completer_delims(" \t\n")
    readline.set_completer(complete)
    readline.set_auto_history(True)
    readline.parse_and_bind("bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete")


def run_script(loaded: Loaded, output: OutputFormat, lines: Iterable[str]) -> int:
    """Commands from a pipe, one a line; the exit code is 1 if one of them failed."""
    shell = Shell(loaded, output)
    code = OK
    for line in lines:
        try:
            code = shell.run_line(line) or code
        except Leave:
            break
    return code


def run_words(loaded: Loaded, output: OutputFormat, words: list[str]) -> int:
    try:
        return Shell(loaded, output).run(words)
    except Leave:
        return OK
