"""The bookie: a supervisor and the child processes that it starts.

Python does what is rare: files, policies, start and stop. Work for each entry is in C
(`fastbk/native`), and formats on disk are in `fastbk/storage`. Begin with `process_table.py` and
`supervisor.py`. `journal`, `index` and `network` are child processes, `supervision` has the
supervisor's parts, `admin` its HTTP pages, `disks` the checks of disks, `configuration` the
settings. `offline` changes the directories of a stopped bookie.
"""

import importlib
import sys


def _import_msgspec() -> None:
    """Import msgspec without `typing_extensions`, which it takes where that is installed, and which imports `inspect`.

    That costs a tenth of a process's start, for spellings of types that no configuration of ours has. Others find it as
    before.
    """
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        importlib.import_module("msgspec")
    finally:
        del sys.modules["typing_extensions"]


_import_msgspec()
