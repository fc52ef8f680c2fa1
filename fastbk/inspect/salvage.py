"""Writes the entries that could be read to a place of their own: one JSON object a line, one file a ledger.

    {"ledger_id", "entry_id", "last_add_confirmed", "length", "entry": the stored bytes in base64, digest included}

Nothing is joined or left out: an entry that lies in two places is written twice, in the order of reading.
"""

from __future__ import annotations

import base64
import json
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from fastbk.errors import StorageError, os_errors_as
from fastbk.private_files import make_directory, opener

if TYPE_CHECKING:
    from fastbk.inspect.items import Item

OPEN_FILES_MAX = 64
ENDING = ".jsonl"


def line_of(item: Item) -> str:
    """Return an entry's line."""
    names = ("ledger_id", "entry_id", "last_add_confirmed", "length")
    facts = {name: item.facts[name] for name in names}
    entry = base64.b64encode(item.entry or b"").decode()
    return json.dumps({**facts, "entry": entry}) + "\n"


class Salvage:
    """A directory, made if it is not there, in which each ledger gets a file. Refuses one that holds such files."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._open: OrderedDict[int, TextIO] = OrderedDict()
        self.entries = 0
        self.ledgers: set[int] = set()
        with os_errors_as(StorageError, directory):
            make_directory(Path(directory).absolute())
            names = [name for name in os.listdir(directory) if name.endswith(ENDING)]
        if names:
            raise StorageError(
                f"{directory} holds salvaged entries already: name another directory"
            )

    def take(self, item: Item) -> None:
        """Write an entry. Raises StorageError where there is no room."""
        ledger_id = item.number("ledger_id")
        with os_errors_as(StorageError, self._directory):
            self._file(ledger_id).write(line_of(item))
        self.entries += 1

    def _file(self, ledger_id: int) -> TextIO:
        file = self._open.get(ledger_id)
        if file is None:
            if len(self._open) >= OPEN_FILES_MAX:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            path = f"{self._directory}/{ledger_id}{ENDING}"
            file = open(path, "a", encoding="ascii", opener=opener)  # noqa: SIM115 -- closed when it is the oldest, or at the end
            self._open[ledger_id] = file
            self.ledgers.add(ledger_id)
        self._open.move_to_end(ledger_id)
        return file

    def close(self) -> None:
        """Write out and close everything. Raises StorageError where there is no room."""
        with os_errors_as(StorageError, self._directory):
            while self._open:
                self._open.popitem()[1].close()
