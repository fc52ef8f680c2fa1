"""Fixtures of all style tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def _without_collections() -> Iterator[None]:
    """Trees of source have no cycles, and millions of nodes, which a collection would go over again and again."""
    gc.disable()
    yield
    gc.enable()
