"""A stream's durable cursors as `fastbk stream cursors` and `fastbk stream info` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.units import format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.store import CursorInfo

HEAD = ("cursor", "mark", "behind", "oldest", "moved", "data", "holder")


def cursor_facts(info: CursorInfo, backlog: Backlog | None, now_s: float) -> dict[str, object]:
    """Return what is known of a cursor, for JSON. Ages in milliseconds; None: bookies do not tell it now."""
    return {
        "cursor": info.name,
        "mark": str(info.mark),
        "mark_seq": info.mark_seq,
        "ranges": info.ranges,
        "backlog": None if backlog is None else backlog.records,
        "backlog_bytes": None if backlog is None else backlog.size_bytes,
        "oldest_ms": None if backlog is None else round(1000 * backlog.seconds),
        "moved_ms_ago": _ms_ago(info.moved_at_us, now_s),
        "used_ms_ago": _ms_ago(info.used_at_us, now_s),
        "by": info.data.get("by"),
        "holds": info.holds,
        "epoch": info.epoch,
        "holder": info.holder,
        "expires_at_us": info.expires_at_us,
    }


def _ms_ago(at_us: int, now_s: float) -> int:
    return max(0, round(1000 * now_s - at_us / 1000))


def cursor_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """Return a table of `cursor_facts`."""
    rows = [HEAD]
    for one in found:
        backlog, oldest = one["backlog"], one["oldest_ms"]
        rows.append(
            (
                str(one["cursor"]),
                str(one["mark"]),
                "-" if backlog is None else format_count(int(str(backlog)), "record"),
                "-" if not oldest else duration(int(str(oldest)) / 1000),
                f"{duration(int(str(one['moved_ms_ago'])) / 1000)} ago",
                "held" if one["holds"] else "not held",
                _holder(one),
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEAD))]
    return [
        "  ".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _holder(one: dict[str, object]) -> str:
    holder = str(one["holder"] or "-")
    if one["by"] != "spark":
        return holder
    used = duration(int(str(one["used_ms_ago"])) / 1000)
    return f"a query of Spark's, planned {used} ago: {holder}"


def duration(seconds: float) -> str:
    """Return a time as people say it: 0.3 s, 12 s, 5 min, 3.2 h, 4.5 d."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, digits in (("s", 1, 0), ("min", 60, 0), ("h", 3600, 1)):
        if seconds < 100 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86_400:.1f} d"
