"""Write-once objects with names in a namespace, kept in ledgers. README.md says how; begin with `objects.py`."""

from __future__ import annotations

from fastbk.objects.objects import ObjectInfo, Objects
from fastbk.objects.reader import ObjectReader
from fastbk.objects.writer import ObjectWriter

__all__ = ["ObjectInfo", "ObjectReader", "ObjectWriter", "Objects"]
