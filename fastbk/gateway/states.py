"""What watches compare: versions of ledgers and records, digests of folders' names and of the bookies. Blocking.

Several subjects of a kind are read by one call, as far as their contents have room in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fastbk.errors import Unauthorized
from fastbk.gateway.ledger_operations import READ_AT_ONCE
from fastbk.gateway.record_names import Kind, RecordName, name_of
from fastbk.gateway.record_operations import FOLDERS_AT_ONCE
from fastbk.meta.api import service_text
from fastbk.meta.gateway.messages import ABSENT, FORBIDDEN
from fastbk.meta.records import BadRecord, check_path, each_record

if TYPE_CHECKING:
    from fastbk.gateway.access import Access
    from fastbk.meta.api import LedgerRead, MetadataStore
    from fastbk.meta.gateway.messages import ReadStates
    from fastbk.meta.subscriptions import Subject

T = TypeVar("T")
V = TypeVar("V")


def states(store: MetadataStore, access: Access, request: ReadStates) -> list[str]:
    """Return the states of a request's subjects. Raises ConfigError: one is none.

    One that may not be watched any more does not end the watches of others: it is FORBIDDEN.
    """
    found: dict[Subject, str] = dict.fromkeys(request.subjects, FORBIDDEN)
    records: list[str] = []
    folders: list[tuple[str, RecordName]] = []
    for subject in found:
        access.check_time()
        if isinstance(subject, str):
            name = name_of(check_path(subject[1:]))
            if _is_allowed(partial(access.check_reading, subject[1:], name)):
                if subject[0] == "=":
                    records.append(subject[1:])
                else:
                    folders.append((subject[1:], name))
    if None in found:
        found[None] = _digest(
            service_text(one.service) + str(one.writable) for one in store.list_bookies()
        )
    ledger_ids = [one for one in found if isinstance(one, int)]
    for ledger_id, ledger in _read(access, ledger_ids, store.read_ledgers, READ_AT_ONCE):
        found[ledger_id] = _ledger_state(access, ledger_id, ledger)
    for path, record in zip(records, each_record(store.records, records), strict=True):
        access.check_time()
        found[f"={path}"] = ABSENT if record is None else str(record.version)
    listed = _read(
        access, [path for path, _ in folders], store.records.children_of, FOLDERS_AT_ONCE
    )
    for (path, name), (_, names) in zip(folders, listed, strict=True):
        visible = (
            access.visible_names(name.owner, names) if name.kind is Kind.NAMES_FOLDER else names
        )
        found[f"/{path}"] = _digest(visible)
    return [found[subject] for subject in request.subjects]


def _read(
    access: Access, keys: Sequence[T], read: Callable[[Sequence[T]], Sequence[V]], at_once: int
) -> Iterator[tuple[T, V]]:
    """Yield keys and what some calls of `read` return for them."""
    for at in range(0, len(keys), at_once):
        access.check_time()
        yield from zip(keys[at : at + at_once], read(keys[at : at + at_once]), strict=True)


def _ledger_state(access: Access, ledger_id: int, ledger: LedgerRead) -> str:
    if ledger is None:
        return ABSENT
    if isinstance(ledger, BadRecord):
        return FORBIDDEN if access.is_limited else str(ledger.version)
    is_allowed = _is_allowed(partial(access.check_ledger, ledger_id, ledger.metadata))
    return str(ledger.version) if is_allowed else FORBIDDEN


def _is_allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except Unauthorized:
        return False
    return True


def _digest(texts: Iterable[str]) -> str:
    joined = "\n".join(texts)
    return hashlib.blake2b(joined.encode(), digest_size=16).hexdigest() if joined else ABSENT
