"""Which rights a change of a ledger needs: decided by what it was and what it is to be. Pure.

INV-W1: a gateway makes no change of a ledger whose difference needs a right that the client lacks.
INV-W2: by a gateway no closed ledger is opened or ends elsewhere, and no ledger gets another password, digest, quorum
or creation token, whoever wants it. Copies of what has ended, which bookies delete where a ledger names others for
them, are only moved by whoever has `admin`.
"""

from __future__ import annotations

from fastbk.gateway.rules import ADD, ADMIN, DELETE, RECOVER, WRITE, ForbiddenChange, Need
from fastbk.model.ledger import CURSOR_KEY, NAMESPACE_KEY, STREAM_KEY, LedgerMetadata, LedgerState
from fastbk.replication.ack_domains import ACK_DOMAINS_KEY, is_moved
from fastbk.security.rights import Right

CREATE, CLOSE, RECOVERY, ENSEMBLE, EDIT = (
    "create",
    "close",
    "begin recovery of",
    "change the ensemble of",
    "edit",
)
REMOVE = "delete"
OWN_KEYS = "fastbk."
"""How keys of custom metadata begin that say what fastbk does with a ledger."""
METADATA_BYTES_MAX = 256 * 1024
"""Maximum bytes of a ledger's metadata as stored: its ensembles of a thousand changes, and its custom metadata."""
CUSTOM_BYTES_MAX = 16 * 1024
"""Maximum bytes of custom metadata, keys and values, tags too."""
ENTRY_ID_MAX = (1 << 40) - 1
"""The last entry of a ledger that a client closes: a million a second for twelve days."""
ENTRY_BYTES_MAX = 128 * 1024 * 1024
"""Maximum bytes of an entry: more than any bookie takes."""
_FIXED_FIELDS = (
    "ensemble_size",
    "write_quorum",
    "ack_quorum",
    "digest_type",
    "password",
    "created_ms",
    "creation_token",
    "unknown_fields",
)
_NEXT_STATES = {
    LedgerState.OPEN: {LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED},
    LedgerState.IN_RECOVERY: {LedgerState.IN_RECOVERY, LedgerState.CLOSED},
    LedgerState.CLOSED: {LedgerState.CLOSED},
}


def needs_of_creation(new: LedgerMetadata) -> tuple[Need, ...]:
    """Return what creating a ledger needs. Raises ForbiddenChange for one that says it has entries already."""
    if new.state is not LedgerState.OPEN and not new.is_empty:
        raise ForbiddenChange(
            "a ledger is created open, or closed without an entry: it has none yet"
        )
    _check_ledger_size(new)
    return (Need(ADD, CREATE),)


def needs_of_deletion(old: LedgerMetadata) -> tuple[Need, ...]:
    """Return what deleting a ledger needs. One without entries, and a cursor's, whoever may add may delete."""
    is_working = old.is_empty or (STREAM_KEY in old.custom and CURSOR_KEY in old.custom)
    return (Need(DELETE | ADD if is_working else DELETE, REMOVE),)


def needs_of_update(old: LedgerMetadata, new: LedgerMetadata) -> tuple[Need, ...]:
    """Return all that a change of a ledger needs. Raises ForbiddenChange for one that nobody may make (INV-W2)."""
    for name in _FIXED_FIELDS:
        if getattr(old, name) != getattr(new, name):
            raise ForbiddenChange(f"the {name.replace('_', ' ')} of a ledger never changes")
    if new.state not in _NEXT_STATES[old.state]:
        raise ForbiddenChange(f"a ledger that is {old.state.name} does not become {new.state.name}")
    if old.is_closed and (old.last_entry_id, old.length) != (new.last_entry_id, new.length):
        raise ForbiddenChange("a closed ledger keeps its last entry and length")
    if old.custom != new.custom or old.fragments != new.fragments:
        _check_ledger_size(new)
    needs = [
        *_needs_of_state(old, new),
        *_needs_of_fragments(old, new),
        *_needs_of_custom(old, new),
    ]
    return tuple(needs) or (Need(WRITE, EDIT),)


def _needs_of_state(old: LedgerMetadata, new: LedgerMetadata) -> list[Need]:
    if old.state is new.state:
        return []
    if new.state is LedgerState.IN_RECOVERY:
        return [Need(RECOVER, RECOVERY)]
    # A fragment begins behind what was acknowledged (INV-E1): the ledger cannot end before that.
    if new.last_entry_id < old.fragments[-1].first_entry_id - 1:
        raise ForbiddenChange(
            f"the ledger ends at entry {new.last_entry_id}, and entries up to"
            f" {old.fragments[-1].first_entry_id - 1} were acknowledged"
        )
    if new.last_entry_id > ENTRY_ID_MAX or new.length > (new.last_entry_id + 1) * ENTRY_BYTES_MAX:
        raise ForbiddenChange(
            f"a ledger does not end at entry {new.last_entry_id} with {new.length} bytes: no bookie holds such entries"
        )
    return [Need(WRITE, CLOSE)]


def _check_ledger_size(new: LedgerMetadata) -> None:
    custom_bytes = sum(len(key.encode()) + len(value) for key, value in new.custom.items())
    if custom_bytes > CUSTOM_BYTES_MAX:
        raise ForbiddenChange(
            f"custom metadata of {custom_bytes:,} bytes: a ledger has {CUSTOM_BYTES_MAX:,} at most"
        )
    size_bytes = len(new.to_bytes())
    if size_bytes > METADATA_BYTES_MAX:
        raise ForbiddenChange(
            f"metadata of {size_bytes:,} bytes: a ledger has {METADATA_BYTES_MAX:,} at most"
        )


def _needs_of_fragments(old: LedgerMetadata, new: LedgerMetadata) -> list[Need]:
    if old.fragments == new.fragments:
        return []
    if new.fragments[0].first_entry_id != old.fragments[0].first_entry_id:
        raise ForbiddenChange("the first fragment of a ledger begins where it began")
    # Bookies delete the entries of ledgers that name others for them. What a writer or a recovery changes is where the
    # last fragment goes on; all before that is a repair's, as is everything once the ledger is closed.
    *earlier, last = old.fragments
    kept, rest = list(new.fragments[: len(earlier)]), new.fragments[len(earlier) :]
    is_of_tail = kept == earlier and all(one.first_entry_id >= last.first_entry_id for one in rest)
    return [Need(WRITE if is_of_tail and not old.is_closed else ADMIN, ENSEMBLE)]


def _needs_of_custom(old: LedgerMetadata, new: LedgerMetadata) -> list[Need]:
    changed = {
        key for key in {*old.custom, *new.custom} if old.custom.get(key) != new.custom.get(key)
    }
    # A ledger that is attached to a stream says so, and what namespace that is of, once. Its retention deletes the
    # ledger then, and readers of the ledger lose it.
    attaching = {STREAM_KEY, NAMESPACE_KEY} if STREAM_KEY in changed - old.custom.keys() else set()
    if is_moved(old.custom, new.custom) and old.fragments[-1] != new.fragments[-1]:
        changed.discard(ACK_DOMAINS_KEY)  # a writer says where new members are (INV-P5)
    return [
        Need(_right_of_key(key, attaching - old.custom.keys()), f"edit {key[:40]} of")
        for key in sorted(changed)
    ]


def _right_of_key(key: str, attaches: set[str]) -> Right:
    if not key.startswith(OWN_KEYS):
        return ADD
    return DELETE if key in attaches else ADMIN  # they say who may do what
