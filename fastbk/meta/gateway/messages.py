"""What clients and a metadata gateway send each other: `POST /v1/OPERATION`, bodies in MessagePack.

A request's body is the struct of its operation, an answer's the operation's result. A refusal has another status than
200, and a `Failure` as its body. Ledgers' metadata are Apache's bytes, as in every store.

A client that got no answer repeats its request, perhaps at another gateway, with `is_repeat`: then finding what was
wanted is success, as for a store that lost an answer itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from fastbk import errors
from fastbk.errors import ConfigError, Error, MetadataUnavailable
from fastbk.meta.records import Change, VersionedRecord, check_path
from fastbk.printable_text import printable

SCHEME = "gateway"
CONTENT_TYPE = "application/msgpack"
PATH = "/v1/"
REQUEST_BYTES_MAX = 2 * 1024 * 1024
"""A transaction of ZooKeeper has 1 MiB at most; names and versions come on top."""
ANSWER_BYTES_MAX = 16 * 1024 * 1024
"""An answer with more ends early: the client requests the rest."""
KEYS_MAX = 1000
"""Ledgers or paths of one request."""
CHANGES_MAX = 4096
"""Records that one request changes: attaching 2,048 ledgers changes one more."""
WAIT_MS_MAX = 30_000
"""An answer waits so long for a change at most, whatever its request says."""
MESSAGE_CHARACTERS_MAX = 4000
STATE_CHARACTERS_MAX = 100
ABSENT, FORBIDDEN = "", "forbidden"
"""States of what is not there, or is empty, and of what the client may not see."""


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What all requests have. `timeout_ms`: how long the client waits for the answer."""

    timeout_ms: int


class InstanceId(Request, frozen=True, array_like=True):
    """The cluster's id; the result is text."""


class DrawId(Request, frozen=True, array_like=True):
    """A new ledger id; the result is a number."""


class CreateLedger(Request, frozen=True, array_like=True):
    """Store a new ledger; the result is its version."""

    ledger_id: int
    metadata: bytes
    is_repeat: bool


class ReadLedgers(Request, frozen=True, array_like=True):
    """Metadata of ledgers; the result has a `LedgerRow`, or None, for each of the first ones, one at least."""

    ledger_ids: tuple[int, ...]


class UpdateLedger(Request, frozen=True, array_like=True):
    """Replace a ledger's metadata if it has this version; the result is the new version."""

    ledger_id: int
    metadata: bytes
    version: int
    is_repeat: bool


class DeleteLedger(Request, frozen=True, array_like=True):
    """Delete a ledger; the result is None."""

    ledger_id: int
    version: int | None
    is_repeat: bool


class ListLedgers(Request, frozen=True, array_like=True):
    """Ids above one; the result is a `LedgerPage`."""

    after: int
    count_max: int


class ListBookies(Request, frozen=True, array_like=True):
    """The live bookies; the result has a `BookieRow` for each."""


class ListIdentities(Request, frozen=True, array_like=True):
    """All bookies that ever were; the result has an `IdentityRow` for each."""


class PulsarRacks(Request, frozen=True, array_like=True):
    """What Pulsar's operators say of where bookies are; the result is bytes, or None."""


class ReadRecords(Request, frozen=True, array_like=True):
    """Records; the result has a `RecordRow`, or None, for each of the first paths, one at least."""

    paths: tuple[str, ...]


class ChangeRecords(Request, frozen=True, array_like=True):
    """Change records, all or none; the result has the new versions, 0 for deletions."""

    changes: tuple[ChangeRow, ...]
    is_repeat: bool


class ListChildren(Request, frozen=True, array_like=True):
    """Names below paths; the result has a list of names for each of the first ones, one at least."""

    paths: tuple[str, ...]


class ReadStates(Request, frozen=True, array_like=True):
    """What watches compare; the result has a text for each subject (`fastbk.meta.api.Subject`).

    `seen`: what the client has had of each; None: nothing. As long as they are all the same the answer waits, for
    `wait_ms` at most.
    """

    subjects: tuple[int | str | None, ...]
    seen: tuple[str, ...] | None = None
    wait_ms: int = 0


class UpdateMark(Request, frozen=True, array_like=True):
    """Change the mark of a ledger with missing copies; the result is the mark. All three are JSON
    (`fastbk.model.missing_replica`).
    """

    ledger_id: int
    add: bytes
    remove: bytes


class LedgerRow(msgspec.Struct, frozen=True, array_like=True):
    """A ledger's metadata and version. Without a right to write, a client gets it without the password."""

    metadata: bytes
    version: int


class LedgerPage(msgspec.Struct, frozen=True, array_like=True):
    """Ids, and what to list after next; None: there are no more."""

    ledger_ids: tuple[int, ...]
    next_after: int | None


class BookieRow(msgspec.Struct, frozen=True, array_like=True):
    """A live bookie, its service as sqlite has it (`fastbk.meta.sqlite.store`)."""

    service: str
    writable: bool


class IdentityRow(msgspec.Struct, frozen=True, array_like=True):
    """A bookie's identity, as sqlite has it. `fault`: why nobody can read it; "": one can."""

    bookie_id: str
    identity: str
    fault: str


class RecordRow(msgspec.Struct, frozen=True, array_like=True):
    """A record's value and version."""

    value: bytes
    version: int

    def record(self) -> VersionedRecord:
        """Return it as stores have it."""
        return VersionedRecord(self.value, self.version)


class ChangeRow(msgspec.Struct, frozen=True, array_like=True):
    """`fastbk.meta.records.Change`."""

    path: str
    value: bytes | None
    version: int | None

    def change(self) -> Change:
        """Return it as stores have it."""
        return Change(self.path, self.value, self.version)


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An error of `fastbk.errors`, by the name of its class."""

    kind: str
    message: str
    outcome: str = "not_written"
    retryable: bool = False
    ledger_id: int | None = None


OPERATIONS: dict[str, type[Request]] = {
    "instance-id": InstanceId,
    "draw-id": DrawId,
    "create-ledger": CreateLedger,
    "read-ledgers": ReadLedgers,
    "update-ledger": UpdateLedger,
    "delete-ledger": DeleteLedger,
    "list-ledgers": ListLedgers,
    "list-bookies": ListBookies,
    "list-identities": ListIdentities,
    "pulsar-racks": PulsarRacks,
    "read-records": ReadRecords,
    "change-records": ChangeRecords,
    "list-children": ListChildren,
    "read-states": ReadStates,
    "update-mark": UpdateMark,
}
"""By the last part of the path."""
NAMES = {kind: name for name, kind in OPERATIONS.items()}

_KINDS: dict[str, type[Error]] = {
    name: getattr(errors, name)
    for name in ("ConfigError", "Unauthorized", "NoSuchLedger", "MetadataConflict", "MetadataOnHold",
                 "MetadataUnavailable", "QuotaExceeded", "StorageError", "ProtocolError")
}  # fmt: skip


def failure_of(error: Error) -> Failure:
    """Return an error as a gateway sends it."""
    known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
    kind = next(known, "StorageError")
    return Failure(
        kind,
        printable(str(error), MESSAGE_CHARACTERS_MAX),
        error.outcome,
        error.retryable,
        error.ledger_id,
    )


def error_of(failure: Failure) -> Error:
    """Return the error that a gateway has sent."""
    kind = _KINDS.get(failure.kind, MetadataUnavailable)
    known = ("written", "not_written", "unknown")
    outcome = next((one for one in known if one == failure.outcome), "unknown")
    message = printable(failure.message, MESSAGE_CHARACTERS_MAX)
    return kind(message, ledger_id=failure.ledger_id, outcome=outcome, retryable=failure.retryable)  # type: ignore[arg-type]


def encode(value: object) -> bytes:
    """Return a body."""
    return msgspec.msgpack.encode(value)


def decode_request(name: str, body: bytes) -> Request:
    """Return the request that a client has sent. Raises ConfigError."""
    kind = OPERATIONS.get(name)
    if kind is None:
        raise ConfigError(
            f"{PATH}{name[:40]}: this gateway has no such operation; is the client newer?"
        )
    try:
        request = msgspec.msgpack.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{PATH}{name}: the body is no such request: {error}") from None
    for field in msgspec.structs.fields(kind):
        value: Any = getattr(request, field.name)
        count_max = CHANGES_MAX if kind is ChangeRecords else KEYS_MAX
        if isinstance(value, tuple) and not 0 < len(value) <= count_max:
            raise ConfigError(
                f"{PATH}{name}: {field.name} must be 1 to {count_max}, not {len(value)}"
            )
    if isinstance(request, ReadStates):
        _check_states(request)
    return request


def _check_states(request: ReadStates) -> None:
    """Raise ConfigError for what is no subject or no state: a request that waits takes memory for all of them."""
    for subject in request.subjects:
        if isinstance(subject, str):
            if subject[:1] not in ("=", "/"):
                raise ConfigError(
                    f"{subject[:40]!r} is no subject of a watch: it begins with = or /"
                )
            check_path(subject[1:])
    seen = request.seen
    if seen is not None and len(seen) != len(request.subjects):
        raise ConfigError("seen must have a state for each subject")
    if any(len(state) > STATE_CHARACTERS_MAX for state in seen or ()):
        raise ConfigError(f"a state has at most {STATE_CHARACTERS_MAX} characters")


def bounded(rows: Sequence[Any], sizes: Sequence[int]) -> list[Any]:
    """Return the first rows, as many as an answer has room for, one at least."""
    total = 0
    for index, size in enumerate(sizes):
        total += size
        if total > ANSWER_BYTES_MAX and index:
            return list(rows[:index])
    return list(rows)
