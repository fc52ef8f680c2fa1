"""The tables of `fastbk top` as text: columns for a width, cells, the order of rows and the filter.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from fastbk.model.health import Verdict
from fastbk.overview.values import (
    BookieRow,
    ClusterOverview,
    CursorLag,
    DiskRow,
    Healing,
    HotLedger,
    HotStream,
    JournalFiles,
    Latency,
    Severity,
)
from fastbk.printable_text import printable
from fastbk.units import format_age_s, format_amount, format_count, format_size

T = TypeVar("T")

UNKNOWN = "-"
MARKS = {Severity.BAD: "!!", Severity.WARN: "!", Severity.NOTE: "~", Severity.OK: ""}
"""Marks in front of a bookie: what a screen without colours shows."""
WIDE_COLUMNS = 130
"""From so many columns on, tables show medians, too, and the newest event beside the problem."""


@dataclass(frozen=True)
class Column(Generic[T]):
    """One column: its title, the text of a row's cell, and its width; 0: what is left."""

    title: str
    cell: Callable[[T], str]
    width: int
    align: str = ">"


def bookie_columns(overview: ClusterOverview, width: int) -> list[Column[BookieRow]]:
    """Return the columns of bookies for a screen of `width`."""
    is_wide, now_s = width >= WIDE_COLUMNS, overview.at_s
    longest = max((len(row.bookie_id) for row in overview.bookies), default=0)
    first: list[Column[BookieRow]] = [
        Column("", lambda row: MARKS[row.severity], 2, "<"),
        Column(
            "BOOKIE", lambda row: row.bookie_id, min(max(longest, 6), 24 if is_wide else 14), "<"
        ),
        Column("ADDS/S", lambda row: amount(row.adds_per_s), 6),
    ]
    last: list[Column[BookieRow]] = [
        Column("QUEUE", lambda row: amount(row.queue) if is_answering(row) else UNKNOWN, 5),
        Column("DISK", lambda row: disk_text(row.slowest_disk), 8),
        Column("FULL", lambda row: age(row.full_in_s), 5),
        Column("LIMBO", lambda row: amount(row.limbo) if is_answering(row) else UNKNOWN, 5),
    ]
    if not is_wide:
        return [
            *first,
            Column("ADD99", lambda row: p99(row.add), 5),
            Column("COM99", lambda row: p99(row.commit), 5),
            *last,
            Column(
                "PROBLEM OR EVENT", lambda row: problem_text(row) or event_text(row, now_s), 0, "<"
            ),
        ]
    return [
        *first,
        Column(
            "BYTES/S",
            lambda row: size(row.add_bytes_per_s),
            9,
        ),
        Column("ADD P50/P99", lambda row: latency(row.add), 11),
        Column("COMMIT P50/P99", lambda row: latency(row.commit), 14),
        *last,
        Column("PROBLEM", problem_text, 0, "<"),
        Column("LAST EVENT", lambda row: event_text(row, now_s), 0, "<"),
    ]


JOURNAL_COLUMNS: list[Column[BookieRow]] = [
    Column("BOOKIE", lambda row: row.bookie_id, 20, "<"),
    Column("ENTRIES", lambda row: of_files(row, lambda one: size(one.entry_bytes)), 9),
    Column("ADOPTED", lambda row: of_files(row, lambda one: size(one.adopted_bytes)), 9),
    Column("COPIED", lambda row: of_files(row, lambda one: size(one.copied_bytes)), 9),
    Column("FREE", lambda row: of_files(row, lambda one: size(one.free_bytes)), 9),
    Column("WHY NOT ADOPTED", lambda row: of_files(row, lambda one: one.reason), 0, "<"),
]
LEDGER_COLUMNS: list[Column[HotLedger]] = [
    Column("LEDGER", lambda one: str(one.ledger_id), 12),
    Column("ADDS/S", lambda one: amount(one.adds_per_s), 7),
    Column("BYTES/S", lambda one: size(one.bytes_per_s), 9),
    Column("BOOKIES", lambda one: str(one.bookies), 7),
    Column("STREAM", lambda one: one.stream or UNKNOWN, 0, "<"),
]
STREAM_COLUMNS: list[Column[HotStream]] = [
    Column("ADDS/S", lambda one: amount(one.adds_per_s), 7),
    Column("BYTES/S", lambda one: size(one.bytes_per_s), 9),
    Column("STREAM", lambda one: one.path, 0, "<"),
]
CURSOR_COLUMNS: list[Column[CursorLag]] = [
    Column("UNREAD FOR", lambda one: age(one.oldest_unread_s), 10),
    Column("RECORDS", lambda one: amount(one.backlog_records), 8),
    Column("BYTES", lambda one: size(one.backlog_bytes), 9),
    Column("MOVED", lambda one: f"{age(one.moved_s)} ago", 11),
    Column("CURSOR", lambda one: f"{one.cursor} ({one.by})" if one.by else one.cursor, 20, "<"),
    Column("STREAM", lambda one: one.stream, 0, "<"),
]

ORDERS: dict[str, Callable[[BookieRow], object]] = {
    "sickness": lambda row: row.sickness(),
    "name": lambda row: row.bookie_id,
    "adds": lambda row: (-(row.adds_per_s or 0.0), row.bookie_id),
    "add p99": lambda row: (-(row.add.p99_s if row.add else 0.0), row.bookie_id),
    "commit p99": lambda row: (-(row.commit.p99_s if row.commit else 0.0), row.bookie_id),
    "queue": lambda row: (-row.queue, row.bookie_id),
    "time to full": lambda row: (
        float("inf") if row.full_in_s is None else row.full_in_s,
        row.bookie_id,
    ),
}
"""Name of an order -> what sorts first in it."""


def ordered(rows: Iterable[BookieRow], order: str) -> list[BookieRow]:
    """Return rows in one of ORDERS."""
    return sorted(rows, key=ORDERS[order])  # type: ignore[arg-type]


def with_journal_files(rows: Iterable[BookieRow], order: str) -> list[BookieRow]:
    """Return rows of JOURNAL_COLUMNS in one of ORDERS: those whose journal files are known."""
    return [row for row in ordered(rows, order) if row.journal_files is not None]


def filtered(rows: Iterable[T], columns: Sequence[Column[T]], text: str) -> list[T]:
    """Return the rows of which a cell has `text`, whatever its case."""
    wanted = text.lower()
    return [
        row
        for row in rows
        if not wanted or any(wanted in column.cell(row).lower() for column in columns)
    ]


def lines(rows: Iterable[T], columns: Sequence[Column[T]], width: int) -> list[str]:
    """Return a table as lines of at most `width`, its titles first."""
    widths = fitted(columns, width)
    titles = [column.title for column in columns]
    table = [titles, *([column.cell(row) for column in columns] for row in rows)]
    aligns = [column.align for column in columns]
    return [
        " ".join(
            fit(text, each, align) for text, each, align in zip(row, widths, aligns, strict=True)
        ).rstrip()
        for row in table
    ]


def fitted(columns: Sequence[Column[T]], width: int) -> list[int]:
    """Return the width of each column: those with 0 share what is left, with 8 at least."""
    fixed = sum(column.width for column in columns) + len(columns) - 1
    open_count = sum(column.width == 0 for column in columns) or 1
    rest = max(8, (width - fixed) // open_count)
    return [column.width or rest for column in columns]


def screen_text(text: str) -> str:
    """Return text of others with what a terminal would obey escaped; line ends stay."""
    return printable(text, len(text), kept="\n")


def fit(text: str, width: int, align: str) -> str:
    """Return `text` with exactly `width` characters; what is cut ends in `…`."""
    text = printable(text, width + 1)[: width + 1]
    if len(text) > width:
        return text[: width - 1] + "…"
    return f"{text:{align}{width}}"


def headline(overview: ClusterOverview) -> str:
    """Return the cluster in one line: how many bookies are ill, and what they do together."""
    bad, warned = overview.count(Severity.BAD), overview.count(Severity.WARN)
    ill = ", ".join(
        text for text, count in ((f"{bad} bad", bad), (f"{warned} with warnings", warned)) if count
    )
    if not overview.bookies:
        return f"{clock(overview.at_s)}  no bookie is known"
    bookies = format_count(len(overview.bookies), "bookie")
    work = f"{amount(overview.adds_per_s)} adds/s, {size(overview.add_bytes_per_s)}/s"
    return (
        f"{clock(overview.at_s)}  {overview.verdict.text}  {bookies}: {ill or 'all well'}  {work}"
    )


def healing_line(healing: Healing | None) -> str:
    """Return what AutoRecovery does in one line."""
    if healing is None:
        return "healing: not read yet"
    if not healing.enabled:
        state = "paused"
    elif not healing.auditor:
        state = "no auditor: start `fastbk autorecovery`"
    else:
        state = f"auditor {healing.auditor}"
    text = f"healing: {state}; {format_count(healing.marked, 'ledger')} marked"
    if healing.marked:
        text += f", {healing.parked:,} parked, about {format_size(healing.bytes_left)} left"
        if healing.ledgers_per_s is not None and healing.bytes_per_s is not None:
            text += f"; {healing.ledgers_per_s:.1f} ledgers/s, {size(healing.bytes_per_s)}/s"
    for bookie_id, due_ms in healing.lost:
        text += f"; lost: {bookie_id}" + (f" (due {clock(due_ms / 1000)})" if due_ms else " (due)")
    return text


def notices(overview: ClusterOverview) -> list[str]:
    """Return what neither a bookie's row nor the line of healing says: reasons with their next step, and errors."""
    found = [
        f"{reason.text}: {reason.next_step}"
        for reason in overview.reasons
        if reason.subject in ("metadata", "ledgers", "placement")
        and reason.verdict is not Verdict.WELL
        and reason.name != "not_read"
    ]
    return [*found, *(f"not read: {error}" for error in overview.errors)]


def detail_lines(row: BookieRow, now_s: float) -> list[str]:
    """Return everything that is known of one bookie."""
    rates = [
        ("state", row.state),
        ("page", row.http or "none"),
        ("version", row.version or UNKNOWN),
        ("figures", f"{format_age_s(row.age_s)} old"),
        ("adds", f"{amount(row.adds_per_s)}/s, {size(row.add_bytes_per_s)}/s"),
        ("reads", f"{amount(row.reads_per_s)}/s"),
        ("add", f"p50/p99 {latency(row.add)}"),
        ("commit", f"p50/p99 {latency(row.commit)}" + (f" of {row.commit.count:,}" if row.commit else "")),
        ("queue", f"{row.queue:,} adds in the journal's rings, {row.blocked:,} connections wait"),
        ("limbo", f"{format_count(row.limbo, 'ledger')}, {row.quarantined:,} damaged ranges"),
        ("full in", age(row.full_in_s)),
        ("flushes", of_files(row, flushes_text)),
        ("journal", of_files(row, files_text)),
        ("last event", event_text(row, now_s).replace(" ", " ago: ", 1) or "none"),
    ]  # fmt: skip
    found = [f"{MARKS[problem.severity]:<2} {problem.text}" for problem in row.problems] or [
        "no problem"
    ]
    found += ["", *(f"{name:<11}{text}" for name, text in rates)]
    found += ["", *lines(row.disks, DISK_COLUMNS, 100)]
    return found


DISK_COLUMNS: list[Column[DiskRow]] = [
    Column("DISK", lambda one: f"{one.role} {one.pair}", 10, "<"),
    Column("STATE", lambda one: one.state, 9, "<"),
    Column("P99", lambda one: millis(one.p99_s), 8),
    Column("USED", lambda one: f"{100 * one.used_ratio:.0f} %", 5),
    Column("FREE", lambda one: format_size(one.free_bytes), 9),
    Column("FULL IN", lambda one: age(one.full_in_s), 7),
    Column(
        "DIRECTORY", lambda one: one.directory + (f"  slow: {one.slow}" if one.slow else ""), 0, "<"
    ),
]


def is_answering(row: BookieRow) -> bool:
    """Return whether the row has figures of now."""
    return row.adds_per_s is not None or bool(row.disks)


def problem_text(row: BookieRow) -> str:
    """Return the worst problem, and how many more there are."""
    if not row.problems:
        return ""
    more = f" (+{len(row.problems) - 1})" if len(row.problems) > 1 else ""
    return row.problems[0].text + more


def event_text(row: BookieRow, now_s: float) -> str:
    """Return the newest event with its age."""
    event = row.last_event
    return "" if event is None else f"{age(now_s - event.at_s)} {event.text}"


def disk_text(disk: DiskRow | None) -> str:
    """Return the slowest disk: `J0 31ms` is the journal of pair 0."""
    if disk is None:
        return UNKNOWN
    name = f"{disk.role[:1].upper()}{disk.pair}"
    return f"{name} {disk.state}" if disk.state != "ok" else f"{name} {millis(disk.p99_s)}"


def of_files(row: BookieRow, text: Callable[[JournalFiles], str]) -> str:
    """Return a text of its journal files, if they are known."""
    return UNKNOWN if row.journal_files is None else text(row.journal_files)


def flushes_text(one: JournalFiles) -> str:
    """Return what flushes did with entries."""
    flushed = f"{size(one.adopted_bytes)} adopted, {size(one.copied_bytes)} copied"
    return f"{flushed}, of {size(one.entry_bytes)} of entries"


def files_text(one: JournalFiles) -> str:
    """Return whether journal files adopt."""
    reason = f"do not adopt: {one.reason}" if one.reason else "adopt"
    return f"files {reason}; {size(one.free_bytes)} free"


def latency(value: Latency | None) -> str:
    """Return median and p99."""
    return UNKNOWN if value is None else f"{millis(value.p50_s)}/{millis(value.p99_s)}"


def p99(value: Latency | None) -> str:
    """Return the p99 alone."""
    return UNKNOWN if value is None else millis(value.p99_s)


def millis(seconds: float | None) -> str:
    """Return a short time in at most five characters: `0.2ms`, `31ms`, `1.2s`, `12s`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0.00995:
        return f"{seconds * 1e3:.1f}ms"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.0f}ms"
    return f"{seconds:.1f}s" if seconds < 9.95 else f"{seconds:.0f}s"


def age(seconds: float | None) -> str:
    """Return a span in at most five characters: `12s`, `3.2h`, `45d`."""
    if seconds is None:
        return UNKNOWN
    days = seconds / 86_400
    if days >= 99.95:
        return f"{days:.0f}d" if days < 999.5 else ">999d"
    return format_age_s(seconds).replace(" ", "").replace("min", "m")


def amount(value: float | None) -> str:
    """Return a count or a rate in at most six characters."""
    return UNKNOWN if value is None else format_amount(value).replace(" ", "")


def size(size_bytes: float | None) -> str:
    """Return bytes, short."""
    return UNKNOWN if size_bytes is None else format_size(int(size_bytes))


def clock(at_s: float) -> str:
    """Return a moment as `03:12:00Z`."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%SZ")


def plain_lines(
    overview: ClusterOverview, width: int, order: str = "sickness", text: str = ""
) -> list[str]:
    """Return everything that the screen shows, one table below the other. `text`: what rows must have."""
    of_bookies = bookie_columns(overview, width)
    rows = filtered(ordered(overview.bookies, order), of_bookies, text)
    found = [headline(overview), healing_line(overview.healing), ""]
    found += lines(rows, of_bookies, width)
    found += _table(overview.hot_ledgers, LEDGER_COLUMNS, text, width)
    found += _table(overview.hot_streams, STREAM_COLUMNS, text, width)
    found += _table(overview.cursors, CURSOR_COLUMNS, text, width)
    if overview.cursors_left_out:
        found.append(f"{overview.cursors_left_out:,} more cursors were not read")
    found += _table(with_journal_files(overview.bookies, order), JOURNAL_COLUMNS, text, width)
    return [*found, *notices(overview)]


def _table(rows: Iterable[T], of: Sequence[Column[T]], text: str, width: int) -> list[str]:
    """Return a table below an empty line; nothing without rows."""
    found = filtered(rows, of, text)
    return ["", *lines(found, of, width)] if found else []
