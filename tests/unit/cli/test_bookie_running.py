"""How commands find a bookie's HTTP page, and what they make of its answers. Against the real page."""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from typing import TYPE_CHECKING

import pytest

from fastbk.admin.page_client import AdminClient, BookieRefused, BookieSilent, client_of
from fastbk.cli.__main__ import main
from fastbk.cli.bookie.running import add_bookie, admin_client
from fastbk.errors import ConfigError, Error, StorageError
from fastbk.meta import open_store
from fastbk.meta.api import HTTP_NAME, HTTP_PROTOCOL, BookieRegistration, BookieService, Endpoint
from fastbk.model.ids import BookieId
from fastbk.overview.poller import PageError, PageReader
from fastbk.server.admin.metrics import Metrics
from fastbk.server.admin.pages import AdminServer
from fastbk.server.supervision.lifecycle import Lifecycle, RestartBudget
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Page:
    """A bookie's HTTP page in a thread with a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        life = Lifecycle(0.0)
        self.server = AdminServer(life, Metrics(life, RestartBudget(5, 60.0)))
        self.server.add_route("POST", "/echo", self.echo)
        self.server.add_route("GET", "/echo", self.echo)
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.run(self.server.open("127.0.0.1", 0))

    async def echo(self, asked: dict[str, object]) -> object:
        if "refuse" in asked:
            raise StorageError("it does not", retryable=asked["refuse"] == "now")
        return {"asked": asked}

    def run(self, what: object) -> None:
        asyncio.run_coroutine_threadsafe(what, self.loop).result(10)  # type: ignore[arg-type]

    def close(self) -> None:
        self.run(self.server.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        wait_until(lambda: not self.loop.is_running(), "the end of the page's loop")
        self.loop.close()


@pytest.fixture
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.close()


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_bookie(parser)
    return parser.parse_args(list(words))


def test_answers_and_refusals(page: Page) -> None:
    client = AdminClient("127.0.0.1", page.server.port)
    assert client.get("/echo", {"a": "ü & 2"}) == {"asked": {"a": "ü & 2"}}
    assert client.post("/echo", {"a": [1, None]}) == {"asked": {"a": [1, None]}}
    assert client.post("/echo") == {"asked": {}}
    assert client.state("/readyz")["ready"] is False
    for how, retryable in (("now", True), ("ever", False)):
        with pytest.raises(BookieRefused, match="it does not") as refused:
            client.post("/echo", {"refuse": how})
        assert refused.value.retryable is retryable
    with pytest.raises(BookieRefused, match="404") as missing:
        client.get("/nothing")
    assert missing.value.status == 404
    with pytest.raises(BookieRefused, match="something else than JSON"):
        client.get("/metrics")


def test_a_page_of_another_bookie_does_nothing(page: Page) -> None:
    """On loopback each machine has its own bookie at the same port; what is meant for b2 must not happen to b1."""
    page.server.bookie_id = "b1"
    service = BookieService(
        BookieId("b2"), 1, (Endpoint("127.0.0.1", page.server.port, HTTP_PROTOCOL),)
    )
    meant_for_b2 = client_of(BookieRegistration(service, writable=True), "zk://far")
    with pytest.raises(
        BookieRefused, match="the page of bookie b1, not of the one that was meant"
    ) as refused:
        meant_for_b2.post("/echo", {"a": 1})
    assert refused.value.status == 421
    endpoint = service.endpoint(HTTP_PROTOCOL)
    assert endpoint is not None
    with pytest.raises(PageError, match="the page of bookie b1"):
        asyncio.run(PageReader().read_object(endpoint, "/echo", "b2"))
    assert asyncio.run(PageReader().read_object(endpoint, "/echo", "b1")) == {"asked": {}}
    for bookie_id in ("b1", ""):
        client = AdminClient("127.0.0.1", page.server.port, bookie_id=bookie_id)
        assert client.post("/echo", {"a": 1}) == {"asked": {"a": 1}}


def test_nobody_there_is_said_with_the_next_step(page: Page) -> None:
    port = page.server.port
    page.run(page.server.close())
    with pytest.raises(BookieSilent, match=r"bookie\.started"):
        AdminClient("127.0.0.1", port).get("/echo")


def test_a_bookie_is_found_by_address_or_in_the_metadata(page: Page, tmp_path: Path) -> None:
    port = page.server.port
    for text in (f"127.0.0.1:{port}", f"http://127.0.0.1:{port}/"):
        assert admin_client(options("--http", text)).get("/echo") == {"asked": {}}
    with pytest.raises(ConfigError, match="--http"):
        admin_client(options("--http", "localhost"))
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    store = open_store(uri)
    one = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", port, HTTP_PROTOCOL, HTTP_NAME)
    with pytest.raises(ConfigError, match="lists 0 bookies"):
        admin_client(options("--metadata", uri))
    first = store.register_bookie(BookieService(BookieId("b1"), 1, one), writable=True)
    assert admin_client(options("--metadata", uri)).port == port
    second = store.register_bookie(BookieService(BookieId("b2"), 2, one[:1]), writable=False)
    with pytest.raises(ConfigError, match="b1, b2"):
        admin_client(options("--metadata", uri))
    assert admin_client(options("--metadata", uri, "b1")).port == port
    with pytest.raises(ConfigError, match="no HTTP page"):
        admin_client(options("--metadata", uri, "b2"))
    with pytest.raises(Error, match="no bookie b3"):
        admin_client(options("--metadata", uri, "b3"))
    for lease in (first, second):
        lease.close()
    store.close()


@pytest.mark.parametrize(
    ("path", "answer", "arguments"),
    [
        ("/info", {"state": "writable", "not_ready": []}, ["info"]),
        ("/gc", {"running": True}, ["gc", "status"]),
        ("/disks", {"disks": [{"state": "ok", "slow": ""}]}, ["disk"]),
    ],
    ids=["info", "gc", "disk"],
)
def test_json_is_what_a_bookie_of_any_version_says(
    page: Page,
    path: str,
    answer: dict[str, object],
    arguments: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def says(_: dict[str, object]) -> object:
        return answer

    page.server.add_route("GET", path, says)
    there = f"127.0.0.1:{page.server.port}"
    assert main(["bookie", *arguments, "--http", there, "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out) == answer.get("disks", answer)
