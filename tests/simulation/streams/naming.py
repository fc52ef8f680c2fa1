"""Namespaces and streams that come, go and change their names, by many hands at once; a seed decides all of it.

In the first phase metadata goes away and loses answers, processes crash in the middle of what they do. Then all is
healed: who watches has to know what is there, a janitor leaves nothing of what was deleted, and every stream has what
was appended to it, whatever it is called by then.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from contextvars import ContextVar

from fastbk.errors import Error, MetadataUnavailable, PolicyInvalid, StreamNotFound
from fastbk.stream.chain import NONE, get_chain
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import NamespaceEvent
from fastbk.stream.namespace.namespace import Namespace
from fastbk.stream.namespace.tree import Place
from fastbk.stream.paths import STREAMS, chain_path
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import Record
from tests.fixtures.fake_ledgers import Cluster, FakeClient
from tests.fixtures.streams import as_client
from tests.simulation.streams.actors import Actors
from tests.simulation.streams.facts import Broken, demand
from tests.simulation.streams.loop import Clock
from tests.simulation.streams.naming_facts import NamesJudge
from tests.simulation.streams.naming_tree import Call, Verb
from tests.simulation.streams.watching import Effect, QuietPlan, WatchedPlan
from tests.simulation.streams.world import live

PATHS = ("a", "b", "a/a", "a/b")
NAMES = ("a", "b", "s")
PATCHES = (
    PolicyPatch(),
    PolicyPatch(ensemble=4),
    PolicyPatch(ensemble=2),
    PolicyPatch(streams_max=1),
    PolicyPatch(streams_max=3),
)
COUNTS: dict[Verb, tuple[int, int]] = {
    "create": (0, 0),
    "streams": (1, 2),
    "drop": (1, 2),
    "rename": (1, 1),
    "rename stream": (2, 2),
    "unmake": (0, 0),
    "set": (0, 0),
    "set stream": (1, 1),
}
"""Names that a call takes, at least and at most."""
CALMS_S = 30.0
PHASES_MAX = 10
CALL: ContextVar[Call | None] = ContextVar("CALL", default=None)
"""Whose call an effect belongs to: contexts go with tasks."""


class NamesPlan(WatchedPlan):
    """Calls take some time always, so that they meet, and are told when an answer of theirs was lost."""

    def __init__(self, rng: random.Random, clock: Clock, effect: Effect) -> None:
        super().__init__(rng, clock, effect)
        self.slow_s = self._slow = rng.choice([0.001, 0.01, 0.1])

    async def after(self, client: FakeClient, what: str) -> None:
        try:
            await super().after(client, what)
        except MetadataUnavailable:
            call = CALL.get()
            if call is not None:
                call.is_unsure = True
            raise


class Watcher:
    """One who watches a namespace, and what he knows of it."""

    def __init__(self, namespace: Namespace, namespace_id: str) -> None:
        self._namespace = namespace
        self.id = namespace_id
        self.known: dict[str, str] = {}
        self._gone: set[str] = set()

    async def watch(self) -> None:
        """Follow what is told, until the namespace is gone or metadata was away at the first look."""
        with suppress(StreamNotFound, MetadataUnavailable):
            async with aclosing(self._namespace.watch()) as events:
                async for event in events:
                    self._told(event)

    def _told(self, event: NamespaceEvent) -> None:
        if event.id == self.id:
            return
        if event.kind == "deleted":
            demand(self.known.pop(event.id, None) == event.name, f"told of the end of {event}")
            self._gone.add(event.id)
        elif event.kind == "renamed":
            demand(self.known.get(event.id) == event.former, f"told of another name: {event}")
            self.known[event.id] = event.name
        elif event.kind != "policy":
            is_new = event.id not in self.known and event.id not in self._gone
            demand(is_new, f"told twice of {event}")
            self.known[event.id] = event.name


class NamesWorld:
    """Processes that change names, write, watch and clean up."""

    def __init__(self, seed: int, clock: Clock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.cluster = Cluster()
        self.judge = NamesJudge(self.cluster)
        self.kept: dict[str, set[bytes]] = {}
        """By id of a stream: payloads that were acknowledged."""
        rng = self.rng
        self._paths = rng.sample(PATHS, rng.choice([1, 1, 2, 3]))
        self._verbs: list[Verb] = ["create", "streams", "streams", "rename stream"]
        self._verbs += rng.sample(list(COUNTS), rng.randint(1, 6))
        self._calls_left = rng.choice([50, 100, 300])
        self._pause_s = 0.0
        self._processes = Actors(self.rng, self.cluster)

    # --- watching -----------------------------------------------------------------------------------------------

    def _effect(self, client: FakeClient, what: str) -> None:
        if what == "metadata.change":
            self._processes.look(lambda: self.judge.step(CALL.get()))

    # --- life ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Live, then heal, then judge."""
        rng = self.rng
        plan = self.cluster.plan = NamesPlan(rng, self.clock, self._effect)
        self._pause_s = plan.slow_s * rng.choice([0, 1, 5])
        watching: list[tuple[Watcher, asyncio.Task[None]]] = []
        actors = [
            asyncio.ensure_future(
                self._processes.again(plan, self._meddle, pauses_s=(plan.slow_s,))
            )
            for _ in range(rng.randint(2, 4))
        ]
        others = [self._write] * rng.randrange(2) + [self._clean] * rng.randrange(2)
        actors += [asyncio.ensure_future(self._processes.again(plan, one)) for one in others]
        for _ in range(PHASES_MAX):
            with suppress(TimeoutError):
                async with asyncio.timeout(rng.choice([0.1, 1, 20])):
                    await self._processes.over.wait()
            self._begin_to_watch(watching)
            self._processes.check()
        self._processes.over.set()
        await asyncio.gather(*actors)
        self.cluster.plan = QuietPlan(self._effect)
        end_s = self.clock.monotonic() + CALMS_S
        while self.clock.monotonic() < end_s and self._wrong_watcher(watching):
            await asyncio.sleep(0.1)
        self._processes.check()
        wrong = self._wrong_watcher(watching)
        demand(not wrong, wrong)
        await self._settle()

    def _begin_to_watch(self, watching: list[tuple[Watcher, asyncio.Task[None]]]) -> None:
        tree = self.judge.now
        spaces = sorted(one_id for one_id, one in tree.by_id.items() if one.kind == "namespace")
        one_id = self.rng.choice(spaces)
        catalog = Catalog(as_client(self._processes.client()))
        watcher = Watcher(Namespace(catalog, tree.path_of(one_id)), one_id)
        place = catalog.place

        async def noted(path: tuple[str, ...], *names: str) -> Place:
            # By now another namespace may have the name: that one is watched.
            found = await place(path, *names)
            watcher.id = found.levels[-1].id
            return found

        catalog.place = noted  # type: ignore[method-assign]
        watching.append((watcher, asyncio.ensure_future(watcher.watch())))

    def _wrong_watcher(self, watching: list[tuple[Watcher, asyncio.Task[None]]]) -> str:
        """Return what one of those who watch knows wrongly; empty: nothing."""
        tree = self.judge.now
        for watcher, task in watching:
            if task.done():
                task.result()
                continue
            if watcher.id not in tree.by_id:
                return "a watch goes on after its namespace is gone"
            there = {one.id: one.name for one in tree.by_id.values() if one.above == watcher.id}
            if watcher.known != there:
                return f"who watches knows {watcher.known}, there are {there}"
        return ""

    async def _meddle(self, client: FakeClient) -> None:
        catalog = Catalog(as_client(client))
        turns = [self._calls(catalog) for _ in range(self.rng.choice([1, 1, 2]))]
        await asyncio.gather(*turns)

    async def _calls(self, catalog: Catalog) -> None:
        for _ in range(self.rng.randint(1, 30)):
            if self._calls_left <= 0:
                self._processes.over.set()
                return
            self._calls_left -= 1
            await self._call(catalog, self._some_call())
            rng = self.rng
            await asyncio.sleep(rng.random() * self._pause_s)

    def _some_call(self) -> Call:
        rng = self.rng
        verb = rng.choice(self._verbs)
        least, most = COUNTS[verb]
        patch = rng.choice(PATCHES[:3] if verb in ("streams", "set stream") else PATCHES)
        names = tuple(rng.sample(NAMES, rng.randint(least, most)))
        return Call(verb, rng.choice(self._paths), names, rng.random() < 0.4, patch)

    async def _call(self, catalog: Catalog, call: Call) -> None:
        """Do it, and judge what came of it; it is over when it returns, also where that is a failure."""
        call.began = len(self.judge.moments) - 1
        space = Namespace(catalog, call.path)
        told = CALL.set(call)
        try:
            await self._do(space, call)
        except (PolicyInvalid, MetadataUnavailable):
            pass
        except Error as error:
            self.judge.returned(call, error)
        else:
            self.judge.returned(call, None)
        finally:
            CALL.reset(told)

    async def _do(self, space: Namespace, call: Call) -> None:
        names, is_tolerant, patch = call.names, call.is_tolerant, call.patch
        match call.verb:
            case "create":
                await space.create(patch, exist_ok=is_tolerant)
            case "streams":
                await space.create_streams(names, patch, exist_ok=is_tolerant)
            case "drop":
                await space.delete_streams(names, missing_ok=is_tolerant)
            case "unmake":
                await space.delete(recursive=is_tolerant)
            case "rename":
                await space.rename(names[0])
            case "rename stream":
                await space.rename_stream(*names)
            case "set":
                await space.set_policy(patch)
            case _:
                await space.stream(names[0]).set_policy(patch)

    async def _write(self, client: FakeClient) -> None:
        """Append to some stream as long as it is there, whatever it is called meanwhile."""
        rng = self.rng
        streams = [one for one in self.judge.now.by_id.values() if one.kind == "stream"]
        if not streams:
            return
        one = rng.choice(sorted(streams, key=lambda stream: stream.id))
        path = self.judge.now.path_of(one.above)
        stream = Namespace(Catalog(as_client(client)), path).stream(one.name)
        with suppress(Error):
            stream_id = (await stream.context()).store.stream_id
            async with stream.writer() as writer:
                for _ in range(rng.randint(1, 10)):
                    payload = b"%s %d" % (stream_id.encode(), rng.getrandbits(60))
                    await writer.append(payload)
                    self.kept.setdefault(stream_id, set()).add(payload)
                    await asyncio.sleep(rng.choice([0, 1, 20]))

    async def _clean(self, client: FakeClient) -> None:
        janitor = Janitor(as_client(client), JanitorOptions(thorough_every=1))
        with suppress(MetadataUnavailable):
            await janitor.pass_once()

    # --- the end ------------------------------------------------------------------------------------------------

    async def _settle(self) -> None:
        client = self._processes.client()
        root = Namespace(Catalog(as_client(client)))
        tree = self.judge.now
        listed = {info.path: info.id async for info in root.streams(recursive=True)}
        there = {path: one.id for path, one in tree.by_path.items() if one.kind == "stream"}
        demand(listed == there, f"S12: {listed} are listed, there are {there}")
        counts = await Janitor(as_client(client), JanitorOptions(thorough_every=1)).pass_once()
        self._processes.check()
        demand(counts.errors == 0, "S18: the janitor could not work on a stream")
        values = self.cluster.records.values
        left = {path.split("/")[2] for path in values if path.startswith(f"{STREAMS}/")}
        demand(left == set(there.values()), f"S18: records of streams {left} are there")
        named: set[int] = set()
        for stream_id in left:
            chain = get_chain(values[chain_path(stream_id)].value)
            named |= {row.ledger_id for row in chain.rows} | {*chain.doomed, chain.reserved}
        strays = set(self.cluster.ledgers) - (named - {NONE})
        demand(not strays, f"S18: ledgers {strays} are left")
        for path, stream_id in there.items():
            await self._read(root, path, stream_id)

    async def _read(self, root: Namespace, path: str, stream_id: str) -> None:
        above, _, name = path.rpartition("/")
        stream = (root.namespace(above) if above else root).stream(name)
        payloads: set[bytes] = set()
        async with stream.reader(tail=False) as reader:
            async for record in reader:
                assert isinstance(record, Record)
                payloads.add(bytes(record.payload))
        missing = self.kept.get(stream_id, set()) - payloads
        demand(not missing, f"S1: {path} has lost {sorted(missing)[:3]}")
        foreign = [one for one in payloads if not one.startswith(stream_id.encode())]
        demand(not foreign, f"S12: {path} has what was appended to another stream: {foreign[:3]}")


def run_names(seed: int) -> None:
    """Live the world of names of a seed. Raises Broken, Stuck, or whatever else should not be."""
    try:
        live(NamesWorld, seed, seed)
    except Error as error:
        raise Broken(f"{type(error).__name__}: {error}") from error
