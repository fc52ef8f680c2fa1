"""A chain's changes in any order that writers, attachers and janitors may bring.

INV-S2, INV-S3, INV-S4, INV-S6, INV-S7, INV-S8, INV-S9.
"""

from __future__ import annotations

import random

import pytest

from fastbk.errors import MetadataConflict, StorageError, StreamSealed
from fastbk.stream import chain as chains
from fastbk.stream.chain import (
    PAGE_ROWS,
    ROWS_MAX,
    Chain,
    Contents,
    get_chain,
    get_page,
    put_chain,
    put_page,
    verify,
)
from fastbk.stream.positions import DLSN


def contents(chain: Chain, number: int, records: int) -> Contents:
    first = max(chain.last_txid, 0)
    last = DLSN(number, records // 3, records % 3) if records else None
    return Contents(records, first, first + records, 10, 20, last, -1, 100 * records)


def with_segment(chain: Chain, ledger_id: int) -> Chain:
    chain = chains.reserve(chain, chain.epoch, ledger_id)
    return chains.add_segment(chain, chain.epoch, ledger_id, 1000 + ledger_id)


def closed(chain: Chain, records: int) -> Chain:
    row = chain.open_rows[0]
    return chains.close_segment(chain, row.ledger_id, contents(chain, row.number, records))


class Life:
    """A chain under random changes, with a count of what each ledger is."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chain = chains.open_for_append(Chain("a"), "w")
        self.ledger_id = 0
        self.ledgers: set[int] = set()  # that exist
        self.records = 0

    def step(self) -> None:
        change = self.rng.choice(
            [self.add, self.add, self.close, self.close, self.take_over, self.delete, self.sweep]
        )
        change()
        verify(self.chain)
        assert get_chain(put_chain(self.chain)) == self.chain
        named = {row.ledger_id for row in self.chain.rows} | {
            *self.chain.doomed,
            self.chain.reserved,
        }
        assert self.ledgers <= named, "INV-S8: a ledger exists that nothing names"
        assert self.chain.end_seq == self.records

    def add(self) -> None:
        if len(self.chain.open_rows) == 2:
            return
        self.ledger_id += 1
        self.chain = chains.reserve(self.chain, self.chain.epoch, self.ledger_id)
        self.ledgers.add(self.ledger_id)
        if self.rng.random() < 0.8:
            self.chain = chains.add_segment(self.chain, self.chain.epoch, self.ledger_id, 0)

    def close(self) -> None:
        if self.chain.open_rows:
            count = self.rng.choice([0, 1, 50])
            self.chain = closed(self.chain, count)
            self.records += count

    def take_over(self) -> None:
        while self.chain.open_rows:
            self.close()
        before = self.chain.epoch
        self.chain = chains.open_for_append(self.chain, f"other {before}")
        with pytest.raises(MetadataConflict):
            chains.reserve(self.chain, before, 99)

    def delete(self) -> None:
        below = self.rng.randrange(self.chain.head, self.chain.next_number + 2)
        self.chain = chains.mark_deleting(self.chain, below)
        closed_rows = [row for row in self.chain.rows if not row.is_open]
        assert not closed_rows or self.chain.deleting <= closed_rows[-1].number
        gone = [row for row in self.chain.rows if row.number < self.chain.deleting]
        if self.rng.random() < 0.5 and gone:
            self.ledgers -= {row.ledger_id for row in gone}
            self.chain = chains.drop_deleted(self.chain, self.chain.deleting, gone[-1].end_seq)

    def sweep(self) -> None:
        doomed = self.chain.doomed[: self.rng.randrange(3)]
        self.ledgers -= set(doomed)
        self.chain = chains.forget_deleted(self.chain, doomed)


def test_any_order_of_changes_keeps_the_chain_whole(rng: random.Random) -> None:
    for _ in range(50):
        life = Life(rng)
        for _ in range(120):
            life.step()


def test_what_an_older_epoch_does_is_refused() -> None:
    chain = with_segment(chains.open_for_append(Chain("a"), "one"), 1)
    newer = chains.open_for_append(closed(chain, 3), "two")
    for change in (
        lambda: chains.reserve(newer, 1, 9),
        lambda: chains.add_segment(newer, 1, 9, 0),
        lambda: chains.seal(newer, 1),
    ):
        with pytest.raises(MetadataConflict, match="two"):
            change()


def test_a_change_that_is_there_already_changes_nothing() -> None:
    chain = chains.open_for_append(Chain("a"), "one")
    assert chains.open_for_append(chain, "one") == chain
    chain = chains.reserve(chain, 1, 7)
    assert chains.reserve(chain, 1, 7) == chain
    chain = chains.add_segment(chain, 1, 7, 0)
    assert chains.reserve(chain, 1, 7) == chain
    assert chains.add_segment(chain, 1, 7, 0) == chain
    once = closed(chain, 4)
    assert chains.close_segment(once, 7, contents(once, 1, 4)) == once
    empty = closed(with_segment(once, 8), 0)
    assert chains.close_segment(empty, 8, contents(empty, 2, 0)) == empty


def test_a_sealed_stream_takes_nothing_more() -> None:
    chain = chains.seal(chains.open_for_append(Chain("a"), "w"), 1)
    for change in (
        lambda: chains.open_for_append(chain, "x"),
        lambda: chains.attach(chain, (), "k", 1, 0),
    ):
        with pytest.raises(StreamSealed):
            change()


def test_an_empty_segment_never_changes_the_last_transaction_id() -> None:
    chain = closed(with_segment(chains.open_for_append(Chain("a"), "w"), 1), 5)
    after = closed(with_segment(chain, 2), 0)
    assert (after.last_txid, after.last_dlsn, after.next_number) == (
        chain.last_txid,
        chain.last_dlsn,
        2,
    )
    assert after.doomed == (2,)


def test_a_repeated_attachment_does_nothing() -> None:
    chain = closed(with_segment(chains.open_for_append(Chain("a"), "w"), 1), 5)
    told = Contents(7, 0, 6, 1, 2, DLSN(1, 3, 0), -1, 70)
    once = chains.attach(chain, ((11, told), (12, told)), "query", 3, 0)
    assert [row.ledger_id for row in once.rows] == [1, 11, 12]
    assert [(row.base_seq, row.base_txid) for row in once.rows[1:]] == [(5, 5), (12, 11)]
    assert once.last_dlsn == DLSN(3, 3, 0)
    assert chains.attach(once, ((11, told), (12, told)), "query", 3, 0) == once
    assert chains.attach(once, ((13, told),), "query", 2, 0) == once
    assert len(chains.attach(once, ((13, told),), "query", 4, 0).rows) == 4
    with pytest.raises(MetadataConflict):
        chains.attach(with_segment(once, 20), ((13, told),), "other", 1, 0)


def test_pages_hold_what_rows_held() -> None:
    chain, pages = chains.open_for_append(Chain("a"), "w"), {}
    rows = []
    for ledger_id in range(3000):
        chain = closed(with_segment(chain, ledger_id), 1 + ledger_id % 7)
        rows.append(chain.rows[-1])
        if len(chain.rows) > ROWS_MAX:
            chain, page, moved = chains.spill(chain, PAGE_ROWS, 7)
            pages[page.page] = put_page(moved)
            verify(chain)
    found = [row for page in chain.pages for row in get_page(pages[page.page])]
    assert [*found, *chain.rows] == rows
    assert len(put_chain(chain)) < 40_000
    page = chain.page_of(1500)
    assert page is not None and page.first <= 1500 <= page.last
    chain = chains.mark_deleting(chain, 1100)
    chain = chains.drop_deleted(chain, 1100, rows[1099].base_seq)
    verify(chain)
    assert [page.page for page in chain.pages] == [1]
    assert chain.trim == DLSN(1100, 0, 0)


@pytest.mark.parametrize(
    "raw", [b"", b"FBKC", b"FBKC\x02abc", b"FBKC\x01abc", b"FBKP\x01", b"FBKC\x01\x78\x01\x03\x00"]
)
def test_bytes_that_are_no_chain_are_refused(raw: bytes) -> None:
    with pytest.raises(StorageError):
        get_chain(raw)
