"""TLS from end to end: every kind of client against bookies that refuse strangers, and the reasons of refusals.

INV-N2, its client's half: with TLS configured nothing is sent in the clear instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import os
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import pytest

import fastbk
import fastbk.sync
from fastbk.client.connecting import START_TLS_DONE
from fastbk.config import from_document
from fastbk.devcluster.processes import free_port
from fastbk.security.authority import Authority
from fastbk.security.tls import TlsOptions
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check
from fastbk.testing import LocalCluster
from tests.fixtures.certificates import shown
from tests.fixtures.cli import Cli
from tests.fixtures.end_to_end import (
    BOOKIE,
    append_and_read,
    append_until,
    greeted_in_apaches_protocol,
)
from tests.fixtures.logs import text_of
from tests.fixtures.wait import wait_until_async


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, tls=True, settings={"tls": {"refresh_interval": "1s"}}) as running:
        yield running


@pytest.fixture
def authority(cluster: LocalCluster) -> Authority:
    loaded = Authority.load(cluster.data / "tls" / "ca")
    assert loaded is not None
    return loaded


async def test_ledgers_and_streams_of_asyncio(cluster: LocalCluster, tls: TlsOptions) -> None:
    await append_and_read(cluster.metadata_uri, 300, tls=tls)
    async with fastbk.connect(cluster.metadata_uri, tls=tls) as client:
        await client.namespace("tls").create()
        stream = client.namespace("tls").stream("s")
        async with stream.writer(create=True) as writer:
            await writer.append(b"x" * 200_000)
        async with stream.reader() as reader:
            chunk = await reader.read()
            assert chunk is not None
            assert [bytes(one.payload) for one in chunk] == [b"x" * 200_000]


def test_the_environment_serves_clients_without_await_and_the_command(
    cluster: LocalCluster, tls: TlsOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in tls.environment().items():
        monkeypatch.setenv(name, value)
    with fastbk.sync.connect(cluster.metadata_uri) as client:
        with client.create_ledger(3, 3, 2) as writer:
            writer.append(b"hello")
        assert [bytes(e.data) for e in client.open_ledger(writer.ledger_id).read(0, 0)] == [
            b"hello"
        ]
    cli = Cli(cluster.metadata_uri)
    assert cli("ledger", "read", str(writer.ledger_id)) == "0\thello\n"
    # Its page is encrypted, too.
    assert cli.json("bookie", "info", "bookie-1")["bookie_id"] == "bookie-1"
    cli.end()
    for name in tls.environment():
        monkeypatch.delenv(name)
    stranger = Cli(cluster.metadata_uri)
    code, _ = stranger.run("bookie", "info", "bookie-1")
    assert (code, "is FASTBK_TLS_CA_FILE the one that signed it?" in stranger.err) == (75, True)
    stranger.end()


async def test_who_is_not_signed_for_is_refused(
    cluster: LocalCluster, tls: TlsOptions, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority.make(tmp_path / "stranger")
    no_certificate = TlsOptions(ca_file=tls.ca_file)
    ended = authority.issue(tmp_path / "ended", valid_for=timedelta(minutes=-1))
    cases: list[tuple[TlsOptions | None, str]] = [
        (None, "this bookie serves TLS only"),
        (no_certificate, "does it accept this client's certificate"),
        (shown(tls, stranger.issue(tmp_path / "own")), "does it accept this client's certificate"),
        (shown(tls, ended), "does it accept this client's certificate"),
        (dataclasses.replace(tls, ca_file=str(stranger.ca_file)), "its certificate is not good"),
    ]
    for options, reason in cases:
        with pytest.raises(fastbk.Error, match=reason):
            await append_and_read(cluster.metadata_uri, 1, tls=options)
    await append_and_read(cluster.metadata_uri, 1, tls=tls)
    log = text_of(cluster.bookies)
    for reason in (
        "PEER_DID_NOT_RETURN_A_CERTIFICATE",
        "unable to get local issuer",
        "certificate has expired",
    ):
        assert reason in log


async def test_a_bookie_whose_certificate_names_another_host_is_not_spoken_to(
    authority: Authority, tls: TlsOptions, tmp_path: Path
) -> None:
    other = authority.issue(tmp_path / "other", ["another.example"])
    files = {
        "mode": "require",
        "certificate_file": str(other.certificate_file),
        "key_file": str(other.key_file),
    }
    with LocalCluster(1, settings={"tls": files}) as cluster:
        async with fastbk.connect(cluster.metadata_uri, tls=tls, connect_timeout=5.0) as client:
            with pytest.raises(fastbk.NotEnoughBookies, match=r"not valid for '127\.0\.0\.1'"):
                await client.create_ledger(1, 1, 1)
        trusting = dataclasses.replace(tls, verify_name=False)
        async with (
            fastbk.connect(cluster.metadata_uri, tls=trusting) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            assert await writer.append(b"x") == 0


async def test_a_client_with_tls_tells_a_bookie_without_it_nothing(tls: TlsOptions) -> None:
    with LocalCluster(1) as cluster:
        async with fastbk.connect(cluster.metadata_uri, tls=tls, connect_timeout=5.0) as client:
            with pytest.raises(fastbk.NotEnoughBookies, match="does it serve TLS"):
                await client.create_ledger(1, 1, 1)


async def test_certificates_are_renewed_while_others_append(
    cluster: LocalCluster, tls: TlsOptions, authority: Authority, tmp_path: Path
) -> None:
    """A new authority signs anew for all, in the order of docs/tls.md; nobody's append fails."""
    folder = cluster.data / "tls"
    async with fastbk.connect(cluster.metadata_uri, tls=tls) as client:
        writer = await client.create_ledger(3, 3, 2)
        is_done = asyncio.Event()
        appended = 0

        async def append() -> None:
            nonlocal appended
            while not is_done.is_set():
                await writer.append(b"x" * 100)
                appended += 1

        appending = asyncio.create_task(append())
        try:
            after = Authority.make(tmp_path / "ca")
            both = Path(tls.ca_file).read_text() + after.ca_file.read_text()
            Path(tls.ca_file).write_text(both)
            renewed = after.issue(tmp_path / "bookie", ["127.0.0.1"])
            renewed.certificate_file.replace(folder / "bookie" / "tls.crt")
            renewed.key_file.replace(folder / "bookie" / "tls.key")
            mine = shown(tls, after.issue(tmp_path / "mine"))
            only_after = dataclasses.replace(mine, ca_file=str(after.ca_file))

            async def is_shown() -> bool:
                try:
                    await append_and_read(cluster.metadata_uri, 1, tls=only_after)
                except fastbk.NotEnoughBookies:
                    return False
                return True

            await wait_until_async(is_shown, "the new certificate is shown")
            before = appended
            await wait_until_async(lambda: appended > before + 20, "appends go on")
        finally:
            is_done.set()
            await appending
        await writer.close()


@pytest.mark.long
async def test_tls_comes_to_a_running_cluster(
    authority: Authority, tls: TlsOptions, tmp_path: Path
) -> None:
    """The steps of docs/tls.md: no append fails, of clients in the clear nor of those with TLS."""
    issued = authority.issue(tmp_path / "own", ["127.0.0.1"])
    files = {"certificate_file": str(issued.certificate_file), "key_file": str(issued.key_file)}
    ca = {"ca_file": tls.ca_file}

    async def restart_all(cluster: LocalCluster, pages: dict[str, object], **section: str) -> None:
        for number, bookie in enumerate(cluster.bookies):
            bookie.sections["tls"] = {**files, **section}
            # A name but `localhost` counts as an address that others reach.
            bookie.sections["http"] = {"listen": f"LOCALHOST:{free_port()}", **pages}
            bookie.sections["bookie"] = {
                **bookie.sections["bookie"],
                "allow_unauthenticated_remote": True,
            }
            await cluster.restart_bookie_async(number)

    def deletes(cluster: LocalCluster) -> int | None:
        """Return the status of a stranger's deletion, by TLS; None: it got no connection."""
        context = ssl.create_default_context(cafile=tls.ca_file)
        port = cluster.bookies[0].http_port
        assert port is not None
        with closing(
            http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
        ) as made:
            try:
                made.request("DELETE", "/api/v1/ledger/delete?ledger_id=1")
                return made.getresponse().status
            except (OSError, http.client.HTTPException):
                return None

    async with LocalCluster(3) as cluster:
        # Each has its ledger before the next bookie goes: it takes all three to create one.
        before_begun, before_ends = asyncio.Event(), asyncio.Event()
        after_begun, after_ends = asyncio.Event(), asyncio.Event()
        before = asyncio.create_task(append_until(before_begun, before_ends, cluster.metadata_uri))
        await wait_until_async(before_begun.is_set, "appends in the clear")
        await restart_all(cluster, {}, mode="prefer")
        after = asyncio.create_task(
            append_until(after_begun, after_ends, cluster.metadata_uri, tls=tls)
        )
        await wait_until_async(after_begun.is_set, "appends with TLS")
        # The pages before the port: the other way round no bookie starts.
        open_config = from_document(
            cluster.bookies[0].sections
            | {"tls": {**files, **ca, "mode": "require", "client_certificates": "require"}},
            BookieConfig,
            "bookie.toml",
        )
        with pytest.raises(
            fastbk.ConfigError, match=r"\[http\] listen = LOCALHOST:\d+ is reachable"
        ):
            check(open_config)
        pages: dict[str, object] = {"tls": True, "client_certificates": "require"}
        await restart_all(cluster, pages, mode="prefer", client_certificates="request", **ca)
        assert deletes(cluster) is None
        before_ends.set()
        assert await before > 0
        await restart_all(cluster, pages, mode="require", client_certificates="require", **ca)
        assert deletes(cluster) is None
        after_ends.set()
        assert await after > 0
        with pytest.raises(fastbk.Unauthorized, match="serves TLS only"):
            await append_and_read(cluster.metadata_uri, 1, tls=None)


# --- Apache's bookies: our client begins in the clear and upgrades. Ours serve that protocol, too.


@pytest.mark.parametrize("version", ["v2", "v3"])
async def test_a_connection_in_apaches_protocols_is_upgraded(
    cluster: LocalCluster, tls: TlsOptions, version: str
) -> None:
    assert await greeted_in_apaches_protocol(cluster.bookies[0].port, version, tls) == BOOKIE


@asynccontextmanager
async def answering(reply: bytes) -> AsyncIterator[int]:
    """A port that answers whatever comes first with `reply`, and ends the connection after what comes second."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(reply)
        await reader.read(100)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (framed(START_TLS_DONE[:-1] + bytes([100])), "does not upgrade"),
        (framed(START_TLS_DONE) + b"injected", "does not upgrade"),
        (framed(b"\xff" * 20), "does not upgrade"),
        (b"\x7f\xff\xff\xff", "does not upgrade"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not upgrade"),
        (framed(START_TLS_DONE), "ended the TLS handshake|TLS:"),
    ],
)
async def test_what_does_not_upgrade_gets_no_request(
    reply: bytes, reason: str, tls: TlsOptions
) -> None:
    async with answering(reply) as port:
        with pytest.raises(fastbk.NotEnoughBookies, match=reason):
            await greeted_in_apaches_protocol(port, "v3", tls)


SPARK = """
import fastbk.sync
from pyspark.sql import SparkSession

with fastbk.sync.connect() as client:
    client.namespace("shop").create()
    with client.namespace("shop").stream("orders").writer(create=True) as writer:
        writer.append_many([b"%d" % n for n in range(5000)])
spark = SparkSession.builder.master("local[2]").getOrCreate()
orders = spark.read.format("fastbk").option("stream", "shop/orders").load()
copy = orders.select("value").write.format("fastbk").option("stream", "shop/copy")
copy.option("create", "true").mode("append").save()
copied = spark.read.format("fastbk").option("stream", "shop/copy").load()
print("READ", orders.count(), "COPIED", copied.count())
"""


@pytest.mark.soak
def test_spark_has_it_by_the_environment(cluster: LocalCluster, tls: TlsOptions) -> None:
    environment = {
        **os.environ,
        **tls.environment(),
        "FASTBK_METADATA": cluster.metadata_uri,
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", SPARK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert "READ 5000 COPIED 5000" in done.stdout, done.stderr[-3000:]
