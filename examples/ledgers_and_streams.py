"""One application on ledgers and streams: accounts whose changes are a stream, and whose snapshots are ledgers.

Each change is a record. Now and then all balances are written to a ledger of their own, which is closed and never
changes, and a record in the stream names it. Whoever starts reads the newest snapshot and the changes behind it, not
all changes there ever were; and old changes can be truncated.

    python examples/ledgers_and_streams.py URI       (or FASTBK_METADATA; `fastbk dev` starts a cluster)
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass, field

import fastbk
from fastbk import AtSeq, Client, Record, Stream

SNAPSHOT = b"snapshot"
CHANGES_A_SNAPSHOT = 100


@dataclass
class Accounts:
    """The state: a balance for each account."""

    balances: dict[str, int] = field(default_factory=dict)
    replayed: int = 0
    """Changes that the last start had to read."""

    def apply(self, change: dict[str, object]) -> None:
        """Take a change over."""
        name = str(change["account"])
        self.balances[name] = self.balances.get(name, 0) + int(str(change["amount"]))


async def write_snapshot(client: Client, accounts: Accounts) -> int:
    """Write all balances to a new ledger, an account an entry; return its id. Closed, it is there for good."""
    ledger = await client.create_ledger(metadata={"kind": b"snapshot"})
    async with ledger:
        entries = [json.dumps(item).encode() for item in sorted(accounts.balances.items())]
        if entries:
            await ledger.append_many(entries)
    return ledger.ledger_id


async def read_snapshot(client: Client, ledger_id: int) -> Accounts:
    """Return the balances of a snapshot."""
    accounts = Accounts()
    reader = await client.open_ledger(ledger_id)
    async with reader:
        last = await reader.last_add_confirmed()
        if last >= 0:
            async for entry in reader.read(0, last):
                name, balance = json.loads(entry.value)
                accounts.balances[name] = balance
    return accounts


async def start(client: Client, stream: Stream) -> Accounts:
    """Return the state as of the last record: the newest snapshot that a record names, and the changes behind it."""
    begin = await stream.first()
    last = await stream.last_position()
    if begin is None or last is None:
        return Accounts()
    accounts, behind = Accounts(), begin.seq
    # Snapshots are frequent: the newest one is among the last records.
    at = max(begin.seq, last.seq - 2 * CHANGES_A_SNAPSHOT)
    async with stream.reader(AtSeq(at), tail=False) as reader:
        async for record in reader:
            if isinstance(record, Record) and record.key == SNAPSHOT:
                accounts = await read_snapshot(client, int(record.value))
                behind = record.seq + 1
    async with stream.reader(AtSeq(behind), tail=False) as reader:
        async for record in reader:
            if isinstance(record, Record) and record.key != SNAPSHOT:
                accounts.apply(json.loads(record.value))
                accounts.replayed += 1
    return accounts


async def work(client: Client, stream: Stream, changes: list[dict[str, object]]) -> Accounts:
    """Take the stream over, catch up, and make these changes; a change counts when its append is acknowledged."""
    async with stream.writer() as writer:  # from here on nobody else changes anything
        accounts = await start(client, stream)
        for number, change in enumerate(changes, 1):
            await writer.append(json.dumps(change).encode())
            accounts.apply(change)
            if number % CHANGES_A_SNAPSHOT == 0:
                ledger_id = await write_snapshot(client, accounts)
                await writer.append(b"%d" % ledger_id, key=SNAPSHOT)
    return accounts


async def main(uri: str | None) -> None:
    """Run it twice: the second start reads a snapshot and a few changes."""
    async with fastbk.connect(uri) as client:
        namespace = client.namespace("examples/bank")
        await namespace.create(exist_ok=True)
        stream = await namespace.create_stream("changes", exist_ok=True)
        changes: list[dict[str, object]] = [
            {"account": f"account-{number % 7}", "amount": number % 11 - 3} for number in range(450)
        ]
        before = await work(client, stream, changes)
        print(f"{len(changes)} changes, balances {before.balances}")
        after = await start(client, stream)
        print(
            f"a new start read a snapshot and {after.replayed} changes, balances {after.balances}"
        )
        assert after.balances == before.balances


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
