"""Tell a story and compare what happened with what is written.

`TWOFOLD_REWRITE=1` writes what happened into the file instead; read the difference before you commit it.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from kits.stories.broker import play_on_a_broker
from kits.stories.controllers import play_on_two_controllers
from kits.stories.coordinator import play_on_a_coordinator
from kits.stories.script import BadScript, Paragraph, parse, render
from kits.stories.sink import play_on_a_sink
from kits.stories.steps import Stage

Telling: TypeAlias = Callable[[Stage], Awaitable[None]]
Play: TypeAlias = Callable[[str, Telling], None]

REWRITE = "TWOFOLD_REWRITE"
STAGES: dict[str, Play] = {
    "a broker": play_on_a_broker,
    "a coordinator": play_on_a_coordinator,
    "two controllers": play_on_two_controllers,
    "a sink": play_on_a_sink,
}


def happened(text: str) -> str:
    """The story with the output that its commands have now."""
    paragraphs = parse(text)
    told: list[Paragraph] = []

    async def tell(stage: Stage) -> None:
        for number, paragraph in enumerate(paragraphs):
            said: list[str] = []
            for command in paragraph.commands[1 if number == 0 else 0 :]:
                try:
                    said += await stage.do(command.text)
                except BaseException as error:
                    error.add_note(f"in line {command.line} of the story: {command.text}")
                    raise
            told.append(paragraph.saying(said))

    opening = paragraphs[0].commands[0].text if paragraphs[0].commands else ""
    for name, play in STAGES.items():
        if opening == name or opening.startswith(f"{name} "):
            play(opening.removeprefix(name).strip(), tell)
            return render(told)
    raise BadScript(f"{opening!r} is no stage: a story begins with one of {', '.join(STAGES)}")


def check(path: Path) -> None:
    written = path.read_text()
    found = happened(written)
    if os.environ.get(REWRITE):
        path.write_text(found)
        return
    assert found == written, f"{path.name} tells something else ({REWRITE}=1 writes it down):\n{found}"
