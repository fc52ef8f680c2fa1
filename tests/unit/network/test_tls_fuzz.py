"""Handshakes that are changed, cut, mixed and sent too early: none of them is served, and the worker goes on.

HANDSHAKES=100000 makes it a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
import ssl
from pathlib import Path

import pytest

from fastbk.security.authority import Authority
from fastbk.security.tls import TlsFiles, client_context
from tests.fixtures import apache_wire as apache
from tests.fixtures import frames
from tests.fixtures.counters import counted
from tests.fixtures.worker_harness import Served, WorkerHarness, served, until
from tests.fixtures.worker_tls import greet, secure, tls_settings, trusting

HANDSHAKES = int(os.environ.get("HANDSHAKES", "300"))
AT_ONCE = 8
STEPS_MAX = 6
ANSWER_S = 0.02
"""A changed handshake is mostly answered by nothing until the deadline."""


def changed(data: bytes, dice: random.Random) -> bytes:
    """Change a few bytes, cut, repeat, or leave as it is."""
    out = bytearray(data)
    for _ in range(dice.choice((0, 0, 1, 1, 3))):
        if out:
            out[dice.randrange(len(out))] = dice.randrange(256)
    cut = dice.random()
    if cut < 0.2:
        out = out[: dice.randrange(len(out) + 1)]
    elif cut < 0.3:
        at = dice.randrange(len(out) + 1)
        out[at:at] = dice.randbytes(dice.choice((1, 5, 300)))
    return bytes(out)


async def attempt(bookie: Served, context: ssl.SSLContext, dice: random.Random) -> None:
    """One connection: a handshake with faults, in the clear or upgraded, and requests where none belong."""
    reader, writer = await asyncio.open_connection("127.0.0.1", bookie.port)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    try:
        if dice.random() < 0.4:
            writer.write(changed(apache.v3_start_tls(1), dice))
            if dice.random() < 0.8:
                await asyncio.wait_for(reader.read(4096), ANSWER_S)
        for _ in range(dice.randrange(1, STEPS_MAX)):
            try:
                client.do_handshake()
            except ssl.SSLWantReadError:
                pass
            sent = changed(outgoing.read(), dice)
            if dice.random() < 0.1:
                sent += dice.choice((apache.v2_add(7), frames.hello(), b"\x16", b"\x00"))
            for at in range(0, len(sent), step := dice.choice((1 << 20, 700, 100))):
                writer.write(sent[at : at + step])
                await asyncio.sleep(0)
            incoming.write(await asyncio.wait_for(reader.read(1 << 16), ANSWER_S))
    except (OSError, TimeoutError, ssl.SSLError):
        pass
    finally:
        writer.transport.abort()


@pytest.mark.timeout(600 + HANDSHAKES // 50)
@pytest.mark.uvloop_too
async def test_broken_handshakes_are_never_served(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    authority = Authority.make(tmp_path / "ca")
    issued = authority.issue(tmp_path / "own", ["127.0.0.1"])
    context = client_context(TlsFiles(ca_file=str(authority.ca_file)), verify_name=True)
    rules = tls_settings(issued, "require", authority, handshakes_rate=100_000)
    own = trusting(authority, authority.issue(tmp_path / "client"))
    with WorkerHarness() as harness:
        async with served(harness, rules, hello_timeout_ms=500) as bookie:
            for at in range(0, HANDSHAKES, AT_ONCE):
                seeds = [dice.randbytes(8) for _ in range(min(AT_ONCE, HANDSHAKES - at))]
                await asyncio.gather(
                    *(attempt(bookie, context, random.Random(seed)) for seed in seeds)
                )
                assert harness.take_all() == [], at
            client = await secure(bookie, own)
            await greet(client)
            await client.close()
            await until(lambda: not bookie.network.connections)
            assert counted(harness, "TLS_HANDSHAKES") >= 1
