"""Whose data a directory holds, and the refusal to start with the wrong one (INV-D1, A19, A20).

`identity.json` lies in every journal and ledger directory; metadata knows the same under the bookie's id. Serving
with a directory that is missing, empty, foreign or swapped would answer "no such entry" for acknowledged data, so
every difference ends the start with an error that says what differs, the likely cause, and what is safe to do.
A bookie is born in this order: folders and first manifest, identities, metadata; `Verdict.BORN_HALFWAY` is a birth
that was cut short before metadata heard of it, and goes on where it stopped. A bookie whose data is gone for good may
be born again under its name, on a person's word only (`Verdict.LOST`).

Pure but for `read_identity` and `write_identity`. The supervisor calls this before anything is served.
"""

from __future__ import annotations

import enum
import itertools
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.native.checksum import crc32c
from fastbk.native.ffi import CorruptDataError, FormatTooNewError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastbk.native.disk import Disk

NAME = "identity.json"
FORMAT = 1
SHARD_COUNT = 64
ROLES = ("journal", "ledger")


class IdentityError(StorageError):
    """The directories are not the ones that this bookie id stands for. Nothing was touched."""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `identity.json`; ids are hex."""

    bookie_id: str
    incarnation: str
    directory_id: str
    role: str
    created_s: int
    pairs: int = 1
    shards: tuple[int, ...] = (0,) * SHARD_COUNT
    format: int = FORMAT

    @property
    def incarnation_number(self) -> int:
        """The incarnation as the number that file headers hold."""
        return int(self.incarnation, 16)


def new_identity(bookie_id: str, incarnation: int, role: str, created_s: int) -> Identity:
    """Return the identity of a directory that is born now, with an id of its own."""
    return Identity(
        bookie_id=bookie_id,
        incarnation=f"{incarnation:016x}",
        directory_id=secrets.token_hex(16),
        role=role,
        created_s=created_s,
    )


def new_incarnation() -> int:
    """Return a random incarnation, 1..2^63 - 1: one birth of one bookie."""
    return secrets.randbelow((1 << 63) - 1) + 1


def encode(identity: Identity) -> bytes:
    """Return the bytes of `identity.json`."""
    fields = msgspec.to_builtins(identity)
    fields["crc"] = crc32c(_canonical(fields))
    return json.dumps(fields, sort_keys=True, indent=1).encode() + b"\n"


def decode(raw: bytes, name: str = NAME) -> Identity:
    """Return the identity in a file's bytes. Raises CorruptDataError, FormatTooNewError."""
    try:
        fields = json.loads(raw)
        stored = fields.pop("crc")
        version = fields["format"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise CorruptDataError(f"{name}: not an identity file, or damaged") from None
    if isinstance(version, int) and version > FORMAT:
        raise FormatTooNewError(
            f"{name} has format {version}, this fastbk knows {FORMAT}: start the version that wrote it"
        )
    if stored != crc32c(_canonical(fields)):
        raise CorruptDataError(f"{name}: its checksum is wrong: damaged or edited by hand")
    try:
        identity = msgspec.convert(fields, Identity)
        number = identity.incarnation_number
    except (msgspec.ValidationError, ValueError) as error:
        raise CorruptDataError(f"{name}: {error}") from None
    if identity.role not in ROLES or number <= 0:
        raise CorruptDataError(
            f"{name}: role {identity.role!r}, incarnation {identity.incarnation!r}"
        )
    return identity


def _canonical(fields: object) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()


def read_identity(disk: Disk, directory: str) -> Identity | None:
    """Return a directory's identity, None when there is no such file. Raises like `decode`, and OSError."""
    path = f"{directory}/{NAME}"
    try:
        return decode(disk.read_file(path), path)
    except FileNotFoundError:
        return None


def write_identity(disk: Disk, directory: str, identity: Identity) -> None:
    """Put a directory's identity there, whole and durable."""
    disk.replace_file(f"{directory}/{NAME}", encode(identity))


class Verdict(enum.Enum):
    """What a start may do."""

    KNOWN = "known"
    """Everything agrees."""
    NEW = "new"
    """Nobody knows this id and the directories are empty: give birth."""
    BORN_HALFWAY = "born_halfway"
    """Identities are there, no data, and metadata has not heard of them: finish the birth."""
    LOST = "lost"
    """Metadata knows data that is gone, and a person said that this is so: born again, with what it held in limbo."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one configured directory holds: `data` are names of files that only a bookie's work leaves behind."""

    directory: str
    role: str
    identity: Identity | None
    data: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Known:
    """What metadata knows of a bookie id: its incarnation, and role by directory id."""

    incarnation: int
    roles: Mapping[str, str]


def judge(
    bookie_id: str, found: Sequence[Found], known: Known | None, *, accept_data_loss: bool = False
) -> Verdict:
    """Return what a start may do with these directories. Raises IdentityError (INV-D1).

    Args:
        bookie_id: of the bookie that starts.
        found: every configured directory.
        known: None when metadata has no such bookie id.
        accept_data_loss: a person's word that the data is gone for good; counts only where there is none.
    """
    if known is not None and accept_data_loss and _is_lost(bookie_id, found, known):
        return Verdict.LOST
    for each in found:
        if each.identity is not None:
            _check_own(bookie_id, each, each.identity)
    _check_alike(found)
    if known is not None:
        _check_known(bookie_id, found, known)
        return Verdict.KNOWN
    holding = [each for each in found if each.data]
    if holding:
        first = holding[0]
        raise IdentityError(
            f"{first.directory} holds a bookie's data ({_some(first.data)}), but the metadata store knows no bookie"
            f" {bookie_id!r}. Likely this is the wrong metadata store or a wrong id. Correct metadata.uri or"
            " bookie.id; do not delete anything before you know whose data this is"
        )
    identities = [each.identity for each in found]
    if all(identity is None for identity in identities):
        return Verdict.NEW
    return Verdict.BORN_HALFWAY


def _is_lost(bookie_id: str, found: Sequence[Found], known: Known) -> bool:
    """Return whether nothing is left of the data that metadata knows: no data anywhere, identities other than its own.

    A rebirth that was cut short leaves new identities, of one incarnation or two: it is begun anew.
    """
    if any(each.data for each in found):
        return False
    identities = [each.identity for each in found if each.identity is not None]
    if any(one.bookie_id != bookie_id for one in identities):
        return False
    alive = [one for one in identities if one.incarnation_number == known.incarnation]
    return len(alive) < len(found)


def _check_own(bookie_id: str, found: Found, identity: Identity) -> None:
    if identity.bookie_id != bookie_id:
        raise IdentityError(
            f"{found.directory} belongs to bookie {identity.bookie_id!r}, this one is {bookie_id!r}. Likely the"
            " directory of another bookie was configured, or this bookie's address changed. Correct the directory,"
            f" or set bookie.id to {identity.bookie_id!r}"
        )
    if identity.role != found.role:
        raise IdentityError(
            f"{found.directory} is a {identity.role} directory, but is configured as the {found.role} directory."
            " Likely the two settings were swapped. Swap journal.directory and ledgers.directory back"
        )
    if identity.pairs != 1 or identity.shards != (0,) * SHARD_COUNT:
        raise IdentityError(
            f"{found.directory} was written with {identity.pairs} journal/index pairs, this fastbk runs 1. Start the"
            " version that wrote it"
        )


def _check_alike(found: Sequence[Found]) -> None:
    present = [(each, each.identity) for each in found if each.identity is not None]
    for (a, mine), (b, other) in itertools.pairwise(present):
        if mine.incarnation != other.incarnation:
            raise IdentityError(
                f"{a.directory} (incarnation {mine.incarnation}) and {b.directory} ({other.incarnation}) come from"
                f" two different lives of bookie {mine.bookie_id!r}. Likely one of them was restored from a copy or"
                " belongs to another machine. Configure the two that belong together"
            )


def _check_known(bookie_id: str, found: Sequence[Found], known: Known) -> None:
    for each in found:
        if each.identity is None:
            holds = f"holds {_some(each.data)} but no {NAME}" if each.data else "is empty"
            raise IdentityError(
                f"the metadata store knows bookie {bookie_id!r} (incarnation {known.incarnation:016x}), but its"
                f" {each.role} directory {each.directory} {holds}. Likely the disk is not mounted, the path is wrong,"
                " or the data was deleted. Mount or restore it. A bookie never starts empty under an id that holds"
                f" data: if the data is gone for good, run `fastbk bookie recover {bookie_id}`, which copies what it"
                " held from others, and start a bookie under a new id; or, to have this id back, move what is left of"
                " all its directories aside and start once with --accept-data-loss"
            )
        if each.identity.incarnation_number != known.incarnation:
            raise IdentityError(
                f"{each.directory} is of incarnation {each.identity.incarnation}, the metadata store knows"
                f" {known.incarnation:016x} for bookie {bookie_id!r}. Likely an old copy of the directory is mounted,"
                " or the bookie was born again elsewhere. Mount the right directory"
            )
        if known.roles.get(each.identity.directory_id) != each.role:
            raise IdentityError(
                f"the {each.role} directory {each.directory} (id {each.identity.directory_id}) is none of those that"
                f" the metadata store lists for bookie {bookie_id!r}. Likely a directory was added or replaced."
                " Configure the directories that the bookie was born with"
            )
    present = {each.identity.directory_id for each in found if each.identity is not None}
    missing = [f"{role} {name}" for name, role in known.roles.items() if name not in present]
    if missing or len(present) != len(found):
        raise IdentityError(
            f"bookie {bookie_id!r} was born with more directories than are configured (missing: {_some(missing)})."
            " Configure all of them"
        )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
