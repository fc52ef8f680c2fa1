"""Changes of names while somebody else goes on, many with lost answers: nothing is done to another, or told of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

import pytest

from fastbk.errors import MetadataConflict, MetadataUnavailable, StreamNotFound
from fastbk.stream.deletion import delete_stream
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from tests.fixtures.fake_ledgers import Cluster, FakeClient, Plan


class LosesOnce(Plan):
    """The first change that `client` makes takes effect, `meanwhile` happens, and its answer is lost.

    `before_it`, too, happens once: it has no effect then.
    """

    def __init__(self) -> None:
        self.client: FakeClient | None = None
        self.before_it: Callable[[], Awaitable[object]] | None = None
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    async def before(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and client is self.client and self.before_it is not None:
            before_it, self.before_it = self.before_it, None
            await before_it()
            raise MetadataUnavailable("metadata is away", outcome="not_written")

    async def after(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change" and client is self.client and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
            raise MetadataUnavailable("the answer was lost")


class BetweenCalls(Plan):
    """`meanwhile` happens before the second call that `client` makes."""

    def __init__(self, client: FakeClient, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._meanwhile = meanwhile
        self._calls = 0

    async def before(self, client: FakeClient, what: str) -> None:
        if client is self._client:
            self._calls += 1
            if self._calls == 2:
                await self._meanwhile()


class Harness:
    """Two clients of one cluster, and a namespace that both see."""

    def __init__(self) -> None:
        self.plan = LosesOnce()
        self.cluster = Cluster(self.plan)
        self.plan.client = self.cluster.client()
        self.mine = Namespace(Catalog(self.plan.client), "a")  # type: ignore[arg-type]
        self.other = Namespace(Catalog(self.cluster.client()), "a")  # type: ignore[arg-type]

    async def ids(self) -> dict[str, str]:
        return {info.name: info.id async for info in self.other.streams()}


async def made() -> Harness:
    harness = Harness()
    await harness.other.create()
    return harness


async def test_a_stream_created_deleted_and_created_again_has_another_id() -> None:
    """INV-S12: an id is never used again, whoever deletes what the lost answer told of."""
    harness = await made()
    ids: list[str] = []

    async def delete() -> None:
        ids.append((await harness.ids())["s"])
        await harness.other.delete_stream("s")

    harness.plan.meanwhile = delete
    await harness.mine.create_stream("s")
    assert (await harness.ids())["s"] not in ids
    assert await harness.other.stream_count() == 1


async def test_a_stream_that_was_created_is_found_again() -> None:
    harness = await made()

    async def nothing() -> None:
        pass

    harness.plan.meanwhile = nothing
    await harness.mine.create_stream("s")
    assert list(await harness.ids()) == ["s"]
    assert await harness.other.stream_count() == 1


async def test_a_namespace_created_deleted_and_created_again_has_another_id() -> None:
    harness = await made()
    ids: list[str] = []

    async def id_of() -> str:
        below = harness.other.namespace("below")
        return (await below._catalog.place(("a", "below"))).here.id

    async def delete() -> None:
        ids.append(await id_of())
        await harness.other.namespace("below").delete()

    harness.plan.meanwhile = delete
    await harness.mine.namespace("below").create()
    assert await id_of() not in ids


async def test_a_deletion_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def anew() -> None:
        await harness.other.create_stream("s")

    harness.plan.meanwhile = anew
    await harness.mine.delete_streams(["s", "t"])
    assert list(await harness.ids()) == ["s"], "the stream of somebody else is still there"
    assert await harness.other.stream_count() == 1


@pytest.mark.parametrize("missing_ok", [False, True])
async def test_a_deletion_spares_a_stream_that_was_renamed_meanwhile(missing_ok: bool) -> None:
    """INV-S12: its name is gone at the second attempt, and not by the first one, which had no effect."""
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    if missing_ok:
        await harness.mine.delete_streams(["s", "t"], missing_ok=True)
        assert list(await harness.ids()) == ["u"]
    else:
        with pytest.raises(StreamNotFound):
            await harness.mine.delete_streams(["s", "t"])
        assert sorted(await harness.ids()) == ["t", "u"]
    assert (await harness.other.stream("u").info()).segments == 0
    assert await harness.other.stream_count() == len(await harness.ids())


async def test_data_of_a_stream_that_has_a_name_is_not_deleted() -> None:
    harness = await made()
    await harness.other.create_stream("s")
    assert harness.plan.client is not None
    with pytest.raises(MetadataConflict):
        await delete_stream(harness.plan.client, (await harness.ids())["s"])  # type: ignore[arg-type]
    assert list(await harness.ids()) == ["s"]


async def test_a_renaming_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_stream("s")
    mine = (await harness.ids())["s"]

    async def further() -> None:
        await harness.other.rename_stream("t", "u")
        await harness.other.create_stream("s")

    harness.plan.meanwhile = further
    await harness.mine.rename_stream("s", "t")
    after = await harness.ids()
    assert after["u"] == mine and set(after) == {"s", "u"}


async def test_a_renamed_stream_that_is_deleted_meanwhile_is_not_found() -> None:
    harness = await made()
    await harness.other.create_stream("s")

    async def further() -> None:
        await harness.other.delete_stream("t")
        await harness.other.create_stream("s")

    harness.plan.meanwhile = further
    with pytest.raises(StreamNotFound):
        await harness.mine.rename_stream("s", "t")
    assert list(await harness.ids()) == ["s"]


async def test_a_renaming_of_a_namespace_spares_what_got_the_name_meanwhile() -> None:
    harness = await made()
    await harness.other.create_stream("s")

    async def again() -> None:
        renamed = Namespace(harness.other._catalog, "b")
        await renamed.rename("c")
        await harness.other.create()

    harness.plan.meanwhile = again
    await harness.mine.rename("b")
    streams = [info.name async for info in Namespace(harness.other._catalog, "c").streams()]
    assert streams == ["s"]
    assert await harness.other.exists() and await harness.other.stream_count() == 0
    assert not await Namespace(harness.other._catalog, "b").exists()


async def test_a_renaming_that_somebody_else_forestalled_is_not_told_as_done() -> None:
    """What its own attempts surely did not do another one did: the stream has not the name that was asked for."""
    harness = await made()
    await harness.other.create_stream("s")

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.rename_stream("s", "t")
    assert list(await harness.ids()) == ["u"]


async def test_a_renaming_of_a_namespace_that_somebody_else_forestalled_is_not_told_as_done() -> (
    None
):
    harness = await made()

    async def rename() -> None:
        await harness.other.rename("c")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.rename("b")
    assert await Namespace(harness.other._catalog, "c").exists()
    assert not await Namespace(harness.other._catalog, "b").exists()


async def test_a_namespace_goes_with_a_stream_that_was_renamed_in_it_meanwhile() -> None:
    harness = await made()
    await harness.other.create_streams(["s", "t"])

    async def rename() -> None:
        await harness.other.rename_stream("s", "u")

    harness.plan.before_it = rename
    await harness.mine.delete(recursive=True)
    assert not await harness.other.exists()


async def test_a_namespace_goes_with_one_below_it_that_somebody_else_deletes_meanwhile() -> None:
    harness = await made()
    await harness.other.namespace("first").create()
    await harness.other.namespace("second").create()

    async def delete() -> None:
        await harness.other.namespace("second").delete()

    harness.plan.before_it = delete
    await harness.mine.delete(recursive=True)
    assert not await harness.other.exists()


async def test_a_namespace_that_was_renamed_meanwhile_is_not_told_as_deleted() -> None:
    harness = await made()

    async def rename() -> None:
        await harness.other.rename("c")

    harness.plan.before_it = rename
    with pytest.raises(StreamNotFound):
        await harness.mine.delete()
    assert await Namespace(harness.other._catalog, "c").exists()


@pytest.mark.parametrize(
    "call",
    [lambda mine: mine.rename_stream("s", "t"), lambda mine: mine.create_streams(["t"])],
    ids=["rename_stream", "create_streams"],
)
async def test_a_name_in_a_namespace_that_was_renamed_meanwhile_is_not_told_as_taken(
    call: Callable[[Namespace], Coroutine[None, None, object]],
) -> None:
    """INV-S12: a/t never was there, and c/t is none of the caller's business."""
    harness = await made()
    await harness.other.create_stream("s")
    assert await harness.mine.stream_count() == 1, "its path is known, so one request finds it"

    async def taken_elsewhere() -> None:
        await (await harness.other.rename("c")).create_stream("t")

    client = harness.plan.client
    assert client is not None
    harness.cluster.plan = BetweenCalls(client, taken_elsewhere)
    with pytest.raises(StreamNotFound):
        await call(harness.mine)
    found = Namespace(harness.other._catalog, "c").streams()
    assert sorted([info.name async for info in found]) == ["s", "t"]
