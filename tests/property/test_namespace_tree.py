"""The tree of namespaces against a model, in random order, while answers of metadata are lost. INV-S12."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastbk.errors import (
    Error,
    NamespaceNotEmpty,
    PolicyInvalid,
    QuotaExceeded,
    StreamExists,
    StreamNotFound,
)
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import StreamRecord, get
from fastbk.stream.paths import STREAMS
from fastbk.stream.policy import PolicyPatch, effective
from tests.fixtures.fake_ledgers import Cluster, RandomPlan

PATHS = ["a", "a/b", "a/b/a"]
NAMES = ["a", "b"]
MADE = ["a", "a/b"]
"""Namespaces that are there at first, with a stream "a" in each."""
steps = st.tuples(
    st.sampled_from(
        ["create", "stream", "drop", "drop all", "rename", "rename stream", "unmake", "set"]
    ),
    st.sampled_from(PATHS),
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(
        [
            PolicyPatch(),
            PolicyPatch(ensemble=4),
            PolicyPatch(ensemble=2),
            PolicyPatch(streams_max=2),
        ]
    ),
)


class Model:
    """What should be there: by path, a policy patch of a namespace, or a stream's."""

    def __init__(self) -> None:
        self.spaces: dict[str, PolicyPatch] = {"": PolicyPatch()}
        self.streams: dict[str, PolicyPatch] = {}

    def above(self, path: str) -> list[str]:
        parts = path.split("/")
        return ["", *("/".join(parts[: at + 1]) for at in range(len(parts) - 1))]

    def count(self, path: str) -> int:
        return sum(not path or one.startswith(f"{path}/") for one in self.streams)

    def has(self, path: str) -> None:
        if path not in self.spaces:
            raise StreamNotFound(path)

    def free(self, path: str) -> None:
        if path in self.spaces or path in self.streams:
            raise StreamExists(path)

    def policy_at(self, path: str) -> None:
        above = [self.spaces[one] for one in self.above(path)]
        effective([*above, self.spaces.get(path, self.streams.get(path, PolicyPatch()))])

    def create(self, path: str, patch: PolicyPatch) -> None:
        for one in self.above(path):
            if one in self.streams:
                raise StreamNotFound(one) if one != path else StreamExists(one)
        self.free(path)
        before = dict(self.spaces)
        for one in self.above(path):
            self.spaces.setdefault(one, PolicyPatch())
        created = dict(self.spaces)
        self.spaces[path] = patch
        try:
            self.policy_at(path)
        except PolicyInvalid:
            self.spaces = created or before
            raise

    def stream(self, path: str, patch: PolicyPatch) -> None:
        self.has(self.above(path)[-1])
        self.free(path)
        for one in self.above(path):
            most = self.spaces[one].streams_max or 0
            if 0 < most < self.count(one) + 1:
                raise QuotaExceeded(path)
        self.streams[path] = patch
        try:
            self.policy_at(path)
        except PolicyInvalid:
            del self.streams[path]
            raise

    def drop(self, path: str) -> None:
        self.has(self.above(path)[-1])
        if path not in self.streams:
            raise StreamNotFound(path)
        del self.streams[path]

    def inside(self, path: str) -> list[str]:
        return [one for one in (*self.spaces, *self.streams) if one.startswith(f"{path}/")]

    def unmake(self, path: str, *, recursive: bool) -> None:
        self.has(path)
        if self.inside(path) and not recursive:
            raise NamespaceNotEmpty(path)
        for one in [*self.inside(path), path]:
            self.spaces.pop(one, None)
            self.streams.pop(one, None)

    def move(self, old: str, new: str) -> None:
        if old != new:
            self.free(new)

        def moved(one: str) -> str:
            return new + one[len(old) :] if one == old or one.startswith(f"{old}/") else one

        self.spaces = {moved(one): patch for one, patch in self.spaces.items()}
        self.streams = {moved(one): patch for one, patch in self.streams.items()}

    def set(self, path: str, patch: PolicyPatch) -> None:
        self.has(path)
        before = self.spaces[path]
        self.spaces[path] = before.changed(patch)
        if self.spaces[path] == before:
            return
        try:
            for one in [path, *self.inside(path)]:
                self.policy_at(one)
        except PolicyInvalid:
            self.spaces[path] = before
            raise


def in_model(model: Model, kind: str, path: str, name: str, other: str, patch: PolicyPatch) -> None:
    match kind:
        case "create":
            model.create(path, patch)
        case "stream":
            model.stream(f"{path}/{name}", patch)
        case "drop":
            model.drop(f"{path}/{name}")
        case "unmake" | "drop all":
            model.unmake(path, recursive=kind == "drop all")
        case "rename":
            model.has(path)
            model.move(path, "/".join([*path.split("/")[:-1], name]))
        case "rename stream":
            model.has(path)
            if f"{path}/{name}" not in model.streams:
                raise StreamNotFound(name)
            model.move(f"{path}/{name}", f"{path}/{other}")
        case _:
            model.set(path, patch)


def in_tree(
    space: Namespace, kind: str, name: str, other: str, patch: PolicyPatch
) -> Awaitable[object]:
    match kind:
        case "create":
            return space.create(patch)
        case "stream":
            return space.create_stream(name, patch)
        case "drop":
            return space.delete_stream(name)
        case "unmake" | "drop all":
            return space.delete(recursive=kind == "drop all")
        case "rename":
            return space.rename(name)
        case "rename stream":
            return space.rename_stream(name, other)
        case _:
            return space.set_policy(patch)


async def check(root: Namespace, cluster: Cluster, model: Model) -> None:
    found = {info.path: info async for info in root.streams(recursive=True)}
    assert {path: info.policy for path, info in found.items()} == model.streams
    for path, patch in model.spaces.items():
        space = root.namespace(path) if path else root
        assert await space.policy() == patch
        assert await space.stream_count() == model.count(path)
    alive = {info.id for info in found.values()}
    for path, raw in cluster.records.values.items():
        if path.startswith(f"{STREAMS}/") and path.count("/") == 2:
            record = get(StreamRecord, raw.value, path)
            assert record.deleting == (path.rpartition("/")[2] not in alive)
    spaces = {one.split("/")[2] for one in cluster.records.values if one.startswith("usage/")}
    assert len(spaces | {"root"}) == len(model.spaces)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(steps, max_size=25), st.integers(0, 2**32))
def test_the_tree_is_what_a_model_says(
    todo: list[tuple[str, str, str, str, PolicyPatch]], seed: int
) -> None:
    async def run() -> None:
        cluster, model = Cluster(RandomPlan(random.Random(seed), lost=0.3)), Model()
        spaces = [Namespace(Catalog(cluster.client())) for _ in range(2)]  # type: ignore[arg-type]
        made = [
            (kind, path, "a", "a", PolicyPatch()) for path in MADE for kind in ("create", "stream")
        ]
        for at, (kind, path, name, other, patch) in enumerate([*made, *todo]):
            expected: type[Error] | None = None
            try:
                in_model(model, kind, path, name, other, patch)
            except Error as error:
                expected = type(error)
            got: type[Error] | None = None
            try:
                await in_tree(spaces[at % 2].namespace(path), kind, name, other, patch)
            except Error as error:
                got = type(error)
            assert got == expected, (kind, path, name, other, patch)
        cluster.plan = RandomPlan(random.Random(seed))
        await check(spaces[0], cluster, model)

    asyncio.run(run())
