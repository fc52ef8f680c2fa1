"""`readerName`: a query's progress as a durable cursor of each stream, where tools and retention look for it."""

from __future__ import annotations

import logging

from fastbk.errors import Error
from fastbk.spark.looking import Cluster
from fastbk.spark.offsets import Offsets
from fastbk.stream.blocking_cursor import BlockingCursor
from fastbk.stream.positions import DLSN
from fastbk.stream.records import Gap

_log = logging.getLogger("fastbk.spark")


class Progress:
    """One query's. Publishing never fails a query: the checkpoint is what it goes on from."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._cursors: dict[str, tuple[BlockingCursor[Gap], DLSN]] = {}

    def publish(self, done: Offsets) -> None:
        """Have the cursors' marks at these offsets."""
        for path, at in done.streams.items():
            known = self._cursors.get(path)
            if known is not None and known[1] == at.dlsn:
                continue
            try:
                cursor = self._opened(path, at.dlsn) if known is None else known[0]
                cursor.reset(at.dlsn, seq=at.seq)
                self._cursors[path] = cursor, at.dlsn
            except Error as error:
                _log.warning("progress of %s in %s is not published: %s", self._name, path, error)
                self._forget(path)

    def _opened(self, path: str, start: DLSN) -> BlockingCursor[Gap]:
        # It reads ahead as little as there is: only its mark is used.
        cursor = self._cluster.stream(path).cursor(
            self._name, start, prefetch_bytes=1, on_gap="yield"
        )
        cursor.open()
        return cursor

    def _forget(self, path: str) -> None:
        known = self._cursors.pop(path, None)
        if known is not None:
            known[0].abort()

    def close(self) -> None:
        """Let go of all cursors; their marks stay."""
        for path in list(self._cursors):
            self._forget(path)
