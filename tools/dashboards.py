"""The dashboards of `monitoring/grafana`. `./dev docs` writes the files.

A panel is a title, a sentence, a unit and its queries. `grafana.py` adds everything else.
"""

from __future__ import annotations

from typing import Any

from fastbk.observe.names import ADOPT_REASONS
from tools.grafana import Dashboard, Panel, Query

CLUSTER = 'cluster=~"$cluster"'
BOOKIE = f'{CLUSTER}, instance=~"$instance"'
STREAM = f'{CLUSTER}, stream=~"$stream"'
PER = "[$__rate_interval]"


def rate(metric: str, labels: str = BOOKIE) -> str:
    """Return how fast a counter grows, by bookie."""
    return f"sum by (instance) (rate({metric}{{{labels}}}{PER}))"


def mean(metric: str) -> str:
    """Return the mean of a histogram's values, by bookie."""
    return f"{rate(metric + '_sum')} / {rate(metric + '_count')}"


def quantile(share: float, metric: str, by: str = "instance") -> str:
    """Return a quantile of a histogram."""
    return (
        f"histogram_quantile({share}, sum by ({by}, le) (rate({metric}_bucket{{{BOOKIE}}}{PER})))"
    )


def quantiles(metric: str) -> tuple[Query, ...]:
    """Return the median and two high quantiles of each bookie."""
    return tuple(
        Query(quantile(share, metric), f"{{{{instance}}}} {name}")
        for share, name in ((0.5, "p50"), (0.99, "p99"), (0.999, "p99.9"))
    )


def gauge(metric: str, labels: str = BOOKIE) -> str:
    """Return a value as it is."""
    return f"{metric}{{{labels}}}"


def highest(metric: str, by: str = "", labels: str = CLUSTER) -> str:
    """Return the highest of what several processes say of the same thing."""
    return f"max{f' by ({by})' if by else ''} ({metric}{{{labels}}})"


def of_all(metric: str) -> str:
    """Return how fast the counters of all processes of a service grow together."""
    return f"sum(rate({metric}{{{CLUSTER}}}{PER}))"


def stat(title: str, text: str, expression: str, unit: str = "none", **more: Any) -> Panel:
    """Return a panel of one number."""
    return Panel(title, text, unit, (Query(expression, ""),), "stat", 4, 4, **more)


def one(
    title: str, text: str, unit: str, expression: str, legend: str = "{{instance}}", **more: Any
) -> Panel:
    """Return a panel of one query."""
    return Panel(title, text, unit, (Query(expression, legend),), **more)


DISK = "{{instance}} {{role}} {{pair}}"


def cluster() -> list[Panel]:
    """Return the panels of a whole cluster."""
    state = f'fastbk_supervisor_state_seconds{{{CLUSTER}, state="writable"}}'
    alerts = f'ALERTS{{alertname=~"Fastbk.*", alertstate="firing", {CLUSTER}}}'
    return [
        stat("Bookies that answer", "Bookies that Prometheus reaches.", f'sum(up{{job="fastbk-bookie", {CLUSTER}}})'),
        stat("Bookies that take entries", "Bookies in the state `writable`.", f"count({state}) or vector(0)"),
        stat("Alerts", "Alerts that fire now.", f"count({alerts}) or vector(0)", alarm_above=1),
        stat("Ledgers that miss copies", "Ledgers with a mark of AutoRecovery.",
             highest("fastbk_underreplicated_ledgers", labels=f'{CLUSTER}, le="+Inf"'), alarm_above=1),
        stat("Auditors", "One is right.", f"sum(fastbk_autorecovery_is_auditor{{{CLUSTER}}})"),
        stat("Metadata on hold", "1: nothing is deleted until an operator confirms.",
             highest("fastbk_supervisor_metadata_on_hold"), alarm_above=1),
        one("Adds", "Adds that succeeded; a batch is one.", "ops", rate("fastbk_worker_add_seconds_count")),
        one("Entries stored", "Bytes of entries, before the copies on other bookies.", "Bps",
            rate("fastbk_index_entry_bytes_total")),
        one("Reads", "Reads that succeeded; a batch is one.", "ops", rate("fastbk_worker_read_seconds_count")),
        one("Time of an add, p99", "From an add's last byte to its answer.", "s",
            quantile(0.99, "fastbk_worker_add_seconds")),
        one("Time of a commit, p99", "From the submission of a batch until it is on disk.", "s",
            quantile(0.99, "fastbk_journal_commit_seconds")),
        Panel("Failed requests", "Answered with anything but OK: also `no such entry`.", "ops", (
            Query(rate("fastbk_worker_adds_failed_total"), "{{instance}} adds"),
            Query(rate("fastbk_worker_reads_failed_total"), "{{instance}} reads"),
        )),
        one("Reasons against a bookie", "Conditions of readiness; a healthy bookie has none, and is 0 here.", "none",
            f"sum by (instance, name) (fastbk_supervisor_condition{{{BOOKIE}}}) or "
            f"0 * sum by (instance) (fastbk_supervisor_state_seconds{{{BOOKIE}}})", "{{instance}} {{name}}"),
        one("Fullest disk", "Share of the fullest disk of each bookie that is used.", "percentunit",
            highest("fastbk_disk_used_ratio", "instance", BOOKIE)),
        one("Connections", "Connections of clients.", "none", gauge("fastbk_worker_connections")),
        Panel("Deaths and freezes", "Since the bookie started.", "none", (
            Query(gauge("fastbk_supervisor_restarts_total"), "{{instance}} deaths"),
            Query(gauge("fastbk_supervisor_freezes_total"), "{{instance}} freezes"),
        )),
        one("Uptime", "Since the supervisor started.", "s",
            f"time() - fastbk_supervisor_start_time_seconds{{{BOOKIE}}}"),
        one("Versions", "Bookies of each version.", "none", f"count by (version) (fastbk_build_info{{{BOOKIE}}})",
            "{{version}}"),
    ]  # fmt: skip


def bookie() -> list[Panel]:
    """Return the panels of a bookie: requests, journal and index."""
    waits = ("credit", "ring", "request_ring", "pending", "output", "memory")
    done = ("fences", "polls", "lac_reads", "lac_writes", "forces", "lists", "infos")
    return [
        Panel("Time of an add", "From an add's last byte to its answer.", "s", quantiles("fastbk_worker_add_seconds")),
        Panel("Time of a read", "From a read's last byte to its answer.", "s", quantiles("fastbk_worker_read_seconds")),
        Panel("Time of a commit", "From the submission of a batch until it is on disk.", "s",
              quantiles("fastbk_journal_commit_seconds")),
        Panel("Adds and reads", "Those that succeeded; a batch is one.", "ops", (
            Query(rate("fastbk_worker_add_seconds_count"), "{{instance}} adds"),
            Query(rate("fastbk_worker_read_seconds_count"), "{{instance}} reads"),
        )),
        Panel("Other requests", "Those that succeeded.", "ops",
              tuple(Query(rate(f"fastbk_worker_{what}_done_total"), f"{{{{instance}}}} {what}") for what in done)),
        Panel("Failed requests", "Answered with anything but OK: also `no such entry`.", "ops", tuple(
            Query(rate(f"fastbk_worker_{what}_failed_total"), f"{{{{instance}}}} {what}")
            for what in ("adds", "reads", "fences"))),
        Panel("Connections that wait", "How often, and for what.", "ops",
              tuple(Query(rate(f"fastbk_worker_waits_{what}_total"), f"{{{{instance}}}} {what}") for what in waits)),
        Panel("Requests under way", "Not answered yet.", "none", (
            Query(gauge("fastbk_worker_adds_in_progress"), "{{instance}} adds"),
            Query(gauge("fastbk_worker_reads_in_progress"), "{{instance}} reads"),
            Query(gauge("fastbk_index_waiters"), "{{instance}} long polls"),
        )),
        Panel("Over 10 ms", "Commits, answers and waits for room: GET /slow has their stages.", "ops", (
            Query(f"sum by (instance, cause) (rate(fastbk_supervisor_slow_total{{{BOOKIE}}}{PER}))",
                  "{{instance}} {{cause}}"),)),
        Panel("Network", "Bytes from and to clients.", "Bps", (
            Query(rate("fastbk_worker_bytes_received_total"), "{{instance}} received"),
            Query(rate("fastbk_worker_bytes_sent_total"), "{{instance}} sent"),
        )),
        Panel("Memory of workers", "Adds in the rings, and replies that clients have not read.", "bytes", (
            Query(gauge("fastbk_worker_ring_bytes"), "{{instance}} rings"),
            Query(gauge("fastbk_worker_unread_reply_bytes"), "{{instance}} replies"),
        )),
        one("Connections", "Connections of clients.", "none", gauge("fastbk_worker_connections")),
        one("Records of a batch", "Mean of the journal's batches: more mean fewer syncs.", "none",
            mean("fastbk_journal_batch_records")),
        one("Journal that replay would read", "Bytes behind the log mark: a start reads them.", "bytes",
            gauge("fastbk_journal_behind_bytes")),
        one("Write cache", "Bytes in the write cache that is being filled.", "bytes",
            gauge("fastbk_index_cache_bytes")),
        Panel("Where reads are answered", "Entries from a cache, and reads of the disk.", "ops", (
            Query(rate("fastbk_index_cache_hits_total"), "{{instance}} write cache"),
            Query(rate("fastbk_index_run_hits_total"), "{{instance}} read cache"),
            Query(rate("fastbk_index_disk_jobs_total"), "{{instance}} disk"),
        )),
        one("Length of a flush", "Mean.", "s", mean("fastbk_index_flush_seconds")),
        Panel("Bytes a flush adopted and copied", "Left in journal files, and copied for entry logs.", "Bps", (
            Query(rate("fastbk_index_entry_bytes_total"), "{{instance}} all entries"),
            Query(rate("fastbk_index_adopted_bytes_total"), "{{instance}} adopted"),
            Query(rate("fastbk_index_flush_copied_bytes_total"), "{{instance}} copied"),
        )),
        Panel("Journal files", "Kept as entry logs, and free to be written to again.", "bytes", (
            Query(gauge("fastbk_index_journal_log_bytes"), "{{instance}} logs {{pair}}"),
            Query(gauge("fastbk_journal_free_bytes"), "{{instance}} free {{pair}}"),
        )),
        one("Why journal files do not adopt", "As in docs/disks.md: what the current file lacks.", "none",
            gauge("fastbk_journal_adopt_reason"), "{{instance}} {{pair}}", values=("it adopts", *ADOPT_REASONS[1:])),
        Panel("Refused", "Connections and requests that a limit or a right refused, or that were cut off.", "ops", (
            Query(rate("fastbk_worker_connections_refused_total"), "{{instance}} connections"),
            Query(rate("fastbk_worker_slow_readers_cut_total"), "{{instance}} slow readers"),
            Query(rate("fastbk_worker_refused_key_total"), "{{instance}} master keys"),
            Query(rate("fastbk_worker_refused_read_only_total"), "{{instance}} read-only"),
        )),
    ]  # fmt: skip


def disks() -> list[Panel]:
    """Return the panels of disks, garbage collection and damage."""
    states = ("ok", "warn", "full", "exhausted", "failed", "read-only", "gone")
    return [
        one("State", "As in docs/disks.md.", "none", gauge("fastbk_disk_state"), DISK, values=states),
        one("Refused", "1: new entries. 2: everything that would be written.", "none", gauge("fastbk_disk_refuses"),
            DISK, values=("nothing", "new entries", "all writes")),
        one("Slow", "Commits or flushes take longer than they should.", "none", gauge("fastbk_disk_slow"), DISK,
            values=("no", "slow")),
        one("Used", "Share of the file system.", "percentunit", gauge("fastbk_disk_used_ratio"), DISK),
        one("Free", "Bytes that may still be written.", "bytes", gauge("fastbk_disk_free_bytes"), DISK),
        one("Failed flushes", "Since the processes started.", "none", gauge("fastbk_disk_errors_total"), DISK),
        one("Time of a commit, p99", "From the submission of a batch until it is on disk.", "s",
            quantile(0.99, "fastbk_journal_commit_seconds", "instance, pair"), "{{instance}} {{pair}}"),
        Panel("Journal", "Bytes written, and those of them that only fill up blocks.", "Bps", (
            Query(rate("fastbk_journal_bytes_total"), "{{instance}} written"),
            Query(rate("fastbk_journal_padding_bytes_total"), "{{instance}} padding"),
        )),
        Panel("Flushes", "Finished, and failed: they are tried again.", "ops", (
            Query(rate("fastbk_index_flushes_total"), "{{instance}} finished"),
            Query(rate("fastbk_index_flush_failures_total"), "{{instance}} failed"),
        )),
        Panel("Entry logs", "Bytes, and those of ledgers that exist. Compaction frees the difference.", "bytes", (
            Query(gauge("fastbk_gc_log_bytes"), "{{instance}} all"),
            Query(gauge("fastbk_gc_live_bytes"), "{{instance}} live"),
        )),
        Panel("Compaction", "Bytes that it moved and freed.", "Bps", (
            Query(rate("fastbk_gc_compaction_moved_bytes_total"), "{{instance}} moved"),
            Query(rate("fastbk_gc_compaction_freed_bytes_total"), "{{instance}} freed"),
        )),
        Panel("Garbage collection", "Searches for deleted ledgers, those that ended early, and deletions.", "ops", (
            Query(rate("fastbk_gc_cycles_total"), "{{instance}} searches"),
            Query(rate("fastbk_gc_cycles_stopped_total"), "{{instance}} stopped"),
            Query(rate("fastbk_gc_deleted_total"), "{{instance}} deleted"),
        )),
        Panel("Damaged or lost", "Ranges of entries in quarantine, ledgers in limbo.", "none", (
            Query(gauge("fastbk_index_quarantined"), "{{instance}} ranges"),
            Query(gauge("fastbk_index_limbo"), "{{instance}} ledgers"),
        )),
        one("Scrub", "Bytes read again to find damage.", "Bps", rate("fastbk_index_scrub_bytes_total")),
        Panel("Stored", "Ledgers and entries.", "none", (
            Query(gauge("fastbk_index_ledgers"), "{{instance}} ledgers"),
            Query(gauge("fastbk_index_stored_entries"), "{{instance}} entries"),
        )),
    ]  # fmt: skip


def streams() -> list[Panel]:
    """Return the panels of cursors, of the janitor of streams, and of write services."""
    name = "{{stream}} {{cursor}}"

    def cursors(metric: str) -> str:
        return f"topk(20, {highest(metric, 'stream, cursor', STREAM)})"

    deleted = (
        "segments_deleted",
        "ledgers_deleted",
        "orphans_deleted",
        "streams_deleted",
        "cursors_expired",
    )
    return [
        stat("Cursors 10 minutes behind", "Their oldest unread record is older.",
             f"count({highest('fastbk_cursor_oldest_unread_seconds', 'stream, cursor')} > 600) or vector(0)",
             alarm_above=1),
        stat("Cursors that are not shown", "More than `--cursor-series` of the janitor.",
             highest("fastbk_cursors_left_out"), alarm_above=1),
        stat("Last pass of the janitor", "Time since it ended.",
             f"min(fastbk_janitor_last_pass_age_seconds{{{CLUSTER}}})", "s", alarm_above=900),
        stat("Length of a pass", "Of the last whole one.", highest("fastbk_janitor_last_pass_seconds"), "s"),
        one("Age of the oldest unread record", "The 20 cursors that are most behind.", "s",
            cursors("fastbk_cursor_oldest_unread_seconds"), name),
        one("Unread records", "Behind the cursor's mark.", "none", cursors("fastbk_cursor_backlog_records"), name),
        one("Unread bytes", "About.", "bytes", cursors("fastbk_cursor_backlog_bytes"), name),
        one("Since the cursor moved", "Long, with unread records: nobody reads.", "s",
            cursors("fastbk_cursor_moved_seconds"), name),
        one("Streams examined", "By all janitors.", "ops", of_all("fastbk_janitor_streams_total"), "streams"),
        Panel("Passes", "All, those that ended early, and streams that failed.", "ops", (
            Query(of_all("fastbk_janitor_passes_total"), "passes"),
            Query(of_all("fastbk_janitor_early_ends_total"), "ended early"),
            Query(of_all("fastbk_janitor_errors_total"), "streams that failed"),
        )),
        Panel("Deleted", "By retention, truncation and deletion.", "ops",
              tuple(Query(of_all(f"fastbk_janitor_{what}_total"), what.replace("_", " ")) for what in deleted)),
        one("Reclaimed", "Bytes of deleted segments; the bookies' gc frees them.", "Bps",
            of_all("fastbk_janitor_reclaimed_bytes_total"), "bytes"),
        one("Idle segments ended", "Segments whose writer died.", "ops", of_all("fastbk_janitor_rolled_total"),
            "segments"),
        one("Records of producers", "That write services stored.", "ops",
            f"rate(fastbk_serve_records_total{{{CLUSTER}}}{PER})"),
        Panel("Time of a producer's frame", "From its arrival at the write service to its answer.", "s", tuple(
            Query(f"histogram_quantile({share}, sum by (instance, le)"
                  f" (rate(fastbk_serve_append_seconds_bucket{{{CLUSTER}}}{PER})))", f"{{{{instance}}}} {name}")
            for share, name in ((0.5, "p50"), (0.99, "p99"))
        )),
        one("Streams of each write service", "One that started later has fewer.", "none",
            f"fastbk_serve_streams{{{CLUSTER}}}"),
        one("Producers refused", "By reason.", "ops",
            f"sum by (reason) (rate(fastbk_serve_refusals_total{{{CLUSTER}}}{PER}))", "{{reason}}"),
    ]  # fmt: skip


def healing() -> list[Panel]:
    """Return the panels of AutoRecovery."""
    ages = "fastbk_underreplicated_ledgers"
    lacks = (("NO_REPLICA", "no copy"), ("LESS_THAN_AQ_REPLICAS", "less than an ack quorum"),
             ("LESS_THAN_WQ_REPLICAS", "less than a write quorum"))  # fmt: skip
    return [
        stat("Auditors", "One is right.", f"sum(fastbk_autorecovery_is_auditor{{{CLUSTER}}})"),
        stat("Ledgers that miss copies", "Ledgers with a mark.",
             highest(ages, labels=f'{CLUSTER}, le="+Inf"'), alarm_above=1),
        stat("Parked ledgers", "They cannot be repaired now.", highest("fastbk_autorecovery_parked_ledgers"),
             alarm_above=1),
        stat("Bytes to copy", "About.", highest("fastbk_autorecovery_bytes_left"), "bytes"),
        stat("Entries without a copy", "No bookie has them any more.",
             f"sum(fastbk_autorecovery_entries_lost_total{{{CLUSTER}}})", alarm_above=1),
        stat("Passes that do not end", "For five minutes or more.", highest("fastbk_autorecovery_late_passes"),
             alarm_above=1),
        one("Ledgers that miss copies, by age", "Marks up to this age in seconds.", "none", highest(ages, "le"),
            "{{le}}"),
        Panel("Ledgers with too few live copies", "Of those with a mark.", "none", tuple(
            Query(highest(f"auditor_NUM_LEDGERS_HAVING_{what}_OF_AN_ENTRY"), text) for what, text in lacks)),
        one("Misplaced ledgers", "Copies lie otherwise than a rule wants it; enforced: than it allows.", "none",
            highest("fastbk_misplaced_ledgers", "kind"), "{{kind}}"),
        one("Choices that kept less than a rule", "Of bookies, where the rule is not enforced.", "ops",
            of_all("fastbk_autorecovery_placements_short_total")),
        one("Repairs under way", "Of each process.", "none", gauge("fastbk_autorecovery_repairs_active", CLUSTER)),
        Panel("Copied", "Bytes of entries, and the limit.", "Bps", (
            Query(f"rate(replication_worker_NUM_BYTES_WRITTEN_sum{{{CLUSTER}}}{PER})", "{{instance}}"),
            Query(gauge("fastbk_autorecovery_bytes_per_second_max", CLUSTER), "{{instance}} limit"),
        )),
        one("Bytes to copy", "About.", "bytes", highest("fastbk_autorecovery_bytes_left"), "bytes"),
        Panel("Repairs", "Ledgers made whole, and attempts that failed.", "ops", (
            Query(of_all("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"), "repaired"),
            Query(of_all("replication_worker_NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER"), "failed"),
        )),
        Panel("Checks", "Ledgers checked, checks without an answer, and holes found.", "ops", (
            Query(of_all("auditor_NUM_LEDGERS_CHECKED"), "checked"),
            Query(of_all("fastbk_autorecovery_ledgers_unsure_total"), "without an answer"),
            Query(of_all("fastbk_autorecovery_holes_total"), "holes"),
        )),
        Panel("Bookies", "Lost, and those that came back in time, since the processes started.", "none", (
            Query(f"sum(fastbk_autorecovery_bookies_lost_total{{{CLUSTER}}})", "lost"),
            Query(f"sum(auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED{{{CLUSTER}}})", "returned"),
        )),
        Panel("Trouble", "Passes that failed, lost sessions, and elections.", "ops", (
            Query(of_all("fastbk_autorecovery_failed_passes_total"), "failed passes"),
            Query(of_all("fastbk_autorecovery_lost_locks_total"), "lost sessions"),
            Query(of_all("fastbk_autorecovery_elections_total"), "elections"),
        )),
    ]  # fmt: skip


VARIABLES = {
    "cluster": "label_values(fastbk_build_info, cluster)",
    "instance": f"label_values(fastbk_build_info{{{CLUSTER}}}, instance)",
    "stream": f"label_values(fastbk_cursor_moved_seconds{{{CLUSTER}}}, stream)",
}


def _dashboard(name: str, text: str, panels: list[Panel], *variables: str) -> Dashboard:
    return Dashboard(
        name, f"fastbk: {name}", text, panels, {one: VARIABLES[one] for one in variables}
    )


DASHBOARDS = (
    _dashboard("cluster", "All bookies at a glance.", cluster(), "cluster", "instance"),
    _dashboard("bookie", "Requests, journal and index.", bookie(), "cluster", "instance"),
    _dashboard("disks", "Disks, garbage collection, damage.", disks(), "cluster", "instance"),
    _dashboard(
        "streams", "Cursors, the janitor and write services.", streams(), "cluster", "stream"
    ),
    _dashboard("healing", "AutoRecovery.", healing(), "cluster"),
)
