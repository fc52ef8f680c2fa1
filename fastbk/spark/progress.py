"""`readerName`: a query's progress as the mark of a durable cursor of each stream, where tools and retention look."""

from __future__ import annotations

from fastbk.observe.library_log import LibraryLog
from fastbk.spark.offset_resolver import Cluster
from fastbk.spark.offsets import Offsets

BY = {"by": "spark"}
"""The cursors' map: tools tell by it who moves them."""
_log = LibraryLog("fastbk.spark")


class Progress:
    """One query's. Publishing never fails a query: the checkpoint is what it goes on from."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        """Raises ConfigError for what is no name of a cursor."""
        self._name = name
        self._marks = cluster.client.namespace("").marks(name, BY)

    def publish(self, done: Offsets) -> None:
        """Have the cursors' marks at these offsets; those that stay are noted as used every five minutes."""
        failed = self._marks.move({path: (at.dlsn, at.seq) for path, at in done.streams.items()})
        for path, error in failed.items():
            _log.warning("spark.progress_waits", reader=self._name, stream=path, reason=str(error))
