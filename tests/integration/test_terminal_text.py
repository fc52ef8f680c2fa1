"""A terminal receives no control sequence of others: of names, holders, reasons and records."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

import fastbk
from fastbk.stream.policy import PolicyPatch
from fastbk.testing import LocalCluster

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\x9b1m\u202egnp\u2066\x7f\r"
COLOURS = re.compile(r"\x1b\[(?:0|31|32|33)m")


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster whose stream has a hostile cursor holder, chain owner, record and ledger."""
    with LocalCluster(1) as made, pytest.MonkeyPatch.context() as patch:
        # What a client calls itself is its own affair: chains and cursors keep it.
        patch.setattr(socket, "gethostname", lambda: HOSTILE)
        asyncio.run(fill(made.metadata_uri))
        yield made


async def fill(uri: str) -> None:
    one = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    async with fastbk.connect(uri) as client:
        namespace = client.namespace("shop")
        await namespace.create(PolicyPatch(**one))
        stream = await namespace.create_stream("orders")
        async with stream.writer() as writer:
            await writer.append(HOSTILE.encode())
        async with stream.cursor("billing"):
            pass
        async with await client.create_ledger(**one, metadata={"name": HOSTILE.encode()}) as ledger:
            await ledger.append(HOSTILE.encode())


def on_terminal(cluster: LocalCluster, *words: str) -> str:
    """Run a command on a terminal of its own; return what the terminal received."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "FASTBK_METADATA": cluster.metadata_uri, "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-m", "fastbk.cli", *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    received = b""
    while True:
        try:
            part = os.read(ours, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        received += part
    os.close(ours)
    assert process.wait(30) == 0, received
    return received.decode()


def assert_harmless(text: str) -> None:
    """All but line ends, tabs and our colours is printable."""
    left = COLOURS.sub("", text).replace("\r\n", "").replace("\t", "")
    assert left.isprintable(), ascii(text)


@pytest.mark.parametrize(
    "words",
    [
        ("ledger", "show", "{ledger}"),
        ("ledger", "read", "{ledger}"),
        ("ledger", "read", "{ledger}", "--raw"),
        ("ledger", "read", "{ledger}", "--json"),
        ("ledger", "show", "{ledger}", "--json"),
        ("stream", "info", "shop/orders"),
        ("stream", "cursors", "shop/orders"),
        ("stream", "read", "shop/orders", "--from", "seq:0"),
        ("stream", "read", "shop/orders", "--from", "seq:0", "--json"),
    ],
    ids=" ".join,
)
def test_what_others_wrote_is_escaped(words: tuple[str, ...], cluster: LocalCluster) -> None:
    ledgers = on_terminal(cluster, "ledger", "list").split()
    found = [on_terminal(cluster, *(one.format(ledger=ledger) for one in words)) for ledger in ledgers]
    text = "".join(found)
    for one in found:
        assert_harmless(one)
    assert "owned" in text
    if "--json" in words:
        for line in text.splitlines():
            json.loads(line)


def test_a_pipe_gets_the_bytes(cluster: LocalCluster) -> None:
    """Payload only: `--raw` and `--payload` are for programs."""
    command = [sys.executable, "-m", "fastbk.cli", "stream", "read", "shop/orders", "--from", "seq:0", "--payload"]
    environment = {**os.environ, "FASTBK_METADATA": cluster.metadata_uri}
    found = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert found.stdout == HOSTILE.encode() + b"\n"
