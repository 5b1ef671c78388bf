"""Numbers in requests that the client and the controller both give a name."""

from enum import IntEnum


class AlterOperation(IntEnum):
    """IncrementalAlterConfigs: what becomes of a value."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class UpgradeType(IntEnum):
    """UpdateFeatures: in which direction a level may go."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3
