"""The gc process: finds what may be deleted and when to win space back. The index deletes,
on its word; its own files are only those that keep what it has seen of metadata (`metadata.last`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import MetadataUnavailable
from fastbk.gc.all_pairs import AllPairs
from fastbk.gc.compaction import CompactionSettings, Compactor
from fastbk.gc.control import Control, Draining
from fastbk.gc.dead_ledgers import Cluster, DeadLedgers, Rules
from fastbk.gc.index_client import IndexClient
from fastbk.gc.limbo import LimboWatch
from fastbk.gc.metadata_keeper import MetadataKeeper
from fastbk.gc.over_replicated import CopiesWatch
from fastbk.gc.report import Report
from fastbk.gc.scheduler import Scheduler
from fastbk.gc.unconfirmed import UnconfirmedWatch
from fastbk.meta.rollback_mark import OwnMark
from fastbk.meta.uri import open_store
from fastbk.model.ids import BookieId
from fastbk.native.segment import Segment, Stats, seal_segment
from fastbk.observe import logs
from fastbk.rate_limit import RateLimit
from fastbk.server.child import Child, run
from fastbk.server.configuration.bookie_config import GcConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.config import MetadataSettings
    from fastbk.meta.api import MetadataStore
    from fastbk.server.configuration.storage_settings import GcSettings

REOPEN_DELAY_S = 5.0
LOOKUPS_OF_NEW = 5
"""Unconfirmed ledgers are read so many times as fast as `lookup_rate`: real ones are read once in their life."""


def compaction_settings(settings: GcSettings) -> CompactionSettings:
    """Return what compaction needs of the configuration."""
    return CompactionSettings(
        minor_ratio_max=settings.minor_ratio_max,
        minor_interval_s=settings.minor_interval_ms / 1e3,
        major_ratio_max=settings.major_ratio_max,
        major_interval_s=settings.major_interval_ms / 1e3,
        bytes_per_s=settings.compaction_rate_bytes,
        time_max_s=settings.compaction_time_max_ms / 1e3,
    )


def work_of(
    config: GcConfig,
    control: Control,
    store: MetadataStore,
    indexes: Sequence[IndexClient],
    report: Report,
) -> Scheduler:
    """Put together what one bookie's gc does; `indexes`: one for each pair."""
    settings = config.settings
    index = AllPairs(indexes, config.shards)
    rules = Rules(settings.delete_ratio_max, settings.unchecked_ledgers_max)
    cluster = Cluster(store)
    bookie_id = BookieId(config.bookie_id)
    age_s = settings.over_replicated_age_ms / 1e3
    lookups = RateLimit(settings.lookup_rate, control.pause)
    seen = MetadataKeeper(
        config.ledger_directories, config.shards, store, lookups, lambda: control.pause(0.0)
    )
    unconfirmed = UnconfirmedWatch(
        index,
        store,
        cluster,
        bookie_id,
        RateLimit(settings.lookup_rate * LOOKUPS_OF_NEW, control.pause),
        RateLimit(settings.listing_rate, control.pause),
        settings.unconfirmed_age_ms / 1e3,
        config.unconfirmed_ledgers_max,
        on_seen=seen.see,
        mark=OwnMark(store, config.bookie_id),
        proven_age_s=settings.interval_ms / 1e3,
    )
    work = Scheduler(
        control=control,
        report=report,
        collector=DeadLedgers(
            index,
            store,
            cluster,
            RateLimit(settings.listing_rate, control.pause),
            rules,
            on_local=seen.read_open,
            on_deleted=seen.see_deleted,
        ),
        limbo=LimboWatch(index, store, bookie_id),
        unconfirmed=unconfirmed,
        copies=CopiesWatch(
            index, store, cluster, bookie_id, lookups, rules, age_s, on_seen=seen.see
        ),
        compactors=[],
        interval_s=settings.interval_ms / 1e3,
        round_s=age_s,
        on_looked=seen.flush,
    )
    compaction = compaction_settings(settings)
    work.compactors += [
        Compactor(one, compaction, work.clock_s, report.compaction) for one in indexes
    ]
    return work


def open_metadata(control: Control, settings: MetadataSettings) -> MetadataStore:
    """Open the store, however long that takes. Raises Draining, SupervisorGone."""
    # Metadata logs by the standard module, which no other child imports.
    from fastbk.observe import library_log

    library_log.forward()
    while True:
        try:
            return open_store(settings.uri, session_timeout_s=settings.session_timeout_s)
        except MetadataUnavailable as error:
            logs.warning("gc.metadata_unavailable", reason=str(error))
        control.pause(REOPEN_DELAY_S)


def main(child: Child) -> None:
    """Gc's life after `configure`."""
    config = msgspec.convert(child.config, GcConfig)
    stats = Stats(Segment(child.fds["segment"], "gc", is_writable=True))
    seal_segment(child.fds["segment"])
    report = Report(stats)
    control = Control(child, report.suspended, beat=stats.beat)
    child.ready()
    try:
        store = open_metadata(control, config.metadata)
        pairs = range(len(config.ledger_directories))
        indexes = [IndexClient(child.fds[f"index.{pair}"]) for pair in pairs]
        work = work_of(config, control, store, indexes, report)
        while True:
            control.wait(work.step())
    except Draining:
        child.send({"type": "drained"})


if __name__ == "__main__":
    run("gc", main)
