"""`./dev sim STREAMS=n`: n worlds of streams of each kind, from SEED on; WORLDS names one kind.

With REPLAY=seed the calls of one world, in simulated time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar
from unittest.mock import patch

from tests.fixtures.fake_ledgers import FakeClient
from tests.simulation.planting import Mutation, planted
from tests.simulation.streams import (
    mutations,
    mutations_names,
    mutations_patterns,
    mutations_producers,
    mutations_whole,
    producers,
)
from tests.simulation.streams.naming import run_names
from tests.simulation.streams.patterns import run_patterns
from tests.simulation.streams.whole import run_whole
from tests.simulation.streams.world import run_seed

T = TypeVar("T")
REPORTS_MAX = 10
KINDS: dict[str, Callable[[int], None]] = {
    "writers": run_seed,
    "whole": run_whole,
    "names": run_names,
    "patterns": run_patterns,
    "producers": producers.run_producers,
}
"""Worlds of writers alone, of all that uses a stream, of names that come, go and change, of a pattern's cursor, and of
many producers."""
MUTATIONS_OF: dict[str, tuple[Mutation, ...]] = {
    "writers": mutations.MUTATIONS,
    "whole": mutations_whole.MUTATIONS,
    "names": mutations_names.MUTATIONS,
    "patterns": mutations_patterns.MUTATIONS,
    "producers": mutations_producers.MUTATIONS,
}
"""The planted faults of each kind, each with the seed of a world that finds it."""


def run_streams(first: int, seeds: int, only: str = "") -> int:
    """Live worlds one behind the other, and print what broke; return the exit code."""
    kinds = kinds_of(only)
    if not kinds:
        return 2
    print(f"sim: streams, seeds {first} to {first + seeds - 1}, {', '.join(kinds)}", flush=True)
    began_s, broken = time.monotonic(), 0
    for seed in range(first, first + seeds):
        for kind in kinds:
            try:
                KINDS[kind](seed)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                broken += 1
                print(
                    f"seed {seed}: {type(error).__name__}: {error}"
                    f"  (./dev sim STREAMS=1 REPLAY={seed} WORLDS={kind})"
                )
        if broken >= REPORTS_MAX:
            break
    print(f"streams: {seeds} seeds, {broken} violations, {time.monotonic() - began_s:.1f} seconds")
    return 1 if broken else 0


def kinds_of(only: str) -> list[str]:
    """Return the kinds that WORLDS wants; none, and a line about it, where there is no such kind."""
    if only and only not in KINDS:
        print(f"no such worlds: {only}; there are {', '.join(KINDS)}")
        return []
    return [only] if only else list(KINDS)


def replay_streams(seed: int, only: str = "", mutation: str | None = None) -> int:
    """Print the calls of a seed's world of each kind; return the exit code. `mutation`: a planted fault."""
    kinds = kinds_of(only)
    faults = {(kind, one.name): one for kind in kinds for one in MUTATIONS_OF[kind]}
    if mutation:
        kinds = [kind for kind in kinds if (kind, mutation) in faults]
        if not kinds:
            print(
                f"no such mutation: {mutation}; there are {', '.join(name for _, name in faults)}"
            )
    if not kinds:
        return 2
    broken = 0
    for kind in kinds:
        print(f"{kind}, seed {seed}\n{'seconds':>10} {'took':>8}  client      call")
        with planted(faults[kind, mutation]) if mutation else nullcontext(), traced():
            try:
                KINDS[kind](seed)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                broken += 1
                print(f"{type(error).__name__}: {error}")
            else:
                print("no violation")
    return 1 if broken else 0


@contextmanager
def traced() -> Iterator[None]:
    """Print each call of a stream's client when it has ended, in simulated time, meanwhile."""
    untraced = FakeClient.call

    async def call(client: FakeClient, what: str, effect: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        began_s, outcome = loop.time(), ""
        try:
            return await untraced(client, what, effect)
        except BaseException as error:
            outcome = f"{type(error).__name__} {error}".strip()
            raise
        finally:
            took_s = loop.time() - began_s
            print(
                f"{loop.time():10.3f} {took_s:8.3f}  {client.name:10}  {what:20}{outcome}".rstrip()
            )

    def note(seconds: float, who: str, what: str) -> None:
        print(f"{seconds:10.3f} {'':8}  {who:10}  {what}")

    with patch.object(FakeClient, "call", call), patch.object(producers, "note", note):
        yield
