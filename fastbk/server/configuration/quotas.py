"""Section [quotas] of a bookie's configuration: what one principal may take of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec

from fastbk.errors import ConfigError
from fastbk.units import parse_size

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]

NAMES = ("connections_max", "adds_rate", "data_rate", "ledgers_rate")
"""What an exception may change."""


class QuotaSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Section [quotas]: what each principal may take of this bookie. Needs [authentication]; 0: no bound."""

    connections_max: Count = 0
    """Connections of a principal. One more is refused."""

    adds_rate: Count = 0
    """Entries a second that a principal may add, over all its connections. Beyond it the bookie reads them more slowly.
    """

    data_rate_bytes: Count = 0
    """Bytes of entries a second, in the same way."""

    ledgers_rate: Count = 0
    """Ledgers a second that a principal may begin, in the same way. Each worker remembers about 4,096 ledgers that a
    principal added to or fenced last. An add to another ledger, a recovery add too, or its fence begins it.
    """

    exceptions: tuple[str, ...] = ()
    """Other bounds for some: a pattern of principals and what differs, such as `user:batch-* adds_rate=100
    data_rate=1MiB connections_max=4`. The first that matches counts.
    """


@dataclass(frozen=True, slots=True)
class Quota:
    """The bounds of one principal; 0: none."""

    connections_max: int = 0
    adds_rate: int = 0
    data_rate: int = 0
    ledgers_rate: float = 0

    def share(self, workers: int) -> Quota:
        """Return the bounds of one of so many workers: whole numbers rounded up, and the exact part of `ledgers_rate`.

        Rates of ledgers are small: rounded up they would be several times as much.
        """
        parts = (self.connections_max, self.adds_rate, self.data_rate)
        connections_max, adds_rate, data_rate = (-(-part // workers) for part in parts)
        return Quota(connections_max, adds_rate, data_rate, self.ledgers_rate / workers)


def has_quotas(settings: QuotaSettings) -> bool:
    """Return whether anybody has a bound."""
    return settings != QuotaSettings()


def rules_of(settings: QuotaSettings) -> list[tuple[str, Quota]]:
    """Return patterns and their bounds, in the order in which they count. Raises ConfigError."""
    usual = Quota(
        settings.connections_max,
        settings.adds_rate,
        settings.data_rate_bytes,
        settings.ledgers_rate,
    )
    rules = [_exception(text, usual) for text in settings.exceptions]
    return [*rules, ("*", usual)]


def quota_of(rules: list[tuple[str, Quota]], principal: str) -> Quota:
    """Return the bounds of a principal."""
    return next(quota for pattern, quota in rules if fnmatchcase(principal, pattern))


def problems(settings: QuotaSettings, *, has_names: bool) -> Iterator[str]:
    """Yield what is wrong. `has_names`: clients are authenticated."""
    try:
        rules_of(settings)
    except ConfigError as error:
        yield f"[quotas] exceptions: {error.message}"
    if has_quotas(settings) and not has_names:
        yield "[quotas] needs [authentication] methods: nobody has a name without them"


def _exception(text: str, usual: Quota) -> tuple[str, Quota]:
    pattern, *words = text.split()
    quota = usual
    for word in words:
        name, _, value = word.partition("=")
        if name not in NAMES:
            raise ConfigError(f"{text!r}: {name!r} is none of {', '.join(NAMES)}")
        try:
            amount = 0 if value == "0" else parse_size(value) if name == "data_rate" else int(value)
        except ValueError as error:
            raise ConfigError(f"{text!r}: {error}") from None
        if not 0 <= amount <= 1 << 40:
            raise ConfigError(f"{text!r}: {name} must be 0 to 2^40")
        quota = replace(quota, **{name: amount})
    if not words:
        raise ConfigError(f"{text!r}: write PATTERN and what differs, such as adds_rate=100")
    return pattern, quota
