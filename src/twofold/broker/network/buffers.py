"""Large buffers for frames, used again when nothing refers to them: fresh memory costs a page fault per 4 KB."""

LARGE_BUFFER_BYTES = (1024 + 64) * 1024
SPARE_BUFFERS = 8


class SpareBuffers:
    __slots__ = ("spare",)

    def __init__(self) -> None:
        self.spare: list[bytearray] = []

    def take(self) -> bytearray:
        while self.spare:
            buffer = self.spare.pop()
            try:
                # The one operation that tells whether something still looks into it: what is exported keeps its size.
                buffer.append(buffer.pop())
            except BufferError:
                continue
            return buffer
        return bytearray(LARGE_BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Keep a buffer for a later frame. The loop may still hold it, so whether it is free is asked then."""
        if len(buffer) == LARGE_BUFFER_BYTES and len(self.spare) < SPARE_BUFFERS:
            self.spare.append(buffer)
