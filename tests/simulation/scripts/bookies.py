"""Scenarios of bookies: P7, P8, P9, P10, P15, P16."""

from __future__ import annotations

from fastbk.model.ledger import LedgerState
from fastbk.replication.procedure import AddEntry, ReadEntry, ReadLac
from fastbk.wire.statuses import Status
from tests.simulation.scripts.registry import script
from tests.simulation.scripts.stage import adds, closes, named, reads, stage
from tests.simulation.workload import KEY, OTHER_KEY


def _add(entry_id: int, *, recovery: bool = False) -> AddEntry:
    return AddEntry(entry_id, -1, 1, b"!", recovery=recovery)


@script("P7", "limbo-says-no", "states-are-not-loaded")
def a_wiped_bookie_knows_nothing() -> None:
    with stage() as s:
        b2_lacks = s.keep("c0", "b2", adds())
        s.write()
        s.drop(b2_lacks)
        s.client("c0").crash()
        s.bookie(0).wipe()
        s.bookie(0).start()
        assert not s.bookie(0).is_up, "it does not start by itself"
        s.bookie(0).force_start()
        s.run()
        assert s.ask("c2", 0, ReadEntry(0)).status == Status.CANNOT_TELL
        slow = s.keep("c1", "b1", reads(0))
        running = s.recover("c1")
        s.run(1.0)
        assert not running.procedure.is_finished
        s.release(slow)
        s.until(lambda: running.procedure.is_finished, "with the one copy that is left")
        assert s.metadata.last_entry_id == 0
        assert not s.repair(0).left
        s.read_all()


@script("P7b", "limbo-forgets-recoveries")
def wiped_before_the_close_names_it() -> None:
    with stage() as s:
        s.write(2)
        s.client("c0").crash()
        # c1 takes another bookie in place of b0, in memory: metadata hears of it with the close.
        s.kill(0)
        close = s.keep("c1", "m", closes)
        running = s.recover("c1")
        s.until(lambda: any(one.rule is close for one in s.kept), "c1 is about to close")
        (fresh,) = (number for number in (3, 4, 5) if s.bookie(number).entries.get(0))
        s.bookie(fresh).wipe()
        s.bookie(fresh).force_start()
        s.run()
        s.release(close)
        s.until(lambda: running.procedure.is_finished, "c1 closes")
        assert f"b{fresh}" in s.metadata.fragments[-1].ensemble
        assert s.ask("c2", fresh, ReadEntry(0)).status == Status.CANNOT_TELL
        s.bookie(0).start()
        assert not s.repair(fresh).left
        s.read_all()


@script("P7c", "repair-names-a-bookie-started-anew", "rebirth-voids-no-names")
def wiped_before_a_repair_names_it() -> None:
    """INV-E3: whether the repair's change comes after the new life began, or while the ledgers are being listed."""
    for is_listing in (False, True):
        with stage() as s:
            s.write(2)
            s.writer.close()
            s.until(lambda s=s: s.metadata.is_closed, "c0 closes")  # type: ignore[misc]
            s.bookie(0).wipe()
            name = s.keep("repair", "m", named("update"))
            repair = s.begin_repair(0)
            s.until(lambda s=s: bool(s.kept), "the repair is about to name a bookie")  # type: ignore[misc]
            (fresh,) = (number for number in (3, 4, 5) if s.bookie(number).entries.get(0))
            s.bookie(fresh).wipe()
            s.bookie(fresh).force_start()
            if not is_listing:
                s.run()
            s.release(name)
            s.until(lambda repair=repair: repair.is_finished, "the repair ends")  # type: ignore[misc]
            assert not s.bookie(0).is_up
            assert "b0" not in s.metadata.fragments[-1].ensemble
            assert not repair.value().left
            s.read_all()


@script("P8", "states-are-not-loaded", "fence-is-not-asked")
def a_new_bookie_at_an_old_address_has_the_fence() -> None:
    with stage(2, 2, 2, spare=0) as s:
        s.write()
        for number in (0, 1):
            s.bookie(number).wipe()
            s.bookie(number).force_start()
        s.run(1.0)
        # Somebody who has never met the old ones, and an old writer that has.
        for number in (0, 1):
            assert s.ask("c3", number, _add(1)).status == Status.FENCED
        s.append()
        s.run(15.0)
        assert s.acked == 1
        running = s.recover("c1")
        s.until(lambda: running.procedure.is_finished, "it gives up: all copies are lost")
        assert s.metadata.state is LedgerState.IN_RECOVERY


@script("P9", "states-are-not-loaded")
def deleted_stays_deleted() -> None:
    with stage() as s:
        s.write()
        for number in range(3):
            assert s.ask("c1", number, ReadEntry(-1, fence=True)).status == Status.OK
        s.store.delete(0)
        s.checks.deleted.add(0)
        for number in range(3):
            s.bookie(number).collect(0)
            # It was fenced, and a fence says more to a writer than that the ledger is gone.
            assert s.ask("c2", number, _add(1)).status == Status.FENCED
            assert s.ask("c2", number, _add(1, recovery=True)).status == Status.NO_LEDGER
            s.bookie(number).crash(0.0, is_power_cut=True)
            s.bookie(number).start()
            assert s.ask("c3", number, _add(1)).status == Status.FENCED
        s.append()
        s.run(15.0)
        assert s.acked == 1
        assert s.writer.machine.failure is not None


@script("P10", "fence-is-not-asked")
def one_order_for_adds_and_fences() -> None:
    with stage() as s:
        # All in one batch of the journal: an add, the fence, an add.
        bookie = s.bookie(0)
        bookie.sync_s = 0.5
        replies: list[object] = []
        s.ask("c3", 0, ReadEntry(0))
        s.ask("c2", 0, ReadEntry(0))
        client, other = s.client("c3"), s.client("c2")
        s.ledger.written += [b"!", b"!"]
        client.ask(0, s.ledger.key, "b0", _add(0), 5.0, replies.append)
        s.run(0.01)
        other.ask(0, s.ledger.key, "b0", ReadEntry(-1, fence=True), 5.0, replies.append)
        s.run(0.01)
        client.ask(0, s.ledger.key, "b0", _add(1), 5.0, replies.append)
        s.until(lambda: len(replies) == 3, "three answers", 5.0)
        statuses = sorted(reply.status for reply in replies)  # type: ignore[attr-defined]
        assert statuses == [Status.OK, Status.OK, Status.FENCED]
        # What was before the fence in the order is seen by the read that came with it.
        assert any(reply.found for reply in replies)  # type: ignore[attr-defined]


@script("P15", "fence-is-not-replayed")
def a_fence_that_found_nothing_is_durable() -> None:
    with stage() as s:
        s.write()
        assert s.ask("c1", 0, ReadEntry(5, fence=True)).status == Status.NO_ENTRY
        s.bookie(0).crash(0.0, is_power_cut=True)
        s.bookie(0).start()
        assert s.ask("c2", 0, _add(1)).status == Status.FENCED


@script("P16", "fence-is-not-replayed", "key-is-not-replayed")
def a_fence_of_an_unknown_ledger_is_durable_with_its_key() -> None:
    with stage() as s:
        reply = s.ask("c1", 3, ReadEntry(-1, fence=True))
        assert reply.status in (Status.NO_ENTRY, Status.NO_LEDGER)
        s.bookie(3).crash(0.0, is_power_cut=True)
        s.bookie(3).start()
        assert s.ask("c2", 3, _add(0)).status == Status.FENCED
        assert s.ask("c2", 3, _add(0), key=OTHER_KEY).status == Status.UNAUTHORIZED


@script("P9b")
def an_id_that_was_given_twice_shows_no_entries_of_the_other_ledger() -> None:
    """INV-T1, INV-T2: metadata was rolled back."""
    old, new = (KEY + number.to_bytes(4, "little") for number in (1, 2))
    with stage() as s:
        s.ledger.written += [b"!", b"!"]
        assert s.ask("c1", 3, _add(0), key=old).status == Status.OK
        for client in ("c2", "c3"):  # whose connection the crash has not cut
            for request in (
                ReadEntry(0),
                ReadEntry(-1, fence=True),
                ReadLac(),
                _add(0),
                _add(1, recovery=True),
            ):
                reply = s.ask(client, 3, request, key=new)
                assert (reply.status, reply.found, reply.fenced) == (
                    Status.OTHER_CREATION,
                    (),
                    False,
                )
            assert s.ask(client, 3, ReadEntry(0), key=old).status == Status.OK
            assert s.ask(client, 3, ReadEntry(0)).status == Status.OK, "Apache's clients name none"
            s.bookie(3).crash(0.0, is_power_cut=True)
            s.bookie(3).start()
        assert s.ask("c0", 3, _add(1), key=old).status == Status.OK, "it was not fenced"
