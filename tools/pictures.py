"""`./dev pictures [NAME ...]`: pictures for the pages in `docs`, drawn or of screens of real bookies with real faults.

A new picture is a function in PICTURES that writes its files below the folder that it is given.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path

import fastbk
from fastbk.overview.poller import OverviewPoller
from fastbk.overview.values import ClusterOverview
from fastbk.stream.client import Client
from fastbk.testing import LocalCluster
from fastbk.top import TopApp
from tools import ROOT
from tools.console_pictures import console
from tools.dashboard_pictures import dashboards
from tools.placement_pictures import placement

FOLDER = ROOT / "docs" / "pictures"
SIZE = (150, 34)
WAIT_S = 120.0
BOOKIES, SLOW, LOST = 5, 2, 4
STREAMS = ("shop/orders", "shop/payments", "web/clicks")


def top(folder: Path) -> None:
    """`top.svg`: five bookies under load, of which one has a slow journal and one is stopped."""
    with LocalCluster(BOOKIES) as cluster:
        asyncio.run(_top(cluster, folder / "top.svg"))


async def _top(cluster: LocalCluster, path: Path) -> None:
    uri = cluster.metadata_uri
    async with fastbk.connect(uri) as client, OverviewPoller(client, uri) as poller:
        tasks = [
            asyncio.create_task(_append(client, name, 10 ** (2 - n)))
            for n, name in enumerate(STREAMS)
        ]
        try:
            await cluster.delay_async(SLOW, journal_ms=30)
            await cluster.stop_bookie_async(LOST)
            app = TopApp(poller.overviews(1.0), "zk+hierarchical://zookeeper:2181/ledgers")
            async with app.run_test(size=SIZE) as pilot:
                async with asyncio.timeout(WAIT_S):
                    while not _is_whole(app.overview):
                        _raise_of(tasks)
                        await asyncio.sleep(0.2)
                await pilot.pause()
                path.write_text(_with_local_fonts(app.export_screenshot(title="fastbk top")))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    print(f"{path}: {path.stat().st_size:,} bytes")


def _with_local_fonts(svg: str) -> str:
    """Return a picture that loads no font from elsewhere: a browser takes one of its own."""
    return re.sub(r',\s*url\("https://[^)]*\) format\("woff2?"\)', "", svg)


def _is_whole(overview: ClusterOverview | None) -> bool:
    """Return whether everything is there that the picture is to show."""
    if overview is None or len(overview.bookies) < BOOKIES:
        return False
    first, second, *_ = overview.bookies
    return (
        first.state == "down"
        and any("slow journal" in one.text for one in second.problems)
        and len(overview.hot_streams) == len(STREAMS)
        and all(one.adds_per_s is not None for one in overview.bookies[1:])
    )


async def _append(client: Client, path: str, together: int) -> None:
    """Append to a stream of a namespace until it is cancelled."""
    namespace, _, name = path.partition("/")
    space = client.namespace(namespace)
    await space.create(exist_ok=True)
    stream = await space.create_stream(name)
    async with stream.writer() as writer:
        while True:
            await asyncio.gather(*(writer.append(b"x" * 400) for _ in range(together)))


def _raise_of(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            task.result()


PICTURES: dict[str, Callable[[Path], None]] = {
    "console": console,
    "top": top,
    "dashboards": dashboards,
    "placement": placement,
}


def main(words: list[str]) -> int:
    """Make the pictures that are named, without names all."""
    parser = argparse.ArgumentParser(prog="./dev pictures", description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[[], *PICTURES], metavar="NAME", help=", ".join(PICTURES)
    )
    options = parser.parse_args(words)
    FOLDER.mkdir(exist_ok=True)
    for name in options.names or PICTURES:
        PICTURES[name](FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
