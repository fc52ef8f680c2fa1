"""What a child runs first: it imports its role, and as little as possible beside it.

All processes of a bookie import at once when it starts, and the first write waits for that. So a child has no `site`
and no `runpy` (`fastbk.server.supervision.spawn`), and no garbage is collected while modules are made, which are there
to stay. `tests/unit/server/test_spawn.py` lists what no child imports.

Decision 166.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import NoReturn


def start() -> NoReturn:
    """Import the role that the command line names and begin its life; `child.py` enables the collector again."""
    gc.disable()
    _, _, module, control = sys.argv  # as `fastbk.server.supervision.spawn.child_command` has it
    sys.argv[1:] = [control]
    find_prefix()
    importlib.import_module(module).start()
    raise AssertionError("a child's life ends with its process")


def find_prefix() -> None:
    """Have `sys.prefix` name the virtual environment that this interpreter is in, as `site` does."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(sys.executable)))
    if os.path.exists(f"{folder}/pyvenv.cfg"):
        sys.prefix = sys.exec_prefix = folder
