"""Apache's journal and ledger directories as pairs of ours: each ledger directory needs a journal of its own.

Nothing is put where something else lies: a directory that is for both holds entry logs itself and the journal in a
folder, and a journal directory that several ledger directories share has a folder for each but the first. So a bookie's
directories stay where they are when others are added behind them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.errors import ConfigError
from fastbk.server.configuration.checks import PAIRS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastbk.apache.configuration.source import KeySource

APACHE_TEMPORARY = ("/tmp/bk-txn", "/tmp/bk-data")  # noqa: S108
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
JOURNAL_FOLDER, PAIR_FOLDER = "journal", "pair-"


@dataclass(frozen=True, slots=True)
class Directories:
    """The directories of each pair, and what people should be told of them."""

    journals: tuple[str, ...]
    ledgers: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What is worth knowing."""
    remarks: tuple[str, ...] = ()
    """What is worth a warning."""


def settle(source: KeySource) -> Directories:
    """Return the pairs' directories, as absolute paths. Raises ConfigError."""
    journals = source.items("journalDirectories") or source.items("journalDirectory")[:1]
    ledgers = source.items("ledgerDirectories")
    for key, given in (("journalDirectories", journals), ("ledgerDirectories", ledgers)):
        if not given:
            raise ConfigError(
                f"{key} is not set: Apache would put it into a temporary folder, where data is lost with the next boot"
            )
        for one in given:
            if os.path.normpath(one) in APACHE_TEMPORARY:
                raise source.fault(
                    key if key in source.properties else "journalDirectory",
                    f"{one} is Apache's temporary folder, where data is lost with the next boot: name another",
                )
    pairs = paired(
        [os.path.abspath(one) for one in journals], [os.path.abspath(one) for one in ledgers]
    )
    remarks = [
        f"{one} is a temporary folder: data there may be lost with the next boot"
        for one in dict.fromkeys((*journals, *ledgers))
        if os.path.abspath(one).startswith(tuple(f"{folder}/" for folder in TEMPORARY))
    ]
    if source.boolean("allowMultipleDirsUnderSameDiskPartition") is False:
        _check_partitions(ledgers)
    return Directories(pairs.journals, pairs.ledgers, pairs.notes, tuple(remarks))


def paired(journals: Sequence[str], ledgers: Sequence[str]) -> Directories:
    """Return a journal and a ledger directory for each pair. Raises ConfigError.

    Args:
        journals, ledgers: at least one each, absolute paths.
    """
    for what, given in (("journalDirectories", journals), ("ledgerDirectories", ledgers)):
        if len(set(given)) < len(given):
            raise ConfigError(f"{what} names a directory twice")
    count = max(len(journals), len(ledgers))
    if count > PAIRS_MAX:
        raise ConfigError(
            f"{count} directories are {count} journal/index pairs, {PAIRS_MAX} are possible: join some of the disks"
        )
    found = []
    for pair in range(count):
        journal = journals[pair % len(journals)]
        ledger = ledgers[pair % len(ledgers)]
        if journal in ledgers:
            journal = f"{journal}/{JOURNAL_FOLDER}"
        if pair >= len(journals):
            journal = f"{journal}/{PAIR_FOLDER}{pair}"
        if pair >= len(ledgers):
            ledger = f"{ledger}/{PAIR_FOLDER}{pair}"
        found.append((journal, ledger))
    notes = [
        f"pair {pair}: journal in {journal}, entry logs in {ledger}"
        for pair, (journal, ledger) in enumerate(found)
        if journal not in journals or ledger not in ledgers
    ]
    return Directories(tuple(one[0] for one in found), tuple(one[1] for one in found), tuple(notes))


def _check_partitions(ledgers: Sequence[str]) -> None:
    """Refuse ledger directories on one file system. Those that do not exist yet count as the folder they go into."""
    seen: dict[int, str] = {}
    for one in ledgers:
        place = Path(one).absolute()
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        if device in seen:
            raise ConfigError(
                f"ledger directories {seen[device]} and {one} are on one file system, which"
                " allowMultipleDirsUnderSameDiskPartition=false forbids"
            )
        seen[device] = one
