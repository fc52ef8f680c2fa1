"""What is told where pyarrow is missing, and that nothing is loaded before it is used."""

from __future__ import annotations

import subprocess
import sys

LAZY = """
import sys
import fastbk.arrow
assert "pyarrow" not in sys.modules, "Arrow is loaded before anybody asks for it"
sys.modules["pyarrow"] = None
from importlib.abc import MetaPathFinder
class Without(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pyarrow":
            raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
sys.meta_path.insert(0, Without())
del sys.modules["pyarrow"]
for name in fastbk.arrow.__all__:
    try:
        getattr(fastbk.arrow, name)
    except ImportError as error:
        print(error)
"""


def test_without_pyarrow_every_name_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, text=True, timeout=60, check=True
    )
    import fastbk.arrow

    lines = done.stdout.splitlines()
    assert len(lines) == len(fastbk.arrow.__all__)
    assert all("pip install 'fastbk[arrow]'" in line for line in lines)


def test_every_name_is_there() -> None:
    import fastbk.arrow

    assert all(callable(getattr(fastbk.arrow, name)) for name in fastbk.arrow.__all__)
    assert not hasattr(fastbk.arrow, "nothing")
