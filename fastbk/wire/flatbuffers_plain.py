"""flatbuffers without NumPy, which it imports wherever that is installed, for vectors that our messages do not have.

That costs a tenth of a second of CPU time and some 15 MB in every process that speaks our protocol, each network worker
and each command, on a machine that has Spark or pyarrow, too. So NumPy is imported when somebody asks flatbuffers for
it, as an application may that has messages of its own. To be imported before `generated`, as the alphabet has it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

__all__ = ["flatbuffers"]


class _Numpy(ModuleType):
    """Stands for NumPy in flatbuffers until one of its names is needed."""

    def __getattr__(self, name: str) -> object:
        value: object = getattr(importlib.import_module("numpy"), name)
        return value


def _defer_numpy() -> None:
    """Put flatbuffers' module of what is optional in its place, so that the others find NumPy as `_Numpy`."""
    if "flatbuffers" in sys.modules or "numpy" in sys.modules:
        return  # there is nothing left to save
    package = importlib.util.find_spec("flatbuffers")
    places = package.submodule_search_locations if package else None
    spec = importlib.machinery.PathFinder.find_spec("flatbuffers.compat", places)
    if spec is None or spec.loader is None or importlib.util.find_spec("numpy") is None:
        return
    compat = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(compat)
    numpy = _Numpy("numpy")
    vars(compat)["import_numpy"] = lambda: numpy
    sys.modules["flatbuffers.compat"] = compat


_defer_numpy()

import flatbuffers  # noqa: E402 -- behind what it is to find
