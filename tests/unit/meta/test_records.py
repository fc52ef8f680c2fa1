"""One suite for the records of every metadata driver. INV-M1, INV-M14."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastbk.errors import ConfigError, MetadataConflict
from fastbk.meta.records import VALUE_BYTES_MAX, Change, VersionedRecord, each_record
from tests.fixtures.wait import wait_until
from tests.unit.meta.test_metadata_store import Open, open_driver

__all__ = ["open_driver"]


def test_what_one_handle_writes_another_reads(open_driver: Open) -> None:
    first, second = open_driver().records, open_driver().records
    (version,) = first.change([Change("streams/1/chain", b"x")])
    found = second.read(["streams/1/chain", "streams/1", "streams/2"])
    assert [one and one.value for one in found] == [b"x", None, None]
    assert found[0] is not None and found[0].version == version


def test_a_change_needs_the_version_that_is_there(open_driver: Open) -> None:
    records = open_driver().records
    (first,) = records.change([Change("a", b"1")])
    with pytest.raises(MetadataConflict):
        records.change([Change("a", b"2")])
    (second,) = records.change([Change("a", b"2", first)])
    for change in (
        Change("a", b"3", first),
        Change("a", None, first),
        Change("b", b"3", second),
        Change("b", None, 1),
    ):
        with pytest.raises(MetadataConflict):
            records.change([change])
    assert records.change([Change("a", None, second)]) == [0]
    (again,) = records.change([Change("a", b"2")])
    assert again not in (first, second), "a record made anew has a version that none before it had"
    with pytest.raises(MetadataConflict):
        records.change([Change("a", b"4", second)])


def test_a_version_fits_64_bits(open_driver: Open) -> None:
    records = open_driver().records
    versions: set[int] = set()
    version = None
    for value in (b"1", b"2"):  # made, changed, deleted, and the same again
        for _ in range(2):
            (version,) = records.change([Change("a", value, version)])
            versions.add(version)
        records.change([Change("a", None, version)])
        version = None
    assert len(versions) == 4, "no version is given twice"
    assert all(msgspec.msgpack.decode(msgspec.msgpack.encode(one)) == one for one in versions)
    assert max(versions) < 2**63


def test_several_changes_happen_together_or_not_at_all(open_driver: Open) -> None:
    records = open_driver().records
    one, two = records.change([Change("n/one", b"1"), Change("n/two", b"2")])
    with pytest.raises(MetadataConflict):
        records.change(
            [Change("n/one", None, one), Change("n/three", b"3"), Change("n/two", b"x", two + 1)]
        )
    assert records.children("n") == ["one", "two"]
    changed = records.change(
        [Change("n/one", None, one), Change("n/three", b"3"), Change("n/two", b"x", two)]
    )
    assert changed[0] == 0
    assert records.children("n") == ["three", "two"]


def test_some_of_many_are_read_as_their_bytes_allow(open_driver: Open) -> None:
    """INV-M18: the first ones, in their order, also of those that are not there; one at least."""
    records = open_driver().records
    large = b"x" * VALUE_BYTES_MAX
    for name in "abcdef":
        records.change([Change(f"n/{name}", large if name != "c" else b"small")])
    paths = [f"n/{name}" for name in ("a", "none", "b", "c", "d", "e", "other", "f")]
    whole = records.read(paths)
    found: list[VersionedRecord | None] = []
    while len(found) < len(paths):
        some = records.read_some(paths[len(found) :], 2 * VALUE_BYTES_MAX + 100)
        assert (
            0 < sum(len(one.value) for one in some if one is not None) <= 2 * VALUE_BYTES_MAX + 100
        )
        found += some
    assert found == whole == list(each_record(records, paths))
    assert records.read_some(paths, 1) == whole[:1]


def test_names_below_are_listed_however_deep_what_lies_there(open_driver: Open) -> None:
    records = open_driver().records
    paths = ["p/a", "p/a-b", "p/a/x", "p/a/x/y", "p/c.d/e/f", "p/b", "q/z", "p/a0", "p/a%2Fb", "pp"]
    records.change([Change(path, b"v") for path in paths])
    assert records.children("p") == sorted(["a", "a-b", "b", "c.d", "a0", "a%2Fb"])
    assert records.children("p/a") == ["x"]
    assert records.children("p/c.d") == ["e"]
    assert records.children("p/none") == []
    assert {"p", "pp", "q"} <= set(records.children(""))
    found = [one for one in records.read(paths) if one is not None]
    assert len(found) == len(paths)


def test_a_record_with_others_below_it_stays(open_driver: Open) -> None:
    records = open_driver().records
    above, below = records.change([Change("s/1", b"a"), Change("s/1/pages/0", b"b")])
    with pytest.raises(MetadataConflict, match="below"):
        records.change([Change("s/1", None, above)])
    records.change([Change("s/1/pages/0", None, below)])
    assert records.children("s/1") == []
    records.change([Change("s/1", None, above)])
    assert records.children("s") == []


def test_a_record_and_what_lies_below_it_go_together(open_driver: Open) -> None:
    records = open_driver().records
    above, below = records.change([Change("s/1", b"a"), Change("s/1/chain", b"b")])
    with pytest.raises(MetadataConflict, match="below"):
        records.change([Change("s/1", None, above), Change("s/1/chain", None, below)])
    records.change([Change("s/1/chain", None, below), Change("s/1", None, above)])
    assert records.children("s") == []


def test_a_record_and_one_below_it_are_made_together_in_any_order(open_driver: Open) -> None:
    records = open_driver().records
    versions = records.change([Change("o/1/chain", b"b"), Change("o/1", b"a"), Change("o", b"top")])
    found = records.read(["o/1/chain", "o/1", "o"])
    assert [(one.value, one.version) for one in found if one] == list(
        zip((b"b", b"a", b"top"), versions, strict=True)
    )


def test_names_below_several_paths(open_driver: Open) -> None:
    records = open_driver().records
    (version, *_) = records.change([Change(path, b"v") for path in ("m/1/a", "m/1/b", "m/2/c/d")])
    assert records.children_of(["m/1", "m/none", "m/2", "m"]) == [["a", "b"], [], ["c"], ["1", "2"]]
    (found,) = records.read(["m/2/c/d"])
    assert found is not None and version
    records.change([Change("m/2/c/d", None, found.version)])
    assert records.children_of(["m/2"]) == [[]]
    assert records.children_of([]) == []


@pytest.mark.parametrize(
    "path",
    ["", "/a", "a/", "a//b", "a/../b", ".", "a b", "ä", "a\x00", "x" * 300, "a/" * 600 + "a"],
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(ConfigError):
        Change(path, b"v").check()


@pytest.mark.slow
@pytest.mark.parametrize("value", [b"", bytes(VALUE_BYTES_MAX + 1)])
def test_values_have_bounds(open_driver: Open, value: bytes) -> None:
    records = open_driver().records
    with pytest.raises(ConfigError):
        records.change([Change("a", value)])
    records.change([Change("a", bytes(VALUE_BYTES_MAX))])


@pytest.mark.slow
def test_watches_tell_of_changes_and_of_names(open_driver: Open) -> None:
    mine, other = open_driver().records, open_driver().records
    told: list[str] = []
    watches = [
        mine.watch("w/1", lambda: told.append("record")),
        mine.watch_children("w", lambda: told.append("names")),
    ]
    (version,) = other.change([Change("w/1", b"1")])
    wait_until(lambda: {"record", "names"} <= set(told), 10)
    told.clear()
    other.change([Change("w/1", b"2", version)])
    wait_until(lambda: told, 10)
    (found,) = other.read(["w/1"])
    assert found is not None
    told.clear()
    other.change([Change("w/1", None, found.version)])
    wait_until(lambda: {"record", "names"} <= set(told), 10)
    for watch in watches:
        watch.close()


@pytest.mark.slow
def test_of_many_that_change_at_once_one_wins_each_time(open_driver: Open) -> None:
    first = open_driver().records
    (version,) = first.change([Change("count", b"0")])
    done = []

    def count_up() -> None:
        records = open_driver().records
        for _ in range(20):
            while True:
                (found,) = records.read(["count"])
                assert found is not None
                try:
                    records.change([Change("count", b"%d" % (int(found.value) + 1), found.version)])
                    break
                except MetadataConflict:
                    continue
        done.append(True)

    threads = [threading.Thread(target=count_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one and one.value for one in first.read(["count"])] == [b"60"]
    assert len(done) == 3 and version


names = st.sampled_from(["a", "a/b", "a/b/c", "a-", "b", "b/c"])


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.lists(st.tuples(names, st.sampled_from(["put", "new", "drop"])), min_size=1, max_size=3),
        max_size=12,
    )
)
@pytest.mark.parametrize("open_driver", ["memory", "sqlite"], indirect=True)
def test_stores_agree_with_a_model(open_driver: Open, steps: list[list[tuple[str, str]]]) -> None:
    records = open_driver().records
    for path in ["a/b/c", "a/b", "a", "a-", "b/c", "b"]:
        (left,) = records.read([path])
        if left is not None:
            records.change([Change(path, None, left.version)])
    model: dict[str, int] = {}
    for step in steps:
        after, changes, is_good = dict(model), [], len({path for path, _ in step}) == len(step)
        if not is_good:
            continue
        for path, kind in step:
            held = after.get(path)
            if kind == "drop":
                has_below = any(other.startswith(f"{path}/") for other in after)
                is_good = is_good and held is not None and not has_below
                after.pop(path, None)
                changes.append(Change(path, None, held or 7))
            else:
                is_good = is_good and (kind == "put" or held is None)
                after[path] = 0
                changes.append(Change(path, b"v", held if kind == "put" else None))
        try:
            versions = records.change(changes)
        except MetadataConflict:
            assert not is_good
            continue
        assert is_good
        model = after
        for change, version in zip(changes, versions, strict=True):
            if change.value is not None:
                model[change.path] = version
        for path in ["a", "a/b", "a/b/c", "a-", "b", "b/c"]:
            (found,) = records.read([path])
            assert (found and found.version) == model.get(path)
