"""A counter and a watched configuration: values that many change, each change by compare-and-set.

INV-K5: a change happens once, also where its answer is lost: the record has the keys of its last changes, and the call
reads it again before it tries again. Where more changes came in between than the record knows, the call says that
nobody knows what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from fastbk.coordination.records import (
    DATA_BYTES_MAX,
    KEYS_KEPT,
    ConfigRecord,
    CounterRecord,
    KeptChange,
    get_record,
)
from fastbk.coordination.store import NamedRecord, new_key
from fastbk.errors import ConfigError, Error, MetadataConflict, MetadataUnavailable
from fastbk.stream.positions import NUMBER_MAX

if TYPE_CHECKING:
    from fastbk.stream.namespace.namespace import Namespace

V = TypeVar("V", CounterRecord, ConfigRecord)


async def _change_once(
    named: NamedRecord[V], key: str, changed: Callable[[V | None, int], V]
) -> KeptChange:
    """Change a record once, and return what its record keeps of the change (INV-K5).

    `changed(record, number)` returns what is to be written; what it raises is raised. Raises MetadataUnavailable: with
    `outcome` "unknown" the change may have happened, or may yet.
    """
    retry = named.retry()
    lost_at: int | None = None  # the number of the record at the first try whose answer was lost
    while True:
        try:
            stored = await named.read()
            record = stored.record
            number = stored.floor if record is None else record.number
            kept = () if record is None else record.changes
            made = next((change for change in kept if change.key == key), None)
            if made is not None:
                return made
            if lost_at is not None and number - lost_at >= KEYS_KEPT:
                raise _unknown(named)
        except MetadataUnavailable as error:
            if lost_at is None or not error.retryable:
                raise
            failed: MetadataConflict | MetadataUnavailable = error
        else:
            after = changed(record, number + 1)
            try:
                await named.change(stored, after)
            except (MetadataConflict, MetadataUnavailable) as error:
                failed = error
                if error.outcome != "not_written" and lost_at is None:
                    lost_at = number
            else:
                return after.changes[-1]
        try:
            pause_s = retry.pause_s(failed)
        except Error:
            if lost_at is not None:  # a late one may be what made the last one fail
                raise _unknown(named) from failed
            raise
        await asyncio.sleep(pause_s)


def _unknown(named: NamedRecord[V]) -> MetadataUnavailable:
    return MetadataUnavailable(
        f"{named.label}: an answer was lost, and nobody knows whether this call changed it: read it",
        outcome="unknown",
        retryable=False,
    )


# --- counters -------------------------------------------------------------------------------------


class Counter:
    """A whole number that many add to. Each `add` happens once, and returns the value that it made.

    All clients together make some hundred changes a second: for more, take ranges (`add(1000)`). A process that is
    paused in `add` holds up nobody. When it wakes it finds out what became of its change, and until then a change that
    was under way may come.
    """

    def __init__(self, namespace: Namespace, name: str) -> None:
        """No I/O. Raises ConfigError."""
        self._named = NamedRecord(namespace, name, CounterRecord)

    def __repr__(self) -> str:
        return f"<Counter {self._named.namespace.path}/{self._named.name}>"

    async def value(self) -> int:
        """Return the value now; 0 of a counter that nobody has added to. Raises MetadataUnavailable."""
        record = (await self._named.read()).record
        return 0 if record is None else record.value

    async def add(self, amount: int = 1) -> int:
        """Add, and return the value that this made (INV-K5).

        Raises MetadataUnavailable; with `outcome` "unknown" it may have happened, or may yet.
        """
        key = new_key()

        def changed(record: CounterRecord | None, number: int) -> CounterRecord:
            value = (0 if record is None else record.value) + amount
            if abs(value) > NUMBER_MAX:
                raise ConfigError(f"{self._named.label}: {value} is out of range")
            kept = () if record is None else record.changes[-KEYS_KEPT + 1 :]
            return CounterRecord(number, value, (*kept, KeptChange(key, value)))

        return (await _change_once(self._named, key, changed)).value


# --- configuration --------------------------------------------------------------------------------


class RevisionPassed(MetadataConflict):
    """The configuration has another revision than the change was made from: read it again. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A configuration. `revision` rises with each change, also where it was deleted and made anew (INV-K1)."""

    data: bytes
    revision: int


class Config:
    """Some bytes that many read and are told of: at most 64 KiB.

    A paused reader goes on by the old value until it wakes and reads. A paused writer's `set` takes effect when it
    wakes, over what others set meanwhile, unless it names the revision that it was made from.
    """

    def __init__(self, namespace: Namespace, name: str) -> None:
        """No I/O. Raises ConfigError."""
        self._named = NamedRecord(namespace, name, ConfigRecord)

    def __repr__(self) -> str:
        return f"<Config {self._named.namespace.path}/{self._named.name}>"

    async def get(self) -> ConfigValue | None:
        """Return the value now; None: there is none. Raises MetadataUnavailable."""
        record = (await self._named.read()).record
        return None if record is None else ConfigValue(record.data, record.number)

    async def set(self, data: bytes, *, if_revision: int | None = None) -> int:
        """Replace the value; return its revision (INV-K5).

        `if_revision`: only if it is at that revision now (0: only if there is none); RevisionPassed otherwise. Raises
        MetadataUnavailable; with `outcome` "unknown" it may have happened, or may yet.
        """
        if len(data) > DATA_BYTES_MAX:
            raise ConfigError(f"data: {len(data):,} bytes, of {DATA_BYTES_MAX:,} at most")
        key, owned = new_key(), bytes(data)

        def changed(record: ConfigRecord | None, number: int) -> ConfigRecord:
            revision = 0 if record is None else record.number
            if if_revision not in (None, revision):
                raise RevisionPassed(
                    f"{self._named.label} is at revision {revision}, not {if_revision}: read it again"
                )
            kept = () if record is None else record.changes[-KEYS_KEPT + 1 :]
            return ConfigRecord(number, owned, (*kept, KeptChange(key, number)))

        return (await _change_once(self._named, key, changed)).value

    async def follow(self) -> AsyncGenerator[ConfigValue | None, None]:
        """Yield the value now and after changes, of which several may be told as one; None: there is none.

        Close it (`aclosing`) to end it.
        """
        _, path = await self._named.place()
        last: ConfigValue | None = None
        is_first = True
        async with aclosing(self._named.records.follow(path)) as versions:
            async for raw in versions:
                record = None if raw is None else get_record(raw.value)
                value = None
                if isinstance(record, ConfigRecord):
                    value = ConfigValue(record.data, record.number)
                if is_first or value != last:
                    is_first, last = False, value
                    yield value
