"""Quotas of bytes on real bookies: by the commands, with sqlite, and in a ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

import fastbk
from fastbk.errors import QuotaExceeded
from fastbk.stream.janitor.janitor import Janitor, JanitorOptions
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.zookeeper import ZooKeeperPlace

RECORD = b"x" * 1000
ONE_COPY = PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1, bytes_max=2000, roll_bytes=5000)


def test_a_stream_over_its_quota_by_the_commands(fastbk_cluster: LocalCluster) -> None:
    cli = Cli(fastbk_cluster.metadata_uri)
    cli("namespace", "create", "shop/eu", "--set", "bytes_max=1000")
    lines = b"a line of some bytes\n" * 100
    cli("stream", "append", "shop/eu/orders", "--create", stdin=lines)

    cli("janitor", "--once")
    told = cli.fails("stream", "append", "shop/eu/orders", stdin=lines)
    assert "namespace shop/eu has" in told and "of 1,000" in told and "raise bytes_max" in told
    assert cli("stream", "read", "shop/eu/orders").count("a line of some bytes\n") == 100
    assert "of 1,000, as the janitor counted last" in cli("namespace", "info", "shop/eu")
    cli("stream", "truncate", "shop/eu/orders", "--before", "latest", "-y")
    sealed = cli.json("stream", "seal", "shop/eu/orders", "-y")
    assert sealed["sealed"] is True and sealed["last_dlsn"]
    assert cli.json("stream", "info", "shop/eu/orders")["sealed"] is True


async def test_a_writer_is_refused_and_ends_its_segment_in_zookeeper(
    zookeeper: ZooKeeperPlace, tmp_path: Path
) -> None:
    uri = zookeeper.uri()
    async with (
        LocalCluster(1, data=tmp_path / "bookies", metadata_uri=uri),
        fastbk.connect(uri) as client,
        fastbk.connect(uri) as other,
    ):
        space = client.namespace("a/b")
        await space.create(ONE_COPY)
        stream, full = await space.create_stream("s"), await space.create_stream("full")
        janitor = Janitor(other, JanitorOptions(roll_grace_s=1e6))
        sent = 0
        with pytest.raises(QuotaExceeded, match=r"namespace a/b has 3,\d+ bytes of 2,000"):
            async with stream.writer() as writer:
                await writer.append(RECORD)
                async with full.writer() as filling:
                    for _ in range(3):
                        await filling.append(RECORD)
                assert (await janitor.pass_once()).errors == 0
                for _ in range(50):
                    sent += 1
                    await writer.append(RECORD)
        info = await other.namespace("a/b").stream("s").info()
        assert (info.open_segments, info.records) == (0, sent) and sent > 3
        with pytest.raises(QuotaExceeded):
            await other.namespace("a/b").stream("s").writer().open()
        async with other.namespace("a/b").stream("s").writer(over_quota=True) as ending:
            assert await ending.seal() == DLSN(1, sent - 1, 0)
        await full.truncate("latest")
        await space.delete_stream("s")
        assert (await janitor.pass_once()).errors == 0
        # The newest ended segment always stays.
        assert 3000 < (await space.stored_bytes() or 0) < 4000
        await space.set_policy(PolicyPatch(bytes_max=5000))
        async with full.writer() as filling:
            await filling.append(RECORD)
