"""What `fastbk stream` and `fastbk namespace` take and print: paths, policies, positions; records and cursors.

Records are lines of text or of JSON, out and in. A stream's durable cursors are tables.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from fastbk.cli.options import add_verb, digest_name, note, run_client_verb, table, text_or_base64
from fastbk.cli.terminal import write_payload
from fastbk.errors import ConfigError, PolicyInvalid, StreamNotFound
from fastbk.exit_codes import INTERRUPTED
from fastbk.stream.paths import split_stream_path
from fastbk.units import (
    format_age_s,
    format_count,
    format_size,
    format_span_s,
    parse_duration_us,
    parse_size,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from fastbk.cli.options import ClientVerb, Verb, Verbs
    from fastbk.stream.client import Client
    from fastbk.stream.cursor.backlog import Backlog
    from fastbk.stream.cursor.store import CursorInfo
    from fastbk.stream.namespace.namespace import Namespace
    from fastbk.stream.pattern.store import PatternCursorInfo
    from fastbk.stream.policy import PolicyPatch, StreamPolicy
    from fastbk.stream.positions import AtTime, Start
    from fastbk.stream.records import Gap, Record
    from fastbk.stream.stream import Stream

START_HELP = "earliest, latest, a position (3.120.0), seq:N, txid:N, time:2026-01-31T12:00:00Z"
LOST = "records are gone (truncated, lost)"


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add --from and --to."""
    parser.add_argument(
        "--from", dest="start", default="earliest", metavar="POSITION",
        help=f"where to begin (earliest): {START_HELP}",
    )  # fmt: skip
    parser.add_argument("--to", dest="end", metavar="POSITION", help="where to end, not with it")


def add_on_gap(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --on-gap."""
    text = f"where {what}: fail, or tell of it and go on"
    parser.add_argument("--on-gap", choices=["fail", "tell"], default="fail", help=text)


def add_policy(parser: argparse.ArgumentParser) -> None:
    """Add --set."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE",
        help="of its policy, the rest is inherited; may be given several times (roll_bytes=64MiB, retention_age=7d,"
        " compression=zstd, ensemble=3 ...; `fastbk namespace info` shows all)",
    )  # fmt: skip


def add_inherit(parser: argparse.ArgumentParser) -> None:
    """Add --inherit."""
    parser.add_argument(
        "--inherit", action="append", default=[], metavar="FIELD",
        help="take this field from the namespace above again; may be given several times",
    )  # fmt: skip


async def set_policy(what: Namespace | Stream, options: argparse.Namespace) -> dict[str, object]:
    """Change a policy as --set and --inherit say; return its fields."""
    if not options.set and not options.inherit:
        raise ConfigError("nothing to change: give --set FIELD=VALUE or --inherit FIELD")
    await what.set_policy(policy_of(options.set), inherit=options.inherit)
    return policy_facts(await what.policy())


def policy_of(pairs: Iterable[str]) -> PolicyPatch:
    """Return the patch that FIELD=VALUE words say. Raises PolicyInvalid, which names the fields."""
    import msgspec

    from fastbk.stream.policy import PolicyPatch

    fields = PolicyPatch.__struct_fields__
    found: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise PolicyInvalid(f"{pair}: write FIELD=VALUE")
        if f"{name}_s" in fields:
            name = f"{name}_s"
        if name not in fields:
            raise PolicyInvalid(f"{name}: a policy has {', '.join(fields)}")
        found[name] = digest_name(text) if name == "digest" else _value(name, text)
    try:
        return msgspec.convert(found, PolicyPatch)
    except msgspec.ValidationError as error:
        raise PolicyInvalid(str(error)) from error


def _is_size(name: str) -> bool:
    return name.endswith("_bytes") or name == "bytes_max"


def _value(name: str, text: str) -> object:
    """Return a field's value: sizes and durations with or without a unit (bytes, seconds)."""
    try:
        if text.isascii() and text.isdigit():
            return float(text) if name.endswith("_s") else int(text)
        if _is_size(name):
            return parse_size(text)
        if name.endswith("_s"):
            return parse_duration_us(text) / 1e6
    except ValueError as error:
        example = "64MiB" if _is_size(name) else "90s, 2h or 7d"
        raise PolicyInvalid(f"{name}: {text!r} cannot be: write it like {example}") from error
    return {"true": True, "yes": True, "false": False, "no": False}.get(text, text)


def policy_facts(policy: StreamPolicy | PolicyPatch) -> dict[str, object]:
    """Return a policy's fields; of a patch those that it names."""
    import msgspec

    values = msgspec.structs.asdict(policy)
    return {name: value for name, value in values.items() if value is not None}


async def origins_of(client: Client, namespace: str) -> dict[str, str]:
    """Return for each setting that a namespace or one above it has which of them it is: the nearest."""
    names = namespace.split("/") if namespace else []
    origins: dict[str, str] = {}
    for depth in range(len(names) + 1):
        path = "/".join(names[:depth])
        patch = policy_facts(await client.namespace(path).policy())
        origins |= dict.fromkeys(patch, f"from {path}" if path else "from the root")
    return origins


def policy_lines(
    effective: dict[str, object], own: dict[str, object], origins: dict[str, str]
) -> list[str]:
    """Return a line a field: its value, where it is from, and what that means for people."""
    origin_of = origins | dict.fromkeys(own, "set here")
    width = max(map(len, (*origin_of.values(), "default")))
    return [
        f"  {name:<22} {value!s:<12} {origin_of.get(name, 'default'):<{width}}  {_said(name, value)}".rstrip()
        for name, value in effective.items()
    ]


def _said(name: str, value: object) -> str:
    """Return what a value means, where its number does not say it."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ""
    if not value:
        return "never by age" if name == "roll_age_s" else "no limit"
    if _is_size(name):
        return format_size(int(value))
    return format_span_s(value) if name.endswith("_s") else ""


def range_of(options: argparse.Namespace) -> tuple[Start, Start | None]:
    """Return what --from and --to name. Raises ConfigError."""
    return start_of(options.start), None if options.end is None else start_of(options.end)


async def pattern_of(client: Client, text: str) -> tuple[Namespace, str] | None:
    """Return the namespace and the pattern of names that a word stands for; None: it is the path of a stream.

    A stream whose own name has such characters is meant by its path.
    """
    from fastbk.stream.pattern.store import has_magic

    if not has_magic(text):
        return None
    with suppress(StreamNotFound):
        await stream_of(client, text).context()
        return None
    space, _, names = text.rpartition("/")
    return client.namespace(space), names


def pattern_start_of(text: str, option: str) -> Literal["earliest", "latest"] | AtTime:
    """Return where to begin in all streams of a pattern. Raises ConfigError for a place of one stream."""
    from fastbk.stream.positions import DLSN, AtSeq, AtTxid

    start = start_of(text)
    if isinstance(start, DLSN | AtSeq | AtTxid):
        raise ConfigError(
            f"{option} {text} is a place in one stream: with a pattern give earliest, latest or"
            " time:2026-01-31T12:00:00Z, or name one stream"
        )
    return start


def stream_of(client: Client, path: str) -> Stream:
    """Return the stream of this path. No I/O."""
    namespace, name = split_stream_path(path)
    return client.namespace(namespace).stream(name)


def start_of(text: str) -> Start:
    """Return where to begin, as `START_HELP` says. Raises ConfigError."""
    from fastbk.stream.positions import DLSN, AtSeq, AtTime, AtTxid

    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    kind, colon, value = text.partition(":")
    if not colon:
        with suppress(ConfigError):  # its message knows of one form only
            return DLSN.parse(text)
    if kind == "time":
        return AtTime(_time(value))
    if kind in ("seq", "txid") and value.isascii() and value.isdigit():
        return AtSeq(int(value)) if kind == "seq" else AtTxid(int(value))
    raise ConfigError(f"{text!r} is no position: write one of {START_HELP}")


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no time: write it as 2026-01-31T12:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


EXAMPLES = {
    "STREAM": "namespace and name, such as shop/orders",
    "NAMESPACE": "such as shop/eu",
}


def add_verb_of_one(
    verbs: Verbs,
    name: str,
    act: Verb | ClientVerb,
    text: str,
    what: str = "STREAM",
    *,
    takes_pattern: bool = False,
) -> argparse.ArgumentParser:
    """Declare a verb of one stream or namespace (`what`), its first argument."""
    parser = add_verb(verbs, name, act, text)
    more = (
        "; or a pattern, such as 'shop/*', for all streams of one namespace that match"
        if takes_pattern
        else ""
    )
    parser.add_argument(what.lower(), metavar=what, help=EXAMPLES[what] + more)
    return parser


ENDLESS = ("tail", "watch")
"""Verbs that Ctrl-C is the usual end of: no failure, and nothing to be said."""


def run_endless(options: argparse.Namespace) -> int:
    """Run the verb that was chosen on a client; return its exit code."""
    try:
        return run_client_verb(options)
    except KeyboardInterrupt:
        if options.verb not in ENDLESS:
            raise
        return INTERRUPTED


# Records as lines of text and of JSON, out and in; and a stream's durable cursors, as tables.

_WORDS = {"trimmed": "were truncated", "lost": "are lost: no bookie gives them"}


def print_record(record: Record, options: argparse.Namespace) -> None:
    """Print one record as the options want it; with its stream, where it is one of a pattern's."""
    if options.json:
        line = json.dumps(as_json(record), ensure_ascii=False)
        sys.stdout.buffer.write(
            (line if line.isprintable() else json.dumps(as_json(record))).encode() + b"\n"
        )
    elif options.payload:
        write_payload([record.payload, b"\n"])
    else:
        text = bytes(record.payload).decode("utf-8", "backslashreplace")
        stream = f"{record.stream}\t" if record.stream else ""
        write_payload([f"{stream}{record.dlsn}\t{text}\n".encode()])


def print_gap(gap: Gap, options: argparse.Namespace) -> None:
    """Say that records are gone: in JSON a line of its own, else on stderr."""
    if options.json:
        found = {"stream": gap.stream} if gap.stream else {}
        found |= {"gap": gap.kind, "first": str(gap.first), "next": str(gap.next)}
        line = json.dumps({**found, "records": gap.records})
        sys.stdout.buffer.write(line.encode() + b"\n")
    else:
        sys.stdout.flush()
        note(f"fastbk: {text_of_gap(gap)}")


def text_of_gap(gap: Gap) -> str:
    """Return which records are gone, and why."""
    how_many = "some" if gap.records is None else f"{gap.records:,}"
    of = f" of {gap.stream}" if gap.stream else ""
    return f"{how_many} records{of} from {gap.first} up to {gap.next} {_WORDS[gap.kind]}"


def as_json(record: Record) -> dict[str, object]:
    """Return a record for JSON: what is text as text, what is not in base64."""
    found: dict[str, object] = {"stream": record.stream} if record.stream else {}
    found |= {
        "dlsn": str(record.dlsn),
        "seq": record.seq,
        "txid": record.txid,
        "time": record.time.isoformat().replace("+00:00", "Z"),
    }
    found |= text_or_base64("payload", bytes(record.payload))
    if record.key is not None:
        found |= text_or_base64("key", record.key)
    if record.headers:
        found["headers"] = [
            {"name": name, **text_or_base64("value", value)} for name, value in record.headers
        ]
    return found


@dataclass(frozen=True, slots=True)
class RecordLine:
    """A record to append, as a line says it."""

    payload: bytes
    txid: int | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def line_of_json(raw: bytes, number: int) -> RecordLine:
    """Return what a line of JSON says, as `as_json` writes it; position, number and time are not looked at.

    Raises ConfigError with the line's number.
    """
    try:
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("a line must be an object")
        payload = _get(found, "payload")
        if payload is None:
            raise ValueError("payload or payload_base64 is missing")
        txid = found.get("txid")
        if txid is not None and (not isinstance(txid, int) or isinstance(txid, bool)):
            raise ValueError("txid must be a whole number")
        listed = found.get("headers", [])
        if not isinstance(listed, list):
            raise ValueError("headers must be a list of objects with name and value")
        headers = tuple(_header(one) for one in listed)
        return RecordLine(payload, txid, _get(found, "key"), headers)
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise ConfigError(
            f"line {number}: {error}; what `fastbk stream read --json` prints can be appended"
        ) from error


def _header(found: object) -> tuple[str, bytes]:
    if not isinstance(found, dict):
        raise ValueError("headers must be a list of objects with name and value")
    name, value = found.get("name"), _get(found, "value")
    if not isinstance(name, str) or value is None:
        raise ValueError("a header has a name and a value")
    name.encode()  # a lone surrogate has no UTF-8
    return name, value


def _get(found: dict[str, object], name: str) -> bytes | None:
    text, raw = found.get(name), found.get(f"{name}_base64")
    if isinstance(text, str):
        return text.encode()
    if text is not None:
        raise ValueError(f"{name} must be text")
    return None if raw is None else base64.b64decode(str(raw), validate=True)


HEAD = ("cursor", "mark", "behind", "oldest", "moved", "data", "holder")


def cursor_facts(info: CursorInfo, backlog: Backlog | None, now_s: float) -> dict[str, object]:
    """Return what is known of a cursor, for JSON. Ages in milliseconds; None: bookies do not tell it now."""
    return {
        "cursor": info.label,
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


PATTERN_HEAD = ("cursor", "pattern", "streams", "kept", "data", "holder")


def pattern_cursor_facts(info: PatternCursorInfo, now_s: float) -> dict[str, object]:
    """Return what is known of a cursor of a pattern, for JSON."""
    record = info.record
    return {
        "cursor": info.name,
        "pattern": info.pattern,
        "streams": len(record.positions),
        "ranges": info.ranges,
        "kept_ms_ago": _ms_ago(record.time_us, now_s),
        "holds": bool(info.fault) or record.holds,
        "epoch": record.epoch,
        "holder": record.holder,
        "expires_at_us": record.expires_at_us,
        "fault": info.fault,
    }


def pattern_cursor_lines(found: Sequence[dict[str, object]]) -> list[str]:
    """Return a table of `pattern_cursor_facts`."""
    rows = [PATTERN_HEAD]
    for one in found:
        held = "held" if one["holds"] else "not held"
        shown = str(one["fault"] or one["holder"] or "-")
        kept = f"{_age(one['kept_ms_ago'])} ago"
        rows.append(
            (str(one["cursor"]), str(one["pattern"]), f"{one['streams']:,}", kept, held, shown)
        )
    return table(rows, "<" * len(PATTERN_HEAD))


def _holder(one: dict[str, object]) -> str:
    holder = str(one["holder"] or "-")
    if one["by"] != "spark":
        return holder
    return f"a query of Spark's, planned {_age(one['used_ms_ago'])} ago: {holder}"


def _age(milliseconds: object) -> str:
    return format_age_s(int(str(milliseconds)) / 1000)
