"""What readers see of programs that end without closing, by an error, or that keep their event loop for themselves."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import time

import pytest

import fastbk
from fastbk.errors import NoSuchLedger, StreamNotFound
from fastbk.stream.sync import SyncNamespace
from fastbk.testing import LocalCluster
from tests.fixtures.wait import wait_until

IN_TIME_S = 1.0
"""In which readers see what was acknowledged to a process that lives, and writers are told of a deletion."""


def _begin(
    program: str, cluster: LocalCluster, space: SyncNamespace, **options: object
) -> subprocess.Popen[str]:
    """Begin a program that has `uri` and `path`, of a stream that is there."""
    space.create_stream("s")
    beginning = "import asyncio, os, sys, time, fastbk, fastbk.sync\n"
    beginning += f"uri, path = {cluster.metadata_uri!r}, {space.path!r}\n"
    command = [
        sys.executable,
        "-W",
        "error::ResourceWarning",
        "-c",
        beginning + textwrap.dedent(program),
    ]
    process: subprocess.Popen[str] = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    return process


def _payloads(space: SyncNamespace, count: int) -> list[bytes]:
    """Return so many records, as soon as readers see them; nobody opens the stream for append."""
    found: list[bytes] = []
    with space.stream("s").reader() as reader:
        while len(found) < count and (chunk := reader.read(timeout=IN_TIME_S)) is not None:
            found += [bytes(record.payload) for record in chunk]
    return found


ENDS = {
    "it falls off its end": "",
    "an error": "raise ValueError('of the application')",
    "sys.exit": "sys.exit(3)",
    "in a function": "",
}


@pytest.mark.parametrize("end", ENDS)
def test_a_script_without_close_stores_what_it_took(
    end: str, cluster: LocalCluster, space: SyncNamespace
) -> None:
    program = f"""
    client = fastbk.sync.connect(uri)
    writer = client.namespace(path).stream("s").writer()
    writer.open()
    for at in range(1000):
        writer.append_nowait(b"%d" % at)
    {ENDS[end]}
    """
    if end == "in a function":
        lines = textwrap.indent(textwrap.dedent(program), "    ")
        program = f"def main():\n{lines}\nmain()\n"
    process = _begin(program, cluster, space)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == {"an error": 1, "sys.exit": 3}.get(end, 0)
    assert "Task" not in errors and "shutdown" not in errors
    assert _payloads(space, 1000) == [b"%d" % at for at in range(1000)]


def test_a_script_without_close_stores_what_a_ledger_took(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    process = _begin(
        """
        client = fastbk.sync.connect(uri)
        writer = client.create_ledger()
        for at in range(1000):
            writer.append_nowait(b"%d" % at)
        print(writer.ledger_id)
        """,
        cluster,
        space,
    )
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        reader = client.open_ledger(int(output), recovery=False)
        assert reader.last_add_confirmed() == 999


def test_a_script_says_what_it_could_not_store(space: SyncNamespace) -> None:
    with LocalCluster(3) as own, fastbk.sync.connect(own.metadata_uri) as client:
        namespace = client.namespace("own")
        namespace.create()
        process = _begin(
            """
            client = fastbk.sync.connect(uri, append_timeout=2.0, close_timeout=4.0)
            writer = client.namespace(path).stream("s").writer()
            writer.open()
            writer.append(b"first")
            print("ready", flush=True)
            sys.stdin.readline()
            writer.append_nowait(b"lost")
            """,
            own,
            namespace,
            stdin=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for bookie in range(3):
            own.kill(bookie)
        _, errors = process.communicate("go\n", timeout=60)
        assert "fastbk: appends to stream own/s may be lost" in errors


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(60)",
        "sum(range(10**10))",
        "raise ValueError",
        "os._exit(0)",
        "await asyncio.sleep(60)",
    ],
)
def test_readers_see_at_once_what_was_acknowledged(
    then: str, cluster: LocalCluster, space: SyncNamespace
) -> None:
    """INV-S17: whatever the application does when it has been told."""
    process = _begin(
        f"""
        async def main():
            async with fastbk.connect(uri) as client:
                async with client.namespace(path).stream("s").writer() as writer:
                    for at in range(3):
                        await writer.append(b"%d" % at)
                    print(time.monotonic_ns(), flush=True)
                    {then}
        try:
            asyncio.run(main())
        except ValueError:
            time.sleep(60)
        """,
        cluster,
        space,
    )
    try:
        with space.stream("s").reader() as reader:
            seen = 0
            while seen < 3:
                chunk = reader.read(timeout=30)
                assert chunk is not None
                seen += len(chunk)
            seen_ns = time.monotonic_ns()
        assert process.stdout is not None
        assert seen_ns - int(process.stdout.readline()) < IN_TIME_S * 1e9
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("publish", "then"),
    [
        ('publish="immediate"', "time.sleep(60)"),
        ('publish="immediate"', "sum(range(10**10))"),
        ('publish="immediate"', "os._exit(0)"),
        ("", "time.sleep(60)"),
        ("", "while True: pass"),
        ("", "raise ValueError"),
    ],
)
def test_readers_of_a_ledger_see_within_a_second_what_was_acknowledged(
    publish: str, then: str, cluster: LocalCluster, space: SyncNamespace
) -> None:
    """INV-C5 and, with nothing but the defaults, INV-C7: whatever the application does when it has been told."""
    process = _begin(
        f"""
        async def main():
            client = fastbk.connect(uri)
            writer = await client.create_ledger({publish})
            for _ in range(3):
                await writer.append(b"x")
            print(writer.ledger_id, time.monotonic_ns(), flush=True)
            {then}
        try:
            asyncio.run(main())
        except ValueError:
            time.sleep(60)
        """,
        cluster,
        space,
    )
    try:
        assert process.stdout is not None
        ledger_id, acknowledged_ns = map(int, process.stdout.readline().split())
        with fastbk.sync.connect(cluster.metadata_uri) as client:
            reader = client.open_ledger(ledger_id, recovery=False)
            wait_until(lambda: reader.last_add_confirmed() == 2, "readers see all")
            assert time.monotonic_ns() - acknowledged_ns < IN_TIME_S * 1e9
            assert [bytes(one.data) for one in reader.read(0, 2)] == [b"x"] * 3
    finally:
        process.kill()
        process.communicate()


async def test_a_deleted_stream_ends_its_writer_and_its_readers(
    cluster: LocalCluster, own_name: str
) -> None:
    """INV-S19"""
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        stream = client.namespace(own_name).stream("s")
        await client.namespace(own_name).create()
        writer = stream.writer(create=True)
        await writer.open()
        await writer.append(b"x")
        async with stream.reader() as reader, stream.cursor("c") as cursor:
            assert bytes((await anext(reader)).payload) == b"x"
            waiting = [
                asyncio.ensure_future(anext(reader)),
                asyncio.ensure_future(_drained(cursor)),
            ]
            await other.namespace(own_name).delete_stream("s")
            begun_s = time.monotonic()
            with pytest.raises(StreamNotFound, match="was deleted"):
                await writer.append(b"y")
            assert time.monotonic() - begun_s < IN_TIME_S
            for one in waiting:
                with pytest.raises(StreamNotFound, match="was deleted"):
                    await asyncio.wait_for(one, 10)
            await cursor.abort()
        with pytest.raises(StreamNotFound):
            await writer.close()


async def _drained(cursor: fastbk.Cursor[fastbk.Record]) -> None:
    async for _ in cursor:
        pass


async def test_a_deleted_ledger_ends_its_writer(cluster: LocalCluster) -> None:
    """INV-S19"""
    async with (
        fastbk.connect(cluster.metadata_uri) as client,
        fastbk.connect(cluster.metadata_uri) as other,
    ):
        writer = await client.create_ledger()
        await writer.append(b"x")
        await other.delete_ledger(writer.ledger_id)
        begun_s = time.monotonic()
        with pytest.raises(NoSuchLedger, match="was deleted"):
            await writer.append(b"y")
        assert time.monotonic() - begun_s < IN_TIME_S


def test_a_janitor_shows_what_a_dead_writer_left(
    cluster: LocalCluster, space: SyncNamespace
) -> None:
    """INV-S18: the process dies as it is about to send its LAC."""
    process = _begin(
        """
        from fastbk.client.explicit_lac_sender import ExplicitLacSender
        ExplicitLacSender._send_new = lambda self: None

        async def main():
            async with fastbk.connect(uri) as client:
                async with client.namespace(path).stream("s").writer() as writer:
                    await writer.append(b"x")
                    os._exit(0)
        asyncio.run(main())
        """,
        cluster,
        space,
    )
    process.communicate(timeout=60)
    assert _payloads(space, 1) == []

    async def look() -> int:
        from fastbk.stream.janitor import Janitor, JanitorOptions

        async with fastbk.connect(cluster.metadata_uri) as client:
            janitor = Janitor(client, JanitorOptions(left_after_s=0), lambda _: None)
            await janitor.close_left_segments()
            return await janitor.close_left_segments()

    assert asyncio.run(look()) >= 1
    wait_until(lambda: _payloads(space, 1) == [b"x"], "readers see it")
