"""Faults that are planted under readers, cursors, truncation and janitors, each with a seed whose world finds it."""

from __future__ import annotations

from tests.simulation.planting import Mutation, fault

CHANGES = "fastbk.stream.chain"
READ_AHEAD = "fastbk.stream.reader.read_ahead:ReadAhead"
ACKS = "fastbk.stream.cursor.state:CursorAcks"
JANITOR = "fastbk.stream.janitor"


MUTATIONS: tuple[Mutation, ...] = (
    fault(
        "segment-passed-by",
        "a reader that comes to a new segment moves on twice",
        (
            "fastbk.stream.reader.read_plan:ReadPlan.completed",
            "self.segment, self.entry, self._slot = number + 1, 0, 0",
            "self.segment, self.entry, self._slot = number + (2 if self.entry > 2 else 1), 0, 0",
        ),
        seed=4,
    ),
    fault(
        "entry-again",
        "a reader reads the last entry once more where a segment that it tailed was taken over",
        (
            f"{READ_AHEAD}._read_ledger",
            "ledger.read_batches(plan.entry, self._last_wanted(row))",
            "ledger.read_batches(max(plan.entry - 1, 0), self._last_wanted(row))",
        ),
        seed=4,
    ),
    fault(
        "trimmed-in-silence",
        "a reader goes on at the trim point without a word",
        (
            "fastbk.stream.reader.buffer:ReadBuffer.gap_at",
            "if records != 0:",
            "if records is not None and records != 0:",
        ),
        seed=5,
    ),
    fault(
        "told-beyond-the-trim-point",
        "a gap is told to reach to the end of the segment",
        (
            "fastbk.stream.reader.buffer:ReadBuffer.gap_at",
            'return Gap("trimmed", position, chain.trim, records)',
            'return Gap("trimmed", position, chain.trim._replace(entry=chain.trim.entry + 1), records)',
        ),
        seed=1019,
    ),
    fault(
        "latest-is-old",
        "the tail is what metadata knows: the open segment is not asked",
        (
            "fastbk.stream.reader.search:tail_position",
            "for row in reversed(chain.open_rows):",
            "for row in ():",
        ),
        seed=6,
    ),
    fault(
        "at-hand-and-passed-by",
        "a cursor forgets what iteration took when many records are asked for",
        (
            "fastbk.stream.cursor.cursor:Cursor._delivery",
            "delivery.give_back(chunk[index:])",
            "pass",
        ),
        seed=18,
    ),
    fault(
        "told-twice",
        "a cursor tells a truncation again, with the first record behind it",
        ("fastbk.stream.cursor.delivery:CursorDelivery._track", "if is_reported:", "if False:"),
        seed=11,
    ),
    fault(
        "mark-ahead",
        "an acknowledgement moves the mark one record too far",
        (
            f"{ACKS}.ack",
            "self._move(seq + 1, behind(dlsn))",
            "self._move(seq + 2, behind(behind(dlsn)))",
        ),
        seed=0,
    ),
    fault(
        "mark-back",
        "a takeover goes by the record's state, though the ledger has a later one",
        (
            "fastbk.stream.cursor.store:_state_of",
            "return state if other is None or other.serial <= state.serial else other",
            "return state",
        ),
        seed=1052,
    ),
    fault(
        "ranges-forgotten",
        "what was done one by one is not kept",
        (f"{ACKS}.state", "tuple(self.ranges.firsts)", "()"),
        (f"{ACKS}.state", "tuple(self.ranges.ends)", "()"),
        (f"{ACKS}.state", "tuple(self.ranges.behinds)", "()"),
        seed=16,
    ),
    fault(
        "former-holder-writes",
        "a cursor's holder that was overtaken writes over the new one's record",
        (
            "fastbk.stream.cursor.store:CursorStore.write",
            "if there.holder != record.holder:",
            "if there.is_deleting:",
        ),
        seed=10,
    ),
    fault(
        "kept-too-early",
        "who waits is told that a state is kept when it could not be",
        (
            "fastbk.stream.cursor.cursor:CursorFlusher._flush",
            "self._resolve_waiters(self._taken, error)",
            "self._resolve_waiters(self._taken, None)",
        ),
        seed=21,
    ),
    fault(
        "ledger-of-a-cursor-unnamed",
        "a cursor's ledger is made before its record names it",
        (
            "fastbk.stream.cursor.store:StateStorage._next_ledger",
            "await self._write(self._state())\n        policy",
            "policy",
        ),
        seed=0,
    ),
    fault(
        "deletes-at-t",
        "the segment that T lies in is deleted, too",
        (
            "fastbk.stream.retention:deletable_below",
            "return target.segment + 1 if is_behind else target.segment",
            "return target.segment + 1",
        ),
        seed=8,
    ),
    fault(
        "deletes-what-cursors-hold",
        "retention asks no cursors",
        (f"{JANITOR}:Janitor._retain", "if policy.hold_for_cursors:", "if False:"),
        seed=17,
    ),
    fault(
        "deletes-before-marking",
        "ledgers are deleted before the chain says that they may be",
        (
            "fastbk.stream.deletion:delete_below",
            "known = await store.change(lambda chain: mark_deleting(chain, below), known)",
            "early = [row.ledger_id for row in known.chain.rows if row.number < below]\n"
            "    await deleter.ledgers_of(store.stream_id, early, reason)\n"
            "    known = await store.change(lambda chain: mark_deleting(chain, below), known)",
        ),
        seed=4,
    ),
    fault(
        "newest-goes-too",
        "the newest closed segment is deleted like others",
        (f"{CHANGES}:mark_deleting", "- len(chain.open_rows)", "- len(chain.open_rows) + 1"),
        (f"{JANITOR}:_below", "- len(chain.open_rows)", "- len(chain.open_rows) + 1"),
        seed=6,
    ),
    fault(
        "half-deleted-stays",
        "segments that a janitor marked and did not get to delete are left so",
        (
            f"{JANITOR}:Janitor._process",
            'known = await finish_deleting(self._deleter, store, known, "was marked before")',
            "pass",
        ),
        seed=10,
    ),
    fault(
        "doomed-stays",
        "a janitor leaves doomed ledgers alone",
        (
            f"{JANITOR}:Janitor._process",
            "known = await delete_pending(self._deleter, store, known)",
            "pass",
        ),
        seed=4,
    ),
    fault(
        "idle-stays-open",
        "a segment that nobody writes to is not ended",
        ("fastbk.stream.janitor:IdleRolling.roll_if_idle", "if due_us > now_us:", "if True:"),
        seed=6,
    ),
    fault(
        "truncation-forgotten",
        "who takes a stream over forgets a trim point inside the open segment",
        (
            f"{CHANGES}:open_for_append",
            "reserved=NONE,",
            "reserved=NONE, trim=chain.trim._replace(entry=0, slot=0),",
        ),
        seed=4,
    ),
    fault(
        "truncation-beyond-the-end",
        "a truncation takes what it is given",
        (
            "fastbk.stream.stream:truncate",
            "point = min(wanted, await end_of(context, known.chain))",
            "point = wanted",
        ),
        seed=14,
    ),
    fault(
        "page-after-the-chain",
        "rows move to a page that is not written",
        (
            "fastbk.stream.chain_store:ChainStore._spilled",
            "await self._records.change(Change(self._page_path(page), put_page(rows)))",
            "pass",
        ),
        seed=4,
    ),
)
