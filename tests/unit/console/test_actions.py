"""Actions: who may do them, what has to be typed, and that each leaves lines in the audit log."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

import fastbk
from fastbk.cli.__main__ import main
from fastbk.console.actions import ACTIONS
from fastbk.console.cluster_view import lag_name
from fastbk.errors import ConfigError
from fastbk.overview.values import CursorLag
from tests.fixtures.console import audit_lines, console_of, signed, with_tokens
from tests.fixtures.metadata import new_cluster


async def test_healing_is_paused_and_resumed_as_the_user(tmp_path: Path) -> None:
    uri = new_cluster(tmp_path / "m")
    async with console_of(uri, tmp_path, **with_tokens(tmp_path)) as (console, visitor):
        client = console.view.client
        await visitor.sign_in(signed("admin"))
        wrong = await visitor.act("pause-healing", "healing", confirm="Healing")
        assert (wrong.status, "type exactly: healing" in wrong.text) == (400, True)
        assert await client.call_store(lambda store: store.coordination.is_enabled())
        done = await visitor.act("pause-healing", "healing")
        assert (done.status, "is paused" in done.text) == (200, True)
        assert not await client.call_store(lambda store: store.coordination.is_enabled())
        assert (await visitor.act("resume-healing", "healing")).status == 200
        assert await client.call_store(lambda store: store.coordination.is_enabled())
    lines = audit_lines(tmp_path)[1:]
    assert [(one["event"], one["operation"], one["principal"], one["target"]) for one in lines] == [
        (f"console.action_{word}", f"{name}-healing", "token:alice", "healing")
        for name in ("pause", "resume")
        for word in ("begun", "done")
    ]
    assert main(["audit", "verify", str(tmp_path / "audit.log")]) == 0


async def test_who_may_not_changes_nothing_and_is_noted(tmp_path: Path) -> None:
    uri = new_cluster(tmp_path / "m")
    async with console_of(uri, tmp_path, **with_tokens(tmp_path)) as (console, visitor):
        for token in (signed("read", "add"), signed("admin", namespaces=["shop"])):
            await visitor.sign_in(token)
            page = await visitor.act("pause-healing", "healing")
            assert page.status == 403
            assert "disabled" in (await visitor.get("/healing")).text
        assert await console.view.client.call_store(lambda store: store.coordination.is_enabled())
    assert [one["event"] for one in audit_lines(tmp_path)] == [
        "console.signed_in",
        "console.denied",
    ] * 2


async def test_an_action_that_cannot_be_noted_is_not_done(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (console, visitor):
        await console.audit.close()
        page = await visitor.act("pause-healing", "healing")
        assert (page.status, "audit log cannot be written" in page.text) == (502, True)
        assert await console.view.client.call_store(lambda store: store.coordination.is_enabled())


async def test_a_truncation_needs_a_position_and_its_namespace(tmp_path: Path) -> None:
    uri = new_cluster(tmp_path / "m")
    async with fastbk.connect(uri) as client:
        for name in ("shop", "other"):
            await client.namespace(name).create()
            await client.namespace(name).create_stream("orders")
    async with console_of(uri, tmp_path, **with_tokens(tmp_path)) as (_, visitor):
        await visitor.sign_in(signed("admin", namespaces=["shop"]))
        page = await visitor.act("truncate", "shop/orders", position="latest")
        assert (page.status, "the operation `truncate`" in page.text) == (403, True)
        await visitor.sign_in(signed("truncate", namespaces=["shop"]))
        wrong = {"earliest": "nothing lies before", "soon": "is no position", "": "is no position"}
        for position, reason in wrong.items():
            page = await visitor.act("truncate", "shop/orders", position=position)
            assert (page.status, reason in page.text) == (403, True)
        assert (await visitor.act("truncate", "shop/orders", position="latest")).status == 200
        page = await visitor.act("truncate", "other/orders", position="latest")
        assert (page.status, "not for the namespace other" in page.text) == (403, True)
        assert (await visitor.get("/stream/other/orders")).status == 404
        streams = await visitor.get("/streams")
        assert "shop" in streams.text
        assert "other" not in streams.text


async def test_an_action_on_a_bookie_that_is_not_there_says_so(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path) as (_, visitor):
        page = await visitor.act("gc", "bookie-9")
        assert (page.status, "lists no bookie bookie-9" in page.text) == (502, True)
        assert (await visitor.get("/action/nonsense?target=a")).status == 404
        assert (await visitor.act("pause-healing", "healing", confirm="")).status == 400
    assert [one["event"] for one in audit_lines(tmp_path)] == [
        "console.action_begun",
        "console.action_failed",
    ]


async def test_a_limited_user_sees_nothing_of_other_namespaces(tmp_path: Path) -> None:
    async with console_of(new_cluster(tmp_path / "m"), tmp_path, **with_tokens(tmp_path)) as (
        console,
        visitor,
    ):
        overview = console.view.overview
        assert overview is not None
        lags = tuple(
            CursorLag(f"{name}/s", f"of-{name}", "", 7, 70, 5000.0, 1.0)
            for name in ("shop", "other")
        )
        console.view.overview = dataclasses.replace(overview, cursors=lags)
        for one in lags:
            for at_s in (1.0, 2.0):
                console.view.history.add(lag_name(one.stream, one.cursor), at_s, 7.0)
        await visitor.sign_in(signed("read", namespaces=["shop"]))
        for path in ("/", "/cursors", "/search?q=of-"):
            text = (await visitor.get(path)).text
            assert "of-shop" in text
            assert "of-other" not in text
        for name, points in (("shop", 2), ("other", 0)):
            page = await visitor.get(f"/series?name=cursor/{name}/s:of-{name}/lag")
            assert len(json.loads(page.text)["times"]) == points
        assert "limited to namespaces" in (await visitor.get("/events")).text
        await visitor.sign_in(signed("read"))
        assert "of-other" in (await visitor.get("/cursors")).text


async def test_two_consoles_do_not_share_an_audit_log(tmp_path: Path) -> None:
    uri = new_cluster(tmp_path / "m")
    async with console_of(uri, tmp_path):
        with pytest.raises(ConfigError, match="another console"):
            async with console_of(uri, tmp_path):
                pass
    async with console_of(uri, tmp_path) as (_, visitor):
        assert (await visitor.get("/")).status == 200, "the lock ends with its console"


def test_the_buttons_of_an_action_have_one_colour_on_all_pages() -> None:
    pages = (Path(fastbk.__file__).parent / "console" / "templates").glob("*.html")
    buttons = [
        one
        for page in pages
        for one in re.findall(r'm\.act\("([a-z-]+)",[^}]*?(, true)?\)', page.read_text())
    ]
    assert {name for name, _ in buttons} == set(ACTIONS)
    for name, red in buttons:
        assert bool(red) == ACTIONS[name].is_grave, name
