"""Why the metadata of a data directory cannot be used.

    UnusableMetadata
      CorruptMetadataLog    a batch is not what was written, or a part of the log is missing
      CorruptSnapshot       the same of a snapshot
      CorruptQuorumState    the file does not say which epoch it is
      ForeignQuorum         other nodes have a vote here

Each message names the file or directory, what was found in it and what to do.
"""


class UnusableMetadata(Exception):
    """The metadata cannot be used as it is; nothing was changed."""


class CorruptMetadataLog(UnusableMetadata):
    """A batch in the middle of the metadata log is not what was written, or a part of the log is missing."""


class CorruptSnapshot(UnusableMetadata):
    """A snapshot is not what was written."""


class CorruptQuorumState(UnusableMetadata):
    """The file does not say which epoch it is, and guessing could elect two leaders in one."""


class ForeignQuorum(UnusableMetadata):
    """The log belongs to a quorum that this node cannot lead alone."""
