"""Another bookie id over one in all ledgers' metadata."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fastbk.admin.bookie_identity import rename_bookie, renamed
from fastbk.errors import MetadataConflict
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.model.ledger import Fragment, LedgerMetadata


def ledger(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=1,
        fragments=tuple(Fragment(10 * at, one) for at, one in enumerate(ensembles)),
    )


def test_all_fragments_change_and_nothing_else() -> None:
    before = replace(ledger(("a", "b"), ("b", "c"), ("c", "d")), custom={"k": b"v"})
    after = renamed(before, "b", "x")
    assert after is not None
    assert [one.ensemble for one in after.fragments] == [("a", "x"), ("x", "c"), ("c", "d")]
    assert replace(after, fragments=before.fragments) == before
    assert renamed(after, "b", "x") is None
    with pytest.raises(MetadataConflict, match="both"):
        renamed(before, "b", "c")


def test_a_run_goes_over_all_ledgers_and_can_be_cut_off() -> None:
    store = MemoryStore("renaming")
    ensembles = [("a", "b"), ("a", "c"), ("b", "c"), ("d", "b"), ("b", "x")]
    for ledger_id, ensemble in enumerate(ensembles):
        store.create_ledger(ledger_id, ledger(ensemble))
    seen = []
    done = rename_bookie(
        store,
        "b",
        "x",
        updates_per_s=1e9,
        updates_max=2,
        on_progress=lambda at: seen.append(at.updated),
    )
    assert (done.updated, seen) == (2, [1, 2])
    done = rename_bookie(store, "b", "x", updates_per_s=1e9)
    assert (done.seen, done.updated, list(done.failed)) == (5, 1, [4])
    found = [store.read_ledger(one).metadata.fragments[0].ensemble for one in range(5)]
    assert found == [("a", "x"), ("a", "c"), ("x", "c"), ("d", "x"), ("b", "x")]


def test_a_writer_that_changes_the_ledger_meanwhile_loses_nothing() -> None:
    class Racing(MemoryStore):
        def update_ledger(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> int:
            if version == 0:
                # Between the reading and the writing of the one who renames.
                grown = replace(
                    self.read_ledger(ledger_id).metadata,
                    fragments=(Fragment(0, ("a", "b")), Fragment(7, ("b", "c"))),
                )
                super().update_ledger(ledger_id, grown, version)
            return super().update_ledger(ledger_id, metadata, version)

    store = Racing("renaming-race")
    store.create_ledger(1, ledger(("a", "b")))
    assert rename_bookie(store, "b", "x", updates_per_s=1e9).updated == 1
    fragments = store.read_ledger(1).metadata.fragments
    assert fragments == (Fragment(0, ("a", "x")), Fragment(7, ("x", "c")))
