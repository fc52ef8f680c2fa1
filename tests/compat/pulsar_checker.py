"""What messages of a load were acknowledged, and whether each reader has them all, in order of each key.

Pure: it knows neither Pulsar nor time. Each key has its messages numbered from 0, in the order in which they are sent.
"""

from __future__ import annotations

import threading
import zlib
from dataclasses import dataclass, field

FAULTS_MAX = 20
"""Of one reader: later ones follow from the first."""
SIZE_MAX = 900


def payload(key: str, number: int) -> bytes:
    """Return the bytes of a message: its name, and a filling that depends on it."""
    name = f"{key}:{number}:".encode()
    size = 16 + zlib.crc32(name) % SIZE_MAX
    return name + bytes([(number * 7 + len(key)) % 251]) * size


def name_of(data: bytes) -> tuple[str, int]:
    """Return key and number of a message. Raises ValueError if it is none of ours."""
    key, number, _ = data.split(b":", 2)
    return key.decode(), int(number)


class Sent:
    """What a producer has sent, by key; threads may share it."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self.keys = keys
        self._lock = threading.Lock()
        self._count = dict.fromkeys(keys, 0)
        self._failed: dict[str, set[int]] = {key: set() for key in keys}
        self._acknowledged = 0

    def next(self, key: str) -> int:
        """Return the number of the key's next message, which is under way from now on."""
        with self._lock:
            self._count[key] += 1
            return self._count[key] - 1

    def settle(self, key: str, number: int, *, is_acknowledged: bool) -> None:
        """Take in how a message ended. One that failed may be there or not."""
        with self._lock:
            if is_acknowledged:
                self._acknowledged += 1
            else:
                self._failed[key].add(number)

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def failed(self) -> int:
        return sum(map(len, self._failed.values()))

    @property
    def under_way(self) -> int:
        """Return of how many nobody knows yet how they end."""
        return sum(self._count.values()) - self._acknowledged - self.failed

    def count(self, key: str) -> int:
        return self._count[key]

    def may_lack(self, key: str, number: int) -> bool:
        """Return whether a message need not be there."""
        return number in self._failed[key]


@dataclass
class Reading:
    """What a reader has got of what was sent.

    A message may come again, as Pulsar promises at least once. But a message that comes for the first time comes behind
    all that were sent before it with its key. Within a session without faults nothing comes twice, nor out of order.
    """

    name: str
    sent: Sent
    is_session: bool = False
    """Whether it reads in sessions, and nothing disturbs them."""
    faults: list[str] = field(default_factory=list)
    distinct: int = 0
    repeated: int = 0

    def __post_init__(self) -> None:
        self._next = dict.fromkeys(self.sent.keys, 0)
        self._missing: dict[str, set[int]] = {key: set() for key in self.sent.keys}
        self._last: dict[str, int] = {}

    def begin_session(self) -> None:
        """What was not acknowledged in the session before may come again from here."""
        self._last.clear()

    def take(self, data: bytes) -> None:
        """Take in a message."""
        try:
            key, number = name_of(data)
        except ValueError:
            key = ""
        if key not in self._next or number >= self.sent.count(key):
            self._fault(f"{data[:40]!r} was never sent")
            return
        if data != payload(key, number):
            self._fault(f"{key}:{number} has other bytes than were sent")
        if self.is_session and number <= self._last.get(key, -1):
            self._fault(
                f"{key}:{number} comes behind {key}:{self._last[key]}: twice, or out of order"
            )
        self._last[key] = number
        first = self._next[key]
        if number > first:
            # They come later, out of order, or never.
            self._missing[key] |= {
                one for one in range(first, number) if not self.sent.may_lack(key, one)
            }
        elif number < first:
            if number in self._missing[key]:
                self._missing[key].discard(number)
                self.distinct += 1
                self._fault(f"{key}:{number} comes for the first time behind {key}:{first - 1}")
            self.repeated += 1
            return
        self._next[key] = number + 1
        self.distinct += 1

    def lacks(self) -> list[str]:
        """Return the acknowledged messages that it has not got. Right only while nothing is under way."""
        return [
            f"{key}:{number}"
            for key in self.sent.keys
            for number in [
                *sorted(self._missing[key]),
                *range(self._next[key], self.sent.count(key)),
            ]
            if not self.sent.may_lack(key, number)
        ]

    @property
    def is_complete(self) -> bool:
        return self.distinct >= self.sent.acknowledged and not self.lacks()

    def verdict(self) -> list[str]:
        """Return all that is wrong; nothing may be under way any more."""
        lost = [f"{one} was acknowledged, and is lost" for one in self.lacks()]
        return [f"{self.name}: {one}" for one in [*self.faults, *lost][:FAULTS_MAX]]

    def _fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_MAX:
            self.faults.append(text)
