"""Quotas from end to end: a principal is held to its rates, over all its connections, and nobody else is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import fastbk
from fastbk.security.credentials import Credentials
from fastbk.testing import LocalCluster
from tests.fixtures.users import as_user, sasl_section


async def append_for(uri: str, credentials: Credentials, size_bytes: int, until_s: float) -> int:
    """Append by two clients, each with 50 in flight, until a time; return how many were acknowledged."""

    async def one() -> int:
        count = 0
        async with (
            fastbk.connect(uri, credentials=credentials, append_timeout=30.0) as client,
            await client.create_ledger(1, 1, 1) as writer,
        ):
            while time.monotonic() < until_s:
                await asyncio.gather(*(writer.append(b"x" * size_bytes) for _ in range(50)))
                count += 50
        return count

    return sum(await asyncio.gather(one(), one()))


async def create_for(uri: str, credentials: Credentials, until_s: float) -> int:
    """Create ledgers of three entries by two clients until a time; return how many have all of them."""

    async def one() -> int:
        count = 0
        async with fastbk.connect(uri, credentials=credentials, append_timeout=30.0) as client:
            while time.monotonic() < until_s:
                async with await client.create_ledger(1, 1, 1) as writer:
                    await asyncio.gather(*(writer.append(b"x") for _ in range(3)))
                count += 1
        return count

    return sum(await asyncio.gather(one(), one()))


def settings_of(folder: Path, *exceptions: str) -> dict[str, dict[str, object]]:
    return {
        "bookie": {"workers": 1},
        "authentication": sasl_section(folder, "batch", "other", "bytes", "few", "maker"),
        "quotas": {"exceptions": list(exceptions)},
    }


async def test_a_principal_is_held_to_its_rates_and_others_are_not(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        "user:batch adds_rate=500",
        "user:bytes data_rate=512KiB",
        "user:few connections_max=1",
    )
    async with LocalCluster(1, settings=settings) as cluster:
        uri = cluster.metadata_uri
        began_s = time.monotonic()
        until_s = began_s + 3.0
        batch, in_bytes, other = await asyncio.gather(
            append_for(uri, as_user(tmp_path, "batch"), 100, until_s),
            append_for(uri, as_user(tmp_path, "bytes"), 4096, until_s),
            append_for(uri, as_user(tmp_path, "other"), 100, until_s),
        )
        took_s = time.monotonic() - began_s
        # A tenth of a second may be saved, and each client's last round goes over.
        assert batch <= 500 * (took_s + 0.1) + 1
        assert in_bytes * 4096 <= 512 * 1024 * (took_s + 0.1) + 4200
        assert min(batch, in_bytes) >= 100
        assert other > 2 * batch
        async with fastbk.connect(uri, credentials=as_user(tmp_path, "few")) as client:
            writer = await client.create_ledger(1, 1, 1)
            await writer.append(b"x")
            async with fastbk.connect(uri, credentials=as_user(tmp_path, "few")) as second:
                with pytest.raises(fastbk.Unauthorized, match="has all 1 connections"):
                    await second.create_ledger(1, 1, 1)
            await writer.append(b"y")


async def test_a_principal_is_held_to_its_rate_of_ledgers_and_others_are_not(
    tmp_path: Path,
) -> None:
    async with LocalCluster(
        1, settings=settings_of(tmp_path, "user:maker ledgers_rate=5")
    ) as cluster:
        uri = cluster.metadata_uri
        maker = as_user(tmp_path, "maker")
        async with (
            fastbk.connect(uri, credentials=maker) as client,
            await client.create_ledger(1, 1, 1) as known,
        ):
            await known.append(b"the only one of the burst")
            began_s = time.monotonic()
            until_s = began_s + 3.0
            made, others = await asyncio.gather(
                create_for(uri, maker, until_s),
                create_for(uri, as_user(tmp_path, "other"), until_s),
            )
            took_s = time.monotonic() - began_s
            assert 5 <= made <= 5 * took_s + 1
            assert others > 2 * made
            async with asyncio.timeout(30.0):  # as many new ledgers take a minute
                for _ in range(300):
                    await known.append(b"to a ledger that it has begun")
