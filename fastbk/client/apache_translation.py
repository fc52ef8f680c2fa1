"""Which protocol a connection speaks, by what its bookie publishes, and the translation for Apache's bookies.

A bookie that publishes an endpoint of our protocol is spoken to in it. To one that publishes Apache's alone, adds and
plain reads go in the version that the configuration names, everything else in version 3: its answers name their
request, those of version 2 only the entry, so that a plain read's could be taken for a fence's.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from fastbk.client.config import ClientConfig
from fastbk.client.known_bookies import KnownBookies
from fastbk.errors import ProtocolError
from fastbk.meta.api import APACHE_PROTOCOL, Endpoint
from fastbk.model.ids import BookieId
from fastbk.native.client_codec import ANSWER_OVERHEAD_BYTES, FrameTranslation, v2_takes
from fastbk.wire.messages import HelloReply
from fastbk.wire.statuses import Status, status_name

Use: TypeAlias = Literal["adds", "reads", "others"]
"""What a connection is for; `others`: what is not asked in version 2."""


class ApacheTranslation:
    """The translation of one connection to one of Apache's bookies."""

    def __init__(
        self, config: ClientConfig, known: KnownBookies, bookie_id: BookieId, use: Use
    ) -> None:
        self._known = known
        self._bookie_id = bookie_id
        self._frame_size_bytes_max = config.apache_frame_size_bytes_max
        version = 2 if config.apache_protocol == "v2" and use != "others" else 3
        self.translation = FrameTranslation(
            version,
            config.apache_frame_size_bytes_max,
            takes_batches=bookie_id not in known.without_batches,
        )
        self.answer_size_bytes_max = config.apache_frame_size_bytes_max + ANSWER_OVERHEAD_BYTES

    def greeted(self, status: int) -> HelloReply:
        """Return what stands for a hello's answer: Apache's bookies have none. Raises ProtocolError."""
        if status != Status.OK:
            raise ProtocolError(
                f"the bookie refused the connection: {status_name(status)}; one of Apache's that wants authentication"
                " is not supported"
            )
        return HelloReply(
            version=0,
            frame_size_bytes_max=self._frame_size_bytes_max,
            batch_entry_count_max=1,
            pending_requests_max=0,
            incarnation=0,
            bookie_id=self._bookie_id,
            software="",
        )

    def lost(self) -> None:
        """The connection has ended: a bookie too old for reads of several entries ends it instead of answering one."""
        translation = self.translation
        if translation.has_answered_batches:
            self._known.with_batches.add(self._bookie_id)
        elif translation.has_unanswered_batches and self._bookie_id not in self._known.with_batches:
            self._known.without_batches.add(self._bookie_id)


def translation_of(
    config: ClientConfig, known: KnownBookies, bookie_id: BookieId, endpoint: Endpoint, use: Use
) -> ApacheTranslation | None:
    """Return the translation of a new connection to `endpoint`, None where the bookie speaks our protocol."""
    if endpoint.protocol != APACHE_PROTOCOL:
        return None
    return ApacheTranslation(config, known, bookie_id, use)


def use_of(
    config: ClientConfig,
    known: KnownBookies,
    bookie_id: BookieId,
    frame: bytes | bytearray,
) -> Use:
    """Return which connection a request other than a writer's add goes by."""
    if config.apache_protocol != "v2":
        return "reads"
    endpoint = known.endpoint(bookie_id)
    if endpoint is not None and endpoint.protocol != APACHE_PROTOCOL:
        return "reads"
    return "reads" if v2_takes(frame) else "others"
