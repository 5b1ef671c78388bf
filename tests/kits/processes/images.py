"""deploy/docker/Dockerfile and the compose files, read so that their commands can be run without a container engine."""

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose"


@dataclass
class Stage:
    """One FROM with what follows it; what it inherits from another stage is there as well."""

    parent: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # of this stage alone: instruction, the rest
    environment: dict[str, str] = field(default_factory=dict)
    last: dict[str, str] = field(default_factory=dict)  # what an instruction said last

    def words(self, instruction: str) -> list[str]:
        """ENTRYPOINT, CMD: lists in JSON."""
        found = json.loads(self.last[instruction])
        assert isinstance(found, list)
        return found

    @property
    def health_check(self) -> list[str]:
        found: list[str] = json.loads(self.last["HEALTHCHECK"].partition("CMD")[2])
        return found


def read_dockerfile(path: Path = DOCKERFILE) -> dict[str, Stage]:
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            parent, name = re.fullmatch(r"(\S+) AS (\S+)", rest).groups()  # type: ignore[union-attr]
            known = stages.get(parent, Stage(parent))
            stage = stages[name] = Stage(parent, [], dict(known.environment), dict(known.last))
        elif stage is not None and instruction:
            rest = rest.strip()
            stage.steps.append((instruction, rest))
            stage.last[instruction] = rest
            if instruction == "ENV":
                stage.environment |= dict(pair.split("=", 1) for pair in shlex.split(rest))
    return stages


@dataclass
class Service:
    """One service of a compose file, with what its image says where the file says nothing."""

    given: dict[str, Any]
    stage: Stage | None  # None for images of others

    @property
    def environment(self) -> dict[str, str]:
        own = {} if self.stage is None else self.stage.environment
        return own | {name: str(value) for name, value in self.given.get("environment", {}).items()}

    @property
    def command(self) -> list[str]:
        """Entry point and command."""
        entry = [] if self.stage is None else self.stage.words("ENTRYPOINT")
        default = [] if self.stage is None else self.stage.words("CMD")
        return [*entry, *self.given.get("command", default)]

    @property
    def mounts(self) -> dict[str, Path | str]:
        """By the path inside: a path of this checkout, or the name of a volume."""
        found: dict[str, Path | str] = {}
        for text in self.given.get("volumes", ()):
            outside, inside = text.split(":")[:2]
            found[inside] = (COMPOSE / outside).resolve() if outside.startswith(".") else outside
        return found


def read_compose(name: str) -> dict[str, Service]:
    """The services of a file, with those that it includes."""
    content = yaml.safe_load((COMPOSE / name).read_text())
    services: dict[str, Service] = {}
    for included in content.get("include", ()):
        services |= read_compose(included)
    stages = read_dockerfile()
    of_image = {"twofold": stages["broker"], "twofold-spark": stages["spark"]}
    services |= {key: Service(given, of_image.get(given["image"])) for key, given in content["services"].items()}
    return services
