"""Scenarios of recovery: P1, P2, P5, P6, P14, P17, P18, P19, P25, P27, P33."""

from __future__ import annotations

from fastbk.errors import LedgerClosed, LedgerFenced
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import ID_MAX
from fastbk.model.ledger import LedgerState
from fastbk.model.quorum import write_sets
from fastbk.replication.add_machine import AddMachine
from fastbk.replication.procedure import ReadEntry, SendRequest
from fastbk.replication.recovery import ReadForRecovery
from fastbk.replication.replicas import Pacing
from fastbk.wire.statuses import Status
from tests.fixtures.decide import Kind
from tests.simulation.answering import Stored
from tests.simulation.network import TO_BOOKIE
from tests.simulation.scripts.registry import script
from tests.simulation.scripts.stage import adds, closes, named, reads, rewrites, stage
from tests.simulation.workload import KEY, data_of


@script("P1", "recovery-reads-do-not-fence")
def fence_on_every_recovery_read() -> None:
    with stage() as s:
        on_its_way = [s.keep("c0", "b0", adds()), s.keep("c0", "b2", adds())]
        s.append()
        s.run()
        # The fence to b2 is lost, and b1, which alone has the entry, is slow to say so.
        s.keep("c1", "b2", reads(-1))
        slow = s.keep("c1", "b1", reads(0))
        assert s.recovered("c1") == -1
        s.release(on_its_way[1])
        s.run()
        assert s.acked == 0
        s.release(on_its_way[0])
        s.release(slow)
        s.run()
        assert s.acked == 0
        assert isinstance(s.writer.machine.failure, LedgerFenced)


@script("P2", "recovery-reads-the-last-ensemble-only")
def recovery_starts_at_the_last_fragment() -> None:
    with stage() as s:
        s.write(3)
        s.kill(0, 1, 2)
        s.until(
            lambda: set(s.metadata.fragments[-1].ensemble) == {"b3", "b4", "b5"}, "other bookies"
        )
        for number in range(3):
            s.bookie(number).start()
        s.run()
        # Nothing was written to the new ones: they know of no LAC.
        s.client("c0").crash()
        assert s.recovered("c1") == 2
        assert [one.first_entry_id for one in s.metadata.fragments] == [0, 3]
        s.read_all()


@script("P5", "one-no-proves-missing", "silence-is-no")
def enough_bookies_say_no() -> None:
    with stage() as s:
        s.write()
        s.run()
        b2_lacks = s.keep("c0", "b2", adds())
        s.write()
        s.client("c0").crash()
        s.drop(b2_lacks)
        # One holder of entry 1 is dead, the other slow; b2 says no.
        s.kill(0)
        slow = s.keep("c1", "b1", reads(1))
        running = s.recover("c1")
        s.run(1.0)
        assert not running.procedure.is_finished
        s.release(slow)
        s.until(lambda: running.procedure.is_finished, "a recovery without b0")
        assert s.metadata.last_entry_id == 1
    with stage() as s:
        s.write(2)
        s.client("c0").crash()
        # Two dead bookies prove nothing; when one is back there is nothing to wait for the other for.
        s.kill(0)
        s.kill(1)
        running = s.recover("c1")
        s.until(lambda: running.procedure.is_finished, "it gives up")
        assert running.procedure.error is not None
        assert s.metadata.state is LedgerState.IN_RECOVERY
        s.bookie(1).start()
        assert s.recovered("c2") == 1


@script("P6", "cannot-tell-is-no")
def damage_is_no_absence() -> None:
    with stage() as s:
        b2_lacks = s.keep("c0", "b2", adds())
        s.write(3)
        s.drop(b2_lacks)
        s.client("c0").crash()
        for number in (0, 1):
            s.bookie(number).answers.damaged[0, 1] = True
        running = s.recover("c1")
        s.until(lambda: running.procedure.is_finished, "it gives up")
        assert running.procedure.error is not None
        assert s.metadata.state is LedgerState.IN_RECOVERY
        # One good copy is enough.
        s.bookie(1).answers.damaged.clear()
        assert s.recovered("c2") == 2
        s.read_all()


@script("P14", "rewriting-without-the-flag")
def recovery_adds_pass_the_fence() -> None:
    with stage(spare=0) as s:
        s.write(3)
        s.client("c0").crash()
        for number in range(3):
            assert s.ask("c2", number, ReadEntry(-1, fence=True)).status == Status.OK
        assert s.recovered("c1") == 2
        s.read_all()


@script("P14b", "repair-without-the-flag")
def copies_pass_the_fence() -> None:
    with stage(spare=1) as s:
        s.write(3)
        assert s.recovered("c1") == 2
        # The only bookie that the copies can go to has heard of a recovery, too.
        s.ask("c2", 3, ReadEntry(-1, fence=True))
        s.bookie(0).wipe()
        assert not s.repair(0).left
        s.read_all()


@script("P17", "recoverer-moves-the-end")
def a_competitor_closed_lower() -> None:
    with stage() as s:
        s.write()
        s.keep("c0", "b0", adds())
        s.keep("c0", "b1", adds())
        s.append()
        s.run()
        s.client("c0").crash()
        # c1 hears two bookies say no before b2 can answer; c2 hears b2 and writes entry 1 again.
        slow = s.keep("c1", "b2", reads(1))
        first = s.recover("c1")
        own_close = s.keep("c1", "m", named("update"))
        s.run(0.01)
        s.release(own_close)
        own_close = s.keep("c1", "m", named("update"))
        s.until(lambda: len(s.kept) >= 1, "c1 is about to close")
        quick = [s.keep("c2", "b0", reads(1)), s.keep("c2", "b1", reads(1))]
        second = s.recover("c2")
        close = s.keep("c2", "m", named("update"))
        s.until(
            lambda: any(one.rule is close for one in s.kept),
            "c2 has rewritten and is about to close",
        )
        s.release(own_close)
        s.until(lambda: s.metadata.is_closed, "c1 closes")
        s.release(close)
        s.release(slow, *quick)
        s.until(lambda: second.procedure.is_finished and first.procedure.is_finished, "both end")
        assert s.metadata.last_entry_id == 0
        value: VersionedLedger = second.procedure.value()
        assert value.metadata.last_entry_id == 0
        s.read_all()


@script("P18", "rewriting-confirms-itself")
def a_recoverer_dies_half_way() -> None:
    with stage() as s:
        s.write()
        s.leave_on_b2(2)
        # c1 hears b2 first; of what it writes again only entry 2 gets through, to b0.
        for number in (0, 1):
            for entry_id in (1, 2):
                s.keep("c1", f"b{number}", reads(entry_id))
        s.keep("c1", "b0", rewrites(1))
        s.keep("c1", "b1", rewrites(1))
        s.keep("c1", "b1", rewrites(2))
        s.recover("c1")
        s.until(lambda: 2 in s.bookie(0).entries[0], "c1 has written entry 2 again")
        reader = s.world.workload.reader(s.client("c3"), s.ledger)
        reader.read_lac(True, None)
        s.run()
        s.client("c1").crash()
        s.kill(2)
        last = s.recovered("c2")
        assert last >= max(s.acked - 1, reader.lac)
        s.bookie(2).start()
        s.read_all()


@script("P19", "damage-is-no")
def a_lac_without_a_digest_counts_for_nothing() -> None:
    with stage() as s:
        b2_lacks = s.keep("c0", "b2", adds())
        s.write()
        s.drop(b2_lacks)
        s.client("c0").crash()
        # b0 says anything; b1 is away: b2 alone is not enough.
        s.bookie(0).answers.damaged[0, 0] = False
        s.kill(1)
        running = s.recover("c1")
        s.until(lambda: running.procedure.is_finished, "it gives up")
        assert not s.metadata.is_closed
        s.bookie(1).start()
        assert s.recovered("c2") == 0


@script("P25", "index-overflows")
def ids_beyond_every_border() -> None:
    for first in (2**31 - 1, 2**31, 2**32, 2**40, ID_MAX):
        machine = AddMachine(0, ("b0", "b1", "b2"), 2, 2, held_bytes_max=99, first_entry_id=first)
        machine.add(b"12345678", [1], 0.0)
        written = {index for index in range(3) if machine.next_to_send(index) is not None}
        assert written == set(write_sets(3, 2)[first % 3])
        with stage(3, 2, 2) as s:
            reading = ReadForRecovery(0, s.metadata, first, Pacing())
            reading.start(0.0)
            asked = {
                action.bookie_id
                for _, action in reading.take_actions()
                if isinstance(action, SendRequest)
            }
            assert asked == {f"b{index}" for index in written}
            if first < ID_MAX:
                continue
            # A bookie takes the last id there is, and none beyond it.
            for entry_id, taken in ((ID_MAX, True), (-2, False)):
                verdict = s.bookie(0).table.decide(5, entry_id, Kind.ADD, 0, KEY)
                assert (verdict.status == 0) is taken


@script("P27", "writer-closes-a-closed-ledger")
def a_close_against_a_recovery() -> None:
    # The writer's close comes second: the recoverer found one entry more.
    with stage() as s:
        s.write()
        kept = [s.keep("c0", "b0", adds()), s.keep("c0", "b1", adds())]
        s.append()
        s.run()
        closing = s.keep("c0", "m", named("update"))
        s.writer.close()
        s.run(4.0)
        # b2's copy is heard before two others say no.
        quick = [s.keep("c1", "b0", reads(1)), s.keep("c1", "b1", reads(1))]
        assert s.recovered("c1") == 1
        s.release(closing)
        s.release(*kept, *quick)
        s.run(2.0)
        assert s.metadata.last_entry_id == 1
        s.read_all()
    # The writer's close comes between the recoverer's two changes: its end counts.
    with stage() as s:
        s.write(2)
        slow = s.keep("c1", "m", closes)
        running = s.recover("c1")
        s.until(lambda: any(one.rule is slow for one in s.kept), "c1 is about to close")
        s.writer.close()
        s.until(lambda: s.metadata.is_closed, "the writer closes")
        s.release(slow)
        s.until(lambda: running.procedure.is_finished, "c1 adopts it")
        assert running.procedure.value().metadata.last_entry_id == 1
        assert s.metadata.last_entry_id == 1
        assert not isinstance(s.writer.machine.failure, LedgerClosed)
        s.read_all()


@script("P33")
def holes_of_explicit_ids() -> None:
    with stage() as s:
        # A client of another kind has added 0 and 2 to all bookies, then died.
        written = s.ledger.written
        written += [data_of(0, entry_id) for entry_id in range(3)]
        s.client("c0").crash()
        other = s.client("c3")
        for number in range(3):
            channel = other.channel(f"b{number}", 0)
            other.want(channel)
            s.run()
            assert channel.connection is not None
            entries = [
                (one, Stored(-1, sum(map(len, written[: one + 1])), written[one])) for one in (0, 2)
            ]
            s.world.network.send(
                channel.connection, TO_BOOKIE, channel.bookie.receive_adds, 0, KEY, entries
            )
        s.run()
        assert all(set(s.bookie(number).entries[0]) == {0, 2} for number in range(3))
        assert s.recovered("c1") == 0
        s.read_all()
