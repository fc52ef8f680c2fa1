"""Typed face of a write service's codec (`serve/serve.c`): what producers send into events, answers into frames.

One call everything that a socket gave, one call all answers of a turn. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from fastbk.errors import ProtocolError
from fastbk.native._client import ffi, lib
from fastbk.native.client_codec import AnswerBuffer, signed

REQUEST_WORDS: int = lib.FBK_SERVE_EVENT_WORDS
ANSWER_WORDS: int = lib.FBK_SERVE_ANSWER_WORDS
_ANSWER_BYTES: int = lib.FBK_SERVE_ANSWER_BYTES_MAX

# Kinds of requests: RequestBody's members (protocol.fbs).
HELLO = 1
INFO = 10
PING = 11
OPEN_PRODUCER = 12
PRODUCE = 13
CLOSE_PRODUCER = 14

# An event's words: see boundary/serve.h.
(
    WORD_KIND,
    WORD_REQUEST_ID,
    WORD_PRODUCER,
    WORD_FOLLOWS,
    WORD_FIRST_NUMBER,
    WORD_RECORD_COUNT,
    WORD_NUMBERS,
    WORD_RECORDS,
    WORD_FRAME,
) = range(REQUEST_WORDS)


class RequestBuffer(AnswerBuffer):
    """Bytes as they come from one producer's connection, and the requests in them; used as an `AnswerBuffer` is.

    `parse` returns `REQUEST_WORDS` numbers each. Every frame is verified, and of a Produce its numbers and records.
    """

    _call = staticmethod(lib.fbk_serve_parse)
    _event_words = REQUEST_WORDS
    _complaint = "this is no valid request"

    def __init__(
        self, size_bytes: int = 64 * 1024, may_grow: Callable[[int], bool] = lambda _: True
    ) -> None:
        """`may_grow`: returns whether the buffer may have so many bytes, for a request that is larger."""
        super().__init__(size_bytes)
        self._may_grow = may_grow
        self.is_starved = False
        """Whether a request has begun that the buffer may not grow for: call `parse` again when it may."""

    def _make_room(self, wanted: int) -> None:
        self.is_starved = wanted > len(self._view) and not self._may_grow(wanted)
        if not self.is_starved:
            super()._make_room(wanted)

    def shrink(self) -> None:
        """Give memory back that the last request needed, unless the next one has begun."""
        if self._end == self._start and len(self._view) > self._base_size:
            self._allocate(self._base_size)

    @property
    def size_bytes(self) -> int:
        """How large the buffer is now."""
        return len(self._view)

    @property
    def has_part(self) -> bool:
        """Whether a request has begun, and is not all there."""
        return self._end > self._start

    def take_magic(self, magic: bytes) -> bool:
        """Return whether a connection's first bytes are there, and take them. Raises ProtocolError for others."""
        begun = self._view[self._start : min(self._end, self._start + len(magic))]
        if begun != magic[: len(begun)]:
            raise ProtocolError("this is another protocol")
        if len(begun) < len(magic):
            return False
        self._start += len(magic)
        return True

    def numbers(self, words: Sequence[int], offset: int) -> Sequence[int]:
        """Return the numbers of the Produce at `words[offset:]`."""
        first, count = signed(words[offset + WORD_FIRST_NUMBER]), words[offset + WORD_RECORD_COUNT]
        if not words[offset + WORD_NUMBERS]:
            return range(first, first + count)
        numbers = array("q")
        numbers.frombytes(self.content(words[offset + WORD_NUMBERS], numbers.itemsize))
        return numbers


def put_status(request_id: int, status: int) -> bytes:
    """Return the frame of an answer that is a status alone."""
    out = bytearray(_ANSWER_BYTES)
    size = lib.fbk_serve_put_status(ffi.from_buffer("uint8_t[]", out), request_id, status)
    return bytes(memoryview(out)[:size])


def put_answers(answers: array[int]) -> bytes:
    """Return the frames of answers to Produces ("Q"), `ANSWER_WORDS` each: see boundary/serve.h."""
    count = len(answers) // ANSWER_WORDS
    out = bytearray(count * _ANSWER_BYTES)
    size = lib.fbk_serve_put_answers(
        ffi.from_buffer("uint8_t[]", out), ffi.from_buffer("uint64_t[]", answers), count
    )
    return bytes(memoryview(out)[:size])
