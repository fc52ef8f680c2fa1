"""Answers to those requests of Apache's clients that come once a connection or rarer: authentication, disk figures.

Both versions of the protocol; all other requests are answered in C. A frame is a big-endian int32 length and its
body: a packet header whose first byte is its version (0 to 2), or a protobuf message (version 3).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from fastbk.model import protobuf
from fastbk.server.directories import disk_bytes
from fastbk.server.network.handlers import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastbk.server.config import WorkerConfig

V3_FIRST_BYTE = 0x0A
V2_AUTH = 2 << 24 | 3 << 16
"""The packet header of version 2's answer: version, opcode, no flags."""

AUTH, INFO = 5, 8
"""Operations, by their numbers in version 3."""
EOK, EBADREQ, EIO = 0, 404, 501

REQUEST_INFO, RESPONSE_AUTH, RESPONSE_INFO = 105, 102, 105
"""Fields of Request and Response."""
WANTS_TOTAL, WANTS_FREE = 1, 2

NO_AUTH = b"AuthDisabledPlugin"
"""What a bookie without authentication calls itself; clients go on when they hear it."""


@dataclass(frozen=True, slots=True)
class Question:
    """What an answer repeats of a request of version 3, and the bytes of the request's own part."""

    header: bytes
    operation: int
    parts: dict[int, bytes]


class ApacheHandlers:
    """Knows what those answers say."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config

    def answer(self, frame: bytes) -> Answer:
        """Return the answer to a request that C found good; to one that is not after all, the end."""
        body = frame[4:]
        if body[0] != V3_FIRST_BYTE:  # of version 2 only AUTH comes here
            return Answer(_framed(struct.pack(">I", V2_AUTH) + _auth_message()))
        try:
            return self._answer_v3(_read_question(body))
        except ValueError:
            return Answer(b"", is_last=True)

    def _answer_v3(self, question: Question) -> Answer:
        if question.operation == AUTH:
            return Answer(_framed(_response(question, EOK, RESPONSE_AUTH, _auth_message())))
        if question.operation == INFO:
            return self._info(question)
        # there is no TLS; or nobody knows what it is
        return Answer(_framed(_response(question, EBADREQ)))

    def _info(self, question: Question) -> Answer:
        wanted = _integers(question.parts.get(REQUEST_INFO, b"")).get(1, 0)
        reply = bytearray()
        try:
            free_bytes, total_bytes = disk_bytes(self._config.ledger_directories)
        except OSError:
            protobuf.put_int(reply, 1, EIO)
            return Answer(
                _framed(_response(question, EIO, RESPONSE_INFO, bytes(reply))), info="failed"
            )
        protobuf.put_int(reply, 1, EOK)
        if wanted & WANTS_TOTAL:
            protobuf.put_int(reply, 2, total_bytes)
        if wanted & WANTS_FREE:
            protobuf.put_int(reply, 3, free_bytes)
        return Answer(_framed(_response(question, EOK, RESPONSE_INFO, bytes(reply))), info="done")


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _auth_message() -> bytes:
    message = bytearray()
    protobuf.put_bytes(message, 1, NO_AUTH)
    protobuf.put_bytes(message, 2, b"")
    return bytes(message)


def _integers(message: bytes) -> dict[int, int]:
    return {field.number: field.integer() for field in protobuf.fields(message)}


def _read_question(body: bytes) -> Question:
    parts = {field.number: field.content() for field in protobuf.fields(body)}
    asked = _integers(parts.get(1, b""))
    header = bytearray()
    for number in (1, 2, 3):  # version, operation, transaction id
        protobuf.put_int(header, number, asked.get(number, 0))
    return Question(bytes(header), asked.get(2, 0), parts)


def _response(question: Question, status: int, number: int = 0, part: bytes = b"") -> bytes:
    response = bytearray()
    protobuf.put_bytes(response, 1, question.header)
    protobuf.put_int(response, 2, status)
    if number:
        protobuf.put_bytes(response, number, part)
    return bytes(response)
