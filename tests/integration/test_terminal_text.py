"""A terminal receives no control sequence of others: of names, holders, reasons and records."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import fastbk
from fastbk.client.ensembles import send_report
from fastbk.meta.api import HTTP_PROTOCOL, BookieService, Endpoint
from fastbk.meta.sqlite.store import SqliteStore
from fastbk.stream.policy import PolicyPatch
from fastbk.testing import LocalCluster
from tests.fixtures.pages import page
from tests.fixtures.wait import DEADLINE_S, wait_until

PIECES = (
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x1b[31mred",
    "\x9b1m",
    "\u202egnp\u2066",
    "\x7f",
    "\x1b[6n",
    "\x1b]52;c;b3duZWQ=\x1b\\",
    "\x1bP$q\x1b\\",
    "\x1bc",
)
"""A window's title, erase, colours, an old-fashioned one, marks of direction, questions, the clipboard, a reset."""
QUIET_S = 0.2
"""A screen that gets nothing for so long is whole: `top` draws one twice a second here."""
HOSTILE = "".join(PIECES) + "\r"
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
        # What clients report to bookies of a replaced one.
        report = {
            "ledger_id": 1,
            "first_entry_id": 0,
            "bookie": "b",
            "replacement": "c",
            "index": 0,
            "cause": "writer",
        }
        assert send_report(
            client.pool,
            "bookie-1",
            "ledger.bookie_replaced",
            {**report, "reason": HOSTILE, "client": HOSTILE},
        )


_started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def _end_what_a_failed_test_left() -> Iterator[None]:
    yield
    for process in _started:
        if process.poll() is None:
            process.kill()
            process.wait()
    _started.clear()


class Terminal:
    """A command on a terminal of its own.

    Attributes:
        received: all bytes that the terminal got so far.
    """

    def __init__(
        self, cluster: LocalCluster, *words: str, program: tuple[str, ...] = ("-m", "fastbk.cli")
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        environment = {**os.environ, "FASTBK_METADATA": cluster.metadata_uri, "TERM": "xterm"}
        self._process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        _started.append(self._process)
        self.received = b""

    def read(self) -> bool:
        """Take in what comes next; return whether there was something before the end."""
        try:
            part = os.read(self._ours, 65_536)
        except OSError:  # the other end is closed
            part = b""
        self.received += part
        return bool(part)

    def press(self, keys: str, until: str) -> None:
        """Type, and return once a text was received that comes after that.

        It types when a screen is whole, as people do: before that a key may mean nothing, and one close behind Escape
        is another key.
        """
        while select.select([self._ours], [], [], QUIET_S)[0]:
            assert self.read(), self.received
        at = len(self.received)
        os.write(self._ours, keys.encode())
        end_s = time.monotonic() + DEADLINE_S
        while until.encode() not in self.received[at:]:
            left_s = max(0.0, end_s - time.monotonic())
            is_more = left_s > 0 and select.select([self._ours], [], [], left_s)[0]
            assert is_more and self.read(), (until, self.received[at:])

    def rest(self, *codes: int) -> str:
        """Read to the end, and return all text. The command has to end with one of these exit codes."""
        while self.read():
            pass
        os.close(self._ours)
        assert self._process.wait(30) in codes, self.received
        return self.received.decode()


def on_terminal(cluster: LocalCluster, *words: str, code: int = 0) -> str:
    """Run a command on a terminal of its own; return what the terminal received."""
    return Terminal(cluster, *words).rest(code)


def assert_harmless(text: str) -> None:
    """All but line ends, tabs and our colours is printable, and no colour is of others."""
    assert not [one for one in PIECES if one in text], ascii(text)
    left = COLOURS.sub("", text).replace("\r\n", "").replace("\t", "")
    assert left.isprintable(), ascii(text)


COMMANDS = (
    ("ledger", "list"),
    ("ledger", "show", "{ledger}"),
    ("ledger", "read", "{ledger}"),
    ("ledger", "read", "{ledger}", "--raw"),
    ("ledger", "read", "{ledger}", "--json"),
    ("ledger", "show", "{ledger}", "--json"),
    ("stream", "info", "shop/orders"),
    ("stream", "cursors", "shop/orders"),
    ("stream", "read", "shop/orders", "--from", "seq:0"),
    ("stream", "read", "shop/orders", "--from", "seq:0", "--json"),
)
PAGES = (
    ("cluster", "status"),
    ("cluster", "status", "--json"),
    ("cluster", "bookies"),
    ("bookie", "info", "stranger"),
    ("bookie", "disk", "stranger"),
    ("top", "--once", "--interval", "0.5"),
    ("top", "--json", "--interval", "0.5"),
)
END = "-- that was all: "
"""And the exit code, behind the output of each of several commands."""
SEVERAL = f"""
import json, sys
from fastbk.cli.__main__ import main

for words in json.loads(sys.argv[1]):
    code = main(words)
    sys.stdout.flush()
    print("{END}", code, sep="", flush=True)
"""


def on_one_terminal(cluster: LocalCluster, *commands: tuple[str, ...]) -> list[tuple[str, int]]:
    """Run commands one after the other in one process; return what the terminal got of each, and its exit code."""
    text = Terminal(cluster, program=("-c", SEVERAL, json.dumps(commands))).rest(0)
    *parts, rest = re.split(rf"{END}(\d+)\r\n", text)
    assert rest == "" and len(parts) == 2 * len(commands), ascii(text)
    return [(text, int(code)) for text, code in zip(parts[::2], parts[1::2], strict=True)]


@pytest.fixture(scope="module")
def written(cluster: LocalCluster) -> dict[tuple[str, ...], list[str]]:
    """What commands show of what others wrote: about each ledger, or once."""
    ((listed, _),) = on_one_terminal(cluster, COMMANDS[0])
    asked = [
        (words, tuple(one.format(ledger=ledger) for one in words))
        for words in COMMANDS
        for ledger in (listed.split() if "{ledger}" in words else [""])
    ]
    found: dict[tuple[str, ...], list[str]] = {}
    shown = on_one_terminal(cluster, *(words for _, words in asked))
    for (words, _), (text, code) in zip(asked, shown, strict=True):
        assert code == 0, ascii(text)
        found.setdefault(words, []).append(text)
    return found


@pytest.mark.parametrize("words", COMMANDS[1:], ids=" ".join)
def test_what_others_wrote_is_escaped(
    words: tuple[str, ...], written: dict[tuple[str, ...], list[str]]
) -> None:
    found = written[words]
    text = "".join(found)
    for one in found:
        assert_harmless(one)
    assert "owned" in text
    if "--json" in words:
        for line in text.splitlines():
            json.loads(line)


def test_a_pipe_gets_the_bytes(cluster: LocalCluster) -> None:
    """Payload only: `--raw` and `--payload` are for programs."""
    command = [
        sys.executable,
        "-m",
        "fastbk.cli",
        "stream",
        "read",
        "shop/orders",
        "--from",
        "seq:0",
        "--payload",
    ]
    environment = {**os.environ, "FASTBK_METADATA": cluster.metadata_uri}
    found = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert found.stdout == HOSTILE.encode() + b"\n"


# --- pages of others -------------------------------------------------------------------------------------------------


class HostilePages(BaseHTTPRequestHandler):
    """The pages of a real bookie, with control sequences behind every text of theirs."""

    port = 0

    def do_GET(self) -> None:
        """Answer as the bookie does, and worse."""
        url = f"http://127.0.0.1:{self.port}{self.path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            body, kind = answer.read(), answer.headers["Content-Type"]
        if "json" in kind:
            body = json.dumps(_spoilt(json.loads(body))).encode()
        else:
            body = re.sub(
                r'(directory="[^"]*)"', lambda found: f'{found[1]}{HOSTILE}"', body.decode()
            ).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _spoilt(value: object, name: str = "") -> object:
    if isinstance(value, dict):
        return {key: _spoilt(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_spoilt(one) for one in value]
    return value + HOSTILE if isinstance(value, str) and name != "time" else value


@pytest.fixture(scope="module")
def hostile_bookie(cluster: LocalCluster) -> Iterator[str]:
    """A bookie of that cluster that answers with control sequences; its id."""
    port = cluster.bookies[0].http_port
    assert port is not None
    pages = type("Pages", (HostilePages,), {"port": port})
    store = SqliteStore(cluster.metadata_uri.removeprefix("sqlite:"), lease_s=600.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), pages) as server, closing(store):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = ("127.0.0.1", server.server_address[1])
        endpoints = (Endpoint(*address, HTTP_PROTOCOL),)
        lease = store.register_bookie(
            BookieService("stranger", 1, endpoints, {"location": f"/zone{HOSTILE}"}), writable=True
        )
        try:
            yield "stranger"
        finally:
            lease.close()
            server.shutdown()


def test_events_of_strangers_are_escaped(cluster: LocalCluster, hostile_bookie: str) -> None:
    """Of a page of its own, and what a client's report said to an honest bookie."""
    bookie = cluster.bookies[0]
    wait_until(
        lambda: "owned" in page(bookie, "/events?kind=ledger.bookie_replaced")[1],
        "the report is an event",
    )
    text = on_terminal(cluster, "cluster", "events", "--since", "-2h")
    assert_harmless(text)
    told = [line for line in text.splitlines() if "owned" in line]
    assert any(
        "bookie-1 worker.0 " in line and "ledger.bookie_replaced" in line for line in told
    ), ascii(text)
    assert any(line[25:].startswith("bookie-1\\x1b]0;owned") for line in told), (
        "a page named its own source"
    )
    assert_harmless(on_terminal(cluster, "cluster", "events", "--since", "-2h", "--json"))
    assert_harmless(on_terminal(cluster, "cluster", "events", "--bookie", hostile_bookie))


@pytest.fixture(scope="module")
def pages(cluster: LocalCluster, hostile_bookie: str) -> dict[tuple[str, ...], tuple[str, int]]:
    """What commands show of pages."""
    return dict(zip(PAGES, on_one_terminal(cluster, *PAGES), strict=True))


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_pages_of_strangers_are_escaped(
    words: tuple[str, ...], pages: dict[tuple[str, ...], tuple[str, int]]
) -> None:
    text, code = pages[words]
    assert code in (0, 1), ascii(text)
    assert_harmless(text)
    assert "owned" in text, "the stranger was not read"


SCREEN_CONTROLS = re.compile(
    r"""
    \x1b\[ (
        [0-9;]* [ABCDGHJKXm]        # move, erase, colour
      | \? [0-9;]+ ( [hl] | \$p )   # modes
      | [<>=]? [0-9;]* u            # the keyboard's protocol
      | > [0-9;]* [mq]
      | [0-9;]* r | c
    ) | \x1b [78=>] | \x1b\]22;[a-z]+\x07 | \r | \n | \x08
    """,
    re.VERBOSE,
)
"""What Textual sends; 22 is the mouse's shape. Nothing renames a window, fills the clipboard, asks, or resets."""


def test_the_screen_of_top_shows_strangers_text_escaped(
    cluster: LocalCluster, hostile_bookie: str
) -> None:
    pytest.importorskip("textual")
    terminal = Terminal(cluster, "top", "--interval", "0.5")
    terminal.press("", "owned")
    # the title: what is below it may be more than the screen has lines
    terminal.press("\r", " bookie stranger ")
    terminal.press("\x1b", "hot ledgers")
    for key, title in (("t", "hot streams"), ("c", "cursors"), ("?", "marks")):
        terminal.press(key, title)
    terminal.press("q", "ADDS")
    os.write(terminal._ours, b"q")
    text = terminal.rest(0)
    assert not [one for one in PIECES if one in text], ascii(text)
    left = SCREEN_CONTROLS.sub("", text)
    assert left.isprintable(), {
        ascii(one) for one in re.findall(r"[\x00-\x1f\x7f-\x9f].{0,12}", left)
    }


def test_top_ends_when_its_terminal_is_closed(cluster: LocalCluster) -> None:
    pytest.importorskip("textual")
    terminal = Terminal(cluster, "top", "--interval", "0.5")
    terminal.press("", "bookie-1")
    os.close(terminal._ours)
    assert terminal._process.wait(30) != 0
