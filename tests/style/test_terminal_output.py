"""What a command prints goes through `fastbk.cli.terminal`, which escapes text of others."""

from __future__ import annotations

import re
from pathlib import Path

import fastbk

PACKAGE = Path(fastbk.__file__).parent
RAW = re.compile(r"std(?:out|err)\.buffer|sys\.__std|os\.write\(\s*(?:1|2|sys)|/dev/tty")
ALLOWED = {
    "cli/terminal.py": "the way out itself",
    "cli/stream_options.py": "lines of JSON, which are printable",
    "cli/progress.py": "clears its line",
    "admin/http_tool.py": "JSON for the bookie that started it",
    "observe/logs.py": "lines of the log, escaped there",
}


def test_nothing_is_written_past_it() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if RAW.search(path.read_text())
    }
    assert found <= set(ALLOWED), "print, or use fastbk.cli.terminal"
