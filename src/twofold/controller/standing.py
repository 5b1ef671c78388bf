"""What the controller has heard of brokers and is not in the log: their sessions, and how far a shutdown is.

1. A session begins with the first heartbeat, also that of a fenced broker, and lasts broker.session.timeout.ms. It
   belongs to one registration: a newer one of the same broker begins without.
2. A broker in controlled shutdown may stop when it leads nothing and every active broker has reported an image that
   includes the end of its leading: only then does none of them send it anything any more.
3. A new leader has heard of no broker, and any may register anew at once. One that watches over brokers of other
   processes counts the sessions of all unfenced ones from the moment it begins.
"""

from dataclasses import dataclass
from typing import NamedTuple

from twofold.controller.image import MetadataImage

NOTHING_HEARD = 2**63 - 1


class ShutdownProgress(NamedTuple):
    """What a heartbeat is decided on beside the image."""

    shutdown_offset: int | None = None  # where the controlled shutdown of this broker began
    lowest_active_offset: int = NOTHING_HEARD  # of the images of all brokers that are active


UNHEARD = ShutdownProgress()


@dataclass(slots=True)
class _Heard:
    epoch: int
    seen_at: float
    metadata_offset: int = -1
    shutdown_offset: int | None = None


class Sessions:
    """Times are seconds of a clock that never goes back."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._brokers: dict[int, _Heard] = {}

    def clear(self) -> None:
        """Lead from now on."""
        self._brokers = {}

    def watch(self, image: MetadataImage, now: float) -> None:
        """Count the time of every unfenced broker from now on."""
        self._brokers = {
            broker_id: _Heard(broker.epoch, now) for broker_id, broker in image.brokers.items() if not broker.fenced
        }

    def is_alive(self, broker_id: int, now: float) -> bool:
        heard = self._brokers.get(broker_id)
        return heard is not None and now - heard.seen_at < self._timeout_s

    def standing(self, image: MetadataImage, broker_id: int) -> ShutdownProgress:
        heard = self._brokers.get(broker_id)
        offset = None if heard is None or self._is_fenced(image, broker_id) else heard.shutdown_offset
        return ShutdownProgress(offset, min(self._active_offsets(image), default=NOTHING_HEARD))

    def _active_offsets(self, image: MetadataImage) -> list[int]:
        return [
            -1 if (heard := self._brokers.get(broker_id)) is None else heard.metadata_offset
            for broker_id, broker in image.brokers.items()
            if broker.is_active
        ]

    def _is_fenced(self, image: MetadataImage, broker_id: int) -> bool:
        broker = image.broker(broker_id)
        return broker is None or broker.fenced

    def touch(self, image: MetadataImage, broker_id: int, metadata_offset: int, now: float) -> None:
        """A heartbeat was answered on this image."""
        broker = image.broker(broker_id)
        if broker is None:
            return
        heard = self._brokers.get(broker_id)
        if heard is None or heard.epoch != broker.epoch:
            heard = self._brokers[broker_id] = _Heard(broker.epoch, now)
        heard.seen_at, heard.metadata_offset = now, metadata_offset
        if broker.fenced:
            heard.shutdown_offset = None
        elif broker.in_controlled_shutdown and heard.shutdown_offset is None:
            heard.shutdown_offset = image.offset

    def forget(self, broker_id: int) -> None:
        self._brokers.pop(broker_id, None)

    def expired(self, image: MetadataImage, now: float) -> tuple[int, int] | None:
        """One broker, with its epoch, that is not fenced and has not been heard of for too long; the longest first."""
        late = [
            (heard.seen_at, broker_id, heard.epoch)
            for broker_id, heard in self._brokers.items()
            if now - heard.seen_at >= self._timeout_s and not self._is_fenced(image, broker_id)
        ]
        if not late:
            return None
        _, broker_id, epoch = min(late)
        return broker_id, epoch
