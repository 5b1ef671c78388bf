"""Full collections of garbage that do not hold requests up for the sake of what stays.

What a broker remembers (groups, members, transactions, topics) is very many small objects, made one by one while it
runs. CPython looks at all of them in a full collection, and begins one each time they have grown by a quarter: with
10,000 consumer groups it spends 0.3 s on that, in which no client is answered.

1. What a full collection leaves is frozen: the next one looks only at what was made since.
2. Objects that were frozen and then form a cycle that nothing uses are not found. So once as many were frozen as there
   were when all were last looked at, the next full collection looks at all of them. What can be lost until then is
   bounded, and the long collections are as rare as the broker doubles.
"""

import gc
from collections.abc import Mapping
from typing import Any

FULL = 2


class SparingCollections:
    """To be called by the collector: `gc.callbacks.append(SparingCollections())`. It begins with what is frozen now."""

    def __init__(self) -> None:
        self._frozen_before = gc.get_freeze_count()
        self.looks_at_all = False

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase != "stop" or info["generation"] != FULL:
            return
        gc.freeze()
        frozen = gc.get_freeze_count()
        if self.looks_at_all:
            self._frozen_before, self.looks_at_all = frozen, False
        elif frozen > 2 * self._frozen_before:
            gc.unfreeze()
            self.looks_at_all = True
