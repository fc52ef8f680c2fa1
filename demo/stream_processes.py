"""The processes of the streams' demo that are killed: a writer of checksums, and the holder of a durable cursor.

`python -m demo.stream_processes writer|cursor URI NAMESPACE STREAM [SECONDS]`. What they print is for the parent:
a line of JSON each time something is safe.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial

import fastbk
from demo.packages import ChainedDigest, checksums
from fastbk.stream.positions import DLSN
from fastbk.stream.stream import Stream

CURSOR = "audit"
TOLD_EVERY = 500


def tell(**facts: object) -> None:
    """Print a line for the parent."""
    print(json.dumps(facts), flush=True)


def acknowledged(txid: int, done: asyncio.Future[DLSN]) -> None:
    """Tell of a record that is kept."""
    if done.exception() is None:
        tell(acknowledged=txid)


async def write(stream: Stream, seconds: float) -> None:
    """Append what is missing, evenly over `seconds`, and seal the stream. The transaction id is the number of the line.

    Whoever comes after a writer that was killed looks at `last_txid` and goes on behind it: that is all it takes.
    """
    items = list(checksums())
    async with stream.writer() as writer:
        begin = writer.last_txid + 1
        tell(opened=1, epoch=writer.epoch, last_txid=writer.last_txid)
        began_s = time.monotonic()
        for number in range(begin, len(items)):
            item = items[number]
            future = writer.append_nowait(item.payload, txid=number, key=item.key)
            if number % TOLD_EVERY == 0 or number == begin:
                # Told only when it is acknowledged: what the parent has read of can't be lost any more.
                future.add_done_callback(partial(acknowledged, number))
                await writer.ready()
                ahead_s = seconds * (number - begin) / len(items) - (time.monotonic() - began_s)
                await asyncio.sleep(max(ahead_s, 0.0))
        last = await writer.flush()
        await writer.seal()
    tell(sealed=1, last=str(last))


async def audit(stream: Stream) -> None:
    """Fold all records into a digest that is kept together with the cursor's mark, until the stream is sealed.

    A record is delivered again when its acknowledgement was not kept; the digest that was kept belongs to the mark
    that was kept, so that each record counts once, wherever this is killed.
    """
    async with stream.cursor(CURSOR, flush_interval=0.05, flush_acks=1000) as cursor:
        digest = ChainedDigest(str(cursor.data.get("digest", "")))
        digest.records = int(cursor.data.get("records", 0))
        tell(opened=1, epoch=cursor.epoch, records=digest.records)
        delivered = 0
        async for chunk in cursor.chunks():
            for record in chunk:
                digest.add(record.key, record.payload)
            delivered += len(chunk)
            cursor.ack(chunk, data={"digest": str(digest), "records": digest.records})
            tell(delivered=delivered, records=digest.records)
        await cursor.flush()
    tell(done=1, digest=str(digest), records=digest.records, delivered=delivered)


async def _main(what: str, uri: str, namespace: str, name: str, seconds: str = "0") -> None:
    async with fastbk.connect(uri) as client:
        stream = client.namespace(namespace).stream(name)
        await (write(stream, float(seconds)) if what == "writer" else audit(stream))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
