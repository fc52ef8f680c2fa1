"""A short session with one cluster in ZooKeeper, for tools that look at nodes or change them, and then go."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fastbk.meta.uri import ZooKeeperLocation
from fastbk.meta.zookeeper import read_layout
from fastbk.meta.zookeeper_calls import Call
from fastbk.meta.zookeeper_session import Session


class ClusterSession:
    """A session of its own with the cluster of a location; `with` ends it."""

    def __init__(self, location: ZooKeeperLocation, timeout_s: float) -> None:
        """Connect. Raises ConfigError where there is no cluster, MetadataUnavailable."""
        self._session = Session(location.servers, timeout_s)
        try:
            call = self._session.call("open")
            read_layout(call, location)
            self._check(call)
        except BaseException:
            self._session.close()
            raise

    def _check(self, call: Call) -> None:
        """Look at what else has to be right; a subclass raises where it is not, and the session ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()
