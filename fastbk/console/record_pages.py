"""The viewer of a stream's records: a bounded page of them, as text, JSON or hexadecimal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException

from fastbk.cli.stream.options import START_HELP, start_of, stream_of
from fastbk.cli.stream.output import text_of_gap
from fastbk.console.access import may_read
from fastbk.errors import ConfigError, StreamNotFound
from fastbk.stream.paths import split_stream_path
from fastbk.stream.positions import AtSeq
from fastbk.stream.records import Gap

if TYPE_CHECKING:
    from starlette.responses import Response

    from fastbk.console.context import Context
    from fastbk.stream.records import Record
    from fastbk.stream.stream import Stream

COUNT_DEFAULT, COUNT_MAX = 25, 200
SHOWN_BYTES_MAX = 4096
"""Of one payload; the page says how many there are."""
HEX_BYTES_MAX = 1024
READ_BYTES_MAX = 1 << 20
"""Read ahead for one page."""
TIMEOUT_S = 10.0
LINE_CHARACTERS_MAX = 100
"""JSON that is longer is shown with a line for each value."""
FORMATS = ("auto", "text", "json", "hex")
_HEX_WIDTH = 16


@dataclass(frozen=True, slots=True)
class ShownRecord:
    """One record for people. `format`: how the payload is shown; `cut_bytes`: of the payload that are not shown."""

    position: str
    seq: int
    txid: int
    time: datetime
    key: str
    headers: tuple[tuple[str, str], ...]
    payload: str
    payload_bytes: int
    format: str
    cut_bytes: int


async def records(context: Context) -> Response:
    """Show records of a stream from a position on."""
    path = context.request.path_params["stream"].strip("/")
    namespace, _ = split_stream_path(path)
    if not context.principal.is_allowed(namespace):
        raise HTTPException(404, f"no stream {path}")
    if not may_read(context.principal, namespace):
        name = context.principal.name
        raise ConfigError(
            f"{name} may not read records: this needs a token with the operation `read`"
        )
    begin, format_name = context.query("from"), context.query("as", "auto")
    count = context.number("count", COUNT_DEFAULT, 1, COUNT_MAX)
    if format_name not in FORMATS:
        format_name = "auto"
    stream = stream_of(context.view.client, path)
    shown: list[ShownRecord] = []
    gaps: list[str] = []
    error = ""
    last_seq = -1
    try:
        async with asyncio.timeout(TIMEOUT_S):
            last = await stream.last_position()
            last_seq = -1 if last is None else last.seq
            if not begin:
                begin = f"seq:{max(0, last_seq + 1 - count)}"
            shown, gaps = await _read(stream, begin, count, format_name)
    except ConfigError as problem:
        error = str(problem)
    except StreamNotFound:
        raise HTTPException(404, f"no stream {path}") from None
    if context.principal.name != "local":
        context.console.audit.note(
            "console.records_read", address=context.address, principal=context.principal.name, target=path,
            position=begin[:100], count=len(shown),
        )  # fmt: skip
    return context.page(
        "records.html", stream=path, shown=shown, gaps=gaps, error=error, begin=begin, count=count, last_seq=last_seq,
        format_name=format_name, formats=FORMATS, help=START_HELP,
    )  # fmt: skip


async def _read(
    stream: Stream, begin: str, count: int, format_name: str
) -> tuple[list[ShownRecord], list[str]]:
    """Return at most `count` records and the gaps before them. Raises ConfigError for what is no position."""
    start = start_of(begin)
    if isinstance(start, AtSeq) and start.seq == 0:
        start = "earliest"  # record 0 may be gone
    shown: list[ShownRecord] = []
    gaps: list[str] = []
    async with stream.reader(
        start, on_gap="yield", tail=False, prefetch_bytes=READ_BYTES_MAX
    ) as reader:
        async for chunk in reader.chunks(max_wait=0.0):
            if isinstance(chunk, Gap):
                gaps.append(text_of_gap(chunk))
                continue
            shown += [shown_record(one, format_name) for one in chunk[: count - len(shown)]]
            if len(shown) >= count:
                break
    return shown, gaps


def shown_record(record: Record, format_name: str) -> ShownRecord:
    """Return a record as the page shows it."""
    payload = bytes(record.payload)
    text, used, shown_bytes = shown_payload(payload, format_name)
    return ShownRecord(
        str(record.dlsn),
        record.seq,
        record.txid,
        record.time,
        "" if record.key is None else _text(record.key[:SHOWN_BYTES_MAX]),
        tuple((name, _text(value[:SHOWN_BYTES_MAX])) for name, value in record.headers),
        text,
        len(payload),
        used,
        max(0, len(payload) - shown_bytes),
    )


def shown_payload(payload: bytes, format_name: str) -> tuple[str, str, int]:
    """Return a payload for people, the format that was used, and how many bytes of it are shown.

    `auto` is JSON where it is JSON and is shown whole, else text where it is printable text, else hexadecimal.
    """
    if format_name in ("auto", "json") and len(payload) <= SHOWN_BYTES_MAX:
        pretty = _json(payload)
        if pretty is not None and (format_name == "json" or payload[:1] in (b"{", b"[")):
            return pretty, "json", len(payload)
    if format_name in ("auto", "json"):
        format_name = "text" if _is_text(payload[:SHOWN_BYTES_MAX]) else "hex"
    if format_name == "text":
        return _text(payload[:SHOWN_BYTES_MAX]), "text", SHOWN_BYTES_MAX
    return hex_lines(payload[:HEX_BYTES_MAX]), "hex", HEX_BYTES_MAX


def hex_lines(data: bytes) -> str:
    """Return bytes as `hexdump -C` does: offset, sixteen bytes, and what is ASCII of them."""
    lines = []
    for at in range(0, len(data), _HEX_WIDTH):
        row = data[at : at + _HEX_WIDTH]
        plain = "".join(chr(one) if 32 <= one < 127 else "." for one in row)
        lines.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_WIDTH - 1}}  {plain}")
    return "\n".join(lines)


def _json(payload: bytes) -> str | None:
    try:
        value = json.loads(payload)
        line = json.dumps(value, ensure_ascii=False)
        line.encode()  # JSON can say a lone surrogate, which no page can
        return (
            line
            if len(line) <= LINE_CHARACTERS_MAX
            else json.dumps(value, indent=2, ensure_ascii=False)
        )
    except (ValueError, RecursionError):
        return None


def _is_text(payload: bytes) -> bool:
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        # A character that the limit has cut in two is no reason.
        if error.start < len(payload) - 3:
            return False
        text = payload[: error.start].decode()
    return all(one.isprintable() or one in "\n\r\t" for one in text)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")
