"""The small files of a directory, each shown whole: manifest, mark, identity, cookie, deletion log."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.inspect.items import FileReader, Item, damage
from fastbk.model import cookie as cookie_model
from fastbk.storage import cookie_file as cookie_file
from fastbk.storage import identity, limbo, manifest, scrub_state, small_files, unclean
from fastbk.storage.directories import DELETION_LOG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.inspect.items import Fact

SIZE_BYTES_MAX = 256 << 20
"""Of a list of ids; of a manifest and a log, whose JSON takes several times as much in memory:"""
JSON_BYTES_MAX = 128 << 20
SMALL_BYTES_MAX = 1 << 20
"""Maximum bytes of files that have a few lines."""
LINE_BYTES_MAX = 16 << 20
LINE_BYTES_SHOWN = 200
_ABSENT = {
    DELETION_LOG_NAME: "nothing was deleted or dropped there yet, or it is no ledger directory",
    limbo.NAME: "no rebirth waits there for its first start",
    unclean.NAME: "the last stop was a clean one, or it is no ledger directory",
    scrub_state.NAME: "no scrub has begun there, or it is no ledger directory",
}
"""What it means that a directory has no such file."""


def read_manifest(path: str) -> Iterator[Item]:
    """Yield an item for each slot of a ledger directory, or for the one file. Raises StorageError if none is there."""
    paths = [os.path.realpath(path)]
    if os.path.isdir(path):
        paths = [f"{path}/{name}" for name in manifest.SLOTS if os.path.exists(f"{path}/{name}")]
        if not paths:
            raise StorageError(f"{path} holds no manifest: is it a ledger directory?")
        for name in manifest.SLOTS:
            if f"{path}/{name}" not in paths:
                yield damage(0, "missing", file=f"{path}/{name}")
    slots = [_slot(one) for one in paths]
    generations = [_generation(slot) for slot in slots]
    for slot, generation in zip(slots, generations, strict=True):
        if not slot.is_damage and len(paths) > 1:
            slot.facts["counts"] = generation == max(generations)
        yield slot


def read_mark(path: str) -> Iterator[Item]:
    """Yield up to where the journal is contained in a ledger directory, as the newest slot of its manifest says."""
    slots = list(read_manifest(path))
    whole = [slot for slot in slots if not slot.is_damage]
    yield from (slot for slot in slots if slot.is_damage)
    if not whole:
        return
    newest = max(whole, key=_generation)
    names = ("file", "generation", "mark", "clean")
    yield Item("mark", 0, {name: newest.facts.get(name) for name in names})


def logs_listed_for(path: str) -> dict[int, int] | None:
    """Return log id -> bytes that count, by the manifest of the directory that an entry log or locations file is in.

    None where no manifest says so.
    """
    directory = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    try:
        slots = [slot for slot in read_manifest(directory) if not slot.is_damage]
    except StorageError:
        return None
    if not slots:
        return None
    logs = max(slots, key=_generation).facts.get("logs")
    assert isinstance(logs, list)  # a slot that could be decoded has them
    return {log["log_id"]: log["durable_bytes"] for log in logs}  # type: ignore[index]


def read_identity(path: str) -> Iterator[Item]:
    """Yield what `identity.json` of a directory, or the file itself, says."""
    path = _inside(path, identity.NAME)
    raw = _whole(path, SMALL_BYTES_MAX)
    try:
        facts = msgspec.to_builtins(identity.decode(raw, path))
    except StorageError as error:
        yield damage(0, str(error), len(raw), readable=_text(raw))
        return
    facts["shards"] = list(facts["shards"])
    yield Item("identity", 0, {"file": path, **facts})


def read_cookie(path: str) -> Iterator[Item]:
    """Yield what the cookie of a directory, or the file itself, says."""
    path = _inside(path, cookie_file.NAME)
    raw = _whole(path, SMALL_BYTES_MAX)
    try:
        cookie = cookie_model.decode(raw, path)
    except StorageError as error:
        yield damage(0, str(error), len(raw), readable=_text(raw))
        return
    facts: dict[str, Fact] = {
        "file": path,
        "bookie_id": cookie.bookie_id,
        "journals": list(cookie.journals),
        "ledgers": list(cookie.ledgers),
        "instance_id": cookie.instance_id,
    }
    yield Item("cookie", 0, facts)


def read_limbo(path: str) -> Iterator[Item]:
    """Yield the ledgers that wait to be put into limbo."""
    path = _inside(path, limbo.NAME)
    raw = _whole(path, SIZE_BYTES_MAX)
    try:
        incarnation, ids = limbo.decode(raw, path)
    except StorageError as error:
        yield damage(0, str(error), len(raw))
        return
    facts: dict[str, Fact] = {"file": path, "incarnation": f"{incarnation:016x}"}
    yield Item("limbo", 0, {**facts, "count": len(ids), "ledgers": list(ids)})


def read_scrub(path: str) -> Iterator[Item]:
    """Yield how far a directory's scrub is, then what it has in quarantine, and what came with wrong digests."""
    path = _inside(path, scrub_state.NAME)
    raw = _whole(path, JSON_BYTES_MAX)
    try:
        state = small_files.decode(raw, scrub_state.ScrubState, scrub_state.FORMAT, path)
    except StorageError as error:
        yield damage(0, str(error), len(raw), readable=_text(raw))
        return
    facts = msgspec.to_builtins(state)
    quarantined = facts.pop("quarantined")
    bad_digests = facts.pop("bad_digests")
    counts = {"quarantined": len(quarantined), "bad_digests": len(bad_digests)}
    yield Item("scrub", 0, {"file": path, **facts, **counts})
    for one in quarantined:
        yield Item("quarantined", 0, one)
    for digest in bad_digests:
        yield Item("bad digests", 0, digest)


def read_unclean(path: str) -> Iterator[Item]:
    """Yield what a life that has not stopped cleanly, or still goes on, has left."""
    path = _inside(path, unclean.NAME)
    raw = _whole(path, SMALL_BYTES_MAX)
    try:
        flag = unclean.decode(raw, path)
    except StorageError as error:
        yield damage(0, str(error), len(raw), readable=_text(raw))
        return
    yield Item("unclean", 0, {"file": path, **msgspec.to_builtins(flag)})


def read_audit(path: str) -> Iterator[Item]:
    """Yield each line of the deletion log of a directory, or of the file itself."""
    path = _inside(path, DELETION_LOG_NAME)
    at = 0
    for line in _whole(path, JSON_BYTES_MAX).split(b"\n"):
        if len(line) > LINE_BYTES_MAX:
            yield damage(at, "a line that is longer than any", len(line), readable=_text(line))
        elif line:
            try:
                event = msgspec.json.decode(line, type=dict[str, object])
                yield Item("event", at, {"event": event})
            except (ValueError, RecursionError):
                yield damage(at, "no whole line", len(line), readable=_text(line))
        at += len(line) + 1


def _slot(path: str) -> Item:
    raw = _whole(path, JSON_BYTES_MAX)
    try:
        manifest.decode(raw, path)
    except StorageError as error:
        return damage(0, str(error), len(raw), readable=_text(raw[manifest.HEADER_BYTES :]))
    # As it stands in the file: fields that this version does not know are of interest, too.
    body_bytes = manifest.HEADER.unpack_from(raw)[4]
    body = raw[manifest.HEADER_BYTES : manifest.HEADER_BYTES + body_bytes]
    return Item("manifest", 0, {"file": path, **json.loads(body)})


def _generation(slot: Item) -> int:
    generation = slot.facts.get("generation", -1)
    return generation if isinstance(generation, int) else -1


def _inside(path: str, name: str) -> str:
    """Return the path of the file. Raises StorageError where a directory has none, and need not have one."""
    if not os.path.isdir(path):
        # a link that was named is meant; one in a directory is not followed
        return os.path.realpath(path)
    if name in _ABSENT and not os.path.lexists(f"{path}/{name}"):
        raise StorageError(f"{path} has no {name}: {_ABSENT[name]}")
    return f"{path}/{name}"


def _whole(path: str, bytes_max: int) -> bytes:
    with FileReader(path) as source:
        if source.size_bytes > bytes_max:
            raise StorageError(f"{path} has {source.size_bytes} bytes: not a file of this kind")
        return source.read(0, source.size_bytes)


def _text(raw: bytes) -> str:
    """Return the beginning of damaged bytes as text, for people."""
    shown = raw[:LINE_BYTES_SHOWN].decode("utf-8", "replace")
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in shown)
