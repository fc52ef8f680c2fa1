"""Has a server forget a watch: it would keep it until it fires or the connection ends. kazoo has no such request.

ZooKeeper has it since 3.5.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kazoo.protocol.serialization import int_struct, write_string

from fastbk.errors import ClientClosed

if TYPE_CHECKING:
    from fastbk.meta.zookeeper_session import Session

_CHILDREN, _DATA = 1, 2
"""ZooKeeper's `WatcherType`."""


class _RemoveWatches:
    """The request, as kazoo's connection handles its own."""

    type = 18

    def __init__(self, client: Any, path: str, *, is_of_children: bool) -> None:  # noqa: ANN401 -- kazoo has no types
        self.path = path
        self._kind = _CHILDREN if is_of_children else _DATA
        self._kept: dict[str, object] = (
            client._child_watchers if is_of_children else client._data_watchers
        )

    def serialize(self) -> bytes:
        """Return it as it is sent."""
        return b"".join((write_string(self.path), int_struct.pack(self._kind)))

    def deserialize(self, answer: bytes, offset: int) -> bool:
        """Forget what kazoo keeps for the watch: in its own thread, where requests that came later are not there yet.

        Not called where the server had no such watch: then it has fired.
        """
        del answer, offset
        self._kept.pop(self.path, None)
        return True


def unwatch_later(session: Session, path: str, *, is_of_children: bool) -> None:
    """Send the request, behind all that was sent before, and do not care what becomes of it."""
    if session.is_connected:  # without a connection there are no watches
        with suppress(ClientClosed):
            client = session.client
            request = _RemoveWatches(client, path, is_of_children=is_of_children)
            client._call(request, client.handler.async_result())
