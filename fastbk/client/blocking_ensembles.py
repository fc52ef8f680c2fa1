"""How the blocking client gets its ensembles: the blocking twin of `ensembles.py`. Its caller holds the client."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastbk.client.blocking import Reactor
from fastbk.client.choosing import Choosing, new_ensemble, partial_ensemble, replacements
from fastbk.errors import MetadataUnavailable, NotEnoughBookies
from fastbk.meta.api import MetadataStore
from fastbk.model.ids import BookieId
from fastbk.model.ledger import LedgerMetadata
from fastbk.placement.partial import ChosenEnsemble
from fastbk.placement.values import BookieView, PlacementConfig
from fastbk.replication.actions import Choose, Replaced

T = TypeVar("T")


class BlockingEnsembles:
    """One client's."""

    def __init__(self, reactor: Reactor, store: Callable[[], MetadataStore]) -> None:
        self._reactor = reactor
        self._config = reactor.config
        self._store = store
        self._rng = random.Random()

    def new(
        self, shape: LedgerMetadata, wish: PlacementConfig, *, allow_missing_bookies: bool
    ) -> ChosenEnsemble:
        """Choose bookies that answer for a new ledger; see `Client.create_ledger`. Raises NotEnoughBookies."""
        self._reactor.bookies()
        quorums = (shape.ensemble_size, shape.write_quorum, shape.ack_quorum)
        missed: dict[BookieId, str] = {}
        choosing = new_ensemble(self._views, *quorums, wish, self._rng, missed)
        if not allow_missing_bookies:
            return self._reached(choosing, self._config.connect_timeout)
        try:
            return self._reached(choosing, self._config.probe_timeout)
        except NotEnoughBookies:
            identities = self._store().list_identities()
        known = self._reactor.known
        partial = partial_ensemble(
            self._views, lambda: known.away_views(identities), *quorums, wish, self._rng, missed
        )
        chosen = self._reached(partial, self._config.probe_timeout)
        known.expect([one for one in identities if one.bookie_id in chosen.away])
        return chosen

    def replace(
        self, action: Choose, metadata: LedgerMetadata, config: PlacementConfig
    ) -> Replaced:
        """Choose bookies that answer in place of bad members of a ledger's ensemble."""
        try:
            self._reactor.bookies()
        except MetadataUnavailable:
            # The last known list has to do.
            if self._reactor.known.age_s(time.monotonic()) == float("inf"):
                raise
        quorums = (metadata.write_quorum, metadata.ack_quorum)
        choosing = replacements(self._views, action, *quorums, config, self._rng)
        return self._reached(choosing, self._config.probe_timeout)

    def _views(self) -> Sequence[BookieView]:
        return self._reactor.known.views(time.monotonic())

    def _reached(self, choosing: Choosing[T], timeout_s: float) -> T:
        """Connect to what is chosen until all of it answers."""
        try:
            bookie_ids = next(choosing)
            while True:
                bookie_ids = choosing.send(self._reactor.reach(bookie_ids, timeout_s))
        except StopIteration as end:
            chosen: T = end.value
            return chosen
