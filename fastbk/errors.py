"""Everything fastbk raises on purpose: one tree under `Error`.

Each error answers what a caller has to know: what happened to the data (`outcome`), whether the same call may
help later (`retryable`), and what each bookie said (`replicas`). The message ends with the next step. Nothing
here imports anything, so that every layer may raise these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

Outcome = Literal["written", "not_written", "unknown"]


REPLICAS_SHOWN_MAX = 8
"""Bookies that the text of an error names; `replicas` has all."""


class Error(Exception):
    """Root of fastbk's errors.

    Attributes:
        code: Apache BookKeeper's client code where it has one for this case, else a number below -1000.
        outcome: what is known about the data of the failed call: "written" (it is stored and will be read),
            "not_written" (nothing of it will ever be read), "unknown" (it may be either: read before deciding).
        retryable: whether the same call may succeed later without anybody repairing anything.
        replicas: bookie id -> what that bookie answered or why it did not. The text shows the first of them.
        ledger_id, entry_id: what the call was about, None where that does not apply.
    """

    code: int = -999
    default_outcome: Outcome = "not_written"
    default_retryable: bool = False

    def __init__(
        self,
        message: str = "",
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        outcome: Outcome | None = None,
        retryable: bool | None = None,
        replicas: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.outcome: Outcome = self.default_outcome if outcome is None else outcome
        self.retryable: bool = self.default_retryable if retryable is None else retryable
        self.replicas: dict[str, str] = dict(replicas or {})

    def __str__(self) -> str:
        text = self.message or type(self).__name__
        if self.replicas:
            told = [f"{bookie}: {reason}" for bookie, reason in self.replicas.items()]
            if len(told) > REPLICAS_SHOWN_MAX:
                told[REPLICAS_SHOWN_MAX:] = [f"and {len(told) - REPLICAS_SHOWN_MAX} more"]
            text = f"{text} [{'; '.join(told)}]"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.__dict__))

    def copy(self) -> Error:
        """Return a fresh instance that says the same: one exception object must not be raised to many callers.

        Its cause and context are this one's. The traceback is not copied: it is of the caller that it is raised to.
        """
        error = _rebuild(type(self), self.message, self.__dict__)
        error.__cause__, error.__context__ = self.__cause__, self.__context__
        error.__suppress_context__ = self.__suppress_context__
        return error

    __copy__ = copy


def _rebuild(kind: type[Error], message: str, state: dict[str, object]) -> Error:
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    error.__dict__.update(state)
    error.replicas = dict(error.replicas)
    if hasattr(error, "__notes__"):
        error.__notes__ = list(error.__notes__)
    return error


@contextmanager
def os_errors_as(kind: type[Error], what: object) -> Iterator[None]:
    """Raise what the system refuses in the block as `kind`; its text is `what`, and the system's reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what}: {error.strerror}") from error


class ConfigError(Error, ValueError):
    """An argument or setting is out of its range; the message names it and the range."""

    code = -14


class WrongType(ConfigError, TypeError):
    """An argument is of a type that the call does not take. Nothing was done with it."""

    code = -1028


class BufferFull(Error):
    """The writer's buffer has no room; nothing was sent. Await `ready()` and try again, or use `append`."""

    code = -1001
    default_retryable = True


class ClientClosed(Error):
    """The client or handle was closed (or belongs to the parent process of a fork). Open a new one."""

    code = -19


class DuplicateEntryId(Error):
    """The caller chose an entry id that this writer was given before. Nothing was sent."""

    code = -22


class LedgerFenced(Error):
    """Another client is recovering or has closed this ledger; this writer is finished.

    Go on in a new ledger; open this one to see which of the unknown entries were kept.
    """

    code = -101
    default_outcome: Outcome = "unknown"


class LedgerClosed(Error):
    """The ledger is closed, or its writer was ended by an earlier failure: nothing can be appended."""

    code = -11


class NoSuchLedger(Error):
    """The metadata store lists no such ledger."""

    code = -7


class NoSuchEntry(Error):
    """Enough bookies said that they never acknowledged this entry, or it lies beyond what may be read."""

    code = -13


class DigestMismatch(Error):
    """Every copy that could be read fails its digest: wrong digest type or password, or damaged copies."""

    code = -5


class Unauthorized(Error):
    """The password is not the one the ledger was created with, or the client's role or token does not allow this."""

    code = -102


class NotEnoughBookies(Error):
    """Too few bookies are there or answer to do this. `replicas` says why each failed."""

    code = -6
    default_retryable = True


class QuorumTimeout(Error):
    """The deadline passed before enough bookies had answered."""

    code = -23
    default_outcome: Outcome = "unknown"
    default_retryable = True


class MetadataUnavailable(Error):
    """The metadata store could not be asked in time."""

    code = -9
    default_outcome: Outcome = "unknown"
    default_retryable = True


class MetadataOnHold(Error):
    """Metadata was rolled back, or an operator holds it: nothing is deleted by its word until an operator confirms."""

    code = -1026


class MetadataConflict(Error):
    """Somebody else changed that record first: read it again and decide anew."""

    code = -17


class IdentityChanged(MetadataConflict):
    """A bookie was started or lost its data since its identity was read, and the change depended on that."""

    code = -1027


class ProtocolError(Error):
    """The other side sent something that the protocol does not allow; the connection was closed."""

    code = -16
    default_outcome: Outcome = "unknown"


class StorageError(Error):
    """A disk, file format or identity problem of a bookie."""

    code = -1002


class ReplicationConflict(StorageError):
    """A bookie holds another payload under the id of an append: two writers wrote to one ledger."""

    code = -1003
    default_outcome: Outcome = "unknown"


class WeakQuorumWarning(UserWarning):
    """A ledger is created whose ack quorum is less than a majority of its write quorum."""


class StreamNotFound(Error):
    """There is no such namespace or stream."""

    code = -1010


class StreamExists(Error):
    """A namespace or stream of that name is there already."""

    code = -1011


class StreamSealed(Error):
    """The stream has ended for good: nothing can be appended to it any more."""

    code = -1012


class WriterFenced(Error):
    """Another writer has opened the stream; this one is finished. All acknowledged appends are in the stream.

    `outcome` "unknown": an append that was sent, and may be kept. "not_written": one that was never sent. Opening the
    stream again would fence the other writer: read the stream to find out what it has.
    """

    code = -1013
    default_outcome: Outcome = "unknown"


class WriterFailed(Error):
    """An earlier append failed and ended this writer. Open the stream again.

    Raised by an append it means that this one was never sent (`outcome` "not_written").
    """

    code = -1014


class AppendUnknown(Error):
    """The append was sent, and may be kept: open the stream again and look at `last_txid`, or `last_number`.

    Appends of a writer that another one has fenced fail with WriterFenced instead, also with `outcome` "unknown".
    """

    code = -1015
    default_outcome: Outcome = "unknown"


class TxidOutOfOrder(Error):
    """The transaction id is less than one that the stream has already. Nothing was sent."""

    code = -1016


class RecordTooLarge(ConfigError):
    """The entry of a ledger, or the record or batch of a stream, is larger than an entry may be. Nothing was sent.

    Until version 0.2 ledgers raised `ConfigError` for this, so it is one.
    """

    code = -1017


class PositionTruncated(Error):
    """That position lies before what the stream still has; `first_available` says where it begins, as text."""

    code = -1018
    first_available: str = ""


class DataLost(Error):
    """No bookie gives these entries: `first` and `next` say which positions are missing, as text."""

    code = -1019
    first: str = ""
    next: str = ""


class CursorFenced(Error):
    """Somebody else has opened this cursor; this handle is finished."""

    code = -1020


class StreamBusy(Error):
    """The stream has an open segment: a writer has it open, or died with it. Nothing was changed."""

    code = -1024


class DraftGone(Error):
    """What was written to be attached was given up by somebody else: it has to be written again."""

    code = -1025


class PolicyInvalid(ConfigError):
    """A policy of a namespace or stream is out of its range; the message names the field and the range."""

    code = -1021


class NamespaceNotEmpty(Error):
    """There are streams or namespaces in it: delete those first, or say `recursive=True`."""

    code = -1023


class QuotaExceeded(Error):
    """The namespace has as many streams, bytes or names as it may have, or the stream as many cursors."""

    code = -1022


class ProducerFenced(Error):
    """Another producer has opened this name; this one is finished. All acknowledged appends are in the stream.

    `outcome` "unknown": an append that was sent, and may be kept: `last_number` of the name says which are.
    "not_written": one that was never sent.
    """

    code = -1029
    default_outcome: Outcome = "unknown"


class ProducerExpired(Error):
    """The stream knows nothing of this producer's name any more: it was silent for longer than its age.

    Open it again: it has no last number then. `outcome` as of ProducerFenced.
    """

    code = -1030
    default_outcome: Outcome = "unknown"


class TooManyProducers(QuotaExceeded):
    """The stream has as many producers' names as it may have, and all of them appended of late."""

    code = -1031


class WrongStreamKind(ConfigError):
    """The stream is for producers and a writer was to be opened, or the other way round. Nothing was changed."""

    code = -1032


class NoWriteService(Error):
    """No write service takes the stream's records: none answers (start it with `fastbk serve`), or it says why not."""

    code = -1033
    default_retryable = True


class LeaseBusy(Error):
    """Another holds the lease, lock or leadership, and did not release it in the time given. Nothing was changed."""

    code = -1040
    default_retryable = True


class LeaseLost(Error):
    """The lease, lock or leadership is lost: another may have it. Take it again, and go on with the new token."""

    code = -1041


class TokenOutdated(Error):
    """The stream has records of a later holder of the lease: this one's token is outdated. Nothing was appended."""

    code = -1042


class StreamAdvanced(Error):
    """An append on a condition came too late: the stream has records behind `expected`. Nothing was appended.

    `last`: the position of the stream's last record, as text; "": it has none.
    """

    code = -1043
    default_retryable = True
    last: str = ""


class ObjectExists(Error, FileExistsError):
    """There is an object of this name already. Nothing of the new one is kept."""

    code = -1044


class ObjectNotFound(Error, FileNotFoundError):
    """There is no object of this name, or it was deleted or replaced meanwhile."""

    code = -1045


class ObjectDamaged(Error):
    """A chunk of an object is missing, or is not what was written; the message names chunk, ledger and entry."""

    code = -1046


# What a process does when it finds that it is itself wrong: it says which sentence was broken, and ends.
# docs/invariants.md numbers the invariants; code that keeps one names it. Bytes from a disk, a network or
# another process are never checked here: those can be wrong without a bug of ours.


class InvariantError(BaseException):
    """A bug in fastbk was found before it could reach a disk; the process must end.

    Not an `Exception`, so that no handler for the world's errors can swallow it.
    """


def check_invariant(holds: bool, what: str) -> None:
    """Raise InvariantError unless `holds`; `what` begins with the invariant's id where it has one."""
    if not holds:
        raise InvariantError(what)
