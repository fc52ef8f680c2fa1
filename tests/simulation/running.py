"""One procedure of the product under way on a simulated client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from fastbk.client.ensembles import with_members
from fastbk.errors import NotEnoughBookies
from fastbk.meta.api import VersionedLedger
from fastbk.model.ids import BookieId, EntryId, LedgerId
from fastbk.placement.choose_ensemble import choose_replacements
from fastbk.replication.procedure import (
    Action,
    Choose,
    MarkReplicas,
    Outcome,
    Procedure,
    ReadIdentity,
    ReadMetadata,
    Replaced,
    SendRequest,
    Sleep,
    UpdateMetadata,
    Withdraw,
)
from tests.simulation.client import Channel, Client
from tests.simulation.kernel import STALE

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

T = TypeVar("T")


@dataclass(slots=True)
class Ledger:
    """What all clients know about a ledger of the world.

    Attributes:
        key: its master key.
        away: members that were away when it was created.
        written: the data of each entry that its writer has added, in order: everything that may ever be read.
    """

    ledger_id: LedgerId
    key: bytes
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    is_deferred: bool = False
    away: frozenset[BookieId] = frozenset()
    written: list[bytes] = field(default_factory=list)


class Running(Generic[T]):
    """Does what a procedure asks for, until it has finished; then calls `when_done(self)`."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        procedure: Procedure[T],
        when_done: Callable[[Running[T]], None] | None = None,
        progress: Callable[[Running[T]], None] | None = None,
    ) -> None:
        self.client = client
        self.ledger = ledger
        self.procedure = procedure
        self.watch: Callable[[VersionedLedger], None] | None = None
        self.started_s = client.kernel.now_s
        self._when_done = when_done
        self._progress = progress
        self._asked: dict[int, tuple[Channel, int]] = {}
        client.runnings.append(self)

    @property
    def checks(self) -> Checks:
        return self.client.store.checks

    def start(self) -> None:
        self.procedure.start(self.client.kernel.now_s)
        self.pump()

    def cancel(self) -> None:
        self.procedure.cancel()
        self.pump()
        self._leave()

    def pump(self) -> None:
        procedure = self.procedure
        self.perform_actions()
        if self._progress is not None:
            self._progress(self)
        if procedure.is_finished and self in self.client.runnings:
            self._leave()
            if self._when_done is not None:
                self._when_done(self)

    def perform_actions(self) -> None:
        """Do what the procedure asks for, without a look at what it has found."""
        while actions := self.procedure.take_actions():
            for tag, action in actions:
                self._perform(tag, action)

    def bookies_changed(self) -> None:
        """The client heard of bookies that came or went."""

    def answered(self, bookie_id: BookieId, verdicts: list[tuple[EntryId, int, int]]) -> None:
        """A bookie answered adds of a writer."""

    def _leave(self) -> None:
        if self in self.client.runnings:
            self.client.runnings.remove(self)

    def _tell(self, tag: int, outcome: Outcome) -> None:
        self._asked.pop(tag, None)
        if self not in self.client.runnings:
            return
        self.procedure.completed(tag, outcome, self.client.kernel.now_s)
        self.pump()

    def _perform(self, tag: int, action: Action) -> None:
        client, ledger = self.client, self.ledger
        if isinstance(action, SendRequest):
            self.checks.asked(client.name, ledger, action.bookie_id, action.request)
            self._asked[tag] = client.ask(
                ledger.ledger_id,
                ledger.key,
                action.bookie_id,
                action.request,
                action.timeout_s,
                lambda outcome: self._tell(tag, outcome),
            )
        elif isinstance(action, Withdraw):
            asked = self._asked.pop(tag, None)
            if asked is not None:
                asked[0].pending.pop(asked[1], None)
        elif isinstance(action, Sleep):
            client.kernel.after(action.pause_s, client, self.woken, tag)
        elif isinstance(action, UpdateMetadata):
            client.update_metadata(
                ledger.ledger_id,
                action.metadata,
                action.version,
                lambda outcome: self._tell(tag, outcome),
                action.if_identity,
            )
        elif isinstance(action, ReadIdentity):
            client.read_identity(action.bookie_id, lambda outcome: self._tell(tag, outcome))
        elif isinstance(action, ReadMetadata):
            client.read_metadata(ledger.ledger_id, lambda outcome: self._tell(tag, outcome))
        elif isinstance(action, MarkReplicas):
            client.mark_replicas(ledger.ledger_id, action, lambda outcome: self._tell(tag, outcome))
        elif isinstance(action, Choose):
            client.kernel.after(0.0, client, self.choose, tag, action)
        else:
            raise NotImplementedError(action)

    def woken(self, tag: int) -> object:
        if self not in self.client.runnings:
            return STALE
        self._tell(tag, None)
        return None

    def choose(self, tag: int, action: Choose) -> object:
        """Choose bookies by the product's placement from what this client knows."""
        if self not in self.client.runnings:
            return STALE
        client = self.client
        left_out: dict[BookieId, str] = {}
        views = with_members(client.views, action)
        locations = (
            {view.bookie_id: view.location for view in views} if client.racks.ack_racks else {}
        )
        try:
            chosen = choose_replacements(
                views,
                action.ensemble,
                action.bad,
                self.ledger.write_quorum,
                self.ledger.ack_quorum,
                client.racks.rule,
                client.rng,
                exclude=action.exclude,
                partial=True,
            )
        except NotEnoughBookies as error:
            chosen, left_out = {}, error.replicas
        client.count_on(chosen.values())
        self._tell(tag, Replaced(chosen, left_out, locations))
        return None
