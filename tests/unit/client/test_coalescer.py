"""A request that comes while one is under way is neither lost nor done at the same time."""

from __future__ import annotations

import asyncio

from fastbk.client.async_tools import Coalescer
from tests.unit.client.fake_cluster import some_turns


async def test_what_is_asked_for_meanwhile_is_done_once_more() -> None:
    began: list[int] = []
    may_end = asyncio.Event()
    state, seen = 0, -1

    async def look() -> None:
        nonlocal seen
        began.append(state)
        now = state
        await may_end.wait()
        seen = now

    repeating = Coalescer(look)
    repeating.schedule()
    await some_turns()
    for state in (1, 2, 3):  # noqa: B007 - changes of what `look` looks at
        repeating.schedule()
    await some_turns()
    assert began == [0]
    may_end.set()
    await some_turns()
    assert (began, seen) == ([0, 3], 3)
    repeating.schedule()
    await some_turns()
    assert began == [0, 3, 3]


async def test_a_cancelled_one_stops_and_does_not_begin_again() -> None:
    began = 0

    async def look() -> None:
        nonlocal began
        began += 1
        await asyncio.Event().wait()

    repeating = Coalescer(look)
    repeating.schedule()
    await some_turns()
    repeating.schedule()
    repeating.cancel()
    await some_turns()
    assert began == 1
