"""The Spark data source `format("fastbk")` for ledgers and streams (extra `spark`).

Importing this package never loads Spark or Arrow; both come with the first use of a name. Begin
with README.md and `source.py`; Spark finds the source through `pyspark_fastbk`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.spark.schemas import json
    from fastbk.spark.source import FastbkSource

__all__ = ["FastbkSource", "json"]
_HOMES = {"FastbkSource": "fastbk.spark.source", "json": "fastbk.spark.schemas"}


def __getattr__(name: str) -> object:
    """Return what has this name, imported at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastbk.spark' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
        ) from error


def __dir__() -> list[str]:
    """Return all names, those too that were not used yet, for `dir` and completion."""
    return sorted({*globals(), *__all__})
