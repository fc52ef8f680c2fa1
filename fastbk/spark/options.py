"""The options of `format("fastbk")`: names, forms, and what is said of those that are wrong.

Decision 82.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from fastbk.client.config import ClientOptions
from fastbk.errors import ConfigError
from fastbk.meta.uri import URI_VARIABLE
from fastbk.printable_text import printable
from fastbk.spark.offsets import EXAMPLE, PARTS_MAX
from fastbk.stream.paths import split_path, split_stream_path
from fastbk.units import parse_duration_us, parse_size

LEDGERS_MAX = 100_000
ROWS_MAX = 10_000_000
"""Maximum rows of a batch of rows: what holds them counts with 32 bits."""
_SHOWN_MAX = 200
_DIGITS_MAX = 19
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, one right value for messages, and other names that it has."""

    name: str
    example: str
    aliases: tuple[str, ...] = ()


COMMON = (Option("metadata", "zk+hierarchical://zk1:2181/ledgers"),)
SOURCE = (
    *COMMON,
    Option("stream", "shop/orders", ("subscribe", "path")),
    Option("streamPattern", "shop/.*", ("subscribePattern",)),
    Option("ledgers", "1,2,10-20"),
    Option("startingOffsets", "earliest"),
    Option("startingTimestamp", "2026-01-31T08:00:00Z"),
    Option("failOnDataLoss", "false"),
    Option("includeHeaders", "true"),
    Option("payload", "false"),
    Option("minPartitions", "8"),
    Option("targetPartitionBytes", "64MiB"),
    Option("rowsPerBatch", "8192"),
    Option("readTimeout", "30s"),
    Option("speculativeReadMs", "500"),
    Option("retries", "3"),
    Option("ledgerDigest", "CRC32C"),
    Option("ledgerPassword", "secret"),
)
BATCH = (
    *SOURCE,
    Option("endingOffsets", "latest"),
    Option("endingTimestamp", "2026-02-01T08:00:00Z"),
    Option("filterPushdown", "true"),
)
STREAMING = (
    *SOURCE,
    Option("maxEntriesPerTrigger", "100000", ("maxOffsetsPerTrigger",)),
    Option("maxBytesPerTrigger", "256MiB"),
    Option("readerName", "billing"),
)

_KAFKAS = {"kafka.bootstrap.servers": "metadata", "topic": "stream", "assign": "stream"}


def wrong(option: Option, value: str, why: str) -> ConfigError:
    """Return the error of a value that an option does not take."""
    return ConfigError(
        f'{option.name}: {why}: "{printable(value, _SHOWN_MAX)}"; write .option("{option.name}", "{option.example}")'
    )


def known(given: Mapping[str, str], table: Sequence[Option], use: str) -> dict[str, str]:
    """Return what is given by the options' own names. `use`: what they are for, as in "batch reads".

    Names are compared without regard to case, as Spark does. Raises ConfigError for what is not in the table, and for
    an option that is given by two of its names.
    """
    names = {name.lower(): option for option in table for name in (option.name, *option.aliases)}
    found: dict[str, str] = {}
    for name, value in given.items():
        option = names.get(name.lower())
        if option is None:
            raise _unknown(name, table, use)
        if option.name in found:
            raise ConfigError(
                f"{option.name} is given twice, also as {name}: leave one of them out"
            )
        found[option.name] = value
    return found


def _unknown(name: str, table: Sequence[Option], use: str) -> ConfigError:
    """Return what is said of a name that is not in the table: where it belongs, or what was meant."""
    name = printable(name, _SHOWN_MAX)
    lower = name.lower()
    for one in (*BATCH, *STREAMING):
        if lower in (known_as.lower() for known_as in (one.name, *one.aliases)):
            return ConfigError(f"there is no option {one.name} for {use}: leave it out")
    if lower in _KAFKAS:
        return ConfigError(
            f"there is no option {name}: what Kafka's connector calls so is {_KAFKAS[lower]} here"
        )
    near = difflib.get_close_matches(lower, [one.name.lower() for one in table], 1)
    meant = [one for one in table if one.name.lower() in near]
    hint = f'; write .option("{meant[0].name}", "{meant[0].example}")' if meant else ""
    names = ", ".join(one.name for one in table)
    return ConfigError(f"there is no option {name} for {use}: there are {names}{hint}")


def _is_whole(value: str) -> bool:
    """Return whether it is a number that fits into 64 bits, or nearly."""
    return value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX


class Values:
    """The values of options that are known, each read in its form."""

    def __init__(self, found: Mapping[str, str], table: Sequence[Option]) -> None:
        self._found = found
        self._options = {option.name: option for option in table}

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def text(self, name: str) -> str | None:
        """Return it as it is, None if it is not given."""
        return self._found.get(name)

    def error(self, name: str, why: str) -> ConfigError:
        """Return the error of this option's value."""
        return wrong(self._options[name], self._found[name], why)

    def flag(self, name: str, default: bool) -> bool:
        """Return whether it is true. Raises ConfigError for what is neither true nor false."""
        value = self._found.get(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise self.error(name, "neither true nor false")
        return value.lower() == "true"

    def number(
        self, name: str, default: int | None = None, most: int = (1 << 62) - 1
    ) -> int | None:
        """Return a number from 1 to `most`. Raises ConfigError."""
        value = self._found.get(name)
        if value is None:
            return default
        if not (_is_whole(value) and int(value) >= 1):
            raise self.error(name, "no whole number of 1 or more")
        if int(value) > most:
            raise self.error(name, f"more than {most}")
        return int(value)

    def number_or_0(self, name: str, most: int) -> int | None:
        """Return a number from 0 to `most`, None if it is not given. Raises ConfigError."""
        value = self._found.get(name)
        if value is None:
            return None
        if not (_is_whole(value) and int(value) <= most):
            raise self.error(name, f"no whole number from 0 to {most}")
        return int(value)

    def seconds(self, name: str) -> float | None:
        """Return a span of time in seconds, of "30s", or of milliseconds where it is a number alone."""
        value = self._found.get(name)
        if value is None:
            return None
        try:
            is_plain = _is_whole(value)
            seconds = int(value) / 1000 if is_plain else parse_duration_us(value) / 1e6
        except (ValueError, OverflowError) as error:
            raise self.error(name, "no span of time, and no milliseconds") from error
        if not 0 < seconds <= 86_400:
            raise self.error(name, "no span of time above 0 and up to a day")
        return seconds

    def size(self, name: str, default: int | None = None) -> int | None:
        """Return bytes, 1 or more, also of "64MiB". Raises ConfigError."""
        value = self._found.get(name)
        if value is None:
            return default
        try:
            size = int(value) if _is_whole(value) else parse_size(value)
        except (ValueError, OverflowError) as error:
            raise self.error(name, "no size in bytes") from error
        if not 1 <= size < 1 << 62:
            raise self.error(name, "no size of 1 byte or more")
        return size

    def time(self, name: str) -> datetime | None:
        """Return a time: ISO 8601 with a zone, or milliseconds since 1970. Raises ConfigError."""
        value = self._found.get(name)
        if value is None:
            return None
        try:
            if re.fullmatch(r"-?[0-9]{1,15}", value):
                return EPOCH + timedelta(milliseconds=int(value))
            time = datetime.fromisoformat(value)
        except (ValueError, OverflowError) as error:
            raise self.error(name, "neither a time nor milliseconds since 1970") from error
        if time.tzinfo is None:
            raise self.error(name, "a time without a zone (Z is UTC)")
        return time

    def choice(self, name: str, *one_of: str) -> str:
        """Return one of these, the first where it is not given. Raises ConfigError."""
        value = self._found.get(name, one_of[0])
        if value not in one_of:
            raise self.error(name, f"none of {', '.join(one_of)}")
        return value


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is to be read, and how. Offsets are as they were given: "earliest", "latest", or JSON as an object."""

    metadata: str | None
    streams: tuple[str, ...]
    pattern: str | None
    ledgers: tuple[int, ...]
    start: str | Mapping[str, object] | datetime
    end: str | Mapping[str, object] | datetime
    fail_on_data_loss: bool
    headers: bool
    payload: bool
    partitions_min: int
    partition_bytes: int
    rows_max: int
    digest: str | None
    password: bytes
    pushdown: bool = False
    records_max: int | None = None
    bytes_max: int | None = None
    reader_name: str | None = None
    read_timeout_s: float | None = None
    speculative_read_s: float | None = None
    """0: never; None: the client's default."""
    retries: int | None = None
    """So often planning is tried again where metadata or bookies are away; None: as `OffsetResolver.patiently` says."""

    @property
    def client_settings(self) -> ClientOptions:
        """What the client is made with, where the options say it."""
        client_settings: ClientOptions = {}
        if self.read_timeout_s is not None:
            client_settings["read_timeout"] = self.read_timeout_s
        if self.speculative_read_s is not None:
            client_settings["speculative_read"] = self.speculative_read_s
        return client_settings

    @property
    def reads_ledgers(self) -> bool:
        """Whether entries of ledgers are read, and not records of streams."""
        return bool(self.ledgers)


def reading_of(uri: str | None, *paths: str) -> dict[str, str]:
    """Return the options that read exactly these streams, whatever their names have in them."""
    given = {} if uri is None else {"metadata": uri}
    if any("," in path or path != path.strip() for path in paths):
        return {**given, "streamPattern": "|".join(map(re.escape, paths))}
    return {**given, "stream": ",".join(paths)}


def read_options(given: Mapping[str, str], *, streaming: bool | None) -> ReadOptions:
    """Return what the options of a read say; `streaming` None: of either kind. Raises ConfigError."""
    if streaming is None:
        table, use = tuple({one.name: one for one in (*BATCH, *STREAMING)}.values()), "reading"
    else:
        table, use = (STREAMING, "streaming reads") if streaming else (BATCH, "batch reads")
    values = Values(known(given, table, use), table)
    streams, ledgers = _streams(values), _ledgers(values)
    if sum([bool(streams), "streamPattern" in values, bool(ledgers)]) != 1:
        raise ConfigError(
            'say what to read by exactly one of .option("stream", "shop/orders"),'
            ' .option("streamPattern", "shop/.*"), .option("ledgers", "1,2,10-20")'
        )
    if ledgers:
        for name in ("includeHeaders", "startingTimestamp", "endingTimestamp", "readerName"):
            if name in values:
                raise values.error(name, "only streams have that, and ledgers are read")
    elif "ledgerPassword" in values or "ledgerDigest" in values:
        raise ConfigError("ledgerPassword and ledgerDigest are for ledgers, and streams are read")
    speculative_ms = values.number_or_0("speculativeReadMs", 86_400_000)
    return ReadOptions(
        # Tasks have other environments than the driver.
        values.text("metadata") or os.environ.get(URI_VARIABLE) or None,
        streams,
        _pattern(values),
        ledgers,
        _edge(values, "starting", "latest" if streaming else "earliest"),
        _edge(values, "ending", "latest"),
        values.flag("failOnDataLoss", True),
        values.flag("includeHeaders", False),
        values.flag("payload", True),
        values.number("minPartitions", 1, PARTS_MAX) or 1,
        values.size("targetPartitionBytes", 64 << 20) or 1,
        values.number("rowsPerBatch", 8192, ROWS_MAX) or 1,
        values.text("ledgerDigest"),
        (values.text("ledgerPassword") or "").encode(),
        values.flag("filterPushdown", False),
        values.number("maxEntriesPerTrigger"),
        values.size("maxBytesPerTrigger"),
        values.text("readerName"),
        values.seconds("readTimeout"),
        None if speculative_ms is None else speculative_ms / 1000,
        values.number_or_0("retries", 1000),
    )


def _streams(values: Values) -> tuple[str, ...]:
    text = values.text("stream")
    if text is None:
        return ()
    names = [name.strip().strip("/") for name in text.split(",")]
    for name in names:
        try:
            split_path(name)
            split_stream_path(name)
        except ConfigError as error:
            raise values.error("stream", str(error)) from error
    if len(set(names)) != len(names):
        raise values.error("stream", "a stream is named twice")
    return tuple(names)


def _pattern(values: Values) -> str | None:
    text = values.text("streamPattern")
    if text is not None:
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise values.error("streamPattern", f"no regular expression ({error})") from error
    return text


def _ledgers(values: Values) -> tuple[int, ...]:
    text = values.text("ledgers")
    if text is None:
        return ()
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?\s*", part)
        if match is None:
            raise values.error("ledgers", "no list of ids and ranges of ids")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= 1 << 63:
            raise values.error("ledgers", "a range of ids that does not ascend")
        if len(found) + last - first >= LEDGERS_MAX:
            raise values.error("ledgers", f"more than {LEDGERS_MAX} ids")
        found += range(first, last + 1)
    if len(set(found)) != len(found):
        raise values.error("ledgers", "an id is named twice")
    return tuple(found)


def _edge(values: Values, side: str, default: str) -> str | Mapping[str, object] | datetime:
    offsets, timestamp = f"{side}Offsets", f"{side}Timestamp"
    if timestamp not in values._options:
        return default  # a streaming read has no end
    time = values.time(timestamp)
    if time is not None:
        if offsets in values:
            raise values.error(timestamp, f"{offsets} is given, too: leave one of them out")
        return time
    text = values.text(offsets)
    if text is None:
        return default
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        edge = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise values.error(offsets, f"neither earliest nor latest nor JSON ({error})") from error
    if not isinstance(edge, dict):
        raise values.error(offsets, f"not a JSON object such as {EXAMPLE}")
    return edge


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object of JSON. Raises ValueError where a name comes twice: nobody knows which one is meant."""
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{printable(name, _SHOWN_MAX)} is there twice")
        found[name] = value
    return found
