"""Rig `takeovers`: writers of one stream are killed by SIGKILL at random moments, and the next takes over and goes on.

Each life is a process of its own: it opens the stream, goes on behind `last_txid`, and notes every acknowledgement in a
file as it comes. Some are killed while they open, some while the next one has the stream already. At the end the
stream must hold every acknowledged record once, in order, without a hole in its numbers. INV-S1, INV-S3, INV-S5,
INV-S6, INV-S8.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from pathlib import Path

import fastbk
from fastbk.errors import Error
from fastbk.native.process import die_with_parent
from fastbk.stream.client import Client
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.records import chunk_of
from fastbk.testing import LocalCluster
from tests.rigs.report import Plan, Report

NAMESPACE, NAME = "takeovers", "one"
ROLL_BYTES = 200_000
IN_FLIGHT_MAX = 500
PATIENCE_S = 60.0
OPENED, CONNECTED = -1, -2
"""Noted in place of a transaction id; a life that has noted no more than CONNECTED is opening the stream."""


def payload_of(txid: int) -> bytes:
    """Return the bytes of a record: a function of its transaction id, of many sizes."""
    return b"%d:" % txid + bytes([txid % 251]) * (txid * 7919 % 700)


async def write_until_killed(metadata_uri: str, notes: int) -> None:
    """One life: go on behind what is there, and note what is acknowledged, in order."""

    def note(txid: int) -> None:
        os.write(notes, b"%d\n" % txid)

    async with fastbk.connect(metadata_uri) as client:
        note(CONNECTED)
        writer = client.namespace(NAMESPACE).stream(NAME).writer()
        await writer.open()
        note(OPENED)
        pending: deque[tuple[int, asyncio.Future[object]]] = deque()
        while True:
            txid = writer.last_txid + 1
            pending.append((txid, writer.append_nowait(payload_of(txid), txid=txid)))  # type: ignore[arg-type]
            while pending and (pending[0][1].done() or len(pending) >= IN_FLIGHT_MAX):
                done, future = pending.popleft()
                await future
                note(done)
            if txid % 16 == 0:
                await asyncio.sleep(0)


class Life:
    """A writer's process, and what it noted."""

    def __init__(self, metadata_uri: str, notes: Path) -> None:
        self._notes = notes
        with notes.open("wb") as out, notes.with_suffix(".err").open("wb") as err:
            command = [sys.executable, "-m", "tests.rigs.takeovers", metadata_uri]
            self.process = subprocess.Popen(command, stdout=out, stderr=err)

    def noted(self) -> list[int]:
        """Return what was noted so far, whole lines only."""
        return [int(line) for line in self._notes.read_bytes().split(b"\n")[:-1]]

    async def until_noted(self, count: int) -> bool:
        """Return whether so many lines were noted before it ended; RuntimeError if neither happens."""
        end_s = time.monotonic() + PATIENCE_S
        while self._notes.read_bytes().count(b"\n") < count:
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end_s:
                raise RuntimeError(f"a writer did nothing for {PATIENCE_S:g} s: {self._notes}")
            await asyncio.sleep(0.01)
        return True

    def kill(self) -> None:
        """End it, as SIGKILL does."""
        self.process.kill()
        self.process.wait()


async def lives(plan: Plan, report: Report, metadata_uri: str, folder: Path) -> list[list[int]]:
    """Begin and kill writers; return what each noted."""
    rng = random.Random(plan.seed)
    notes: list[list[int]] = []
    overtaken: Life | None = None
    while plan.begins(report.cases):
        life = Life(metadata_uri, folder / f"{report.cases}.notes")
        try:
            manner = rng.random()
            # Every fifth while it opens the stream.
            if await life.until_noted(1 if manner < 0.2 else 2 + rng.randrange(1500)):
                await asyncio.sleep(rng.uniform(0, 0.05))
        finally:
            if overtaken is not None:
                overtaken.kill()
                notes.append(overtaken.noted())
                overtaken = None
            if manner > 0.7 and life.process.poll() is None:
                overtaken = life  # the next one takes the stream from one that lives
                report.counts["overtaken_alive"] += 1
            else:
                life.kill()
                notes.append(life.noted())
        report.cases += 1
    if overtaken is not None:
        overtaken.kill()
        notes.append(overtaken.noted())
    return notes


async def all_records(client: Client) -> tuple[list[tuple[int, int, bytes]], set[int]]:
    """Take the stream over; return (number, transaction id, payload) of each record, and the ids of its ledgers."""
    stream = client.namespace(NAMESPACE).stream(NAME)
    async with stream.writer():
        pass
    store = (await stream.context()).store
    chain = (await store.read()).chain
    found: list[tuple[int, int, bytes]] = []
    ledgers = {chain.reserved, *chain.doomed}
    async for row in store.rows_from(chain, 1):
        ledgers.add(row.ledger_id)
        async with await client.open_ledger(row.ledger_id) as reader:
            async for batch in reader.read_batches(0, row.last_entry_id):
                chunk = chunk_of(
                    row.number, batch.first_entry_id, batch.datas, row.base_seq, row.base_txid
                )
                found += [(one.seq, one.txid, bytes(one.payload)) for one in chunk]
    return found, ledgers


def judge(found: list[tuple[int, int, bytes]], notes: list[list[int]]) -> list[str]:
    """Return what was lost, repeated, reordered or made up."""
    wrong = []
    for at, (seq, txid, payload) in enumerate(found):
        if (seq, txid, payload) != (at, at, payload_of(at)):
            wrong.append(f"record {at}: number {seq}, transaction id {txid}, {len(payload)} bytes")
    acknowledged: set[int] = set()
    for noted in notes:
        txids = [txid for txid in noted if txid >= 0]
        if txids != list(range(txids[0], txids[-1] + 1) if txids else []):
            wrong.append(f"acknowledgements out of order: {txids[:5]} ...")
        if acknowledged & set(txids):
            wrong.append("a transaction id was acknowledged to two writers")
        acknowledged |= set(txids)
    lost = [txid for txid in acknowledged if txid >= len(found)]
    wrong += [f"{txid} was acknowledged and is not there" for txid in sorted(lost)[:10]]
    return wrong


async def _run(plan: Plan, report: Report, folder: Path, uri: str) -> None:
    async with fastbk.connect(uri) as client:
        others = {info.ledger_id async for info in client.list_ledgers()}
        namespace = client.namespace(NAMESPACE)
        await namespace.create(PolicyPatch(roll_bytes=ROLL_BYTES))
        await namespace.create_stream(NAME)
        notes = await lives(plan, report, uri, folder)
        found, named = await all_records(client)
        report.lose(judge(found, notes), f"seed {plan.seed}, kept in {folder}")
        ledgers = {info.ledger_id async for info in client.list_ledgers()} - others
        if ledgers - named:
            report.lose([f"INV-S8: nobody names ledgers {sorted(ledgers - named)}"], str(folder))
        report.counts["acknowledged"] = sum(txid >= 0 for noted in notes for txid in noted)
        report.counts["killed_opening"] = sum(noted == [CONNECTED] for noted in notes)
        report.counts["opened"] = sum(OPENED in noted for noted in notes)
        report.counts["records"] = len(found)
        report.counts["segments"] = len(named) - 1


def run(plan: Plan, uri: str = "") -> Report:
    """Kill `plan.cases` writers; the folder is kept when something is lost.

    `uri`: of a cluster's metadata that nobody else uses now; empty: of three bookies that this starts.
    """
    report = Report("takeovers")
    with report.folder(plan) as folder, ExitStack() as stack:
        if not uri:
            uri = stack.enter_context(LocalCluster(3, data=folder / "cluster")).metadata_uri
        asyncio.run(_run(plan, report, folder, uri))
    return report


if __name__ == "__main__":
    die_with_parent()
    try:
        asyncio.run(write_until_killed(sys.argv[1], sys.stdout.fileno()))
    except Error as error:
        print(error, file=sys.stderr)
