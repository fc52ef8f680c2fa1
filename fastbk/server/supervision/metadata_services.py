"""What a bookie's children ask about ledgers, answered from metadata: digests, and tags where there is a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastbk.server.supervision.digest_service import DigestService
from fastbk.server.supervision.tag_service import TagService

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.security.settings import AuthenticationSettings
    from fastbk.server.process_table import Process
    from fastbk.server.supervision.registration import Membership
    from fastbk.server.supervision.spawn import Boot


class MetadataServices:
    """One bookie's, over all its boots."""

    def __init__(self, membership: Membership, settings: AuthenticationSettings) -> None:
        read = membership.read_ledgers
        self._digests = DigestService(read)
        self._tags = TagService(
            read, settings.tag_key_file, lambda: settings.token_audience or membership.cluster_id
        )

    @property
    def handlers(self) -> dict[str, Callable[[Process, dict[str, Any]], None]]:
        """What takes the children's messages, by type."""
        return {"digests_wanted": self._digests.request, "tag_wanted": self._tags.request}

    def attach(self, boot: Boot) -> None:
        """Answer the children of a new boot."""
        self._digests.attach(boot)
        self._tags.attach(boot)

    def detach(self) -> None:
        """The boot is over: nobody waits for an answer any more."""
        self._digests.detach()
        self._tags.detach()

    async def close(self) -> None:
        """Stop reading."""
        await self._digests.close()
        await self._tags.close()
