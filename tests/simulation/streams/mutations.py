"""Faults that are planted into the code of streams, each with a seed whose world finds it."""

from __future__ import annotations

from tests.simulation.planting import Mutation, fault

CHANGES = "fastbk.stream.chain"

MUTATIONS: tuple[Mutation, ...] = (
    fault(
        "epoch-of-the-other",
        "a writer goes on with the chain as others left it while it opened",
        (
            "fastbk.stream.writer.stream_writer:StreamWriter.open",
            "await delete_pending(self._context, known)",
            "known = await delete_pending(self._context, known)",
        ),
        seed=3,
    ),
    fault(
        "roll-without-waiting",
        "the next segment is written before all of the one before is acknowledged",
        (
            "fastbk.stream.writer.engine:Rolling.segment_for_next",
            "return None if segment.in_flight else self._roll_over()",
            "return self._roll_over()",
        ),
        seed=1,
    ),
    fault(
        "any-epoch",
        "what an overtaken writer changes is not refused",
        (f"{CHANGES}:check_epoch", "if chain.epoch != epoch:", "if chain.epoch < epoch:"),
        seed=0,
    ),
    fault(
        "no-fence",
        "a takeover reads the ledger of the former writer without recovering it",
        ("fastbk.stream.opening:recovered", "recovery=True", "recovery=False"),
        seed=0,
    ),
    fault(
        "segment-from-a-late-writer",
        "a doomed ledger that was not made yet is forgotten, and made later",
        (
            "tests.fixtures.fake_ledgers:FakeRecords.retire_ledger_id",
            "self._cluster.deleted.add(ledger_id)",
            "pass",
        ),
        seed=25,
    ),
    fault(
        "nameless",
        "a ledger is made before the chain names it",
        (
            f"{CHANGES}:reserve",
            "return replace(_doom(chain, chain.reserved), reserved=ledger_id)",
            "return replace(chain, reserved=ledger_id)",
        ),
        seed=0,
    ),
    fault(
        "empty-segments-count",
        "the number of an empty segment is not used again",
        (f"{CHANGES}:_drop_empty", "next_number=row.number", "next_number=row.number + 1"),
        seed=1,
    ),
    fault(
        "clock-goes-back",
        "an entry's time is the clock's, whatever the one before had",
        (
            "fastbk.stream.writer.engine:SegmentWriter.send",
            "max(not_before_us, self.last_time_us, now_us)",
            "now_us",
        ),
        seed=29,
    ),
    fault(
        "one-record-too-few",
        "what a killed writer left is counted without its last entry's records",
        (
            "fastbk.stream.segment_contents:contents_of",
            "records = head.first_record + head.record_count",
            "records = head.first_record + 1",
        ),
        seed=0,
    ),
    fault(
        "surely-not-sent",
        "what was sent fails with the word that it never was",
        (
            "fastbk.stream.writer.engine:AppendEngine._unknown",
            "error.__cause__ = cause",
            "error.outcome = 'not_written'",
        ),
        seed=17,
    ),
    fault(
        "ids-from-nothing",
        "a writer begins with the ids of an empty stream",
        (
            f"{CHANGES}:close_segment",
            "last_txid=max(chain.last_txid, contents.last_txid)",
            "last_txid=chain.last_txid",
        ),
    ),
)
