"""Typed face of a translation (`client/apache_translation.c`): our client's frames for Apache's bookies, and back.

One for each connection. What it is given may be used again at once; what it returns are copies. No I/O.
"""

from __future__ import annotations

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib

# Apache's own default of the largest frame, in both directions (nettyMaxFrameSizeBytes).
APACHE_FRAME_SIZE_BYTES_MAX = 5 * 1024 * 1024
# What an answer of ours with several entries is longer than those are: its head, and a size for each.
ANSWER_OVERHEAD_BYTES = 64 * 1024


class FrameTranslation:
    """Translates one connection, in version 2 or 3 of Apache's protocol.

    Requests go through `send`, what the bookie sends through `receive`; after either, `output` is what is to be sent to
    the bookie and `answers` what the client is told, as frames of ours. Both raise ProtocolError when the connection is
    of no use any more.
    """

    def __init__(
        self, version: int, frame_size_bytes_max: int, *, takes_batches: bool = True
    ) -> None:
        self.version = version
        self.frame_size_bytes_max = frame_size_bytes_max
        translation = lib.fbk_apache_translation_new(version, frame_size_bytes_max, takes_batches)
        if translation == ffi.NULL:
            raise MemoryError
        self._translation = ffi.gc(translation, lib.fbk_apache_translation_free)
        self._place = ffi.new("const uint8_t **")

    def send(self, frames: bytes | bytearray | memoryview) -> None:
        """Take whole frames of ours."""
        size = len(frames)
        if (
            lib.fbk_apache_translation_send(
                self._translation, ffi.from_buffer("uint8_t[]", frames), size
            )
            != 0
        ):
            raise ProtocolError("a request could not be put into Apache's protocol")

    def receive(self, data: bytes | bytearray | memoryview) -> None:
        """Take what the bookie sent, cut anywhere."""
        if (
            lib.fbk_apache_translation_receive(
                self._translation, ffi.from_buffer("uint8_t[]", data), len(data)
            )
            != 0
        ):
            raise ProtocolError("the bookie sent something that is no answer in Apache's protocol")

    def forget(self, request_id: int) -> None:
        """Drop the answer to a request that nobody waits for any more."""
        lib.fbk_apache_translation_forget(self._translation, request_id)

    def output(self) -> bytes:
        """Return what is to be sent to the bookie, once."""
        size = lib.fbk_apache_translation_output(self._translation, self._place)
        return bytes(ffi.buffer(self._place[0], size)) if size else b""

    def answers(self) -> bytes:
        """Return what the client is told, once."""
        size = lib.fbk_apache_translation_answers(self._translation, self._place)
        return bytes(ffi.buffer(self._place[0], size)) if size else b""

    @property
    def dropped(self) -> int:
        """How many answers nobody waited for."""
        return int(lib.fbk_apache_translation_dropped(self._translation))

    @property
    def has_unanswered_batches(self) -> bool:
        """Whether version 2 was asked for several entries at once, and never answered that on this connection."""
        return int(lib.fbk_apache_translation_batches(self._translation)) == 1

    @property
    def has_answered_batches(self) -> bool:
        """Whether version 2 has answered a question for several entries."""
        return int(lib.fbk_apache_translation_batches(self._translation)) == 2


def v2_takes(frame: bytes | bytearray) -> bool:
    """Return whether a frame of ours is a request that version 2 is asked: adds of a writer, plain reads."""
    return bool(lib.fbk_apache_v2_takes(ffi.from_buffer("uint8_t[]", frame), len(frame)))
