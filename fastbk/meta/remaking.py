"""A metadata store that is made anew for a cluster that has lost its own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from fastbk.meta.uri import is_zookeeper, open_store, parse_zookeeper

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore

TIMEOUT_S = 10.0


def remade_store(uri: str, instance_id: str) -> MetadataStore:
    """Open the store at `uri`; where there is none, make one with this instance id (empty: a new one).

    Bookies start only on the cluster that their cookies name (INV-D1). Raises as `open_store`.
    """
    if is_zookeeper(uri):
        from fastbk.meta import zookeeper_admin

        location = parse_zookeeper(uri)
        if not zookeeper_admin.exists(location):
            zookeeper_admin.init(location, instance_id=instance_id or None)
    elif uri.startswith("sqlite:"):
        from fastbk.meta.sqlite_file import SqliteFile

        path = "/" + uri.removeprefix("sqlite:").lstrip("/")
        with closing(SqliteFile(path, TIMEOUT_S, instance_id=instance_id or None)):
            pass  # a file that is there keeps its id
    return open_store(uri)
