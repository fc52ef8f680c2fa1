"""A stream is of one kind at a time, whoever opens it, releases it or changes its kind (INV-S28)."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest

from fastbk.errors import MetadataConflict, StorageError, StreamSealed, WrongStreamKind
from fastbk.stream import chain as chains
from fastbk.stream.chain import (
    PRODUCER_PAGES_MAX,
    Chain,
    Contents,
    StreamKind,
    get_chain,
    put_chain,
    verify,
)
from fastbk.stream.positions import DLSN

WRITER, PRODUCERS = StreamKind.WRITER, StreamKind.PRODUCERS


def contents(number: int, records: int, txid: int = 0) -> Contents:
    last = DLSN(number, records - 1, 0) if records else None
    return Contents(records, txid, txid + records, 10, 20, last, -1, 100 * records)


def appended(chain: Chain, ledger_id: int, records: int = 3) -> Chain:
    """Return the chain with another closed segment, of whoever opened it."""
    chain = chains.reserve(chain, chain.epoch, ledger_id)
    chain = chains.add_segment(chain, chain.epoch, ledger_id, 0)
    row = chain.open_rows[0]
    found = contents(row.number, records, max(chain.last_txid, 0))
    return chains.close_segment(chain, ledger_id, found)


class KindLife:
    """A chain that writers, services, attachers and operators change in any order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.chain = Chain("a")
        self.ledger_id = 0
        self.changes = 0
        self.kinds: dict[int, tuple[StreamKind, int]] = {}
        """By ledger: who appended it, and how often the kind had been changed by then."""
        self.holder: StreamKind | None = None
        """Of whoever opened the stream last, to append."""

    def step(self) -> None:
        self.rng.choice([self.open, self.open, self.append, self.attach, self.change])()
        verify(self.chain)
        assert get_chain(put_chain(self.chain)) == self.chain
        rows = [(row.ledger_id, self.kinds[row.ledger_id]) for row in self.chain.rows]
        for (_, (kind, changes)), (_, (next_kind, next_changes)) in itertools.pairwise(rows):
            assert kind is next_kind or changes < next_changes, "INV-S28: kinds mix"

    def open(self) -> None:
        kind = self.rng.choice([WRITER, PRODUCERS, None])
        is_theirs = kind in (None, self.chain.kind) or (kind is PRODUCERS and not self.chain.rows)
        take_over = partial(chains.open_for_append, self.chain, f"by {self.chain.epoch}", kind)
        if not is_theirs:
            with pytest.raises(WrongStreamKind, match=r"fastbk stream kind a (writer|producers)"):
                take_over()
            return
        before = self.chain
        self.chain = take_over()
        assert self.chain.epoch == before.epoch + 1
        assert self.chain.kind is (before.kind if kind is None else kind)
        self.holder = kind
        if self.rng.random() < 0.3:
            self.chain = chains.release(self.chain, self.chain.epoch)
            assert (self.chain.owner, self.chain.epoch) == ("", before.epoch + 1)
            self.holder = None

    def append(self) -> None:
        if self.holder is None:
            return
        self.ledger_id += 1
        self.chain = appended(self.chain, self.ledger_id, self.rng.randint(1, 9))
        self.kinds[self.ledger_id] = self.holder, self.changes

    def attach(self) -> None:
        self.ledger_id += 1
        segments = ((self.ledger_id, contents(1, 2)),)
        attach = partial(chains.attach, self.chain, segments, "key", self.ledger_id, 0)
        if self.chain.kind is PRODUCERS:
            with pytest.raises(WrongStreamKind):
                attach()
            return
        self.chain = attach()
        self.kinds[self.ledger_id] = WRITER, self.changes

    def change(self) -> None:
        kind = self.rng.choice([WRITER, PRODUCERS])
        before = self.chain
        taken = chains.open_for_append(before, f"by {before.epoch}", None)
        pages = tuple(f"{taken.epoch}-{number:016x}" for number in range(self.rng.randint(0, 4)))
        self.chain = chains.change_kind(taken, taken.epoch, kind, pages)
        assert chains.change_kind(self.chain, taken.epoch, kind, pages) == self.chain
        assert (self.chain.kind, self.chain.owner) == (kind, "")
        leaves = before.kind is PRODUCERS and kind is WRITER
        assert self.chain.producer_pages == (pages if leaves else before.producer_pages)
        self.changes += before.kind is not kind
        self.holder = None


def test_kinds_never_mix_in_any_order_of_changes(rng: random.Random) -> None:
    for _ in range(100):
        life = KindLife(rng)
        for _ in range(60):
            life.step()


def test_an_untouched_stream_becomes_a_producers_one_and_no_other_does() -> None:
    opened = chains.open_for_append(Chain("a"), "writer")  # it has appended nothing
    assert chains.open_for_append(opened, "service", PRODUCERS).kind is PRODUCERS
    begun = chains.add_segment(chains.reserve(opened, 1, 7), 1, 7, 0)
    with pytest.raises(WrongStreamKind, match="one writer's"):
        chains.check_kind(begun, PRODUCERS)  # its open segment may have what nobody knows yet


def test_a_stream_of_producers_stays_one_though_nothing_was_appended() -> None:
    chain = chains.open_for_append(Chain("a"), "service", PRODUCERS)
    with pytest.raises(WrongStreamKind, match="for producers"):
        chains.open_for_append(chain, "writer")
    assert chains.open_for_append(chain, "janitor", None).kind is PRODUCERS


def test_the_message_has_the_name_that_the_command_takes() -> None:
    chain = chains.open_for_append(Chain("a"), "service", PRODUCERS)
    with pytest.raises(WrongStreamKind, match="`fastbk stream kind shop/orders writer`"):
        chains.check_kind(chain, WRITER, "shop/orders")


def test_whoever_released_a_stream_appends_no_more() -> None:
    chain = appended(chains.open_for_append(Chain("a"), "service", PRODUCERS), 1)
    reserved = chains.reserve(chain, 1, 2)
    released = chains.release(reserved, 1)
    assert (released.epoch, released.owner, released.doomed) == (1, "", (2,))
    assert chains.release(released, 1) == released
    with pytest.raises(MetadataConflict, match="released"):
        chains.reserve(released, 1, 3)
    taken = chains.open_for_append(released, "another", PRODUCERS)
    with pytest.raises(MetadataConflict, match="another"):
        chains.release(taken, 1)


def test_a_kind_is_changed_only_by_whoever_took_the_stream_over() -> None:
    chain = appended(chains.open_for_append(Chain("a"), "service", PRODUCERS), 1)
    taken = chains.open_for_append(chain, "operator", None)
    with pytest.raises(MetadataConflict, match="operator"):
        chains.change_kind(taken, 1, WRITER)
    sealed = chains.seal(taken, 2)
    with pytest.raises(StreamSealed):
        chains.change_kind(sealed, 2, WRITER)


def test_a_chain_with_more_pages_of_producers_is_none() -> None:
    chain = Chain("a", producer_pages=tuple(map(str, range(PRODUCER_PAGES_MAX + 1))))
    with pytest.raises(StorageError):
        put_chain(chain)


def test_a_chain_of_a_version_without_kinds_is_a_writers() -> None:
    import msgspec

    raw = msgspec.msgpack.encode(msgspec.structs.astuple(Chain("a"))[:-2])
    assert msgspec.msgpack.decode(raw, type=Chain) == Chain("a")
