"""Spark reads and writes ledgers and streams: `format("fastbk")`; needs the extra `spark`. See README.md here.

Importing this loads neither Spark nor Arrow: `FastbkSource`, to register by hand, comes with its first use. There is
mostly no need to register it: Spark finds the package `pyspark_fastbk` by itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.spark.source import FastbkSource

__all__ = ["FastbkSource"]


def __getattr__(name: str) -> object:
    """Return `FastbkSource`, imported at its first use."""
    if name == "FastbkSource":
        try:
            from fastbk.spark.source import FastbkSource
        except ModuleNotFoundError as error:
            raise ImportError(
                f"Spark needs the package {error.name}: pip install 'fastbk[spark]'"
            ) from error
        return FastbkSource
    raise AttributeError(f"module 'fastbk.spark' has no attribute {name!r}")
