"""What every client was told, one JSON line an event, written so that a SIGKILL loses nothing that was told before.

| op | fields |
|---|---|
| created | ledger, ensemble, write_quorum, ack_quorum |
| add / added | ledger, entry, writer: invoked / acknowledged |
| refused | ledger, entry, writer, error, outcome: the add failed |
| closed | ledger, last, length, by: somebody believes that he closed it so |
| opened | ledger, last, by: a recovering open returned; `began`: when it was called |
| read | ledger, entry, crc, by, final: an entry was read (crc 0 = its payload was no writer's) |
| lac | ledger, lac, by: a reader's handle saw this LAC |
| round, fault | text: what the nemesis did |

`at` is the monotonic clock in seconds, the same for all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Recorder:
    """Appends events of one process to its own file."""

    def __init__(self, path: Path, who: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._who = who

    def note(self, op: str, **fields: object) -> None:
        """Write one event; it is with the kernel when this returns."""
        self.note_all([{"op": op, **fields}])

    def note_all(self, events: list[dict[str, object]]) -> None:
        """Write events of one moment with one call."""
        at = time.monotonic()
        lines = [
            json.dumps({"at": at, "who": self._who, **event}, separators=(",", ":"))
            for event in events
        ]
        os.write(self._fd, ("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def load(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield all events of a folder's histories; a torn last line of a killed process is left out."""
    for path in sorted(folder.glob("*.history")):
        for line in path.read_bytes().split(b"\n"):
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                continue
