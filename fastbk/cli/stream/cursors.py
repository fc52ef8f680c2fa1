"""A stream's durable cursors as `fastbk stream cursors` and `fastbk stream info` print them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastbk.cli.options import table
from fastbk.units import format_age_s, format_count

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
        behind = "-" if backlog is None else format_count(int(str(backlog)), "record")
        age = _age(oldest) if oldest else "-"
        held = "held" if one["holds"] else "not held"
        moved = f"{_age(one['moved_ms_ago'])} ago"
        rows.append((str(one["cursor"]), str(one["mark"]), behind, age, moved, held, _holder(one)))
    return table(rows, "<" * len(HEAD))


def _holder(one: dict[str, object]) -> str:
    holder = str(one["holder"] or "-")
    if one["by"] != "spark":
        return holder
    return f"a query of Spark's, planned {_age(one['used_ms_ago'])} ago: {holder}"


def _age(milliseconds: object) -> str:
    return format_age_s(int(str(milliseconds)) / 1000)
