"""What goes wrong between a node and its cluster.

NotController
 +- NoController         no active controller is known; another try may find one
CannotJoin               (an OSError: the start ends with its text) the cluster and this node do not fit
KafkaError
 +- MetadataUnusable     the controllers' metadata cannot be followed any further
"""

from twofold.connections.errors import PlainMessage
from twofold.wire.errors import KafkaError, NotController


class NoController(PlainMessage, NotController):
    pass


class CannotJoin(OSError):
    """This node cannot be a member; the text says why, and what to do."""


class MetadataUnusable(PlainMessage, KafkaError):
    name = "METADATA_UNUSABLE"
