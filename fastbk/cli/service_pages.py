"""What processes of `fastbk autorecovery` and `fastbk janitor` count, as pages for Prometheus (`--http HOST:PORT`).

Imported when pages are served: the help of the commands does not pay for it.

Apache's names stand as its AutoRecovery daemon has them, without the prefix that they have inside of one of its
bookies. Each process has its own; those of the auditor move only in the one that is elected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

from fastbk.autorecovery.state import MARK_AGES_S, MarkCounts, PlacementCounts
from fastbk.observe.prometheus import family, number, quoted, single
from fastbk.web.page_server import METRICS, TEXT, PageServer, Request, Response, refused_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastbk.admin.healing import RequestedRecoveries
    from fastbk.autorecovery.healer import Healer
    from fastbk.autorecovery.state import AuditorCounts, WorkerCounts
    from fastbk.observe.prometheus import OpStats
    from fastbk.security.tls import RefreshedContext
    from fastbk.stream.cursor.backlog import CursorGauge, CursorGauges
    from fastbk.stream.janitor import Janitor
    from fastbk.web.page_admission import PageAdmission
    from fastbk.web.page_server import PageServer, Request, Response


def add_pages(
    server: PageServer,
    healer: Healer,
    recoveries: RequestedRecoveries,
    more_lines: Callable[[], list[str]] = list,
) -> None:
    """Have `server` answer `/metrics`, and `/livez`: 503 once a pass did not end for too long.

    `more_lines`: of the process, for `/metrics`.
    """

    async def alive(request: Request) -> Response:
        del request
        late = healer.late_passes()
        if late:
            said = ", ".join(f"{name} for {age_s:.0f} s" for name, age_s in sorted(late.items()))
            return 503, TEXT, f"no pass has ended: {said}\n".encode()
        return 200, TEXT, b"ok\n"

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = refused_lines("fastbk_autorecovery_http_refused", server.refused()) + more_lines()
        text = autorecovery_text(healer, recoveries) + "".join(f"{line}\n" for line in lines)
        return 200, METRICS, text.encode()

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)


def _autorecovery_rows(
    healer: Healer, recoveries: RequestedRecoveries
) -> list[tuple[str, str, str, object]]:
    """Return name, kind, text and value of what is counted here beside Apache's names."""
    worker, marks = healer.worker, healer.worker.marks
    late = healer.late_passes()
    return [
        ("elections_total", "counter", "times that this process became the auditor", healer.elections),
        ("is_auditor", "gauge", "1 while this process is the auditor", int(healer.auditor is not None)),
        ("last_backup_age_seconds", "gauge",
         "age of the newest backup of metadata; +Inf: none was taken; NaN: this process is not the auditor",
         _backup_age(healer)),
        ("late_passes", "gauge", "passes that did not end for five minutes: something stands still", len(late)),
        ("failed_passes_total", "counter", "passes that an error ended", healer.auditor_counts.failed_passes),
        ("bookies_lost_total", "counter", "bookies that the auditor saw go away", healer.auditor_counts.losses),
        ("ledgers_unsure_total", "counter", "checks that a silent bookie left without an answer",
         healer.auditor_counts.verification.unsure),
        ("holes_total", "counter", "ledgers in which a check found missing copies, twice",
         healer.auditor_counts.verification.holes),
        ("list_requests_total", "counter", "lists of entries that checks took from bookies",
         healer.auditor_counts.verification.requests),
        ("placement_rounds_total", "counter",
         "rounds over all closed ledgers that compared where their copies are with their rules",
         healer.auditor_counts.placement.rounds),
        ("placement_ledgers_checked_total", "counter", "ledgers that these rounds judged",
         healer.auditor_counts.placement.ledgers),
        ("placement_ledgers_unsure", "gauge",
         "ledgers of which the last round could not say: nobody knows where bookies are that are down",
         _of_last_round(healer, "unsure")),
        ("placement_round_age_seconds", "gauge",
         "since the last round ended; NaN: this process is not the auditor, or none has ended", _round_age(healer)),
        ("placements_short_total", "counter",
         "choices of bookies by this process that kept less than a rule's minimum, or left its group: not enforced",
         healer.client.placements_short),
        ("repairs_active", "gauge", "ledgers that are being repaired here", worker.active),
        ("parked_ledgers", "gauge", "marked ledgers that no bookie has a good copy for, or that cannot be repaired",
         worker.parked),
        ("bytes_left", "gauge", "bytes of copies that marked ledgers miss, about", marks.bytes_left),
        ("bytes_per_second_max", "gauge", "the copy rate that this process may use; +Inf: without a limit",
         number(worker.rate.bytes_per_s).replace("inf", "+Inf")),
        ("lost_locks_total", "counter", "repairs during which the session with metadata expired",
         worker.counts.lost_locks),
        ("ledgers_closed_total", "counter", "ledgers that were fenced and closed after their grace",
         worker.counts.ledgers_closed),
        ("entries_lost_total", "counter", "entries that no bookie has any more", worker.counts.entries_lost),
        ("copies_moved_total", "counter", "copies that were moved to where their ledger's rule wants them",
         worker.counts.copies_moved),
        ("moves_failed_total", "counter", "ledgers of which some copies could not be moved",
         worker.counts.moves_failed),
        ("recoveries_pending", "gauge", "recoveries of bookies that were requested over HTTP and are not done",
         recoveries.pending),
        ("recoveries_done_total", "counter", "of these, that are done", recoveries.done),
        ("recoveries_failed_total", "counter", "of these, that left ledgers; the log says why", recoveries.failed),
    ]  # fmt: skip


def autorecovery_text(healer: Healer, recoveries: RequestedRecoveries) -> str:
    """Return the page, in the text format 0.0.4."""
    worker, marks = healer.worker, healer.worker.marks
    lines = [
        *_auditor_lines(healer.auditor_counts),
        *_apache_gauges(
            marks.counts,
            PlacementCounts() if healer.auditor is None else healer.auditor_counts.placement,
        ),
        *_worker_lines(worker.counts),
    ]
    rows = _autorecovery_rows(healer, recoveries)
    lines += [
        line
        for name, kind, text, value in rows
        for line in single(f"fastbk_autorecovery_{name}", kind, text, value)
    ]
    lines += _ledger_families(healer)
    return "\n".join(lines) + "\n"


def _ledger_families(healer: Healer) -> list[str]:
    """Return the gauges of ledgers that miss copies, and of those whose copies are not where they belong."""
    counts = healer.worker.marks.counts
    text = "marked ledgers, by the age of their oldest mark, cumulative"
    series = [
        (f'le="{age_s}"', count) for age_s, count in zip(MARK_AGES_S, counts.by_age, strict=True)
    ]
    series.append(('le="+Inf"', counts.ledgers))
    lines = family("fastbk_underreplicated_ledgers", "gauge", text, series)
    text = (
        "closed ledgers whose copies lie otherwise than their rule wants it, by the last round over all:"
        " kind=enforced, those that the rule forbids; kind=soft, the others; NaN: this process is not the auditor"
    )
    kinds = [(f'kind="{kind}"', _of_last_round(healer, kind)) for kind in ("enforced", "soft")]
    return lines + family("fastbk_misplaced_ledgers", "gauge", text, kinds)


def _backup_age(healer: Healer) -> str:
    counts = healer.auditor_counts
    if healer.auditor is None or not counts.bookie_passes:
        return "NaN"
    return (
        "+Inf"
        if counts.backup is None
        else number(counts.backup.age_s(time.time_ns() // 1_000_000))
    )


def _of_last_round(healer: Healer, name: Literal["enforced", "soft", "unsure"]) -> object:
    """Return what the last round over all closed ledgers found, while this process is the auditor."""
    counts = healer.auditor_counts.placement
    is_known = healer.auditor is not None and counts.ended_ms
    return getattr(counts, name) if is_known else "NaN"


def _round_age(healer: Healer) -> str:
    ended_ms = healer.auditor_counts.placement.ended_ms
    if healer.auditor is None or not ended_ms:
        return "NaN"
    return number(max(0, time.time_ns() // 1_000_000 - ended_ms) / 1000)


def _auditor_lines(counts: AuditorCounts) -> list[str]:
    marking, checks = counts.marking, counts.verification
    summaries: list[tuple[str, OpStats, str]] = [
        (
            "NUM_UNDER_REPLICATED_LEDGERS",
            marking.scan_ledgers,
            "Ledgers that a scan for lost bookies marked.",
        ),
        (
            "UNDER_REPLICATED_LEDGERS_TOTAL_SIZE",
            marking.scan_bytes,
            "Bytes of these ledgers that are closed.",
        ),
        ("URL_PUBLISH_TIME_FOR_LOST_BOOKIE", marking.scan_ms, "Milliseconds of such a scan."),
        (
            "BOOKIE_TO_LEDGERS_MAP_CREATION_TIME",
            marking.reading_ms,
            "Of these, for reading metadata.",
        ),
        ("AUDIT_BOOKIES_TIME", counts.audit_ms, "Milliseconds to find lost bookies."),
        ("CHECK_ALL_LEDGERS_TIME", checks.cycle_ms, "Milliseconds of a cycle over all ledgers."),
        ("REPLICAS_CHECK_TIME", checks.cycle_ms, "The same: one check does both."),
        (
            "PLACEMENT_POLICY_CHECK_TIME",
            counts.placement.round_ms,
            "Milliseconds of a round over all closed ledgers that checks where their copies are.",
        ),
        ("NUM_FRAGMENTS_PER_LEDGER", checks.fragments, "Of ledgers that were checked."),
        ("NUM_BOOKIES_PER_LEDGER", checks.bookies, "Of ledgers that were checked."),
    ]
    counters = [
        ("NUM_LEDGERS_CHECKED", checks.ledgers, "Ledgers whose copies were checked."),
        (
            "NUM_BOOKIE_AUDITS_DELAYED",
            counts.losses,
            "Losses that wait, or waited, for their delay.",
        ),
        (
            "NUM_DELAYED_BOOKIE_AUDITS_CANCELLED",
            counts.losses_cancelled,
            "Lost bookies that returned.",
        ),
        (
            "NUM_SKIPPING_CHECK_TASK_TIMES",
            checks.skipped,
            "Checks that did not begin: it is paused.",
        ),
    ]
    lines = [
        line for name, stats, text in summaries for line in stats.lines(f"auditor_{name}", text)
    ]
    return lines + [
        line
        for name, count, text in counters
        for line in single(f"auditor_{name}", "counter", text, count)
    ]


def _apache_gauges(marks: MarkCounts, placement: PlacementCounts) -> list[str]:
    rows = [
        ("HAVING_NO_REPLICA_OF_AN_ENTRY", marks.no_copy, "without a live copy of an entry."),
        (
            "HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
            marks.below_ack_quorum,
            "with less than an ack quorum.",
        ),
        (
            "HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
            marks.below_write_quorum,
            "with less than a write quorum.",
        ),
    ]
    lines = [
        line
        for name, count, text in rows
        for line in single(f"auditor_NUM_LEDGERS_{name}", "gauge", f"Marked ledgers {text}", count)
    ]
    for name, count, text in (
        ("NOT_ADHERING", placement.enforced, "lie as an enforced rule of placement forbids it."),
        (
            "SOFTLY_ADHERING",
            placement.soft,
            "lie otherwise than a rule wants it that is not enforced.",
        ),
    ):
        lines += single(
            f"auditor_NUM_LEDGERS_{name}_TO_PLACEMENT_POLICY",
            "gauge",
            f"Closed ledgers that {text}",
            count,
        )
    name = "auditor_NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD"
    return lines + single(
        name, "gauge", "Ledgers that are marked for more than an hour.", marks.late
    )


def _worker_lines(counts: WorkerCounts) -> list[str]:
    rows = [
        ("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED", counts.repaired, "Ledgers that were made whole."),
        ("NUM_ENTRIES_READ", counts.entries_copied, "Entries that were read for a copy."),
        ("NUM_ENTRIES_WRITTEN", counts.entries_copied, "Entries that were copied."),
        ("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION", counts.entries_lost, "Entries without a good copy."),
        ("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED", counts.ledgers_mended,
         "Misplaced ledgers whose copies were moved to where their rule wants them."),
        ("NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER", counts.failures,
         "Repairs that failed and are tried again later; the lock is given back at once."),
        *((f"exceptions_{name}", count, "Repairs that failed so.") for name, count in sorted(counts.faults.items())),
    ]  # fmt: skip
    lines = counts.repair_ms.lines(
        "replication_worker_rereplicate", "Milliseconds of an attempt to repair a ledger."
    )
    lines += counts.read_ms.lines(
        "replication_worker_READ_DATA_LATENCY", "Milliseconds of a read for copies."
    )
    lines += counts.write_ms.lines(
        "replication_worker_WRITE_DATA_LATENCY", "Milliseconds of a write of copies."
    )
    for what in ("READ", "WRITTEN"):
        lines += [
            f"# HELP replication_worker_NUM_BYTES_{what} Bytes of entries that were copied; without quantiles.",
            f"# TYPE replication_worker_NUM_BYTES_{what} summary",
            f'replication_worker_NUM_BYTES_{what}_count{{success="true"}} {counts.entries_copied}',
            f'replication_worker_NUM_BYTES_{what}_sum{{success="true"}} {counts.bytes_copied}',
        ]
    return lines + [
        line
        for name, count, text in rows
        for line in single(f"replication_worker_{name}", "counter", text, count)
    ]


TEXTS = {
    "passes": "passes over all streams, those that were ended early too",
    "streams": "streams that were looked at",
    "rolled": "idle segments that were ended",
    "left_closed": "segments that were closed since a dead writer had left entries that readers could not see",
    "segments_deleted": "segments that were deleted",
    "ledgers_deleted": "ledgers that were deleted, orphans too",
    "orphans_deleted": "ledgers that were deleted and were no segment: reserved or made, and never needed",
    "reclaimed_bytes": "bytes of entries of deleted segments; bookies give them back when their gc looks",
    "uploads_ended": "ledgers of objects that were deleted, or whose upload was interrupted",
    "cursors_expired": "cursors that were deleted as nobody used them",
    "streams_deleted": "streams whose deletion was finished",
    "errors": "streams that could not be worked on in a pass",
}


def janitor_text(janitor: Janitor, clock: Callable[[], float] = time.monotonic) -> str:
    """Return the page, in the text format 0.0.4."""
    ended_s = janitor.last_pass_ended_s
    rows = [
        (f"{name}_total", "counter", TEXTS[name], str(count))
        for name, count in janitor.counts.as_dict().items()
    ]
    text = "passes that something ended early"
    rows.append(("early_ends_total", "counter", text, str(janitor.early_ends)))
    text = "how long the last whole pass took"
    rows.append(("last_pass_seconds", "gauge", text, _seconds(janitor.last_pass_s)))
    text = "since the last whole pass ended; NaN before the first"
    age_s = None if ended_s is None else clock() - ended_s
    rows.append(("last_pass_age_seconds", "gauge", text, _seconds(age_s)))
    text = "streams whose last record has a time over a minute ahead of this machine's clock"
    rows.append(("streams_ahead", "gauge", text, str(janitor.streams_ahead)))
    lines = [line for name, *rest in rows for line in single(f"fastbk_janitor_{name}", *rest)]
    return "\n".join([*lines, *_cursor_lines(janitor.gauges)]) + "\n"


def _cursor_lines(gauges: CursorGauges) -> list[str]:
    """Return a series for each cursor: of a bounded number (`--cursor-series`)."""
    lines: list[str] = []
    known = [(_labels(one), one) for one in gauges.all()]
    for name, (text, value_of) in CURSOR_TEXTS.items():
        series = [(labels, value_of(one)) for labels, one in known]
        lines += family(f"fastbk_cursor_{name}", "gauge", text, series)
    text = "cursors that have no series, since there are more than --cursor-series"
    return lines + single("fastbk_cursors_left_out", "gauge", text, gauges.left_out)


def _labels(one: CursorGauge) -> str:
    return f'stream="{quoted(one.stream)}",cursor="{quoted(one.cursor)}",by="{quoted(one.by)}"'


def _of_backlog(one: CursorGauge, what: str) -> str:
    return "NaN" if one.backlog is None else f"{getattr(one.backlog, what):.15g}"


CURSOR_TEXTS: dict[str, tuple[str, Callable[[CursorGauge], str]]] = {
    "backlog_records": (
        "records behind a cursor's mark, as the last pass found it; NaN: bookies did not tell",
        lambda one: _of_backlog(one, "records"),
    ),
    "backlog_bytes": ("their bytes, about", lambda one: _of_backlog(one, "size_bytes")),
    "oldest_unread_seconds": (
        "since the first of them was appended; 0: there is none",
        lambda one: _of_backlog(one, "seconds"),
    ),
    "moved_seconds": (
        "since the mark was put where it is",
        lambda one: f"{one.moved_s:.3f}",
    ),
}


def _seconds(value: float | None) -> str:
    return "NaN" if value is None else f"{value:.6f}"


async def serve_janitor(
    janitor: Janitor,
    host: str,
    port: int,
    allowed_hosts: Sequence[str] = (),
    tls: RefreshedContext | None = None,
    more_lines: Callable[[], list[str]] = list,
    admission: PageAdmission | None = None,
) -> PageServer:
    """Listen, and answer `/metrics` and `/livez` until it is closed. Raises OSError.

    `allowed_hosts`: further names that clients call this machine by. `more_lines`: of the process, for `/metrics`.
    `admission`: who may use the pages; None: everybody.
    """
    server = PageServer(allowed_hosts, admission)

    async def metrics(request: Request) -> Response:
        if request.method != "GET":
            return 405, TEXT, b"not for this path\n"
        lines = refused_lines("fastbk_janitor_http_refused", server.refused()) + more_lines()
        return (
            200,
            METRICS,
            (janitor_text(janitor) + "".join(f"{line}\n" for line in lines)).encode(),
        )

    async def alive(request: Request) -> Response:
        del request
        return 200, TEXT, b"ok\n"

    server.add_page("/metrics", metrics, is_quick=True)
    server.add_page("/livez", alive, is_quick=True)
    await server.open(host, port, tls)
    return server
