"""The Python client, as a Java program has it called."""

from __future__ import annotations

from collections.abc import Mapping

import fastbk.sync
from fastbk.errors import Error

PASSWORD = b"secret"


def payload(ledger_id: int, entry_id: int) -> bytes:
    """Return the data of an entry, as World.java makes it, too."""
    return bytes([(ledger_id + entry_id) & 255]) * (16 + (entry_id * 37) % 1000)


class PythonSide:
    """A client that is opened when it is first needed, and one writer."""

    def __init__(self, metadata_uri: str, options: Mapping[str, object] | None = None) -> None:
        self._metadata_uri = metadata_uri
        self._options = options or {}
        self._client: fastbk.sync.Client | None = None
        self._writer: fastbk.sync.LedgerWriter | None = None

    @property
    def client(self) -> fastbk.sync.Client:
        if self._client is None:
            self._client = fastbk.sync.connect(self._metadata_uri, **self._options)
        return self._client

    def read(self, ledger_id: str) -> str:
        """Open a ledger with recovery, check all its entries, and return the last one's id."""
        with self.client.open_ledger(int(ledger_id), password=PASSWORD) as reader:
            last = reader.last_add_confirmed()
            next_id = 0
            for entry in reader.read(0, last):
                if entry.entry_id != next_id or bytes(entry.data) != payload(
                    int(ledger_id), next_id
                ):
                    raise ValueError(f"entry {next_id} is not what was written")
                next_id += 1
        return str(next_id - 1)

    def write(self, count: str) -> str:
        """Make a ledger, append to it, leave it open, and return its id."""
        self._writer = self.client.create_ledger(
            ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD
        )
        for entry_id in range(int(count)):
            self._writer.append(payload(self._writer.ledger_id, entry_id))
        return str(self._writer.ledger_id)

    def append(self) -> str:
        """Append once more, and return the name of the error that this ends with."""
        assert self._writer is not None
        try:
            self._writer.append(b"late")
        except Error as error:
            return type(error).__name__
        return "nothing"

    def close_writer(self) -> str:
        assert self._writer is not None
        self._writer.close()
        return ""

    def __enter__(self) -> PythonSide:
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
