"""Who speaks our protocol does not load NumPy for it; flatbuffers has it all the same when it is asked."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKED = """
assert "numpy" not in sys.modules, "nobody asked for it"
from flatbuffers import Builder, compat, number_types
assert compat is sys.modules["flatbuffers.compat"]
import numpy
assert number_types.to_numpy_type(number_types.Int32Flags) == numpy.dtype("int32")
builder = Builder(64)
builder.Finish(builder.CreateNumpyVector(numpy.array([1, 2, 3])))
print("done")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["fastbk.wire.messages", "fastbk.server.network.process", "fastbk.client"]
)
def test_numpy_is_loaded_when_it_is_asked_for(module: str) -> None:
    program = f"import sys\nimport {module}\n{ASKED}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_where_flatbuffers_is_loaded_already_it_stays_as_it_is() -> None:
    program = "import flatbuffers.compat as a, sys, fastbk.wire.messages; assert sys.modules[a.__name__] is a"
    subprocess.run([sys.executable, "-c", program], check=True)
