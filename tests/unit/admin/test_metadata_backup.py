"""A backup of metadata is whole or refused, misses nothing that it names, and is restored as often as it takes."""

from __future__ import annotations

import math
import random
import stat
from collections.abc import Callable
from contextlib import closing
from itertools import count
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastbk.admin import metadata_backup
from fastbk.admin.metadata_backup import (
    LEFT_OUT_MAX,
    MAGIC,
    ArchiveWriter,
    Bookie,
    End,
    Head,
    Ledger,
    Ledgers,
    Record,
    Records,
    backup,
    check_archive,
    differences,
    items_of,
    raise_if_half_restored,
    read_archive,
    restore,
)
from fastbk.admin.metadata_backup import Change as ChangeMeanwhile
from fastbk.admin.metadata_rebuild import read_collection, remade_store
from fastbk.coordination.records import LeaseRecord, put_record
from fastbk.errors import ConfigError, MetadataConflict, MetadataUnavailable, StorageError
from fastbk.formats import LEVEL_MAX
from fastbk.meta import open_store
from fastbk.meta.api import BookieIdentity, DirectoryIdentity, MetadataStore
from fastbk.meta.format_level import LEVEL_PATH, raise_level, read_record
from fastbk.meta.health_records import BACKUP_PATH as LAST_BACKUP_PATH
from fastbk.meta.health_records import LastBackup, backup_age_s, note_backup, read_last_backup
from fastbk.meta.records import Change, collected_bad_records
from fastbk.meta.rollback import RESERVE_IDS, Mark, raise_mark, read_hold
from fastbk.meta.sqlite.store import MemoryStore
from fastbk.native.hashes import crc32c
from fastbk.stream.chain import Chain, StreamKind, open_for_append, put_chain
from fastbk.stream.kind import put_table
from fastbk.stream.namespace.tree import NamespaceRecord, put
from fastbk.stream.paths import (
    SERVICES,
    chain_path,
    coordination_path,
    namespace_path,
    page_part,
    producers_path,
    service_path,
)
from fastbk.stream.pattern.store import PatternRecord, path_of, put_pattern
from fastbk.stream.policy import PolicyPatch
from tests.fixtures.metadata import metadata, service
from tests.fixtures.zookeeper import ZooKeeperPlace

_numbers = count()


def new_store() -> MemoryStore:
    return MemoryStore(f"backup {next(_numbers)}")


def identity(name: str) -> BookieIdentity:
    places = (DirectoryIdentity("0a", "journal"), DirectoryIdentity("0b", "ledger"))
    return BookieIdentity(name, 7, places, 3)


def fill(store: MetadataStore, rng: random.Random, ledgers: int = 1500) -> None:
    for ledger_id in rng.sample(range(5000), ledgers):
        store.create_ledger(ledger_id, metadata(rng.choice([None, 5]), token=ledger_id))
    for number in range(ledgers // 2):
        path = "/".join(rng.choice("abcd.-") for _ in range(rng.randrange(1, 5)))
        if ".." in path or path.startswith(".") or "/." in path:
            continue
        (found,) = store.records.read([f"streams/{path}"])
        version = None if found is None else found.version
        store.records.change([Change(f"streams/{path}", b"%d" % number, version)])
    for path in ("namespaces/aa/aaaa", "namespaces/aa/bbbb"):
        store.records.change([Change(path, bytes(600_000))])
    store.records.change(
        [Change("autorecovery/settings", b"{}"), Change("autorecovery/votes/1", b"x")]
    )
    store.records.change([Change("under_replicated/00/00", b"x")])
    for name in ("b1", "b2"):
        store.write_identity(identity(name), None)
    raise_level(store, 2)
    store.coordination.disable()
    store.coordination.set_lost_bookie_delay(77)


def remade(uri_of: MetadataStore, path: Path) -> MetadataStore:
    """Open an empty store with the id of the other one."""
    return open_store(f"sqlite:{path}", new_instance_id=uri_of.instance_id())


def test_what_comes_back_is_what_was_there(tmp_path: Path, rng: random.Random) -> None:
    store = new_store()
    fill(store, rng)
    file = tmp_path / "backup"
    summary = backup(store, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it holds passwords"
    assert summary.end.changes == 0
    assert list(differences(file, store)) == []
    again = remade(store, tmp_path / "new")
    done = restore(again, file)
    assert list(differences(file, again)) == []
    assert done.ledgers == 1500
    assert read_hold(again) is not None
    assert again.records.read(["autorecovery/votes/1", "under_replicated/00/00"]) == [None, None]
    assert read_record(again) == read_record(store), "the format level"
    assert again.coordination.lost_bookie_delay_s() == 77
    assert not again.coordination.is_enabled()
    assert again.next_ledger_id() > summary.end.highest_drawn_id + RESERVE_IDS, "INV-M3"
    assert restore(again, file).was_complete
    again.close()


PATTERN = Change(path_of("aaaa", "c"), put_pattern(PatternRecord("*")))
PLACED = Change(namespace_path("bbbb"), put(NamespaceRecord(policy=PolicyPatch(placement="rack"))))

OF_PRODUCERS = Change(
    chain_path("cccc"), put_chain(open_for_append(Chain("cccc"), "service", StreamKind.PRODUCERS))
)
THEIR_PAGE = Change(f"{producers_path('cccc')}/{page_part(1, 1)}", put_table(()))
LEASE = Change(f"{coordination_path('dddd')}/leader", put_record(LeaseRecord(1)))


@pytest.mark.parametrize(
    ("level", "raised", "record"),
    [
        (b"", 3, PATTERN),
        (b"no json", LEVEL_MAX, PATTERN),
        (b'{"level": 2}', 3, PATTERN),
        (b'{"level": 2}', 4, PLACED),
        (b'{"level": 2}', 4, OF_PRODUCERS),
        (b'{"level": 2}', 4, THEIR_PAGE),
        (b'{"level": 2}', 4, LEASE),
    ],
)
def test_a_restore_raises_the_level_to_what_the_records_need(
    tmp_path: Path, level: bytes, raised: int, record: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-U4: else an older janitor may start, which does not look for the cursors of patterns that came back.

    A damaged record may have said any level.
    """
    store, file = new_store(), tmp_path / "backup"
    (found,) = store.records.read([LEVEL_PATH])
    assert found is not None
    store.records.change([Change(LEVEL_PATH, level or None, found.version)])
    store.records.change([record])
    backup(store, file)
    again = remade(store, tmp_path / "new")

    def cut_off(*_: object) -> None:
        raise MetadataUnavailable("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(metadata_backup, "_write_switches", cut_off)
        with pytest.raises(MetadataUnavailable):
            restore(again, file)
    assert read_record(again).level == raised
    assert restore(again, file).level_raised == 0, "it was raised before"
    assert read_record(again).level == raised
    assert restore(remade(store, tmp_path / "another"), file).level_raised == raised
    again.close()


def test_write_services_are_in_no_backup(tmp_path: Path) -> None:
    """Those of today would be dead services in the cluster that is restored."""
    store, file = new_store(), tmp_path / "backup"
    store.records.change([Change(service_path("s1"), b"{}")])
    backup(store, file)
    assert list(differences(file, store)) == []
    again = remade(store, tmp_path / "new")
    restore(again, file)
    assert again.records.children(SERVICES) == []
    again.close()


def test_a_backup_of_an_ensemble_comes_back_in_another(
    zookeeper: ZooKeeperPlace, tmp_path: Path, rng: random.Random
) -> None:
    """Its transactions are numbered beyond 32 bits, as those of every ensemble (INV-M14)."""
    file = tmp_path / "backup"
    with closing(open_store(zookeeper.uri())) as store:
        fill(store, rng, ledgers=300)  # each costs several round trips; the other test has many
        backup(store, file)
        uri = zookeeper.location("/restored").uri
        with closing(remade_store(uri, store.instance_id())) as again:
            restore(again, file)
            assert list(differences(file, again)) == []
            assert restore(again, file).was_complete


@pytest.mark.parametrize("chosen", [2**62 - 1, 2**62 - 500, 2**50])
def test_an_id_that_somebody_chose_does_not_stop_a_restore(
    zookeeper: ZooKeeperPlace, tmp_path: Path, chosen: int
) -> None:
    """INV-M3: ids are drawn above those that the counter gave out, also where an older mark has the chosen one."""
    file = tmp_path / "backup"
    with closing(open_store(zookeeper.uri())) as store:
        drawn = store.next_ledger_id()
        for ledger_id in (drawn, chosen):
            store.create_ledger(ledger_id, metadata())
        raise_mark(store, Mark(highest_id=chosen))
        backup(store, file)
        uri = zookeeper.location("/restored").uri
        with closing(remade_store(uri, store.instance_id())) as again:
            restore(again, file)
            assert again.list_ledgers() == [drawn, chosen]
            assert drawn + RESERVE_IDS < again.next_ledger_id() < drawn + 2 * RESERVE_IDS


def test_damage_anywhere_is_noticed_before_anything_is_written(
    tmp_path: Path, rng: random.Random
) -> None:
    """INV-M12."""
    store = new_store()
    fill(store, rng)
    file = tmp_path / "backup"
    backup(store, file)
    whole = file.read_bytes()
    empty = remade(store, tmp_path / "new")
    positions = [0, len(MAGIC), len(MAGIC) + 5, len(whole) - 1, *rng.sample(range(len(whole)), 30)]
    for at in positions:
        for raw in (
            whole[:at],
            whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :],
        ):
            file.write_bytes(raw)
            with pytest.raises(StorageError):
                restore(empty, file)
    file.write_bytes(whole + whole[len(MAGIC) :])
    with pytest.raises(StorageError, match="behind its last part"):
        check_archive(file)
    assert empty.records.children("") == []
    assert empty.list_ledgers() == []
    empty.close()


def test_frames_in_another_order_are_noticed(tmp_path: Path, rng: random.Random) -> None:
    """INV-M12."""
    store = new_store()
    fill(store, rng)
    file = tmp_path / "backup"
    backup(store, file)
    raw, frames = file.read_bytes(), []
    at = len(MAGIC)
    while at < len(raw):
        end = at + 8 + int.from_bytes(raw[at : at + 4], "little")
        frames.append(raw[at:end])
        at = end
    assert len(frames) > 5
    for others in (
        [frames[0], frames[2], frames[1], *frames[3:]],
        [frames[0], *frames[2:]],
        [*frames[:2], frames[1], *frames[2:]],
        frames[:-1],
    ):
        file.write_bytes(MAGIC + b"".join(others))
        with pytest.raises(StorageError, match="damaged"):
            check_archive(file)


class Busy(MemoryStore):
    """Somebody works in it while it is read: before each listing of ledgers, and before the records are compared."""

    def __init__(self, between: Callable[[MetadataStore], None]) -> None:
        super().__init__(f"backup {next(_numbers)}")
        self.between: Callable[[MetadataStore], None] | None = between

    def list_ledgers(self, after: int = -1, count_max: int = 1000) -> list[int]:
        between, self.between = self.between, None
        if between is not None:
            between(self)
        return super().list_ledgers(after, count_max)


def test_what_changes_meanwhile_is_listed_and_no_named_ledger_is_missing(tmp_path: Path) -> None:
    """INV-M11: a stream goes on in a new segment, another one is truncated, and a third one is made."""

    def work(store: MetadataStore) -> None:
        store.create_ledger(3, metadata())
        chain, old = store.records.read(["streams/aa/chain", "streams/bb/chain"])
        assert chain is not None
        assert old is not None
        store.records.change([Change("streams/aa/chain", b"1 2 3", chain.version)])
        store.records.change([Change("streams/bb/chain", b"5", old.version)])
        store.delete_ledger(4)
        store.records.change([Change("streams/cc", b"new")])

    store = Busy(work)
    for ledger_id in (1, 2, 4, 5):
        store.create_ledger(ledger_id, metadata(3))
    store.records.change([Change("streams/aa/chain", b"1 2"), Change("streams/bb/chain", b"4 5")])
    file = tmp_path / "backup"
    summary = backup(store, file)
    chains = [one for one in items_of(file, Records, Record) if one.path.startswith("streams/")]
    named = {int(one) for chain in chains for one in chain.value.split()}
    there = {
        one.ledger_id
        for frame in read_archive(file)
        if isinstance(frame, Ledgers)
        for one in frame.items
    }
    assert named - there == {4}
    changes = {str(one) for one in summary.changes}
    assert changes == {
        "changed record streams/aa/chain",
        "changed record streams/bb/chain",
        "added record streams/cc",
    }
    assert {str(one) for one in differences(file, store)} == changes


def test_a_ledger_deleted_while_the_backup_was_made_does_not_come_back(tmp_path: Path) -> None:
    """INV-M11."""
    store = Busy(lambda _: None)
    for ledger_id in (1, 2):
        store.create_ledger(ledger_id, metadata(3))
    calls = count()

    def identities() -> list[BookieIdentity]:
        if next(calls) == 0:
            store.delete_ledger(1)
        return []

    store.list_identities = identities  # type: ignore[method-assign]
    file = tmp_path / "backup"
    summary = backup(store, file)
    assert summary.deleted == {1}
    assert [str(one) for one in summary.changes] == ["deleted ledger 1"]
    again = remade(store, tmp_path / "new")
    assert restore(again, file).deleted == 1
    assert again.list_ledgers() == [2]
    again.close()


class Failing:
    """A store of which the n-th change fails, done or not."""

    def __init__(self, store: MetadataStore, nth: int, *, is_done: bool) -> None:
        self._store = store
        self._left = nth
        self._is_done = is_done
        self.records = self

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name, None)
        if found is None:
            found = getattr(self._store.records, name)
        if name not in ("change", "create_ledger", "write_identity", "move_ids_above"):
            return found

        def call(*args: object, **options: object) -> object:
            self._left -= 1
            if self._left:
                return found(*args, **options)
            if self._is_done:
                found(*args, **options)
            raise MetadataUnavailable("away")

        return call


@pytest.mark.parametrize("is_done", [True, False])
def test_a_restore_that_is_cut_off_anywhere_is_run_again(tmp_path: Path, is_done: bool) -> None:
    """INV-M13."""
    store = new_store()
    for ledger_id in range(3):
        store.create_ledger(ledger_id, metadata(3))
    store.records.change([Change("streams/aa", b"x"), Change("streams/aa/chain", b"y")])
    store.write_identity(identity("b1"), None)
    file = tmp_path / "backup"
    backup(store, file)
    for nth in count(1):
        again = remade(store, tmp_path / f"{is_done}-{nth}")
        try:
            restore(Failing(again, nth, is_done=is_done), file)  # type: ignore[arg-type]
        except MetadataUnavailable:
            if read_hold(again) is None:
                assert not again.list_ledgers(), "on hold before the first ledger"
            if again.records.read(["cluster/restore"]) != [None] and again.list_identities() == []:
                with pytest.raises(MetadataConflict, match="cut off"):
                    raise_if_half_restored(again)
            restore(again, file)
            assert list(differences(file, again)) == []
            raise_if_half_restored(again)
            again.close()
            continue
        again.close()
        break
    assert nth > 7


def test_only_an_empty_store_of_the_same_cluster_is_filled(tmp_path: Path) -> None:
    """INV-M13."""
    store = new_store()
    store.create_ledger(1, metadata(3))
    file = tmp_path / "backup"
    backup(store, file)
    with pytest.raises(ConfigError, match="of the cluster"):
        restore(new_store(), file)
    with pytest.raises(MetadataConflict, match="not empty: ledger 1"):
        restore(store, file)
    again = remade(store, tmp_path / "new")
    lease = again.register_bookie(service(), writable=True)
    with pytest.raises(MetadataConflict, match="bookies run"):
        restore(again, file)
    lease.close()
    restore(again, file)
    later = tmp_path / "later"
    store.create_ledger(2, metadata(3))
    backup(store, later)
    with pytest.raises(MetadataConflict, match="another backup"):
        restore(again, later)
    again.close()


def test_metadata_says_when_it_was_backed_up(tmp_path: Path) -> None:
    store = new_store()
    assert read_last_backup(store) is None
    newest = LastBackup(began_ms=5000, backup_id="b")
    for taken in (
        LastBackup(began_ms=4000, backup_id="a"),
        newest,
        LastBackup(began_ms=1, backup_id="c"),
    ):
        note_backup(store, taken)
    assert read_last_backup(store) == newest
    assert newest.age_s(7500) == 2.5
    file = tmp_path / "backup"
    backup(store, file)
    assert list(differences(file, store)) == [], "it is no part of a backup"


# --- files that somebody made up ------------------------------------------------------------------------------------

HEAD = Head(
    instance_id="i",
    began_ms=1,
    mark=Mark(),
    is_enabled=True,
    lost_bookie_delay_s=None,
    software="x",
)
GOOD = metadata(5).to_bytes()


def made_up(
    path: Path, *items: Record | Ledger | Bookie | ChangeMeanwhile, head: Head = HEAD
) -> Path:
    """Write an archive whose checksums are right."""
    with path.open("wb") as file:
        writer = ArchiveWriter(file)
        writer.write(head)
        for one in items:
            writer.add(one, 100)
        writer.end_page()
        writer.write(_end(writer))
    return path


def _end(writer: ArchiveWriter) -> End:
    counts = writer.counts
    return End(
        ended_ms=1,
        highest_drawn_id=-1,
        records=counts[Record],
        ledgers=counts[Ledger],
        bookies=counts[Bookie],
        changes=counts[ChangeMeanwhile],
    )


@pytest.mark.parametrize(
    "items",
    [
        (Record("cluster/hold", b"{}", 0),),
        (Record("cluster/mark", b"{}", 0),),
        (Record("under_replicated/00/00", b"x", 0),),
        (Record("a", b"1", 0), Record("a", b"2", 0)),
        (Record("b", b"1", 0), Record("a", b"2", 0)),
        (Record("b", b"", 0), Record("a", b"2", 0)),
        (Ledger(1, GOOD, 0), Ledger(1, GOOD, 0)),
        (Ledger(1, GOOD, 0), Ledger(1, b"", 0)),
        (Ledger(2, GOOD, 0), Ledger(1, GOOD, 0)),
        (Bookie("b1"), Bookie("b1")),
        (ChangeMeanwhile("ledger", "one", "deleted"),),
        (ChangeMeanwhile("ledger", "9" * 5000, "deleted"),),
    ],
)
def test_an_archive_that_no_backup_writes_changes_nothing(
    tmp_path: Path, items: tuple[Record | Ledger | Bookie | ChangeMeanwhile, ...]
) -> None:
    """INV-M12."""
    file = made_up(tmp_path / "hostile", *items)
    store = open_store(f"sqlite:{tmp_path}/new", new_instance_id="i")
    with pytest.raises(StorageError):
        restore(store, file)
    assert (store.records.children(""), store.list_ledgers(), store.list_identities()) == (
        [],
        [],
        [],
    )
    store.close()


BAD_ITEMS = [
    (Record("../x", b"1", 0), "../x: "),
    (Record("a//b", b"1", 0), "a//b: "),
    (Record("a", b"", 0), "a: "),
    (Record("a", bytes(1_000_000), 0), "a: "),
    (Record("a" * 5000, b"1", 0), "aaa"),
    (Ledger(-1, GOOD, 0), "ledger -1: "),
    (Ledger(2**63, GOOD, 0), f"ledger {2**63}: "),
    (Ledger(1, b"", 0), "ledger 1: "),
    (Ledger(1, GOOD[:-5], 0), "ledger 1: "),
    (Bookie("../x", 1, 1, []), "identity of bookie ../x: "),
    (Bookie("b1", 1, 2**63, []), "identity of bookie b1: "),
    (Bookie("b1", -1, 1, []), "identity of bookie b1: "),
    (Bookie("b1", 1, 1, [("a", "journal", 0)] * 2000), "identity of bookie b1: "),
]


@pytest.mark.parametrize(
    ("place", "bad", "name"),
    [*(("sqlite", *one) for one in BAD_ITEMS), *(("zookeeper", *one) for one in BAD_ITEMS[1::5])],
)
def test_a_bad_item_of_a_whole_archive_is_named_and_everything_else_restored(
    zookeeper: ZooKeeperPlace, tmp_path: Path, place: str, bad: Record | Ledger | Bookie, name: str
) -> None:
    """INV-M17: an older version, which had fewer bounds, backed it up. The file itself is whole (INV-M12)."""
    good: list[Record | Ledger | Bookie] = [
        Record("streams", b"x", 0), Record("streams/aa", b"y", 0), Ledger(7, GOOD, 0), Bookie("b2", 7, 3, []),
    ]  # fmt: skip
    items = sorted(
        [*good, bad], key=lambda one: ((Record, Ledger, Bookie).index(type(one)), _place(one))
    )
    file = made_up(tmp_path / "older", *items)
    summary = check_archive(file)
    assert len(summary.not_restorable) == 1 and summary.not_restorable[0].startswith(name)
    assert len(summary.not_restorable[0]) < 2000
    uri = f"sqlite:{tmp_path}/new" if place == "sqlite" else zookeeper.location("/restored").uri
    with closing(remade_store(uri, "i")) as store:
        done = restore(store, file)
        assert done.left_out == summary.not_restorable
        assert (done.records, done.ledgers, done.bookies) == (2, 1, 1)
        assert store.list_ledgers() == [7]
        assert [one.bookie_id for one in store.list_identities()] == ["b2"]
        assert [one and one.value for one in store.records.read(["streams", "streams/aa"])] == [
            b"x",
            b"y",
        ]
        assert len(list(differences(file, store))) == 1
        assert restore(store, file).was_complete


def _place(one: Record | Ledger | Bookie) -> object:
    if isinstance(one, Record):
        return tuple(one.path.split("/"))
    return one.ledger_id if isinstance(one, Ledger) else one.bookie_id


def test_very_many_bad_items_are_counted_and_some_are_named(tmp_path: Path) -> None:
    file = made_up(tmp_path / "older", *(Ledger(one, b"", 0) for one in range(LEFT_OUT_MAX + 7)))
    found = check_archive(file).not_restorable
    assert (len(found), found[-1]) == (LEFT_OUT_MAX + 1, "and 7 more")


def framed(*bodies: bytes) -> bytes:
    """Return an archive of these frames, with good checksums."""
    out, crc = MAGIC, 0
    for body in bodies:
        crc = crc32c(body, crc)
        out += len(body).to_bytes(4, "little") + crc.to_bytes(4, "little") + body
    return out


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_bytes_with_good_checksums_are_more_than_refused(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Types, nesting, counts and numbers of MessagePack: a StorageError or an archive, and nothing else."""
    leaf = (
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**64 - 1)
        | st.text(max_size=9)
        | st.binary(max_size=9)
    )
    names = st.text(max_size=5)
    value = st.recursive(
        leaf, lambda one: st.lists(one, max_size=4) | st.dictionaries(names, one, max_size=4)
    )
    kinds = st.sampled_from(["head", "records", "ledgers", "bookies", "changes", "end"])
    made = st.one_of(
        value,
        st.builds(
            lambda kind, items: {"type": kind, "items": items}, kinds, st.lists(value, max_size=3)
        ),
    ).map(msgspec.msgpack.encode)
    deep = st.integers(1, 20_000).map(lambda depth: b"\x91" * depth + b"\xc0")
    huge = st.sampled_from(
        [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    )
    bodies = data.draw(st.lists(st.one_of(made, deep, huge, st.binary(max_size=50)), max_size=3))
    file = tmp_path / "hostile"
    file.write_bytes(framed(msgspec.msgpack.encode(HEAD), *bodies))
    with pytest.raises(StorageError):
        check_archive(file)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.one_of(
        st.binary(max_size=60),
        st.integers(1, 20_000).map(lambda depth: b"\x91" * depth + b"\xc0"),
        st.builds(
            lambda ledger, deleted: msgspec.msgpack.encode(
                {
                    "bookie_id": "b1",
                    "incarnation": 1,
                    "instance_id": "i",
                    "starts": 1,
                    "directories": [],
                    "mark": {},
                    "ledgers": [ledger, ledger],
                    "deleted": [deleted],
                    "damage": [],
                }
            ),
            st.lists(
                st.integers(-(2**63), 2**64 - 1) | st.binary(max_size=5) | st.booleans(), max_size=9
            ),
            st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1)),
        ),
    )
)
def test_no_collection_that_somebody_made_up_is_more_than_refused(
    tmp_path: Path, body: bytes
) -> None:
    file = tmp_path / "hostile"
    file.write_bytes(b"FBKCOLL1" + crc32c(body).to_bytes(4, "little") + body)
    with pytest.raises(StorageError):
        read_collection(file)


def test_a_damaged_record_of_the_last_backup_is_named_and_the_next_backup_writes_it_anew() -> None:
    store = new_store()
    assert backup_age_s(store, 9000) == math.inf
    for damaged in (b"{", b"[]", b'{"began_ms": "x"}', b"\xff"):
        (found,) = store.records.read([LAST_BACKUP_PATH])
        store.records.change(
            [Change(LAST_BACKUP_PATH, damaged, None if found is None else found.version)]
        )
        with collected_bad_records() as bad:
            assert read_last_backup(store) is None
        assert [(one.path, "writes it anew" in one.reason) for one in bad] == [
            (LAST_BACKUP_PATH, True)
        ]
        note_backup(store, LastBackup(began_ms=4000, backup_id="a"))
        assert backup_age_s(store, 9000) == 5.0
