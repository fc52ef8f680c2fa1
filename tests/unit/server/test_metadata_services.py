"""Who asks the supervisor for digest types hears what metadata says, and nothing where it says nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.errors import MetadataUnavailable
from fastbk.meta import open_store
from fastbk.model.entry import DigestType, mac_key
from fastbk.model.ledger import NAMESPACE_KEY
from fastbk.safe_files import write_text
from fastbk.security.tokens import LedgerTag, TokenKey, TokenKeys, verify_tag
from fastbk.server.process_table import INDEX, Process, worker
from fastbk.server.supervision import metadata_services
from fastbk.server.supervision.metadata_services import DigestService, TagService
from tests.fixtures.hashes import DIGEST_CRC32C
from tests.fixtures.metadata import metadata
from tests.fixtures.wait import wait_until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from fastbk.meta.api import LedgerRead, MetadataStore, VersionedLedger


class Harness:
    """A service on a real store; `told` has what each child heard."""

    def __init__(self, path: Path) -> None:
        self.path = path / "metadata.sqlite"
        self.store: MetadataStore = open_store(f"sqlite:{self.path}")
        self.reads: list[list[int]] = []
        self.is_away = False
        self.may_read = threading.Event()
        self.may_read.set()
        self.told: dict[Process, dict[int, int | str | None]] = {
            worker(0): {},
            worker(1): {},
            INDEX: {},
        }
        self.children: dict[Process, SimpleNamespace] = {}
        self.service = DigestService(self.read, self.boot)

    def boot(self) -> Any:
        return SimpleNamespace(children=self.children)

    def read(self, ledger_ids: Sequence[int]) -> list[VersionedLedger | None]:
        self.reads.append(list(ledger_ids))
        assert self.may_read.wait(10)
        if self.is_away:
            raise MetadataUnavailable("pulled out")
        return self.store.read_ledgers(ledger_ids)

    def child(self, process: Process) -> SimpleNamespace:
        def send(message: dict[str, Any]) -> bool:
            assert message["type"] == "digests_known"
            self.told[process].update(message["digests"])
            return True

        return SimpleNamespace(send=send)

    def begin(self, *processes: Process) -> None:
        self.children = {process: self.child(process) for process in processes}

    def ask(self, process: Process, *ledgers: object) -> None:
        self.service.request(process, {"type": "digests_wanted", "ledgers": list(ledgers)})

    def create(self, *digest_types: DigestType | None) -> list[int]:
        made = []
        for digest_type in digest_types:
            made.append(self.store.next_ledger_id())
            self.store.create_ledger(made[-1], replace(metadata(), digest_type=digest_type))
        return made

    async def until(self, condition: Any) -> None:
        await wait_until_async(condition, "the service's answer")


@contextlib.asynccontextmanager
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    one = Harness(tmp_path)
    one.begin(worker(0), worker(1), INDEX)
    try:
        yield one
    finally:
        one.may_read.set()
        await one.service.close()
        one.store.close()


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_services, "READ_PAUSE_S", 0.0)
    monkeypatch.setattr(metadata_services, "AWAY_PAUSE_S", 0.0)


@pytest.mark.usefixtures("short_pauses")
async def test_each_type_has_its_number(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        made = here.create(*DigestType, None)
        here.ask(worker(1), *made, 999)
        await here.until(lambda: len(here.told[worker(1)]) == 6)
        types = [here.told[worker(1)][ledger] for ledger in made]
        assert types == [1, 2, 3, 4, None]
        assert here.told[worker(1)][999] is None, "there is no such ledger"
        assert types[2] == DIGEST_CRC32C
        assert here.told[worker(0)] == here.told[INDEX] == {}, "nobody else asked"


@pytest.mark.usefixtures("short_pauses")
async def test_only_an_index_is_told_the_key_of_a_mac(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        made = [5, 6]
        for ledger_id, password in zip(made, (b"passwd", None), strict=True):
            ledger = replace(metadata(), digest_type=DigestType.HMAC, password=password)
            here.store.create_ledger(ledger_id, ledger)
        for process in (worker(0), INDEX):
            here.ask(process, *made)
        await here.until(lambda: len(here.told[worker(0)]) == len(here.told[INDEX]) == 2)
        assert here.told[worker(0)] == {made[0]: 2, made[1]: 2}
        assert here.told[INDEX] == {made[0]: mac_key(b"passwd").hex(), made[1]: 2}


@pytest.mark.usefixtures("short_pauses")
async def test_what_several_ask_is_read_once(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        first, second = here.create(DigestType.CRC32, DigestType.CRC32C)
        here.may_read.clear()
        here.ask(worker(0), first)
        await here.until(lambda: here.reads == [[first]])
        for process in (worker(0), worker(1), INDEX):
            here.ask(process, second)
        here.may_read.set()
        await here.until(lambda: all(told.get(second) == 3 for told in here.told.values()))
        assert here.reads == [[first], [second]]
        here.ask(worker(1), first, second)
        assert here.told[worker(1)] == {first: 1, second: 3}, "it is known by now"
        assert here.reads == [[first], [second]]


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("turns", range(1, 5))
async def test_what_is_requested_as_the_last_answer_leaves_is_read(
    tmp_path: Path, turns: int
) -> None:
    """So many turns of the loop after the answer: in one of them the task that reads is over, and still counts."""
    async with harness(tmp_path) as here:
        first, second = here.create(DigestType.CRC32, DigestType.CRC32C)

        def request_in(turns_left: int) -> None:
            if turns_left:
                asyncio.get_running_loop().call_soon(request_in, turns_left - 1)
            else:
                here.ask(worker(0), second)

        def send(message: dict[str, Any]) -> bool:
            here.told[worker(0)].update(message["digests"])
            if second not in here.told[worker(0)]:
                request_in(turns)
            return True

        here.children = {worker(0): SimpleNamespace(send=send)}
        here.ask(worker(0), first)
        await here.until(lambda: here.told[worker(0)] == {first: 1, second: 3})


@pytest.mark.usefixtures("short_pauses")
async def test_an_old_answer_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with harness(tmp_path) as here:
        here.ask(worker(0), 77)
        await here.until(lambda: here.told[worker(0)] == {77: None})
        here.store.create_ledger(77, metadata())
        here.ask(worker(0), 77)
        assert here.told[worker(0)] == {77: None}
        monkeypatch.setattr(metadata_services, "ANSWER_AGE_S_MAX", 0.0)
        here.ask(worker(0), 77)
        await here.until(lambda: here.told[worker(0)] == {77: 3})


@pytest.mark.usefixtures("short_pauses")
async def test_metadata_that_is_away_is_no_answer(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        (ledger,) = here.create(DigestType.CRC32C)
        here.is_away = True
        here.ask(worker(0), ledger)
        await here.until(lambda: here.reads)
        here.is_away = False
        await here.until(lambda: here.service._task is None)
        assert here.told[worker(0)] == {}
        here.ask(worker(0), ledger)
        await here.until(lambda: here.told[worker(0)] == {ledger: 3})


@pytest.mark.usefixtures("short_pauses")
async def test_damaged_metadata_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        made = here.create(DigestType.CRC32, DigestType.CRC32C, DigestType.HMAC)
        with contextlib.closing(sqlite3.connect(here.path)) as db, db:
            db.execute("UPDATE ledgers SET metadata = x'00' WHERE ledger_id = ?", (made[1],))
        here.ask(worker(0), *made)
        await here.until(lambda: here.told[worker(0)] == {made[0]: 1, made[2]: 2})


@pytest.mark.usefixtures("short_pauses")
async def test_all_that_can_grow_has_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_services, "WAITING_MAX", 100)
    monkeypatch.setattr(metadata_services, "ANSWERS_MAX", 10)
    async with harness(tmp_path) as here:
        here.may_read.clear()
        here.ask(worker(0), 10_000)
        await here.until(lambda: here.reads)
        here.ask(worker(0), *range(2000), 1 << 63, -1, "5", None)
        here.ask(worker(1), *range(99, 102))
        assert len(here.service._waiting) == 100
        here.may_read.set()
        await here.until(lambda: len(here.told[worker(0)]) == 101)
        assert here.told[worker(1)] == {99: None}, "the others may ask again"
        assert max(map(len, here.reads)) == metadata_services.READ_AT_ONCE_MAX
        assert len(here.service._answers) == 10
        here.service.request(worker(0), {"type": "digests_wanted"})


@pytest.mark.usefixtures("short_pauses")
async def test_a_boot_that_is_over_hears_nothing(tmp_path: Path) -> None:
    async with harness(tmp_path) as here:
        (ledger,) = here.create(DigestType.CRC32C)
        here.may_read.clear()
        here.ask(worker(0), ledger)
        await here.until(lambda: here.reads)
        here.ask(worker(0), 5, 6)
        here.children = {}
        here.service.boot_is_over()
        here.may_read.set()
        await here.until(lambda: here.service._task is None)
        assert here.told[worker(0)] == {}
        assert here.reads == [[ledger]]
        here.begin(worker(0))
        here.ask(worker(1), ledger)
        here.ask(worker(0), ledger)
        assert here.told == {worker(0): {ledger: 3}, worker(1): {}, INDEX: {}}


# Workers that ask the supervisor for a ledger's tag get what metadata says, signed, or a reason.


DAMAGED = 666


class TagHarness:
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
        self.children = {process: SimpleNamespace(send=self.hear(process)) for process in self.told}
        self.service = TagService(self.read, self.boot, str(self.key_file), lambda: "cluster")

    def boot(self) -> Any:
        return SimpleNamespace(children=self.children)

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
async def tag_harness(tmp_path: Path) -> AsyncIterator[TagHarness]:
    one = TagHarness(tmp_path)
    try:
        yield one
    finally:
        one.may_read.set()
        await one.service.close()
        one.store.close()


async def test_a_tag_says_what_metadata_says(tmp_path: Path) -> None:
    async with tag_harness(tmp_path) as here:
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
    async with tag_harness(tmp_path) as here:
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
    async with tag_harness(tmp_path) as here:
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
    async with tag_harness(tmp_path) as here:
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
    async with tag_harness(tmp_path) as here:
        here.create(5, b"orders")
        here.may_read.clear()
        here.ask(worker(0), 5)
        await wait_until_async(lambda: len(here.reads) == 1, "the read")
        here.ask(worker(0), 6)
        here.children = {}
        here.service.boot_is_over()
        here.may_read.set()
        await wait_until_async(lambda: here.service._task is None, "the read's end")
        assert here.told == {worker(0): {}, worker(1): {}}
        assert here.reads == [[5]]


async def test_what_is_asked_for_as_the_last_answer_leaves_is_read(tmp_path: Path) -> None:
    """Then the task that reads is over, and has not been seen to be."""
    async with tag_harness(tmp_path) as here:
        for one in (5, 6):
            here.create(one, b"orders")
        hear = here.told[worker(0)].__setitem__

        def told(message: dict[str, Any]) -> bool:
            hear(message["ledger"], message)
            if message["ledger"] == 5:
                asyncio.get_running_loop().call_soon(here.ask, worker(0), 6)
            return True

        here.children = {worker(0): SimpleNamespace(send=told)}
        here.ask(worker(0), 5)
        found = await here.heard(worker(0), 5, 6)
        assert [here.says(one).ledger_id for one in found] == [5, 6]
