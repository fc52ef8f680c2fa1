"""Scenarios of the writer: P3, P4, P11, P12, P13, P24, P26, P32."""

from __future__ import annotations

from dataclasses import replace

from fastbk.errors import LedgerFenced
from fastbk.model.ledger import Fragment, LedgerMetadata
from fastbk.replication.metadata_update import MetadataUpdate
from fastbk.replication.procedure import ReadEntry
from tests.simulation.plan import Item
from tests.simulation.running import Running
from tests.simulation.scripts.registry import script
from tests.simulation.scripts.stage import adds, named, reads, rewrites, stage

_EDIT = Item(0.0, "edit", "c2")


@script("P3", "no-freeze")
def metadata_first() -> None:
    with stage() as s:
        s.write()
        stalled = s.keep("c0", "m", named("update"))
        s.kill(0)
        s.until(lambda: bool(s.kept), "the writer wants other bookies")
        # The metadata does not answer; nothing is acknowledged, whatever b1 and b2 say.
        s.append(3)
        s.run(2.0)
        assert s.acked == 1
        s.release(stalled)
        s.until(lambda: s.acked == 4, "they complete on the new ensemble")
        for number in (1, 2):
            s.kill(number)
            s.write()
        s.client("c0").crash()
        assert s.recovered("c1") == 5
        for number in range(3):
            s.bookie(number).start()
        s.read_all()


@script("P4", "conflict-is-success", "unknown-is-success")
def nobody_writes_blindly() -> None:
    for is_lost in (False, True):
        with stage() as s:
            s.write()
            update = s.keep("c0", "m", named("update"))
            s.kill(0)
            s.until(lambda: bool(s.kept), "the writer wants another bookie")
            # Somebody else changes the ledger first; or the store never hears the writer.
            s.world.workload.edit(s.client("c2"), _EDIT)
            s.run()
            assert s.metadata.custom
            if is_lost:
                s.drop(update)
            else:
                s.release(update)
            s.write(2)
            assert s.metadata.custom
            assert "b0" not in s.metadata.fragments[-1].ensemble
            # The replacement gets what the lost bookie lacked, so that closing is the next change of the metadata.
            s.run()
            # The answer is lost instead: it had taken effect, once.
            answer = s.keep("m", "c0", named("told_metadata"))
            s.writer.close()
            s.run(0.5)
            assert s.metadata.is_closed
            s.drop(answer)
            s.run(5.0)
            s.read_all()


@script("P11", "fragment-starts-too-late")
def the_fragment_starts_where_completions_stopped() -> None:
    with stage(4, 2, 2) as s:
        s.write(2)
        half_done = [s.keep("c0", "b1", adds()), s.keep("c0", "b2", adds())]
        s.append(5)
        s.run()
        s.kill(1, 2)
        s.until(lambda: s.acked == 7, "all of them, on other bookies")
        s.release(*half_done)
        s.run()
        assert s.metadata.fragments[-1].first_entry_id == 2
        s.client("c0").crash()
        assert s.recovered("c1") == 6
        for number in (1, 2):
            s.bookie(number).start()
        s.read_all()


@script("P12", "ack-of-replaced-kept")
def an_ack_goes_with_its_bookie() -> None:
    with stage(4, 2, 2) as s:
        # Entry 1 is on b1 and b2 and waits for entry 0, which b0 has not taken.
        late = s.keep("c0", "b0", adds(0))
        s.append()
        s.append()
        s.run()
        assert s.acked == 0
        fresh = [s.keep("c0", f"b{number}", adds()) for number in (4, 5, 6)]
        s.kill(1)
        s.until(lambda: "b1" not in s.metadata.fragments[-1].ensemble, "another for b1")
        s.release(late)
        s.run(1.0)
        assert s.acked == 0
        s.release(*fresh)
        s.until(lambda: s.acked == 2, "on the new bookie")
        s.client("c0").crash()
        assert s.recovered("c1") == 1
        s.read_all()


@script("P12b", "rewriting-keeps-acks-of-replaced")
def an_ack_goes_with_its_bookie_in_recovery() -> None:
    with stage() as s:
        s.write()
        s.leave_on_b2(2)
        # c1 finds entries 1 and 2 on b2. b0 takes entry 1 again, then fails over entry 2.
        for number in (0, 1):
            for entry_id in (1, 2):
                s.keep("c1", f"b{number}", reads(entry_id))
        s.keep("c1", "b0", rewrites(2))
        fresh = [s.keep("c1", f"b{number}", rewrites(1)) for number in (1, 3, 4, 5)]
        own = s.keep("c1", "b2", rewrites(1))
        running = s.recover("c1")
        s.until(lambda: 1 in s.bookie(0).entries[0], "b0 has entry 1")
        s.run(0.1)
        s.kill(0)
        s.run()
        # b2 alone is no quorum of the ensemble that c1 is going to name.
        s.release(own)
        s.run(1.0)
        assert not running.procedure.is_finished
        s.release(*fresh)
        s.until(lambda: running.procedure.is_finished, "c1 closes")
        assert s.metadata.last_entry_id == 2
        s.bookie(0).start()
        s.read_all()


@script("P13", "writer-never-thaws")
def nothing_left_to_replace() -> None:
    with stage() as s:
        s.write()
        update = s.keep("c0", "m", named("update"))
        s.kill(0)
        s.until(lambda: bool(s.kept), "the writer wants another bookie")

        def replaced(metadata: LedgerMetadata) -> LedgerMetadata:
            last = metadata.fragments[-1]
            ensemble = tuple("b5" if one == "b0" else one for one in last.ensemble)
            return replace(metadata, fragments=(Fragment(last.first_entry_id, ensemble),))

        # Somebody else has replaced it: there is nothing to do but to go on.
        Running(s.client("repair"), s.ledger, MetadataUpdate(replaced, None, 3.0)).start()
        s.run()
        s.release(update)
        s.write(2)
        assert "b5" in s.writer.machine.ensemble
        # The successor fails at the same place, and its successor.
        for _ in range(2):
            number = int(s.writer.machine.ensemble[0][1:])
            s.kill(number)
            s.until(lambda number=number: f"b{number}" not in s.writer.machine.ensemble, "another")  # type: ignore[misc]
            s.write()
    # A bookie that is back before the metadata answered: the change is called off, or made; never half.
    with stage(replace_after_s=0.5) as s:
        probe = s.keep("m", "c0", named("told_metadata"))
        s.kill(0)
        s.append()
        s.run(0.8)
        s.bookie(0).start()
        s.run(0.5)
        s.release(probe)
        s.run(3.0)
        s.write(2)


@script("P24")
def answers_of_an_older_connection() -> None:
    with stage() as s:
        late = s.keep("b0", "c1", named("told"))
        answers: list[object] = []
        client = s.client("c1")
        for _ in range(2):
            client.ask(0, s.ledger.key, "b0", ReadEntry(0), 5.0, answers.append)
        s.run()
        # The connection is cut with its answers on their way, and made again.
        connection = client.channel("b0", 1).connection
        assert connection is not None
        s.world.network.cut(connection)
        s.run()
        assert len(answers) == 2
        client.ask(0, s.ledger.key, "b0", ReadEntry(0), 5.0, answers.append)
        s.run(0.05)
        s.release(late)
        s.run()
        # Three questions, three answers: the late ones belong to nobody.
        assert len(answers) == 3


@script("P26", "repair-names-first")
def a_live_bookie_is_taken_for_lost() -> None:
    with stage() as s:
        s.write(3)
        # b0's session runs out, but its writer reaches it all the time.
        s.store.expired.add("b0")
        s.store.session_ended("b0")
        s.run(1.0)
        assert s.repair(0).left, "an open ledger's last fragment is its writer's"
        s.write()
        assert s.recovered("c1") == 3
        assert not s.repair(0).left
        assert "b0" not in s.metadata.fragments[-1].ensemble
        s.append()
        s.run(2.0)
        assert s.acked == 4
        assert isinstance(s.writer.machine.failure, LedgerFenced)
        s.checks.repaired(0, "b0")
        s.read_all()


@script("P32", "deferred-ledger-changes-bookies")
def deferred_sync_keeps_its_bookies() -> None:
    with stage(is_deferred=True) as s:
        s.write(2)
        s.writer.force()
        s.until(lambda: s.facts.forced == 2, "they are forced")
        s.write()
        s.kill(0)
        s.append()
        s.run(3.0)
        assert s.writer.machine.failure is not None
        assert len(s.metadata.fragments) == 1
        s.writer.close()
        s.until(lambda: s.metadata.is_closed, "it is closed")
        assert s.metadata.last_entry_id == 1
        s.read_all()
