"""Answers to those requests of Apache's clients that come once a connection or rarer: authentication, disk figures.

Both versions of the protocol; all other requests are answered in C.
"""

from __future__ import annotations

from fastbk.native import apache
from fastbk.native.apache import ApacheReply, ApacheRequest, ApacheStatus, Operation
from fastbk.server.directories import disk_bytes
from fastbk.server.network.handlers import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastbk.server.configuration.process_config import WorkerConfig

WANTS_TOTAL, WANTS_FREE = 1, 2

NO_AUTH = b"AuthDisabledPlugin"
"""What a bookie without authentication calls itself; clients go on when they hear it."""


class ApacheHandlers:
    """Knows what those answers say."""

    def __init__(self, config: WorkerConfig) -> None:
        self._config = config

    def answer(self, frame: bytes) -> Answer:
        """Return the answer to a request that C found good; to one that is not after all, the end."""
        verdict, _, request = apache.read_request(frame[4:])
        if verdict != apache.GOOD:
            return Answer(b"", is_last=True)
        if request.operation == Operation.INFO:
            reply = self._info(request)
            is_done = reply.status == ApacheStatus.EOK
            return Answer(apache.put_reply(reply), info="done" if is_done else "failed")
        if request.operation == Operation.AUTH:
            reply = _reply(request, ApacheStatus.EOK, plugin=NO_AUTH, blob=b"")
        else:
            reply = _reply(request, ApacheStatus.EBADREQ)  # there is no TLS
        return Answer(apache.put_reply(reply))

    def _info(self, request: ApacheRequest) -> ApacheReply:
        try:
            free_bytes, total_bytes = disk_bytes(self._config.ledger_directories)
        except OSError:
            return _reply(request, ApacheStatus.EIO)
        wanted = request.info_wanted
        return _reply(
            request,
            ApacheStatus.EOK,
            total_bytes=total_bytes if wanted & WANTS_TOTAL else None,
            free_bytes=free_bytes if wanted & WANTS_FREE else None,
        )


def _reply(
    request: ApacheRequest,
    status: ApacheStatus,
    *,
    plugin: bytes | None = None,
    blob: bytes | None = None,
    total_bytes: int | None = None,
    free_bytes: int | None = None,
) -> ApacheReply:
    return ApacheReply(
        protocol=request.protocol,
        version=request.version,
        operation=request.operation,
        status=status,
        transaction_id=request.transaction_id,
        plugin=plugin,
        blob=blob,
        total_bytes=total_bytes,
        free_bytes=free_bytes,
    )
