"""Faults that are planted into the code of streams, each with a seed whose world finds it."""

from __future__ import annotations

from tests.simulation.planting import Edit, Mutation

CHANGES = "fastbk.stream.chain.changes"

MUTATIONS: tuple[tuple[Mutation, int], ...] = (
    (
        Mutation(
            "epoch-of-the-other",
            "a writer goes on with the chain as others left it while it opened",
            (
                Edit(
                    "fastbk.stream.writer.stream_writer:StreamWriter.open",
                    "await delete_pending(self._context, known)",
                    "known = await delete_pending(self._context, known)",
                ),
            ),
        ),
        21,
    ),
    (
        Mutation(
            "roll-without-waiting",
            "the next segment is written before all of the one before is acknowledged",
            (
                Edit(
                    "fastbk.stream.writer.rolling:Rolling.segment_for_next",
                    "return None if segment.in_flight else self._roll_over()",
                    "return self._roll_over()",
                ),
            ),
        ),
        1,
    ),
    (
        Mutation(
            "any-epoch",
            "what an overtaken writer changes is not refused",
            (
                Edit(
                    f"{CHANGES}:check_epoch", "if chain.epoch != epoch:", "if chain.epoch < epoch:"
                ),
            ),
        ),
        0,
    ),
    (
        Mutation(
            "no-fence",
            "a takeover reads the ledger of the former writer without recovering it",
            (
                Edit(
                    "fastbk.stream.chain.opening:_recovered",
                    "recovery=True",
                    "recovery=False",
                ),
            ),
        ),
        0,
    ),
    (
        Mutation(
            "segment-from-a-late-writer",
            "a doomed ledger that was not made yet is forgotten, and made later",
            (
                Edit(
                    "tests.fixtures.fake_ledgers:FakeRecords.retire_ledger_id",
                    "self._cluster.deleted.add(ledger_id)",
                    "pass",
                ),
            ),
        ),
        1,
    ),
    (
        Mutation(
            "nameless",
            "a ledger is made before the chain names it",
            (
                Edit(
                    f"{CHANGES}:reserve",
                    "return replace(_doom(chain, chain.reserved), reserved=ledger_id)",
                    "return replace(chain, reserved=ledger_id)",
                ),
            ),
        ),
        1,
    ),
    (
        Mutation(
            "empty-segments-count",
            "the number of an empty segment is not used again",
            (
                Edit(
                    f"{CHANGES}:_drop_empty",
                    "next_number=row.number",
                    "next_number=row.number + 1",
                ),
            ),
        ),
        0,
    ),
    (
        Mutation(
            "clock-goes-back",
            "an entry's time is the clock's, whatever the one before had",
            (
                Edit(
                    "fastbk.stream.writer.segment_writer:SegmentWriter.send",
                    "max(not_before_us, self.last_time_us, time.time_ns() // 1000)",
                    "time.time_ns() // 1000",
                ),
            ),
        ),
        9,
    ),
    (
        Mutation(
            "one-record-too-few",
            "what a killed writer left is counted without its last entry's records",
            (
                Edit(
                    "fastbk.stream.chain.segment_contents:contents_of",
                    "records=head.first_record + head.record_count",
                    "records=head.first_record + 1",
                ),
            ),
        ),
        0,
    ),
    (
        Mutation(
            "surely-not-sent",
            "what was sent fails with the word that it never was",
            (
                Edit(
                    "fastbk.stream.writer.engine:AppendEngine._unknown",
                    "error.__cause__ = cause",
                    "error.outcome = 'not_written'",
                ),
            ),
        ),
        160,
    ),
    (
        Mutation(
            "ids-from-nothing",
            "a writer begins with the ids of an empty stream",
            (
                Edit(
                    f"{CHANGES}:close_segment",
                    "last_txid=max(chain.last_txid, contents.last_txid)",
                    "last_txid=chain.last_txid",
                ),
            ),
        ),
        0,
    ),
)
