"""The liveness phase: after everything was healed, what must come to a good end in bounded simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastbk.errors import NotEnoughBookies, QuorumTimeout
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata, LedgerState
from fastbk.replication.re_replication import LedgerReReplicated, ReReplicateLedger
from fastbk.replication.reading import ReadRange
from fastbk.replication.recovery import RecoverLedger, RecoveryOptions
from fastbk.replication.replicas import Pacing
from tests.simulation.bookie import Bookie
from tests.simulation.client import Client
from tests.simulation.readers import Reader
from tests.simulation.running import Ledger, Running
from tests.simulation.workload import REPAIR, data_of

if TYPE_CHECKING:
    from tests.simulation.world import World

Again = Callable[[Running[VersionedLedger]], None]
SETTLE_S = 0.3
LIMIT_S = 120.0
TRIES_MAX = 8
READERS = 2


class Final:
    """Closes, reads and writes what a healed world must be able to close, read and write."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.checks = world.checks
        self._waiting: set[str] = set()
        self._parked: set[tuple[LedgerId, BookieId]] = set()
        self._last_error = "no answer"

    def run(self, events_max: int) -> None:
        world, kernel = self.world, self.world.kernel
        # Those that were stopped go on when their time has come.
        awake_s = max(node.paused_until_s for node in world.nodes.values())
        kernel.run(max(kernel.now_s, awake_s) + SETTLE_S, events_max)
        self._write_on(events_max)
        ledgers = [
            one for one in world.workload.ledgers if one.ledger_id not in world.checks.deleted
        ]
        away = self._send_rack_away()
        for ledger in ledgers:
            self._recover(ledger, events_max)
        for bookie in away:
            bookie.start()
        if world.checks.recorder is None:
            for ledger in ledgers:
                self._repair(ledger, events_max)
        for ledger in ledgers:
            self._read(ledger, events_max)
        client = world.add_client("h")
        kernel.run(kernel.now_s + SETTLE_S, events_max)
        self._write_anew(client, events_max)

    def _send_rack_away(self) -> list[Bookie]:
        """End all bookies of a rack, where the others are to do without it; return them.

        What is lost is in that rack, so that nothing else misses.
        """
        world = self.world
        plan = world.plan
        lost = {world.racks.rack_of(name) for name in world.faults.lost}
        is_damaged = any(bookie.answers.damaged for bookie in world.bookies.values())
        if not plan.is_rack_away or len(lost) > 1 or is_damaged:
            return []
        first = min(world.faults.lost or plan.bookies)
        away = [world.bookies[name] for name in world.racks.in_rack_of(first)]
        for bookie in away:
            bookie.crash(1.0, False)
        return away

    def _until(self, what: str, ledger: Ledger, events_max: int) -> None:
        kernel = self.world.kernel
        kernel.run(kernel.now_s + LIMIT_S, events_max, lambda: not self._waiting)
        if self._waiting:
            self.checks.not_recoverable(ledger.ledger_id, f"{what}: {self._last_error}")

    # --- write on ----------------------------------------------------------------------------------------------

    def _write_on(self, events_max: int) -> None:
        """A writer that has lived through everything goes on: nothing holds it up any more."""
        world, kernel = self.world, self.world.kernel
        options = world.plan.options
        for writing in world.workload.writers.values():
            machine, ledger_id = writing.machine, writing.ledger.ledger_id
            is_spared = (
                writing.client.is_alive
                and machine.failure is None
                and not writing.is_closing
                and not world.faults.lost
                and ledger_id not in world.checks.deleted
                and world.checks.facts[ledger_id].metadata.state is LedgerState.OPEN
            )
            # What it began with before must have had the time to come to its end.
            is_patient = options["append_timeout_s"] >= 10 and world.plan.duration_s <= 1
            if not is_spared or not is_patient or world.plan.is_deferred:
                continue
            writing.append([data_of(ledger_id, machine.adds.next_entry_id)])
            kernel.run(
                kernel.now_s + LIMIT_S,
                events_max,
                lambda writing=writing: writing.is_idle,  # type: ignore[misc]
            )
            error = machine.failure
            if not writing.is_idle or isinstance(error, QuorumTimeout | NotEnoughBookies):
                self.checks.not_recoverable(ledger_id, f"its writer stands still: {error}")

    # --- close -------------------------------------------------------------------------------------------------

    def _recover(self, ledger: Ledger, events_max: int) -> None:
        tries = 0
        client: Client | None = None

        def again(running: Running[VersionedLedger] | None = None) -> None:
            nonlocal tries, client
            if client is not None and running is not None and running.procedure.error is None:
                self._waiting.clear()
                metadata = running.procedure.value().metadata
                self.checks.believes_closed(client.name, ledger.ledger_id, metadata)
                return
            if running is not None:
                self._last_error = str(running.procedure.error)
            tries += 1
            if tries > TRIES_MAX:
                return
            options = RecoveryOptions(pacing=Pacing(request_timeout_s=1.0, give_up_s=3.0))
            client = self.world.add_client(f"h{tries}")
            self.world.kernel.after(SETTLE_S, client, self.recover, client, ledger, options, again)

        self._waiting.add("recovery")
        again()
        self._until("it cannot be recovered", ledger, events_max)

    def recover(
        self, client: Client, ledger: Ledger, options: RecoveryOptions, again: Again
    ) -> None:
        procedure = RecoverLedger(ledger.ledger_id, None, options)
        Running(client, ledger, procedure, again, self.checks.recovery_moved).start()

    # --- repair ------------------------------------------------------------------------------------------------

    def _repair(self, ledger: Ledger, events_max: int) -> None:
        """Whatever a lost bookie held is copied to another, if there is another (I19)."""
        world = self.world
        facts = self.checks.facts[ledger.ledger_id]
        for number, lost in enumerate(world.faults.wiped):
            named = {one for each in facts.metadata.fragments for one in each.ensemble}
            if lost not in named or not set(world.bookies) - named - world.faults.lost:
                continue
            client = world.add_client(f"repair {number}")
            world.kernel.run(world.kernel.now_s + SETTLE_S, events_max)

            def done(running: Running[LedgerReReplicated], lost: BookieId = lost) -> None:
                self._waiting.clear()
                error = running.procedure.error
                if error is not None:
                    self.checks.not_repaired(ledger.ledger_id, str(error))
                repaired = running.procedure.value()
                left = repaired.left
                if left and world.plan.racks and repaired.has_no_target:
                    # No bookie is in a rack that would do.
                    self._parked.add((ledger.ledger_id, lost))
                elif left:
                    self.checks.not_repaired(ledger.ledger_id, str(left))

            self._waiting.add(client.name)
            Running(client, ledger, ReReplicateLedger(ledger.ledger_id, lost, REPAIR), done).start()
            self._until("it cannot be repaired", ledger, events_max)
            if (ledger.ledger_id, lost) not in self._parked:
                self.checks.repaired(ledger.ledger_id, lost)

    # --- read --------------------------------------------------------------------------------------------------

    def _read(self, ledger: Ledger, events_max: int) -> None:
        metadata = self.world.store.ledgers[ledger.ledger_id].metadata
        if metadata.last_entry_id < 0:
            return
        for number in range(READERS):
            client = self.world.add_client(f"r{len(self.world.clients)}")
            reader = Reader(self.world, client, ledger)
            self._waiting.add(client.name)
            self._read_by(reader, metadata, number)
        self._until("it cannot be read", ledger, events_max)

    def _read_by(self, reader: Reader, metadata: LedgerMetadata, turn: int) -> None:
        name, ledger_id = reader.client.name, reader.ledger.ledger_id

        def done(procedure: ReadRange) -> None:
            self._waiting.discard(name)
            if procedure.error is not None:
                self.checks.not_readable(name, ledger_id, procedure.position, str(procedure.error))

        reader.range(metadata, 0, metadata.last_entry_id, done, turn=turn)

    # --- write -------------------------------------------------------------------------------------------------

    def _write_anew(self, client: Client, events_max: int) -> None:
        world = self.world
        workload = world.workload
        names = [view.bookie_id for view in client.views]
        if len(names) < world.plan.ensemble:
            raise NotEnoughBookies(f"only {names} are registered after healing")
        world.plan.is_deferred = False
        ensemble = names[: world.plan.ensemble]
        if world.plan.racks:
            ensemble = world.racks.ensemble_of_new(names, world.kernel.rng("last ensemble"))
        ledger = workload.create(ensemble, client)
        writing = workload.writers[ledger.ledger_id]
        writing.append([b"%d/%d" % (ledger.ledger_id, number) for number in range(3)])
        writing.close()
        facts = self.checks.facts[ledger.ledger_id]
        kernel = world.kernel
        kernel.run(kernel.now_s + LIMIT_S, events_max, lambda: facts.metadata.is_closed)
        if facts.acked < 3 or not facts.metadata.is_closed:
            self.checks.not_recoverable(
                ledger.ledger_id,
                f"a new ledger has {facts.acked} of 3 entries: {writing.machine.failure}",
            )
