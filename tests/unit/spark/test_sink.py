"""The sink in every order of failure: each batch is in the stream once, in order, and nothing is left.

Spark's part is played by hand. INV-S13.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import closing

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from fastbk.errors import (
    ConfigError,
    DraftGone,
    Error,
    MetadataUnavailable,
    StreamBusy,
    WrongStreamKind,
)
from fastbk.spark import sink
from fastbk.spark.sink import CommitMessage, FastbkStreamWriter, TaskAttempt
from tests.fixtures.sink_harness import Killed, SinkHarness, SyncClient, batches

KEY = "spark/query"


@pytest.fixture
def harness() -> Iterator[SinkHarness]:
    made = SinkHarness()
    yield made
    made.close()


def place(batch: int, partition: int, attempt: int = 0, key: str = KEY) -> TaskAttempt:
    return TaskAttempt(key, batch, partition, attempt)


def test_batches_are_in_the_stream_in_the_order_of_partitions(harness: SinkHarness) -> None:
    for batch in range(3):
        told = [
            harness.write(place(batch, at), b"%d.%d.a" % (batch, at), b"%d.%d.b" % (batch, at))
            for at in (2, 0, 1)
        ]
        harness.driver().commit(told, batch)
    wanted = [b"%d.%d.%c" % one for one in itertools.product(range(3), range(3), b"ab")]
    assert harness.values() == wanted
    assert harness.left() == ([], set())


def test_ledgers_are_of_the_namespace_of_their_stream(harness: SinkHarness) -> None:
    """Else a token that is limited to it could neither write nor read them."""
    harness.driver().commit([harness.write(place(0, 0), b"a")], 0)
    assert [one.metadata.namespace for one in harness.cluster.ledgers.values()] == ["shop"]


def test_a_commit_is_repeated_and_a_replay_writes_nothing(harness: SinkHarness) -> None:
    told = [harness.write(place(0, 0), b"a")]
    for _ in range(3):
        harness.driver().commit(told, 0)
    ledgers = set(harness.cluster.ledgers)
    again = harness.write(place(0, 0), b"a")
    assert (again.was_attached, again.draft) == (True, None)
    harness.driver().commit([again], 0)
    harness.driver().abort([again, None], 0)
    assert set(harness.cluster.ledgers) == ledgers
    assert harness.values() == [b"a"] and harness.left() == ([], set())


def test_an_abort_after_the_commit_takes_nothing_back(harness: SinkHarness) -> None:
    told = [harness.write(place(0, 0), b"a"), harness.write(place(0, 1), b"b")]
    harness.driver().commit(told, 0)
    harness.driver().abort(told, 0)
    assert harness.values() == [b"a", b"b"] and harness.left() == ([], set())


def test_an_abort_deletes_what_was_written_and_the_batch_is_run_again(harness: SinkHarness) -> None:
    told = [harness.write(place(0, 0), b"a"), None]
    lost = harness.write(place(0, 1), b"lost")
    harness.driver().abort(told, 0)
    assert not harness.cluster.ledgers and harness.left() == ([], set())
    with pytest.raises(DraftGone):
        harness.driver().commit([*told, lost], 0)
    told = [harness.write(place(0, at), b"%d" % at) for at in range(2)]
    harness.driver().commit(told, 0)
    assert harness.values() == [b"0", b"1"]


def test_rows_that_fail_leave_nothing(harness: SinkHarness) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield from batches([b"a", b"b"])
        raise ValueError("a user's function failed")

    with pytest.raises(ValueError, match="user's"):
        harness.attempt(place(0, 0)).write(rows())
    assert not harness.cluster.ledgers and harness.left() == ([], set())


def test_partitions_without_rows_make_no_ledger(harness: SinkHarness) -> None:
    told = [
        harness.write(place(0, 0)),
        harness.write(place(0, 1), b"a"),
        harness.write(place(0, 2)),
    ]
    harness.driver().commit(told, 0)
    harness.driver().commit([harness.write(place(1, 0))], 1)
    assert len(harness.cluster.ledgers) == 1 and harness.values() == [b"a"]


@pytest.mark.parametrize("is_after", [False, True])
def test_a_task_killed_at_any_step_is_run_again(is_after: bool) -> None:
    for number in itertools.count():
        with closing(SinkHarness()) as harness:
            client = harness.client()
            harness.plan.kill(client.fake, number, is_after=is_after)
            try:
                told = harness.attempt(place(0, 0), client, roll_bytes=1).write(
                    batches([b"a", b"b"])
                )
                assert client.fake not in harness.plan.dead
                done = True
            except (Killed, Error):
                told = harness.write(place(0, 0, 1), b"a", b"b")
                done = False
            harness.driver().commit([told], 0)
            assert harness.values() == [b"a", b"b"], number
            assert harness.left() == ([], set()), number
        if done:
            break
    assert number > 15


@pytest.mark.parametrize("is_after", [False, True])
def test_a_driver_killed_at_any_step_of_the_commit_is_followed_by_another(is_after: bool) -> None:
    """The next one runs all tasks of the batch again, as Spark does, and commits; the dead one's attempts are swept."""
    for number in itertools.count():
        with closing(SinkHarness()) as harness:
            told = [harness.write(place(0, at), b"%d" % at) for at in range(3)]
            harness.write(place(0, 1, 1), b"a speculative attempt that lost")
            client = harness.client()
            harness.plan.kill(client.fake, number, is_after=is_after)
            try:
                harness.driver(client).commit(told, 0)
                done = True
            except (Killed, Error):
                done = False
            again = [harness.write(place(0, at), b"%d" % at) for at in range(3)]
            harness.driver().commit(again, 0)
            assert harness.values() == [b"0", b"1", b"2"], number
            # as after any batch: what is left the next one's sweep takes
            if all(one.was_attached for one in again):
                harness.driver().commit([harness.write(place(1, 0))], 1)
            assert harness.left() == ([], set()), number
        if done:
            break
    assert number > 15


def test_a_zombie_that_goes_on_after_its_batch_was_committed_changes_nothing(
    harness: SinkHarness,
) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield from batches([b"zombie 1"])
        harness.driver().commit([harness.write(place(0, 0, 1), b"a")], 0)
        yield from batches([b"zombie 2", b"zombie 3"])

    with pytest.raises(Error):
        harness.attempt(place(0, 0), roll_bytes=1).write(rows())
    assert harness.values() == [b"a"] and harness.left() == ([], set())


def test_a_zombie_driver_commits_nothing_after_the_batch_was_decided(harness: SinkHarness) -> None:
    old = [harness.write(place(0, 0), b"old")]
    harness.driver().commit([harness.write(place(0, 0), b"new")], 0)
    harness.driver().commit(old, 0)
    harness.driver().abort(old, 0)
    assert harness.values() == [b"new"] and harness.left() == ([], set())


def test_an_older_copy_of_a_checkpoint_is_refused(harness: SinkHarness) -> None:
    """Its batches have the numbers of batches that are visible, and need not have their rows."""
    for batch in range(3):
        harness.driver().commit([harness.write(place(batch, 0), b"%d" % batch)], batch)
    late = harness.write(place(1, 0), b"others")
    for told in ([late], [late, None]):
        with pytest.raises(ConfigError, match="older copy"):
            harness.driver().commit(told, 1)
    zombie = [harness.write(place(3, 0), b"3")]
    for batch in (3, 4):
        harness.driver().commit([harness.write(place(batch, 0), b"%d" % batch)], batch)
    with pytest.raises(ConfigError, match="another driver"):
        harness.driver().commit(zombie, 3)
    harness.driver().abort(zombie, 3)
    assert harness.values() == [b"0", b"1", b"2", b"3", b"4"] and harness.left() == ([], set())


def test_two_queries_write_to_one_stream(harness: SinkHarness) -> None:
    one = [harness.write(place(0, 0, key="spark/one"), b"one")]
    two = [harness.write(place(0, 0, key="spark/two"), b"two")]
    harness.driver().commit(two, 0)
    harness.driver().abort([None], 0, "spark/three")
    harness.driver().commit(one, 0)
    assert harness.values() == [b"two", b"one"] and harness.left() == ([], set())


def test_an_open_writer_is_refused_unless_it_is_to_be_fenced(harness: SinkHarness) -> None:
    with harness.stream.writer() as writer:
        writer.append(b"own")
        with pytest.raises(StreamBusy, match="onWriter"):
            harness.driver().prepare()
        told = [harness.write(place(0, 0), b"a")]
        with pytest.raises(StreamBusy, match="onWriter"):
            harness.driver().commit(told, 0)
        writer.append(b"still its own")
        harness.driver(is_fencing=True).prepare()
        harness.driver(is_fencing=True).commit(told, 0)
        with pytest.raises(Error):
            writer.append(b"fenced")
        writer.abort()
    harness.driver().prepare()
    assert harness.values() == [b"own", b"still its own", b"a"]


def test_ledgers_of_a_stream_that_became_producers_are_refused_at_the_commit(
    harness: SinkHarness,
) -> None:
    received = [harness.write(place(0, 0), b"a")]
    harness.stream.set_kind("producers")
    harness.driver().prepare()  # its tasks append by producers from now on
    with pytest.raises(WrongStreamKind, match="fastbk stream kind shop/orders writer"):
        harness.driver().commit(received, 0)
    harness.stream.set_kind("writer")
    harness.driver().commit(received, 0)
    assert harness.values() == [b"a"]


@pytest.mark.slow
def test_a_streaming_query_waits_for_metadata_that_is_away(
    harness: SinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark makes a writer for each batch and for each commit: an outage then would end the query."""
    away = [MetadataUnavailable("away")] * 3

    def connect(uri: str | None) -> SyncClient:
        if away:
            raise away.pop()
        return harness.client()

    told = [harness.write(place(0, 0), b"a")]
    FastbkStreamWriter(harness.options(), connect).commit(told, 0)  # type: ignore[arg-type]
    assert harness.values() == [b"a"] and not away
    monkeypatch.setattr(sink, "PREPARE_S", 0.0)
    away.append(MetadataUnavailable("away"))
    with pytest.raises(MetadataUnavailable):
        FastbkStreamWriter(harness.options(), connect)  # type: ignore[arg-type]


def test_a_missing_stream_is_told_and_made_when_asked_for(harness: SinkHarness) -> None:
    harness.client().namespace("shop").delete_stream("orders")
    with pytest.raises(ConfigError, match="create"):
        harness.driver().prepare()
    for _ in range(2):
        harness.driver(create=True).prepare()
    harness.driver().commit([harness.write(place(0, 0), b"a")], 0)
    assert harness.values() == [b"a"]


def test_ledgers_are_rolled_in_order_and_too_many_are_refused(
    harness: SinkHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = harness.write(place(0, 0), *[b"%d" % at for at in range(5)], roll_bytes=1)
    assert len(told.ledgers) == 5 and told.records == 5
    monkeypatch.setattr("fastbk.spark.sink.LEDGERS_MAX", 4)
    with pytest.raises(ConfigError, match="coalesce"):
        harness.driver().commit([told], 0)
    monkeypatch.undo()
    harness.driver().commit([told], 0)
    assert harness.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_messages_travel(harness: SinkHarness) -> None:
    import pickle

    told = harness.write(place(0, 0), b"a")
    assert isinstance(told, CommitMessage)
    assert pickle.loads(pickle.dumps(told)) == told
    assert told.records == 1 and told.size_bytes > 0
