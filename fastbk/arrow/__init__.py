"""Streams and ledgers as Apache Arrow's record batches. Begin with `read_stream` and `read_ledger`.

    import polars, fastbk.arrow
    frame = polars.from_arrow(fastbk.arrow.read_stream("sqlite:/data/metadata.sqlite", "shop/orders"))

Only `append_arrow` and `append_arrow_async` write. It needs the extra `arrow`; importing the package does not
load Arrow before the first use. README.md lists the columns.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastbk.arrow.appends import Appended, append_arrow, append_arrow_async
    from fastbk.arrow.batches import (
        chunk_batch,
        chunks_batch,
        entries_batch,
        ledger_schema,
        stream_schema,
    )
    from fastbk.arrow.readers import (
        EntryGap,
        ledger_batches,
        read_ledger,
        read_stream,
        stream_batches,
    )

__all__ = [
    "Appended",
    "EntryGap",
    "append_arrow",
    "append_arrow_async",
    "chunk_batch",
    "chunks_batch",
    "entries_batch",
    "ledger_batches",
    "ledger_schema",
    "read_ledger",
    "read_stream",
    "stream_batches",
    "stream_schema",
]
_HOMES = {
    "Appended": "appends",
    "append_arrow": "appends",
    "append_arrow_async": "appends",
    "chunk_batch": "batches",
    "chunks_batch": "batches",
    "entries_batch": "batches",
    "EntryGap": "readers",
    "ledger_batches": "readers",
    "read_ledger": "readers",
    "ledger_schema": "batches",
    "stream_schema": "batches",
    "read_stream": "readers",
    "stream_batches": "readers",
}


def __getattr__(name: str) -> object:
    """Return a public name, imported at its first use. Raises ImportError where the extra is missing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fastbk.arrow' has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"fastbk.arrow.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError("Arrow needs the package pyarrow: pip install 'fastbk[arrow]'") from error


def __dir__() -> list[str]:
    """Return all names, those too that were not used yet, for `dir` and completion."""
    return sorted({*globals(), *__all__})
