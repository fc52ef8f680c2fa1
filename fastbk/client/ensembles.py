"""Ensembles of the asyncio client: bookies that it has connected to, and the log events of changes."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from fastbk.client.bookie_pool import BookiePool
from fastbk.client.change_reports import send_report
from fastbk.client.ensemble_choice import Choosing, new_ensemble, partial_ensemble, replacements
from fastbk.client.metadata_calls import MetadataCalls
from fastbk.errors import MetadataUnavailable, NotEnoughBookies, Unauthorized
from fastbk.model.ids import BookieId, LedgerId
from fastbk.model.ledger import LedgerMetadata
from fastbk.observe.library_log import LibraryLog
from fastbk.placement.choose_ensemble import ChosenEnsemble
from fastbk.placement.values import BookieView, PlacementConfig
from fastbk.replication.actions import Choose, Replaced
from fastbk.replication.ensemble_change_result import Replacement

T = TypeVar("T")

_log = LibraryLog("fastbk.client")
REPLACED = "ledger.bookie_replaced"


class Ensembles:
    """One client's."""

    def __init__(self, pool: BookiePool, store: MetadataCalls) -> None:
        self._pool = pool
        self._config = pool.config
        self._store = store
        self._rng = random.Random()

    async def new(
        self, shape: LedgerMetadata, wish: PlacementConfig, *, allow_missing_bookies: bool
    ) -> ChosenEnsemble:
        """Choose bookies that answer for a new ledger; see `Client.create_ledger`. Raises NotEnoughBookies.

        While the bookies are watched, the list of the last change will do, unless too few of it answer.
        """
        quorums = (shape.ensemble_size, shape.write_quorum, shape.ack_quorum)
        before = self._pool.listed
        if before is not None and not allow_missing_bookies:
            choosing = new_ensemble(self._views, *quorums, wish, self._rng)
            try:
                return await self._reached(choosing, self._config.connect_timeout)
            except NotEnoughBookies:
                if await self._pool.bookies() == before:
                    raise
        else:
            await self._pool.bookies()
        missed: dict[BookieId, str] = {}
        choosing = new_ensemble(self._views, *quorums, wish, self._rng, missed)
        if not allow_missing_bookies:
            return await self._reached(choosing, self._config.connect_timeout)
        try:
            return await self._reached(choosing, self._config.probe_timeout)
        except NotEnoughBookies:
            identities = await self._store.call(lambda store: store.list_identities())
        known = self._pool.known
        partial = partial_ensemble(
            self._views, lambda: known.away_views(identities), *quorums, wish, self._rng, missed
        )
        chosen = await self._reached(partial, self._config.probe_timeout)
        known.expect([one for one in identities if one.bookie_id in chosen.away])
        return chosen

    async def replace(
        self, action: Choose, metadata: LedgerMetadata, config: PlacementConfig
    ) -> Replaced:
        """Choose bookies that answer in place of bad members of a ledger's ensemble."""
        try:
            await self._pool.bookies()
        except MetadataUnavailable:
            # The last known list has to do.
            if self._pool.known.age_s(asyncio.get_running_loop().time()) == float("inf"):
                raise
        quorums = (metadata.write_quorum, metadata.ack_quorum)
        choosing = replacements(self._views, action, *quorums, config, self._rng)
        return await self._reached(choosing, self._config.probe_timeout)

    def _views(self) -> Sequence[BookieView]:
        return self._pool.known.views(asyncio.get_running_loop().time())

    async def _reached(self, choosing: Choosing[T], timeout_s: float) -> T:
        """Connect to what is chosen until all of it answers."""
        refusals: dict[BookieId, str] = {}
        has_reached = False
        try:
            bookie_ids = next(choosing)
            while True:
                missed = await self._pool.reach(bookie_ids, timeout_s)
                has_reached = has_reached or len(missed) < len(bookie_ids)
                refusals |= {
                    one: str(error)
                    for one, error in missed.items()
                    if isinstance(error, Unauthorized)
                }
                bookie_ids = choosing.send({one: str(error) for one, error in missed.items()})
        except StopIteration as end:
            chosen: T = end.value
            return chosen
        except NotEnoughBookies as error:
            if has_reached or not refusals:
                raise
            # There are bookies enough, but not for this client. As a rule all say the same.
            said = error.replicas if len(set(refusals.values())) > 1 else {}
            raise Unauthorized(next(iter(refusals.values())), replicas=said) from error


def client_name() -> str:
    """Return how other people find this client: its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def log_replacements(
    pool: BookiePool, ledger_id: LedgerId, cause: str, replacements: Iterable[Replacement]
) -> None:
    """Log each of them, and report it to the bookie that came. `cause`: writer, recovery, repair or autorecovery."""
    for one in replacements:
        fields: dict[str, Any] = {
            "ledger_id": ledger_id,
            "first_entry_id": one.first_entry_id,
            "bookie": one.bookie_id,
            "replacement": one.replacement,
            "index": one.index,
            "reason": one.reason,
            "cause": cause,
            "client": client_name(),
        }
        # An operator who recovers a bookie wants to know of the progress, not of each of its ledgers.
        (_log.info if cause == "repair" else _log.warning)(REPLACED, **fields)
        send_report(pool, one.replacement, REPLACED, fields)


def drain(replacements: list[Replacement]) -> list[Replacement]:
    """Return what is in a list, and empty it."""
    taken = replacements[:]
    replacements.clear()
    return taken
