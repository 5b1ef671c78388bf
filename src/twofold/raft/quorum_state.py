"""The `quorum-state` file: which epoch this node knows, whom it voted for and who leads.

It is on disk before anything is done in its epoch; that is why no two leaders ever share one.
"""

import base64
import json
from dataclasses import dataclass
from uuid import UUID

from twofold.runtime.api import Disk
from twofold.runtime.files import read_file, write_atomically

FILE_NAME = "quorum-state"
DATA_VERSION = 1
NOBODY = -1
NO_DIRECTORY = UUID(int=0)


class CorruptQuorumState(Exception):
    """The file does not say which epoch it is, and guessing could elect two leaders in one."""


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What a node promised, and whom it knows as leader."""

    leader_epoch: int = 0
    leader_id: int = NOBODY
    voted_id: int = NOBODY
    voted_directory_id: UUID = NO_DIRECTORY

    def encode(self) -> bytes:
        fields = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "votedDirectoryId": base64.urlsafe_b64encode(self.voted_directory_id.bytes).decode().rstrip("="),
            "data_version": DATA_VERSION,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "QuorumState":
        """Versions 0 (which names no directory) and 1."""
        fields = json.loads(data)
        version = fields["data_version"]
        if version not in (0, DATA_VERSION):
            raise ValueError(f"data_version {version}, known are 0 and {DATA_VERSION}")
        directory = fields["votedDirectoryId"] if version else ""
        return cls(
            leader_epoch=int(fields["leaderEpoch"]),
            leader_id=int(fields["leaderId"]),
            voted_id=int(fields["votedId"]),
            voted_directory_id=UUID(bytes=base64.urlsafe_b64decode(directory + "==")) if directory else NO_DIRECTORY,
        )


def read_quorum_state(disk: Disk, directory: str) -> QuorumState:
    """What the file says; the beginning of time when there is none."""
    path = f"{directory}/{FILE_NAME}"
    try:
        return QuorumState.decode(read_file(disk, path))
    except FileNotFoundError:
        return QuorumState()
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptQuorumState(f"{path} cannot be read ({error!r}); restore it from a copy") from error


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    write_atomically(disk, f"{directory}/{FILE_NAME}", state.encode())
