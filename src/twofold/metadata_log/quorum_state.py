"""The `quorum-state` file: the epoch that this node knows, its vote and the leader.

It is on disk before anything is done in its epoch; that is why no two leaders ever share one.
"""

import base64
import json
from dataclasses import dataclass
from uuid import UUID

from twofold.metadata_log.errors import CorruptQuorumState
from twofold.runtime.api import Disk
from twofold.runtime.files import read_file, write_atomically

FILE_NAME = "quorum-state"
DATA_VERSION = 1
STATIC_DATA_VERSION = 0  # of kraft.version 0: no directories, and the voters that the settings named
NO_NODE = -1
NO_DIRECTORY = UUID(int=0)


@dataclass(frozen=True, slots=True)
class QuorumState:
    """What a node promised, and which leader it knows."""

    leader_epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = NO_DIRECTORY
    static_voter_ids: tuple[int, ...] | None = None  # with kraft.version 0, and only then

    def encode(self) -> bytes:
        if self.static_voter_ids is not None:
            return _json(
                {
                    "clusterId": "",
                    "leaderId": self.leader_id,
                    "leaderEpoch": self.leader_epoch,
                    "votedId": self.voted_id,
                    "appliedOffset": 0,
                    "currentVoters": [{"voterId": voter_id} for voter_id in self.static_voter_ids],
                    "data_version": STATIC_DATA_VERSION,
                }
            )
        fields: dict[str, object] = {
            "leaderId": self.leader_id,
            "leaderEpoch": self.leader_epoch,
            "votedId": self.voted_id,
            "votedDirectoryId": base64.urlsafe_b64encode(self.voted_directory_id.bytes).decode().rstrip("="),
            "data_version": DATA_VERSION,
        }
        return _json(fields)

    @classmethod
    def decode(cls, data: bytes) -> "QuorumState":
        """Versions 0 (which names no directory) and 1."""
        fields = json.loads(data)
        version = fields["data_version"]
        if version not in (STATIC_DATA_VERSION, DATA_VERSION):
            raise ValueError(f"data_version {version}, known are {STATIC_DATA_VERSION} and {DATA_VERSION}")
        directory = fields["votedDirectoryId"] if version else ""
        voters = None if version else tuple(int(row["voterId"]) for row in fields.get("currentVoters") or ())
        return cls(
            leader_epoch=int(fields["leaderEpoch"]),
            leader_id=int(fields["leaderId"]),
            voted_id=int(fields["votedId"]),
            voted_directory_id=UUID(bytes=base64.urlsafe_b64decode(directory + "==")) if directory else NO_DIRECTORY,
            static_voter_ids=voters,
        )


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def read_quorum_state(disk: Disk, directory: str) -> QuorumState:
    """What the file says; epoch 0 without a leader when there is none."""
    path = f"{directory}/{FILE_NAME}"
    try:
        return QuorumState.decode(read_file(disk, path))
    except FileNotFoundError:
        return QuorumState()
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptQuorumState(f"{path} cannot be read ({error!r}); restore it from a copy") from error


def write_quorum_state(disk: Disk, directory: str, state: QuorumState) -> None:
    write_atomically(disk, f"{directory}/{FILE_NAME}", state.encode())
