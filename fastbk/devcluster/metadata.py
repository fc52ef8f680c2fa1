"""Which metadata store a folder's cluster has, and the ZooKeeper server that goes with it.

A folder keeps what it began with: its ledgers are known only there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from fastbk.devcluster.zookeeper import ZooKeeperServer
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.private_files import make_directory, write_text

SQLITE_NAME = "metadata.sqlite"
_CHOICE_NAME = "metadata.uri"
_FOLDER_NAME = "zookeeper"
LOCAL = "local"
"""In place of a URI: a ZooKeeper server of our own, in the folder."""


class DevMetadata:
    """The metadata of the cluster in one folder: sqlite there, a ZooKeeper there, or one elsewhere."""

    def __init__(self, data: Path, zookeeper: str | None = None) -> None:
        """Nothing runs yet.

        Args:
            data: the cluster's folder, made if missing.
            zookeeper: a URI, or `LOCAL`; None: what the folder began with, sqlite for a new one.

        Raises ConfigError when the folder began with another.
        """
        self._data = data.absolute()
        try:
            make_directory(self._data)
        except OSError as error:
            raise StorageError(f"{data}: cannot be used: {error.strerror}") from error
        self._choice = self._settle(zookeeper)
        self.server: ZooKeeperServer | None = None
        if self._choice == LOCAL:
            self.server = ZooKeeperServer(self._data / _FOLDER_NAME)

    def start(self) -> str:
        """Return the URI, with ZooKeeper running and a cluster made there if there was none.

        Raises ConfigError when there is no ZooKeeper on this machine, MetadataUnavailable, StorageError.
        """
        if not self._choice:
            return f"sqlite:{self._data / SQLITE_NAME}"
        uri = self._choice
        if self.server is not None:
            self.server.start()
            uri = f"zk+hierarchical://{self.server.address}/ledgers"
        # Only now: kazoo is not loaded where sqlite does.
        from fastbk.meta.uri import parse_zookeeper
        from fastbk.meta.zookeeper import admin as zookeeper_admin

        location = parse_zookeeper(uri)
        if not zookeeper_admin.exists(location):
            with contextlib.suppress(MetadataConflict):  # another one was faster
                zookeeper_admin.init(location)
        write_text(self._data / _CHOICE_NAME, self._choice)
        return uri

    def stop(self) -> None:
        """End our own server, if there is one."""
        if self.server is not None:
            self.server.stop()

    def _settle(self, zookeeper: str | None) -> str:
        """Return the folder's choice: a URI, `LOCAL`, or nothing for sqlite."""
        began = None
        with contextlib.suppress(OSError):
            began = (self._data / _CHOICE_NAME).read_text("utf-8").strip()
        if began is None and (self._data / SQLITE_NAME).exists():
            began = ""
        if began is None or zookeeper is None or zookeeper == began:
            return (began if began is not None else zookeeper) or ""
        kept = {"": "in sqlite", LOCAL: "in a ZooKeeper of its own"}.get(began, f"at {began}")
        raise ConfigError(
            f"{self._data}: the metadata of this folder's ledgers is {kept}; choose another --data, or"
            " leave --zookeeper out"
        )
