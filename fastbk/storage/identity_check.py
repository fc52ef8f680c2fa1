"""Which directories a bookie may start with (INV-D1). Pure.

Serving with a directory that is missing, empty, foreign, swapped or an old copy would answer "no such entry" for
acknowledged data, so every difference ends the start with an error that says what differs, the likely cause, and what
is safe to do. Four things are compared: what is configured, `identity.json` and the cookie of each directory, and what
metadata knows of the bookie id.

A bookie is born in this order: folders and first manifest, identities, cookies, metadata; `Verdict.BORN_HALFWAY` is a
birth that was cut short before metadata heard of it, and goes on where it stopped. Directories are added in the same
order, on a person's word (`Verdict.EXPANDED`). A bookie whose data is gone for good may be born again under its name,
on a person's word, too (`Verdict.LOST`).

Every start is counted: in the directories first, then in metadata. So what was started since a copy of a directory was
made, knows of more starts than that copy.
"""

from __future__ import annotations

import enum
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from fastbk.errors import StorageError
from fastbk.storage.identity import NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastbk.storage.cookie_file import Cookie
    from fastbk.storage.identity import Identity


class IdentityError(StorageError):
    """The directories are not the ones that this bookie id stands for. Nothing was touched."""


class Verdict(enum.Enum):
    """What a start may do."""

    KNOWN = "known"
    """Everything agrees."""
    NEW = "new"
    """Nobody knows this id and the directories are empty: give birth."""
    BORN_HALFWAY = "born_halfway"
    """Identities are there, no data, and metadata has not heard of them: finish the birth."""
    EXPANDED = "expanded"
    """Everything that metadata knows is there and agrees, and so are empty directories that a person wants added."""
    LOST = "lost"
    """Metadata knows data that is gone, and a person said that this is so: born again, with what it held in limbo."""


class DirectoryPlace(NamedTuple):
    """What a directory is configured for: "journal" or "ledger", of which pair."""

    role: str
    pair: int = 0

    def __str__(self) -> str:
        return f"{self.role} directory" + (f" of pair {self.pair}" if self.pair else "")


class DirectoryContent(msgspec.Struct, frozen=True):
    """What one configured directory holds: `data` are names of files that only a bookie's work leaves behind."""

    directory: str
    place: DirectoryPlace
    identity: Identity | None
    data: Sequence[str] = ()
    cookie: Cookie | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing of a bookie's is there."""
        return self.identity is None and self.cookie is None and not self.data


class KnownBookie(msgspec.Struct, frozen=True):
    """What metadata knows of a bookie id: its incarnation, places by directory id, and starts of that incarnation."""

    incarnation: int
    places: Mapping[str, DirectoryPlace]
    starts: int = 0


def judge(
    bookie_id: str,
    found: Sequence[DirectoryContent],
    known: KnownBookie | None,
    *,
    instance_id: str = "",
    accept_data_loss: bool = False,
    expand: bool = False,
) -> Verdict:
    """Return what a start may do with these directories. Raises IdentityError (INV-D1).

    Args:
        bookie_id: of the bookie that starts.
        found: every configured directory.
        known: None when metadata has no such bookie id.
        instance_id: of the cluster; empty where it has none, which is then not compared.
        accept_data_loss: a person's word that the data is gone for good; counts only where there is none.
        expand: a person's word that empty directories are to be added; without effect where there are none.
    """
    for each in found:
        _check_cookie(bookie_id, each, instance_id, is_known=known is not None)
    if known is not None and accept_data_loss and _is_lost(bookie_id, found, known):
        return Verdict.LOST
    for each in found:
        if each.identity is not None:
            _check_own(bookie_id, each, each.identity)
    if known is not None and accept_data_loss:
        _check_nothing_left(bookie_id, found, known)
    _check_alike(found)
    if known is not None:
        return _judge_known(bookie_id, found, known, expand=expand)
    _check_pairs(found, configured_pairs(found))
    holding = [each for each in found if each.data]
    if holding:
        first = holding[0]
        raise IdentityError(
            f"{first.directory} holds a bookie's data ({_some(first.data)}), but the metadata store knows no bookie"
            f" {bookie_id!r}. Likely this is the wrong metadata store or a wrong id, or metadata was restored from"
            " a copy older than this bookie. Correct metadata.uri or bookie.id, or restore newer metadata; do not"
            " delete anything before you know whose data this is"
        )
    if all(each.identity is None for each in found):
        return Verdict.NEW
    return Verdict.BORN_HALFWAY


def _is_lost(bookie_id: str, found: Sequence[DirectoryContent], known: KnownBookie) -> bool:
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


def _check_nothing_left(
    bookie_id: str, found: Sequence[DirectoryContent], known: KnownBookie
) -> None:
    """Say what keeps a start from accepting the loss, where part of the data is there and part of it is not."""
    if all(
        each.identity and each.identity.incarnation_number == known.incarnation for each in found
    ):
        return  # all of it is there: there is no loss, and the other rules judge
    left = [(each.directory, [*each.data, *([NAME] if each.identity else [])]) for each in found]
    if any(names for _, names in left):
        named = "; ".join(f"{directory} holds {_some(names)}" for directory, names in left if names)
        raise IdentityError(
            f"the loss of bookie {bookie_id!r}'s data is accepted only where nothing of it is left, but {named}."
            " If that is to go, move it aside and start again with --accept-data-loss. Otherwise mount or restore"
            " what is missing, and start without the option"
        )


def _check_cookie(
    bookie_id: str, found: DirectoryContent, instance_id: str, *, is_known: bool
) -> None:
    cookie = found.cookie
    if cookie is None:
        return
    if cookie.bookie_id != bookie_id:
        raise IdentityError(
            f"the cookie in {found.directory} is that of bookie {cookie.bookie_id!r}, this one is {bookie_id!r}. Likely"
            " the directory of another bookie was configured, or this bookie moved to another host or port. Correct the"
            f" directory, or set bookie.id to {cookie.bookie_id!r}, which its ledgers name"
        )
    if instance_id and cookie.instance_id and cookie.instance_id != instance_id:
        raise IdentityError(
            f"{found.directory} belongs to the cluster with the instance id {cookie.instance_id}, the metadata store"
            f" is of {instance_id}. Likely metadata.uri points to another cluster, or the metadata was formatted."
            " Correct metadata.uri; if that cluster is gone for good, move the directory's content aside, and this"
            " bookie begins anew"
        )
    if found.identity is None and not is_known:
        raise IdentityError(
            f"{found.directory} has a cookie but no {NAME}. Likely it is a directory of an Apache bookie, whose data"
            f" fastbk cannot serve, or {NAME} was deleted. Configure an empty directory, or restore {NAME} from a"
            " backup of the bookie"
        )


def _check_own(bookie_id: str, found: DirectoryContent, identity: Identity) -> None:
    if identity.bookie_id != bookie_id:
        raise IdentityError(
            f"{found.directory} belongs to bookie {identity.bookie_id!r}, this one is {bookie_id!r}. Likely the"
            " directory of another bookie was configured, or this bookie's address changed. Correct the directory,"
            f" or set bookie.id to {identity.bookie_id!r}"
        )
    place = DirectoryPlace(identity.role, identity.pair)
    if place != found.place:
        advice = (
            "Swap the directories of [journal] and [ledgers] back"
            if place.role != found.place.role
            else "The order of directories is for good: put them back into the one they had"
        )
        raise IdentityError(
            f"{found.directory} is a {place}, but is configured as the {found.place}."
            f" Likely two settings were swapped. {advice}"
        )
    cookie = found.cookie
    listed = (
        () if cookie is None else cookie.journals if place.role == "journal" else cookie.ledgers
    )
    if cookie is not None and identity.directory_id not in listed:
        raise IdentityError(
            f"the cookie in {found.directory} lists the {identity.role} directories {_some(listed) or 'none'}, but"
            f" {NAME} there says that this is {identity.directory_id}. Likely one of the two files was copied from"
            " another directory. Put the directory back as it was, both files together"
        )


def _check_alike(found: Sequence[DirectoryContent]) -> None:
    present = [(each, each.identity) for each in found if each.identity is not None]
    for (a, mine), (b, other) in itertools.combinations(present, 2):
        if mine.incarnation != other.incarnation:
            raise IdentityError(
                f"{a.directory} (incarnation {mine.incarnation}) and {b.directory} ({other.incarnation}) come from"
                f" two different lives of bookie {mine.bookie_id!r}. Likely one of them was restored from a copy or"
                " belongs to another machine. Configure the two that belong together"
            )
        if mine.shards != other.shards:
            raise IdentityError(
                f"{a.directory} and {b.directory} say different things about which pair has which shard. Likely one of"
                " them was restored from a copy made before shards were moved. Mount the one that was used last"
            )
        if mine.directory_id == other.directory_id:
            raise IdentityError(
                f"{a.directory} and {b.directory} are copies of one directory (id {mine.directory_id}). Configure the"
                " one that was used last"
            )


def _judge_known(
    bookie_id: str, found: Sequence[DirectoryContent], known: KnownBookie, *, expand: bool
) -> Verdict:
    pairs = configured_pairs(found)
    present = {each.identity.directory_id for each in found if each.identity is not None}
    missing = [f"{known.places[one]} {one}" for one in known.places if one not in present]
    added = [each for each in found if _is_added(each, known)]
    if not missing and added:
        if not expand:
            raise IdentityError(
                f"the {added[0].place} {added[0].directory} is empty and none of those that the metadata store lists"
                f" for bookie {bookie_id!r}, which are all there. Likely it is to be added. Run `fastbk bookie expand"
                " --config FILE` while the bookie is stopped, or take the directory out of the configuration"
            )
        _check_known(bookie_id, [each for each in found if each not in added], known)
        return Verdict.EXPANDED
    _check_known(bookie_id, found, known)
    if missing:
        raise IdentityError(
            f"bookie {bookie_id!r} was born with more directories than are configured (missing: {_some(missing)})."
            " Configure all of them"
        )
    if expand and any(each.identity.pairs < pairs for each in found if each.identity is not None):
        return Verdict.EXPANDED  # metadata has heard of it already
    _check_listed(bookie_id, found, known)
    _check_pairs(found, pairs)
    return Verdict.KNOWN


def configured_pairs(found: Sequence[DirectoryContent]) -> int:
    """Return how many pairs the configured directories make."""
    return 1 + max(each.place.pair for each in found)


def _check_pairs(found: Sequence[DirectoryContent], pairs: int) -> None:
    for each in found:
        if each.identity is not None and each.identity.pairs != pairs:
            raise IdentityError(
                f"{each.directory} is of a bookie with {each.identity.pairs} journal/index pairs, {pairs} are"
                " configured. Likely an expansion was cut short, or directories are missing in the configuration."
                " Configure all of them; if they are, run `fastbk bookie expand --config FILE` again"
            )


def _is_added(found: DirectoryContent, known: KnownBookie) -> bool:
    """Return whether a directory is empty, or was stamped by an expansion that was cut short."""
    if found.data:
        return False
    identity = found.identity
    if identity is None:
        return found.is_empty
    return identity.incarnation_number == known.incarnation and (
        identity.directory_id not in known.places
    )


def _check_known(bookie_id: str, found: Sequence[DirectoryContent], known: KnownBookie) -> None:
    for each in found:
        identity = each.identity
        if identity is None:
            raise _is_wiped(bookie_id, each, known)
        if identity.incarnation_number != known.incarnation:
            raise IdentityError(
                f"{each.directory} is of incarnation {identity.incarnation}, the metadata store knows"
                f" {known.incarnation:016x} for bookie {bookie_id!r}. Likely an old copy of the directory is mounted,"
                " or the bookie was born again elsewhere. Mount the right directory"
            )
        if known.places.get(identity.directory_id) != each.place:
            raise IdentityError(
                f"the {each.place} {each.directory} (id {identity.directory_id}) is none of those that"
                f" the metadata store lists for bookie {bookie_id!r}. Likely a directory was added or replaced."
                " Configure the directories that the bookie was born with"
            )
        if identity.starts < known.starts:
            raise IdentityError(
                f"the {each.place} {each.directory} has seen {identity.starts} starts of bookie {bookie_id!r}, the"
                f" metadata store {known.starts}. Likely the directory was restored from an old copy, or a copy of it"
                " was started elsewhere: what was written since is missing in it. Mount the directory that was used"
                " last; if that one is gone for good, move the content of all this bookie's directories aside and"
                " start once with --accept-data-loss"
            )


def _check_listed(bookie_id: str, found: Sequence[DirectoryContent], known: KnownBookie) -> None:
    for each in found:
        listed = each.cookie.journals + each.cookie.ledgers if each.cookie else ()
        unknown = [one for one in listed if one not in known.places]
        if unknown:
            raise IdentityError(
                f"the cookie in {each.directory} lists a directory that the metadata store does not list for bookie"
                f" {bookie_id!r} ({_some(unknown)}). Likely an expansion was cut short. Run `fastbk bookie expand"
                " --config FILE` again with all directories configured"
            )


def _is_wiped(bookie_id: str, found: DirectoryContent, known: KnownBookie) -> IdentityError:
    left = [*found.data, *(["a cookie"] if found.cookie else [])]
    holds = f"holds {_some(left)} but no {NAME}" if left else "is empty"
    logs = (
        " Journal files may be entry logs, too: without them entries are lost even after a clean stop."
        if found.place.role == "journal"
        else ""
    )
    return IdentityError(
        f"the metadata store knows bookie {bookie_id!r} (incarnation {known.incarnation:016x}), but its"
        f" {found.place} {found.directory} {holds}. Likely the disk is not mounted, the path is wrong,"
        f" or the data was deleted. Mount or restore it.{logs} A bookie never starts empty under an id that holds"
        f" data: if the data is gone for good, run `fastbk bookie recover {bookie_id}`, which copies what it"
        " held from others, and start a bookie under a new id; or, to have this id back, move what is left of"
        " all its directories aside and start once with --accept-data-loss"
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
