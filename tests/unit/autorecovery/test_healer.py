"""The election of the auditor as one process sees it. INV-H1."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import pytest

from fastbk.autorecovery.healer import Healer
from fastbk.client import Client
from fastbk.errors import MetadataUnavailable
from fastbk.meta.sqlite.store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.meta import MetadataStore

T = TypeVar("T")


async def test_a_vote_whose_caller_gave_up_is_not_cast_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second vote would wait behind the first one, which nobody withdraws, for as long as the process lives."""
    with closing(MemoryStore("lost vote")) as store:
        async with Client(store) as client:
            healer = Healer(client, "a")
            call = client.call_store

            async def answer_is_lost(one: Callable[[MetadataStore], T]) -> T:
                await call(one)
                raise MetadataUnavailable("no answer in time")

            with monkeypatch.context() as patching:
                patching.setattr(client, "call_store", answer_is_lost)
                with pytest.raises(MetadataUnavailable):
                    await healer._is_elected()
            assert await healer._is_elected()
            await healer._withdraw()
        assert store.coordination.auditor() is None
