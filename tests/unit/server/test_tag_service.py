"""Workers that ask the supervisor for a ledger's tag get what metadata says, signed, or a reason."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastbk.errors import MetadataUnavailable
from fastbk.meta import open_store
from fastbk.meta.api import LedgerRead
from fastbk.model.ledger import NAMESPACE_KEY
from fastbk.safe_files import write_text
from fastbk.security.tokens import LedgerTag, TokenKey, TokenKeys, verify_tag
from fastbk.server.process_table import Process, worker
from fastbk.server.supervision.metadata_services import TagService
from tests.fixtures.metadata import metadata
from tests.fixtures.wait import wait_until_async

DAMAGED = 666


class Harness:
    """A service on a real store; `told` has what each worker heard, by ledger."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(f"sqlite:{path / 'metadata.sqlite'}")
        self.key = TokenKey.generate("tags-1")
        self.key_file = path / "tags.json"
        write_text(self.key_file, self.key.text())
        self.reads: list[list[int]] = []
        self.is_away = False
        self.may_read = threading.Event()
        self.may_read.set()
        self.told: dict[Process, dict[int, dict[str, Any]]] = {worker(0): {}, worker(1): {}}
        self.service = TagService(self.read, str(self.key_file), lambda: "cluster")
        children = {process: SimpleNamespace(send=self.hear(process)) for process in self.told}
        self.service.attach(cast("Any", SimpleNamespace(children=children)))

    def read(self, ledger_ids: Sequence[int]) -> list[LedgerRead]:
        self.reads.append(list(ledger_ids))
        assert self.may_read.wait(10)
        if self.is_away:
            raise MetadataUnavailable("pulled out")
        return self.store.read_ledgers(ledger_ids)

    def hear(self, process: Process) -> Any:
        def send(message: dict[str, Any]) -> bool:
            assert message["type"] == "tag_known"
            self.told[process][message["ledger"]] = message
            return True

        return send

    def ask(self, process: Process, *ledgers: object) -> None:
        for one in ledgers:
            self.service.request(process, {"type": "tag_wanted", "ledger": one})

    def create(self, ledger_id: int, namespace: bytes | None) -> None:
        custom = {} if namespace is None else {NAMESPACE_KEY: namespace}
        self.store.create_ledger(ledger_id, replace(metadata(), custom=custom))

    async def heard(self, process: Process, *ledgers: int) -> list[dict[str, Any]]:
        await wait_until_async(
            lambda: set(ledgers) <= set(self.told[process]), "the service's answer"
        )
        return [self.told[process].pop(one) for one in ledgers]

    def says(self, message: dict[str, Any]) -> LedgerTag:
        keys = TokenKeys({self.key.key_id: self.key.private_key.public_key()})
        return verify_tag(keys, message["tag"].encode(), "cluster")


@contextlib.asynccontextmanager
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    one = Harness(tmp_path)
    try:
        yield one
    finally:
        one.may_read.set()
        await one.service.close()
        one.store.close()


async def test_a_tag_says_what_metadata_says(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        here.create(5, b"orders/eu")
        here.create(6, None)
        here.create(7, "größe".encode())
        here.create(8, b"\xff" + b"x" * 4000)
        here.ask(worker(0), 5, 6, 7, 8, 9)
        named, bare, german, overlong, missing = await here.heard(worker(0), 5, 6, 7, 8, 9)
        assert here.says(named) == LedgerTag(5, "orders/eu", "tags-1")
        assert (named["namespace"], bare["namespace"]) == ("orders/eu", "")
        assert here.says(bare) == LedgerTag(6, "", "tags-1")
        assert here.says(german).namespace == "größe"
        assert "too many for a tag" in overlong["reason"]
        assert "tag" not in overlong
        assert (missing["is_missing"], "tag" in missing) == (True, False)
        assert here.told[worker(1)] == {}, "nobody else asked"


async def test_what_several_ask_is_read_once_and_what_was_not_there_is_read_again(
    tmp_path: Path,
) -> None:
    async with harness(tmp_path) as here:
        here.create(5, b"orders")
        here.may_read.clear()
        here.ask(worker(0), 6)
        await wait_until_async(lambda: here.reads == [[6]], "the first read")
        for process in (worker(0), worker(1)):
            here.ask(process, 5, True, "5", -1, 1 << 63, None)
        here.may_read.set()
        for process in (worker(0), worker(1)):
            (found,) = await here.heard(process, 5)
            assert here.says(found).ledger_id == 5
        assert here.reads == [[6], [5]]
        assert (await here.heard(worker(0), 6))[0]["is_missing"]
        here.create(6, b"orders")
        here.ask(worker(0), 6)
        assert here.says((await here.heard(worker(0), 6))[0]).namespace == "orders"


async def test_metadata_that_is_away_or_damaged_is_a_reason(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        here.create(5, b"orders")
        here.create(DAMAGED, None)
        with closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as db:
            db.execute("UPDATE ledgers SET metadata = x'00' WHERE ledger_id = ?", (DAMAGED,))
            db.commit()
        here.ask(worker(0), 5, DAMAGED)
        good, bad = await here.heard(worker(0), 5, DAMAGED)
        assert here.says(good).ledger_id == 5
        assert bad["reason"].startswith(f"ledger {DAMAGED}: ledger metadata does not begin")
        assert "is_missing" not in bad
        here.is_away = True
        here.ask(worker(0), 5)
        (away,) = await here.heard(worker(0), 5)
        assert (away["reason"], "is_missing" in away) == ("pulled out", False)
        # Who waited once waits for it no more.
        here.reads.clear()
        here.may_read.clear()
        here.ask(worker(0), 5)
        await wait_until_async(lambda: here.reads == [[5]], "the read")
        here.reads.clear()
        here.ask(worker(0), 6, 7, 8)
        here.may_read.set()
        assert [one["reason"] for one in await here.heard(worker(0), 6, 7, 8)] == ["pulled out"] * 3
        assert here.reads == [[6, 7, 8]]


async def test_the_key_is_read_anew_when_its_file_changes(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        here.create(5, b"orders")
        here.key_file.unlink()
        here.ask(worker(0), 5)
        assert "tag" not in (await here.heard(worker(0), 5))[0]
        write_text(here.key_file, here.key.text())
        here.ask(worker(0), 5)
        assert here.says((await here.heard(worker(0), 5))[0]).key_id == "tags-1"
        write_text(here.key_file, "no key")
        here.ask(worker(0), 5)
        assert here.says((await here.heard(worker(0), 5))[0]).key_id == "tags-1", (
            "what was read before"
        )
        here.key = TokenKey.generate("tags-2")
        write_text(here.key_file, here.key.text())
        here.ask(worker(0), 5)
        assert here.says((await here.heard(worker(0), 5))[0]).key_id == "tags-2"


async def test_a_new_boot_hears_nothing_that_the_one_before_asked(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        here.create(5, b"orders")
        here.may_read.clear()
        here.ask(worker(0), 5)
        await wait_until_async(lambda: len(here.reads) == 1, "the read")
        here.ask(worker(0), 6)
        here.service.detach()
        here.may_read.set()
        await wait_until_async(lambda: here.service._task is None, "the read's end")
        assert here.told == {worker(0): {}, worker(1): {}}
        assert here.reads == [[5]]


async def test_what_is_asked_for_as_the_last_answer_leaves_is_read(tmp_path: Path) -> None:
    """Then the task that reads is over, and has not been seen to be."""
    async with harness(tmp_path) as here:
        for one in (5, 6):
            here.create(one, b"orders")
        hear = here.told[worker(0)].__setitem__

        def told(message: dict[str, Any]) -> bool:
            hear(message["ledger"], message)
            if message["ledger"] == 5:
                asyncio.get_running_loop().call_soon(here.ask, worker(0), 6)
            return True

        children = {worker(0): SimpleNamespace(send=told)}
        here.service.attach(cast("Any", SimpleNamespace(children=children)))
        here.ask(worker(0), 5)
        found = await here.heard(worker(0), 5, 6)
        assert [here.says(one).ledger_id for one in found] == [5, 6]
