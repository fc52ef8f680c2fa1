"""The console on running bookies: what its pages show, what it changes, and as whom."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastbk
from fastbk.cli.options import server_tls
from fastbk.console.context import Console
from fastbk.console.process import PAGES
from fastbk.safe_files import write_text
from fastbk.security.tls import client_context
from fastbk.stream.client import Client
from fastbk.testing import LocalCluster
from tests.fixtures.console import KEY, Visitor, audit_lines, console_of, signed
from tests.fixtures.pages import json_page
from tests.fixtures.wait import wait_until_async


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


async def filled(client: Client) -> None:
    """Make a stream with every sort of record, two segments and a cursor that is behind."""
    await client.namespace("shop/eu").create(fastbk.PolicyPatch(roll_bytes=4096), exist_ok=True)
    async with client.namespace("shop/eu").stream("orders").writer(create=True) as writer:
        for number in range(100):
            await writer.append(
                json.dumps({"order": number, "note": "<b>grüße</b>" * 20}).encode(), key=b"k<1>"
            )
        await writer.append(b"\x00\x01\x02\xff")
        await writer.append(b"<script>alert(1)</script>", headers=[("trace", b"<i>")])
    async with client.namespace("shop/eu").stream("orders").cursor("billing") as cursor:
        async for record in cursor:
            cursor.ack(record)
            if record.seq == 9:
                break


async def until_read(console: Console, path: str) -> None:
    """Wait for the background to have read a stream and its cursors."""
    await console.view.streams.pass_once()
    assert path in [one.path for one in console.view.streams.rows]

    async def is_there() -> bool:
        overview = console.view.overview
        return overview is not None and any(one.stream == path for one in overview.cursors)

    await wait_until_async(is_there, "the cursor's lag is read", 90.0)


async def test_pages_show_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        await filled(client)
        async with await client.create_ledger(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
            await ledger.append(b"x")
        tills = await client.namespace("shop/eu").create_stream("tills")
        await tills.set_kind("producers")
    async with console_of(cluster.metadata_uri, tmp_path) as (console, visitor):
        await until_read(console, "shop/eu/orders")
        texts = {
            path: (await visitor.get(path)).text
            for path in PAGES
            if "{" not in path and path != "/series"
        }
        for name in ("bookie-1", "bookie-2", "bookie-3"):
            assert name in texts["/bookies"]
            assert name in texts["/disks"]
        assert "billing" in texts["/cursors"]
        assert "bookie.started" in texts["/events"]
        stream = (await visitor.get("/stream/shop/eu/orders")).text
        assert "billing" in stream
        assert "one writer" in stream
        assert "number of producers" in (await visitor.get("/stream/shop/eu/tills")).text
        assert ">producers</small>" in (await visitor.get("/streams?q=tills")).text
        assert ">producers</small>" not in (await visitor.get("/streams?q=orders")).text
        assert "set here" not in stream
        assert "set here" in (await visitor.get("/namespace/shop/eu")).text
        assert "/namespace/shop/eu" in texts["/namespaces"]
        assert f'href="/ledger/{ledger.ledger_id}"' in texts["/ledgers"]
        shown = (await visitor.get(f"/ledger/{ledger.ledger_id}")).text
        assert "closed" in shown
        assert "/bookie/bookie-1" in shown
        assert "rack, 2 racks in each write set, not enforced; it is the cluster" in shown
        missing = await visitor.get("/ledger/99999999")
        assert (missing.status, "There is no ledger 99999999." in missing.text) == (404, True)
        assert (await visitor.get("/bookie/bookie-9")).status == 404
        series = json.loads(
            (await visitor.get("/series?name=cluster/adds&name=cluster/bytes")).text
        )
        assert len(series["times"]) == len(series["series"][0]) == len(series["series"][1]) >= 1


async def test_events_have_pages(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastbk.console.pages.EVENTS_MAX", 2)
    seen: list[str] = []
    async with console_of(cluster.metadata_uri, tmp_path) as (_, visitor):
        where = "/events"
        for _ in range(2):
            page = (await visitor.get(where)).text
            seen += re.findall(r'<tr id="(event-[^"]+)"', page)
            where = html.unescape(re.findall(r'href="([^"]+)">Older events', page)[0])
    assert len(seen) == len(set(seen)) == 4


async def test_the_viewer_shows_records_from_any_position(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.namespace("viewer").create()
        async with client.namespace("viewer").stream("mixed").writer(create=True) as writer:
            for number in range(60):
                await writer.append(b'{"n": %d}' % number)
            await writer.append(b"\x00\x01")
            await writer.append(b"<script>alert(1)</script>", key=b"<k>", headers=[("h", b"<v>")])
    async with console_of(cluster.metadata_uri, tmp_path) as (_, visitor):
        newest = (await visitor.get("/records/viewer/mixed")).text
        assert "<script>alert" not in newest
        assert "&lt;script&gt;alert(1)" in newest
        assert "&lt;k&gt;" in newest
        assert "00000000  00 01" in newest
        page = (await visitor.get("/records/viewer/mixed?from=seq:10&count=5")).text
        assert [number for number in range(60) if f"&#34;n&#34;: {number}}}" in page] == [
            10,
            11,
            12,
            13,
            14,
        ]
        assert "from=seq%3A15" in page
        assert "from=seq%3A5" in page
        assert "is no position" in (await visitor.get("/records/viewer/mixed?from=nonsense")).text
        assert (await visitor.get("/records/viewer/none")).status == 404
        async with fastbk.connect(cluster.metadata_uri) as client:
            await client.namespace("viewer").stream("mixed").truncate(fastbk.AtSeq(20))
        page = (await visitor.get("/records/viewer/mixed?from=earliest&count=1")).text
        assert "&#34;n&#34;: 20}" in page


async def test_the_viewer_of_a_short_stream_waits_for_no_more_records(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It ends at the last record: a page with fewer than it was asked for is whole."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.namespace("short").create()
        async with client.namespace("short").stream("three").writer(create=True) as writer:
            for number in range(3):
                await writer.append(b'{"n": %d}' % number)
        await client.namespace("short").create_stream("empty")
    starts = {
        "": [0, 1, 2], "earliest": [0, 1, 2], "seq:2": [2], "seq:3": [], "seq:99": [], "latest": [],
        "time:2100-01-01T00:00:00Z": [],
    }  # fmt: skip
    async with console_of(cluster.metadata_uri, tmp_path) as (_, visitor):
        for start, numbers in starts.items():
            page = await visitor.get(f"/records/short/three?from={start}")
            assert page.status == 200, start
            assert [n for n in range(3) if f"&#34;n&#34;: {n}}}" in page.text] == numbers, start
        for start in ("", "earliest", "latest", "seq:0", "seq:5"):
            assert (await visitor.get(f"/records/short/empty?from={start}")).status == 200, start


async def test_the_search_goes_where_an_id_leads(cluster: LocalCluster, tmp_path: Path) -> None:
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.namespace("searched").create()
        async with client.namespace("searched").stream("needle").writer(create=True) as writer:
            await writer.append(b"x")
        ledger_id = (await client.namespace("searched").stream("needle").segments())[0].ledger_id
    async with console_of(cluster.metadata_uri, tmp_path) as (_, visitor):
        for text, where in (
            ("bookie-2", "/bookie/bookie-2"),
            ("searched/needle", "/stream/searched/needle"),
            (str(ledger_id), f"/ledger/{ledger_id}"),
        ):
            page = await visitor.get(f"/search?q={text}")
            assert (page.status, page.headers["location"]) == (303, where)
        found = (await visitor.get("/search?q=needl")).text
        assert "/stream/searched/needle" in found
        assert "Nothing has" in (await visitor.get("/search?q=%3Cnothing%3E")).text


async def test_bookies_and_streams_are_changed(cluster: LocalCluster, tmp_path: Path) -> None:
    bookie = cluster.bookies[1]
    async with fastbk.connect(cluster.metadata_uri) as client:
        await client.namespace("cut").create()
        async with client.namespace("cut").stream("s").writer(create=True) as writer:
            for _ in range(10):
                await writer.append(b"x")
        async with console_of(cluster.metadata_uri, tmp_path) as (console, visitor):
            assert (await visitor.act("read-only", "bookie-2")).status == 200
            assert json_page(bookie, "/api/v1/bookie/state/readonly")["readOnly"] is True

            async def is_shown() -> bool:
                row = console.view.bookie("bookie-2")
                return row is not None and row.state == "read_only"

            await wait_until_async(is_shown, "the console shows it")
            assert "Make writable" in (await visitor.get("/bookie/bookie-2")).text
            assert (await visitor.act("writable", "bookie-2")).status == 200
            assert json_page(bookie, "/api/v1/bookie/state/readonly")["readOnly"] is False
            runs = json_page(bookie, "/gc")["runs_asked"]
            assert (await visitor.act("gc", "bookie-2")).status == 200
            assert json_page(bookie, "/gc")["runs_asked"] == runs + 1
            done = await visitor.act("truncate", "cut/s", position="seq:4")
            assert (done.status, "begins at" in done.text) == (200, True)
            first = await client.namespace("cut").stream("s").first()
            assert first is not None
            assert first.seq == 4
    done_lines = [one for one in audit_lines(tmp_path) if one["event"] == "console.action_done"]
    assert [(one["operation"], one["target"]) for one in done_lines] == [
        ("read-only", "bookie-2"), ("writable", "bookie-2"), ("gc", "bookie-2"), ("truncate", "cut/s"),
    ]  # fmt: skip


async def test_a_dead_bookie_is_shown_and_holds_up_no_page(tmp_path: Path) -> None:
    async with (
        LocalCluster(2) as cluster,
        console_of(cluster.metadata_uri, tmp_path) as (console, visitor),
    ):
        await cluster.kill_async(0)

        async def is_shown() -> bool:
            row = console.view.bookie("bookie-1")
            return row is not None and row.state in ("no answer", "down")

        await wait_until_async(is_shown, "the console shows it", 30.0)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        home = await visitor.get("/")
        assert "bookie-1" in home.text
        assert "to look at" in home.text
        assert (await visitor.get("/bookie/bookie-1")).status == 200
        assert loop.time() - began_s < 2.0
        assert "did not answer" in (await visitor.get("/events")).text


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Path]]:
    folder = tmp_path_factory.mktemp("secured")
    write_text(folder / "keys.json", KEY.public_text())
    settings = {
        "tls": {"client_certificates": "none"},
        "http": {"client_certificates": "none"},
        "authentication": {
            "methods": ["token"],
            "token_keys_file": str(folder / "keys.json"),
            "token_audience": "c",
        },
        "audit": {"file": str(folder / "bookie-audit.log")},
    }
    with LocalCluster(1, tls=True, settings=settings) as running:
        yield running, folder


@pytest.fixture
def known_by_bookies(
    secured: tuple[LocalCluster, Path], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Give consoles of this test a certificate and a token of their own; return their options."""
    cluster, folder = secured
    assert cluster.tls_options is not None
    for name, value in cluster.tls_options.environment().items():
        monkeypatch.setenv(name, value)
    write_text(
        folder / "console-token", signed("read", audience="c", subject="console", lifetime_s=600)
    )
    monkeypatch.setenv("FASTBK_TOKEN_FILE", str(folder / "console-token"))
    return {"token_keys_file": str(folder / "keys.json"), "token_audience": "c"}


async def test_bookies_decide_by_the_users_token_and_record_the_user(
    secured: tuple[LocalCluster, Path],
    known_by_bookies: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, folder = secured
    async with console_of(cluster.metadata_uri, tmp_path, **known_by_bookies) as (console, visitor):
        assert await visitor_acts(visitor, signed("admin", audience="c")) == 200

        async def is_read_only() -> bool:
            row = console.view.bookie("bookie-1")
            return row is not None and row.state == "read_only"

        await wait_until_async(is_read_only, "the bookie is read-only")
        # A console that does not check: the bookie refuses by itself.
        monkeypatch.setattr("fastbk.console.actions.why_not_change", lambda *_: "")
        assert await visitor_acts(visitor, signed("read", audience="c", subject="mallory")) == 502
    lines = [json.loads(one) for one in (folder / "bookie-audit.log").read_text().splitlines()]
    changes = [
        (one["event"], one["principal"]) for one in lines if one["event"].startswith("admin.")
    ]
    assert changes == [("admin.changed", "token:alice"), ("admin.denied", "token:mallory")]


async def visitor_acts(visitor: Visitor, token: str) -> int:
    """Sign in, make the bookie read-only, and return the status."""
    assert (await visitor.sign_in(token)).status == 303
    return (await visitor.act("read-only", "bookie-1")).status


async def test_with_tls_the_cookie_never_goes_out_in_the_clear(
    secured: tuple[LocalCluster, Path], known_by_bookies: dict[str, str], tmp_path: Path
) -> None:
    cluster, _ = secured
    tls = server_tls("none", "--tls")
    async with console_of(cluster.metadata_uri, tmp_path, tls=tls, **known_by_bookies) as (
        _,
        visitor,
    ):
        visitor.tls = client_context(cluster.tls_options, verify_name=False)
        page = await visitor.sign_in(signed("read", audience="c"))
        assert page.status == 303
        cookie = page.headers["set-cookie"]
        assert cookie.startswith("__Host-")
        assert "Secure" in cookie
        assert "token:alice" in (await visitor.get("/")).text
        own = f"https://127.0.0.1:{visitor.port}"
        form = {"form_key": (await visitor.get("/")).form_key}
        assert (
            await visitor.post("/logout", form, {"Origin": own.replace("https", "http")})
        ).status == 403
        assert (await visitor.post("/logout", form, {"Origin": own})).status == 303
        visitor.tls = None
        with pytest.raises(OSError):  # noqa: PT011 -- whichever way TLS ends it
            await visitor.get("/livez")
