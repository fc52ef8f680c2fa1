"""The console in a real Chromium: every page in every shape, by keyboard, without complaints, and without scripts."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk
from fastbk.testing import LocalCluster
from tests.fixtures.browser import Browser, browser, needs_chromium
from tests.fixtures.wait import wait_until

pytestmark = [needs_chromium, pytest.mark.timeout(300), pytest.mark.long]

PATHS = (
    "/", "/bookies", "/bookie/bookie-1", "/disks", "/streams", "/stream/shop/orders", "/records/shop/orders",
    "/cursors", "/namespaces", "/namespace/shop", "/ledgers", "/healing", "/events", "/search?q=o",
    "/action/truncate?target=shop/orders", "/action/pause-healing?target=healing", "/nothing",
)  # fmt: skip
SHAPES = {"wide": (1280, 900), "small": (360, 740)}
NAMES_OF_FIELDS = """
const all = [...document.querySelectorAll("input:not([type=hidden]), select, button, a, svg[role=img]")];
const name = (one) => one.labels?.length || one.getAttribute("aria-label") || one.textContent.trim();
return all.filter((one) => !name(one)).map((one) => one.outerHTML);
"""
CONTRAST = """
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((one) => one / 255)
  .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
const ground = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const found = rgb(getComputedStyle(at).backgroundColor);
    if (found.length < 4 || found[3] === 1) return found;
  }
  return [255, 255, 255];
};
const bad = new Set();
for (const one of document.querySelectorAll("body *")) {
  const own = [...one.childNodes].some((child) => child.nodeType === 3 && child.nodeValue.trim());
  if (!own || !one.checkVisibility() || one.closest(".hidden, .skip, [disabled]")) continue;
  const [a, b] = [luminance(rgb(getComputedStyle(one).color)), luminance(ground(one))].sort((x, y) => y - x);
  const text = one.textContent.trim().slice(0, 30);
  if ((a + 0.05) / (b + 0.05) < 4.5) bad.add(`${one.nodeName}.${one.className}: ${text}`);
}
return [...bad];
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


async def fill(uri: str) -> None:
    async with fastbk.connect(uri) as client:
        await client.namespace("shop").create()
        async with client.namespace("shop").stream("orders").writer(create=True) as writer:
            for number in range(60):
                await writer.append(json.dumps({"order": number, "text": "long " * 30}).encode())
        async with client.namespace("shop").stream("orders").cursor("billing") as cursor:
            async for record in cursor:
                cursor.ack(record)
                break


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console of a small cluster with a stream, as a process of its own; where it is."""
    folder = tmp_path_factory.mktemp("console")
    with LocalCluster(3) as cluster:
        asyncio.run(fill(cluster.metadata_uri))
        found = f"http://127.0.0.1:{free_port()}"
        words = ["--listen", found.removeprefix("http://"), "--metadata", cluster.metadata_uri]
        with (folder / "log").open("wb") as log:
            command = [
                sys.executable,
                "-m",
                "fastbk.cli",
                "console",
                *words,
                "--audit",
                str(folder / "audit.log"),
            ]
            process = subprocess.Popen(command, stderr=log)
        try:
            wait_until(lambda: "orders" in page(found, "/streams"), "it has read streams")
            wait_until(lambda: "bookie-3" in page(found, "/bookies"), "it has read bookies")
            yield found
        finally:
            process.terminate()
            assert process.wait(30) == 0, (folder / "log").read_text()


def page(base: str, path: str) -> str:
    with contextlib.suppress(OSError), urllib.request.urlopen(base + path, timeout=10) as answer:
        return str(answer.read().decode())
    return ""


@pytest.fixture(scope="module")
def window(base: str) -> Iterator[Browser]:
    with browser(base) as opened:
        yield opened


@pytest.mark.parametrize("shape", SHAPES)
def test_every_page_fits_every_screen_without_complaints(
    window: Browser, shape: str, tmp_path: Path
) -> None:
    """Light, and dark: the colours change while a page is open."""
    window.size(*SHAPES[shape])
    faults = {}
    for path, dark in itertools.product(PATHS, (False, True)):
        window.size(*SHAPES[shape], dark=dark)
        if not dark:
            window.complaints()
            window.open(path)
            window.until("return document.readyState === 'complete'", path)
        window.until("return !document.getAnimations().length", "the colours have changed")
        width = window.run("return document.documentElement.scrollWidth - innerWidth")
        complaints = [one for one in window.complaints() if "/nothing" not in one]
        found = {
            "too wide": width if width > 0 else 0, "complaints": complaints,
            "without a name": window.run(NAMES_OF_FIELDS), "hard to read": window.run(CONTRAST),
            "headings": window.run("return document.querySelectorAll('h1').length") != 1,
        }  # fmt: skip
        if any(found.values()):
            faults[path, dark] = {name: value for name, value in found.items() if value}
    assert faults == {}


def test_the_policy_stops_what_is_injected(window: Browser) -> None:
    window.size(1280, 900)
    window.open("/")
    window.complaints()
    script, image = "{ textContent: 'window.hit = 1' }", "{ src: 'http://localhost:9/x.png' }"
    window.run(f"document.body.append(Object.assign(document.createElement('script'), {script}))")
    window.run(f"document.body.append(Object.assign(document.createElement('img'), {image}))")
    window.run(
        "document.body.insertAdjacentHTML('beforeend', '<b onclick=\"window.hit = 2\" id=injected>x</b>')"
    )
    window.run("document.getElementById('injected').click()")
    assert window.run("return window.hit") is None
    complaints = window.until("return true", "") and window.complaints()
    assert sum("Content Security Policy" in one for one in complaints) >= 2, complaints
    assert window.run("return document.cookie") == "", "no script can read the session"


def test_the_console_can_be_used_by_keyboard_alone(window: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    window.size(1280, 900)
    window.open("/")
    window.press(Keys.TAB)
    assert window.run("return document.activeElement.className") == "skip"
    window.press(Keys.ENTER)
    assert window.run("return document.activeElement.id") == "main"
    window.press("?")
    assert "search" in window.run("return document.querySelector('#keys[open]').textContent")
    window.press(Keys.ESCAPE)
    assert window.run("return document.querySelector('#keys[open]')") is None
    window.press("/")
    assert window.run("return document.activeElement.id") == "q"
    window.press("shop/orders", Keys.ENTER)
    window.until(
        "return location.pathname === '/stream/shop/orders'", "the search goes to the stream"
    )
    window.press("g", "h")
    window.until(
        "return location.pathname === '/healing' && document.readyState === 'complete'",
        "g h goes to healing",
    )
    window.run("document.querySelector('.actions a').focus()")
    outline = window.run("return getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    window.press(Keys.ENTER)
    window.until("return location.pathname === '/action/pause-healing'", "the confirmation")
    assert window.run("return document.activeElement.id") == "confirm"
    window.press("healing", Keys.ENTER)
    window.until(
        "return document.body.textContent.includes('AutoRecovery is paused')", "it was done"
    )
    window.open("/action/resume-healing?target=healing")
    window.press("healing", Keys.ENTER)
    window.until("return document.body.textContent.includes('AutoRecovery works')", "it was undone")
    assert window.complaints() == []


def test_an_open_page_stays_current_and_keeps_the_focus(window: Browser, base: str) -> None:
    window.size(1280, 900)
    window.open("/bookies")
    window.run(
        "window.refreshes = 0; document.addEventListener('console:refreshed', () => window.refreshes++)"
    )
    window.run(
        "window.row = document.querySelector('#bookie-bookie-2'); window.row.querySelector('a').focus()"
    )
    window.run(
        "document.querySelector('#bookie-bookie-1 [data-label=Queue]').textContent = 'stale'"
    )
    window.until("return window.refreshes >= 2", "the page was refreshed")
    assert window.run("return document.activeElement.textContent") == "bookie-2"
    assert (
        window.run("return window.row.isConnected && window.row.querySelector('a').textContent")
        == "bookie-2"
    )
    assert "stale" not in window.run(
        "return document.querySelector('#bookie-bookie-1').textContent"
    )
    assert window.complaints() == []


def test_charts_are_drawn_by_uplot_or_as_pictures(window: Browser, base: str) -> None:
    window.size(1280, 900)
    window.open("/")
    has_uplot = "uPlot.iife" in page(base, "/")
    drawn = ".uplot canvas" if has_uplot else "svg"
    script = f"return document.querySelectorAll('figure[data-chart] {drawn}').length"
    window.until(f"{script} === 2", f"both charts have {drawn}")
    assert window.complaints() == []


def test_pages_work_without_scripts(window: Browser) -> None:
    window.size(1280, 900)
    with window.without_scripts():
        window.open("/")
        window.press("?")
        assert window.run("return document.querySelector('#keys[open]')") is None, (
            "scripts would open it"
        )
        window.open("/records/shop/orders?from=seq:5&count=1")
        source = window.driver.page_source
        assert "&quot;order&quot;: 5" in source or '"order": 5' in source
        window.open("/")
        assert "spark-line" in window.driver.page_source
        field = window.driver.find_element("name", "q")
        field.send_keys("billing")
        field.submit()
        assert "billing of shop/orders" in window.driver.page_source
