"""Cells of Pulsar's Python client: what its users expect of topics, and faults of bookies and broker under a load."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pulsar
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String

from tests.compat.pulsar_world import (
    KEYS,
    PATIENCE_S,
    Load,
    World,
    check,
    equal,
    load,
    run_cells,
    until,
)

Cell = Callable[[World], object]
CELLS: dict[str, Cell] = {}
GROUPS: dict[str, str] = {}
SECONDS_MAX: dict[str, float] = {}
EARLIEST = pulsar.InitialPosition.Earliest
SILENCE_MS = 1500
"""How long nothing has to come before it is taken that nothing will."""
HEALED_S_MAX = 180.0
FREEZE_S = 12.0
"""Longer than the broker waits for a bookie, and than a session of ZooKeeper lives."""


def cell(name: str, *, seconds_max: float = 90.0, group: str = "plain") -> Callable[[Cell], Cell]:
    """Add a cell under a name; it may take so long."""

    def add(act: Cell) -> Cell:
        CELLS[name], SECONDS_MAX[name], GROUPS[name] = act, seconds_max, group
        return act

    return add


def words(count: int, first: int = 0) -> list[bytes]:
    return [
        b"message %d " % number + b"y" * (number % 300) for number in range(first, first + count)
    ]


def send(client: pulsar.Client, topic: str, contents: Sequence[bytes], **options: Any) -> None:
    """Send these messages and wait for all acknowledgements."""
    producer = client.create_producer(topic, block_if_queue_full=True, **options)
    results: list[pulsar.Result] = []
    for content in contents:
        producer.send_async(content, lambda result, _: results.append(result))
    producer.flush()
    until(lambda: len(results) == len(contents), PATIENCE_S, "all acknowledgements")
    equal({pulsar.Result.Ok}, set(results), "results")
    producer.close()


def receive(
    consumer: pulsar.Consumer, count: int, *, is_acknowledged: bool = True
) -> list[pulsar.Message]:
    """Return the next messages. Raises Timeout."""
    found = []
    for _ in range(count):
        found.append(consumer.receive(timeout_millis=int(PATIENCE_S * 1000)))
        if is_acknowledged:
            consumer.acknowledge(found[-1])
    return found


def data(messages: Sequence[pulsar.Message]) -> list[bytes]:
    return [message.data() for message in messages]


def nothing_comes(consumer: pulsar.Consumer) -> None:
    with contextlib.suppress(pulsar.Timeout):
        message = consumer.receive(timeout_millis=SILENCE_MS)
        raise AssertionError(f"a message too many: {message.data()[:60]!r}")


@cell("pulsar-produce-consume")
def produce_consume(world: World) -> None:
    topic, sent = world.topic("plain"), words(1000)
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        send(client, topic, sent)
        equal(sent, data(receive(consumer, len(sent))), "messages")
        nothing_comes(consumer)


@cell("pulsar-reopened-topic")
def reopened_topic(world: World) -> None:
    """A closed topic is recovered, and what is read comes from the bookies."""
    topic, sent = world.topic("reopened"), words(1500)
    with world.client() as client:
        send(client, topic, sent[:700])
        # The subscription keeps what nobody has read.
        client.subscribe(topic, "reader", initial_position=EARLIEST).close()
        client.subscribe(topic, "second", initial_position=EARLIEST).close()
        world.unload(topic)
        send(client, topic, sent[700:])
        world.unload(topic)
        for name in ("reader", "second"):
            equal(sent, data(receive(client.subscribe(topic, name), len(sent))), "messages")


@cell("pulsar-batching")
def batching(world: World) -> None:
    topic, sent = world.topic("batched"), words(2000)
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        send(client, topic, sent, batching_enabled=True, batching_max_messages=100)
        equal(sent, data(receive(consumer, len(sent))), "messages")
        entries = world.about("GET", topic, "internalStats")["entriesAddedCounter"]
        check(entries < len(sent) / 10, f"{entries} entries for {len(sent)} messages")


def compression(kind: pulsar.CompressionType) -> Cell:
    def run(world: World) -> None:
        topic, sent = world.topic("compressed"), [one * 20 for one in words(300)]
        with world.client() as client:
            consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
            for is_batched in (False, True):
                send(client, topic, sent, compression_type=kind, batching_enabled=is_batched)
                equal(sent, data(receive(consumer, len(sent))), f"messages, batched: {is_batched}")
            bytes_stored = world.about("GET", topic, "internalStats")["totalSize"]
            bytes_sent = 2 * sum(map(len, sent))
            is_smaller = bytes_stored < bytes_sent / 2
            equal(
                kind != pulsar.CompressionType.NONE,
                is_smaller,
                f"{bytes_stored} of {bytes_sent} bytes",
            )

    return run


for _kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
    cell(f"pulsar-compression-{_kind.lower()}")(compression(getattr(pulsar.CompressionType, _kind)))


@cell("pulsar-exclusive")
def exclusive(world: World) -> None:
    topic, sent = world.topic("exclusive"), words(100)
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        try:
            client.subscribe(topic, "reader")
        except pulsar.ConsumerBusy:
            pass
        else:
            raise AssertionError("a second consumer of an exclusive subscription")
        send(client, topic, sent)
        equal(sent, data(receive(consumer, 40)) + data(receive(consumer, 60)), "messages")


@cell("pulsar-failover")
def failover(world: World) -> None:
    """One consumer gets all, whichever the broker chooses; when it closes, the other one does."""
    topic, sent = world.topic("failover"), words(200)
    with world.client() as client:
        kind = pulsar.ConsumerType.Failover
        both = [
            client.subscribe(topic, "reader", kind, consumer_name=name, initial_position=EARLIEST)
            for name in ("a", "b")
        ]
        send(client, topic, sent[:100])
        parts: list[list[bytes]] = [[], []]
        until(lambda: take_some(both, parts) == 100, PATIENCE_S, "all messages")
        check([] in parts and sent[:100] in parts, f"parts: {list(map(len, parts))}")
        active = parts.index(sent[:100])
        both[active].close()
        send(client, topic, sent[100:])
        equal(sent[100:], data(receive(both[1 - active], 100)), "messages of the other one")


@cell("pulsar-shared")
def shared(world: World) -> None:
    topic, sent = world.topic("shared"), words(400)
    with world.client() as client:
        consumers = [
            client.subscribe(
                topic,
                "reader",
                pulsar.ConsumerType.Shared,
                receiver_queue_size=10,
                initial_position=EARLIEST,
            )
            for _ in range(3)
        ]
        send(client, topic, sent)
        parts: list[list[bytes]] = [[] for _ in consumers]
        until(lambda: take_some(consumers, parts) == len(sent), PATIENCE_S, "all messages")
        equal(sorted(sent), sorted(one for part in parts for one in part), "messages")
        check(all(parts), f"a consumer got nothing: {list(map(len, parts))}")


def take_some(consumers: Sequence[pulsar.Consumer], parts: list[list[bytes]]) -> int:
    """Take what is there into `parts`; return how many messages these have."""
    for consumer, part in zip(consumers, parts, strict=True):
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(timeout_millis=100)
                consumer.acknowledge(message)
                part.append(message.data())
    return sum(map(len, parts))


@cell("pulsar-key-shared")
def key_shared(world: World) -> None:
    topic = world.topic("key-shared")
    with world.client() as client:
        kind = pulsar.ConsumerType.KeyShared
        consumers = [
            client.subscribe(topic, "reader", kind, initial_position=EARLIEST) for _ in range(3)
        ]
        producer = client.create_producer(topic, block_if_queue_full=True)
        for number in range(25):
            for key in KEYS:
                producer.send_async(
                    b"%s %d" % (key.encode(), number), lambda *_: None, partition_key=key
                )
        producer.flush()
        parts: list[list[bytes]] = [[] for _ in consumers]
        until(lambda: take_some(consumers, parts) == 25 * len(KEYS), PATIENCE_S, "all messages")
        for key in KEYS:
            of_key = [
                [one for one in part if one.startswith(key.encode() + b" ")] for part in parts
            ]
            equal(1, sum(map(bool, of_key)), f"consumers that got {key}")
            expected = [b"%s %d" % (key.encode(), number) for number in range(25)]
            equal(expected, next(filter(None, of_key)), f"messages of {key}")


@cell("pulsar-negative-acks")
def negative_acks(world: World) -> None:
    topic, sent = world.topic("negative"), words(30)
    with world.client() as client:
        consumer = client.subscribe(
            topic,
            "reader",
            pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=500,
            initial_position=EARLIEST,
        )
        send(client, topic, sent)
        refused = receive(consumer, len(sent), is_acknowledged=False)
        for message in refused:
            consumer.negative_acknowledge(message)
        again = receive(consumer, len(sent))
        equal(sorted(sent), sorted(data(again)), "messages that came again")
        check(all(one.redelivery_count() >= 1 for one in again), "counts of redelivery")
        nothing_comes(consumer)


@cell("pulsar-dead-letters")
def dead_letters(world: World) -> None:
    topic, dead = world.topic("refused"), world.topic("dead")
    with world.client() as client:
        graveyard = client.subscribe(dead, "reader", initial_position=EARLIEST)
        policy = pulsar.ConsumerDeadLetterPolicy(2, dead)
        consumer = client.subscribe(
            topic,
            "reader",
            pulsar.ConsumerType.Shared,
            negative_ack_redelivery_delay_ms=200,
            dead_letter_policy=policy,
            initial_position=EARLIEST,
        )
        send(client, topic, [b"good 1", b"bad", b"good 2"])
        tries = 0
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(timeout_millis=3000)
                if message.data() == b"bad":
                    tries += 1
                    consumer.negative_acknowledge(message)
                else:
                    consumer.acknowledge(message)
        equal(3, tries, "deliveries of the bad one")
        equal([b"bad"], data(receive(graveyard, 1)), "dead letters")


@cell("pulsar-delays")
def delays(world: World) -> None:
    topic = world.topic("delayed")
    with world.client() as client:
        consumer = client.subscribe(
            topic, "reader", pulsar.ConsumerType.Shared, initial_position=EARLIEST
        )
        producer = client.create_producer(topic)
        sent_s = time.time()
        producer.send(b"late", deliver_after=datetime.timedelta(seconds=4))
        producer.send(b"at once")
        equal([b"at once"], data(receive(consumer, 1)), "what is not delayed")
        equal([b"late"], data(receive(consumer, 1)), "what is")
        took_s = time.time() - sent_s
        check(took_s > 3.5, f"it came after {took_s:.1f} s")


@cell("pulsar-large-messages")
def large_messages(world: World) -> None:
    """As large as Pulsar takes them, in one entry."""
    topic = world.topic("large")
    sent = [random.Random(number).randbytes((5 << 20) - 1000) for number in range(3)]
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        send(client, topic, sent)
        equal(sent, data(receive(consumer, 3, is_acknowledged=False)), "messages")
        consumer.close()
        world.unload(topic)
        equal(sent, data(receive(client.subscribe(topic, "reader"), 3)), "messages from bookies")


@cell("pulsar-chunked-messages")
def chunked_messages(world: World) -> None:
    topic = world.topic("chunked")
    sent = [random.Random(number).randbytes(20 << 20) for number in range(2)]
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        send(client, topic, sent, chunking_enabled=True)
        equal(sent, data(receive(consumer, 2)), "messages")


@cell("pulsar-compaction")
def compaction(world: World) -> None:
    """Twice, each with a deleted key: a compacted topic has the last message of each key that is left."""
    topic = world.topic("compacted")
    with world.client() as client:
        # What is not consumed is not trimmed.
        client.subscribe(topic, "holder", initial_position=EARLIEST).close()
        last: dict[str, bytes] = {}
        for time_number in range(2):
            producer = client.create_producer(topic)
            for number in range(20):
                for key in KEYS:
                    last[key] = b"%s %d.%d" % (key.encode(), time_number, number)
                    producer.send_async(last[key], lambda *_: None, partition_key=key)
            producer.flush()
            gone = KEYS[time_number]
            producer.send(None, partition_key=gone)
            del last[gone]
            producer.close()
            world.about("PUT", topic, "compaction")
            until(
                lambda: world.about("GET", topic, "compaction")["status"] == "SUCCESS",
                PATIENCE_S,
                "the compaction",
            )
            check_compacted(world, client, topic, last, f"sub-{time_number}")


def check_compacted(
    world: World, client: pulsar.Client, topic: str, last: dict[str, bytes], subscription: str
) -> None:
    world.unload(topic)
    consumer = client.subscribe(
        topic, subscription, is_read_compacted=True, initial_position=EARLIEST
    )
    # Compaction keeps the last message of all, though it only says that its key is gone.
    found = receive(consumer, len(last) + 1)
    values = {one.partition_key(): one.data() for one in found if one.data()}
    equal(last, values, "the compacted topic")
    nothing_comes(consumer)
    consumer.close()


def record(name: str, **fields: object) -> Any:
    """Return a class of records with these fields."""
    return type(Record)(name, (Record,), dict(fields))


def schemas(kind: Any) -> Cell:
    def run(world: World) -> None:
        topic = world.topic("records")
        reading = record("Reading", sensor=String(), value=Integer())
        with world.client() as client:
            consumer = client.subscribe(
                topic, "reader", schema=kind(reading), initial_position=EARLIEST
            )
            producer = client.create_producer(topic, schema=kind(reading))
            for number in range(50):
                producer.send(reading(sensor=f"s{number}", value=number))
            for number, message in enumerate(receive(consumer, 50)):
                value = message.value()
                equal((f"s{number}", number), (value.sensor, value.value), "a record")
        # The broker keeps schemas in ledgers: they are read from there anew.
        world.unload(topic)
        with world.client() as client:
            wider = record(
                "Reading", sensor=String(), value=Integer(), unit=String(required_default=True)
            )
            client.create_producer(topic, schema=kind(wider)).close()
            other = record("Reading", sensor=Integer(required=True), place=Integer(required=True))
            try:
                client.create_producer(topic, schema=kind(other))
            except pulsar.exceptions.IncompatibleSchema:
                return
            raise AssertionError("an incompatible schema was taken")

    return run


cell("pulsar-schema-avro")(schemas(AvroSchema))
cell("pulsar-schema-json")(schemas(JsonSchema))


@cell("pulsar-seek-by-time")
def seek_by_time(world: World) -> None:
    topic, sent = world.topic("sought"), words(200)
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        # What is acknowledged by all would be trimmed.
        client.subscribe(topic, "holder", initial_position=EARLIEST).close()
        send(client, topic, sent[:100])
        sent_s = time.time()
        until(lambda: time.time() > sent_s + 1, 5, "another second")
        middle_ms = int(time.time() * 1000)
        send(client, topic, sent[100:])
        equal(sent, data(receive(consumer, 200)), "messages")
        consumer.seek(middle_ms)
        equal(sent[100:], data(receive(consumer, 100)), "messages since then")
        consumer.seek(pulsar.MessageId.earliest)
        equal(sent, data(receive(consumer, 200)), "messages from the beginning")


@cell("pulsar-retention")
def retention(world: World) -> None:
    """What the namespace retains is there for a new subscription though the others have acknowledged it."""
    policy = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    topic = world.topic("retained", world.namespace("retained", retention=policy))
    sent = words(500)
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        send(client, topic, sent)
        receive(consumer, len(sent))
        consumer.close()
        world.unload(topic)
        world.about("POST", topic, "trim")
        late = client.subscribe(topic, "late", initial_position=EARLIEST)
        equal(sent, data(receive(late, len(sent))), "retained messages")


@cell("pulsar-trimming", seconds_max=240.0)
def trimming(world: World) -> object:
    """What all have acknowledged is deleted: in the topic, in the ledgers' metadata, and on the bookies' disks."""
    topic = world.topic("trimmed")
    count, size_bytes = 2000, 64 << 10
    before_bytes = int(world.ask("disk-bytes"))
    with world.client() as client:
        consumer = client.subscribe(topic, "reader", initial_position=EARLIEST)
        contents = [random.Random(number).randbytes(size_bytes) for number in range(count)]
        send(client, topic, contents)
        ids = {one["ledgerId"] for one in world.ledgers(topic)}
        equal(contents, data(receive(consumer, count)), "messages")
        least_bytes = before_bytes + 2 * count * size_bytes
        until(
            lambda: int(world.ask("disk-bytes")) > least_bytes, PATIENCE_S, "the messages on disks"
        )
        full_bytes = int(world.ask("disk-bytes"))
        # The ledger that is written to is never trimmed.
        consumer.close()
        world.unload(topic)
        consumer = client.subscribe(topic, "reader")
        world.about("POST", topic, "trim")
        until(
            lambda: ids.isdisjoint(one["ledgerId"] for one in world.ledgers(topic)),
            PATIENCE_S,
            "the topic's ledgers to be trimmed",
        )
    listed = ",".join(map(str, ids))
    until(
        lambda: world.ask("ledgers-left", listed) == "", PATIENCE_S, "the ledgers' metadata to go"
    )

    def is_smaller() -> bool:
        world.ask("collect-garbage")
        return int(world.ask("disk-bytes")) - before_bytes < count * size_bytes

    # What stays are the entry logs that are written to.
    until(is_smaller, PATIENCE_S, "the disks to have less than one copy of three")
    left_bytes = int(world.ask("disk-bytes")) - before_bytes
    return f"{(full_bytes - before_bytes) >> 20} MiB on disks, {left_bytes >> 20} MiB after"


@cell("pulsar-offload", seconds_max=150.0)
def offload(world: World) -> object:
    """Closed ledgers go to a file system, then from the bookies; a reader gets all."""
    topic = world.topic("offloaded", world.namespace("offloaded", offloadDeletionLagMs=0))
    sent = words(1500)
    with world.client() as client:
        client.subscribe(topic, "reader", initial_position=EARLIEST).close()
        send(client, topic, sent)
        first = {one["ledgerId"] for one in world.ledgers(topic)}
        world.unload(topic)
        send(client, topic, [b"the last"])
        current = world.ledgers(topic)[-1]["ledgerId"]
        until_message = {"ledgerId": current, "entryId": 0, "partitionIndex": -1}
        world.about("PUT", topic, "offload", until_message)
        until(
            lambda: world.about("GET", topic, "offload")["status"] == "SUCCESS",
            PATIENCE_S,
            "the offload",
        )
        moved = {one["ledgerId"] for one in world.ledgers(topic) if one["offloaded"]}
        check(first <= moved, f"of {sorted(first)}, offloaded: {sorted(moved)}")
        world.about("POST", topic, "trim")
        listed = ",".join(map(str, first))
        until(
            lambda: world.ask("ledgers-left", listed) == "", PATIENCE_S, "the bookies' copies to go"
        )
        moved_bytes = int(world.ask("offloaded-bytes"))
        check(moved_bytes > sum(map(len, sent)) / 10, f"{moved_bytes} bytes in the file system")
        world.unload(topic)
        consumer = client.subscribe(topic, "reader")
        found = data(receive(consumer, len(sent) + 1))
        equal([*sent, b"the last"], found, "messages")
    return f"{len(first)} ledgers, {moved_bytes >> 10} KiB in the file system"


def fault(
    name: str, seconds_max: float = 240.0
) -> Callable[[Callable[[World, Load], object]], None]:
    """Add a cell that does something to bookies or broker under a load."""

    def add(act: Callable[[World, Load], object]) -> None:
        def run(world: World) -> str:
            with load(world, name) as running:
                act(world, running)
                return running.finish()

        cell(name, seconds_max=seconds_max, group="fault")(run)

    return add


@fault("pulsar-broker-killed")
def broker_killed(world: World, running: Load) -> None:
    for _ in range(3):
        world.ask("broker-kill")
        world.ask("broker-start")
        running.more()


@fault("pulsar-bookie-killed")
def bookie_killed(world: World, running: Load) -> None:
    for bookie in world.bookies():
        world.ask("kill", bookie)
        running.more()
        world.ask("restore", bookie)
        running.more()


@fault("pulsar-bookie-paused", seconds_max=300.0)
def bookie_paused(world: World, running: Load) -> None:
    for bookie in world.bookies():
        world.ask("pause", bookie)
        end_s = time.monotonic() + FREEZE_S
        until(lambda end_s=end_s: time.monotonic() > end_s, FREEZE_S + 5, "the freeze to end")
        world.ask("resume", bookie)
        world.ask("restore", bookie)
        running.more()


@fault("pulsar-bookie-read-only")
def bookie_read_only(world: World, running: Load) -> None:
    for bookie in world.bookies()[:2]:
        world.ask("read-only", bookie)
        running.more(1000)
        world.ask("writable", bookie)
        world.ask("restore", bookie)
        running.more()


@fault("pulsar-all-bookies-killed")
def all_bookies_killed(world: World, running: Load) -> None:
    for _ in range(2):
        world.ask("kill-all")
        world.ask("restore-all")
        running.more(seconds_max=90)


@fault("pulsar-everything-killed")
def everything_killed(world: World, running: Load) -> None:
    for _ in range(2):
        world.ask("broker-kill")
        world.ask("kill-all")
        world.ask("restore-all")
        world.ask("broker-start")
        running.more(seconds_max=90)


def bookie_full(world: World) -> str:
    """The first bookie's disk fills, so it refuses writes; later there is room again."""
    with load(world, "full") as running:
        for _ in range(2):
            world.ask("disk-fill")
            until(
                lambda: world.ask("is-full-read-only") == "true", PATIENCE_S, "it to refuse writes"
            )
            running.more(1000)
            world.ask("disk-empty")
            until(lambda: world.ask("is-full-read-only") == "", PATIENCE_S, "it to take writes")
            running.more(1000)
        return running.finish()


cell("pulsar-bookie-full", seconds_max=240.0, group="full")(bookie_full)


def kill_rounds(world: World) -> str:
    """In each round a bookie is killed or frozen; in some of them the broker is killed, too."""
    rounds, seed = int(os.environ["ROUNDS"]), int(os.environ["SEED"])
    rng = random.Random(seed)
    with_broker = set(rng.sample(range(rounds), round(rounds * 0.15)))
    counts = {"kills": 0, "freezes": 0, "broker": 0}
    with load(world, "rounds") as running:
        for number in range(rounds):
            one_round(world, running, rng, counts, is_broker_killed=number in with_broker)
            if (number + 1) % 10 == 0 or number + 1 == rounds:
                running.audit()
                print(
                    f"{number + 1} rounds: {counts['kills']} kills and {counts['freezes']} freezes of"
                    f" bookies, {counts['broker']} kills of the broker;"
                    f" {running.sent.acknowledged:,} acknowledged, 0 lost",
                    flush=True,
                )
        return f"{counts}, {running.finish()}"


def one_round(
    world: World,
    running: Load,
    rng: random.Random,
    counts: dict[str, int],
    *,
    is_broker_killed: bool,
) -> None:
    bookie = rng.choice(world.bookies())
    time.sleep(rng.random())
    if is_broker_killed:
        world.ask("broker-kill")
        counts["broker"] += 1
    if rng.random() < 0.5:
        world.ask("kill", bookie)
        time.sleep(rng.random() * 3)
        counts["kills"] += 1
    else:
        world.ask("pause", bookie)
        time.sleep(rng.random() * FREEZE_S)
        world.ask("resume", bookie)
        counts["freezes"] += 1
    if is_broker_killed:
        world.ask("broker-start")
    world.ask("restore", bookie)
    running.more(seconds_max=90)


cell("pulsar-kill-rounds", group="rounds", seconds_max=0.0)(kill_rounds)


def bookies_replaced(world: World) -> str:
    """Each of Apache's bookies is replaced by one of ours, and each of ours by one of Apache's: docs/migration.md."""
    with load(world, "replaced") as running:
        for kind in ("ours", "apache"):
            for old in world.bookies():
                world.ask("add-bookie", kind)
                running.more(500)
                world.ask("read-only", old)
                running.more(500)
                world.ask("retire", old)
                running.more(500)
            running.audit()
        return running.finish()


def bookie_lost(world: World) -> str:
    """A bookie is lost for good; AutoRecovery copies what it had. Then another one is, and all is read."""
    with load(world, "lost") as running:
        first, second = world.bookies()[:2]
        running.more(5000)
        world.ask("kill", first)
        lost_s = time.monotonic()
        until(
            lambda: not world.ask("still-named", first), HEALED_S_MAX, f"no ledger to name {first}"
        )
        healed_s = time.monotonic() - lost_s
        running.more(1000)
        world.ask("kill", second)
        running.more(1000)
        return f"healed after {healed_s:.0f} s, {running.finish()}"


cell("pulsar-bookie-lost", seconds_max=400.0, group="heal")(bookie_lost)
cell("pulsar-bookies-replaced", seconds_max=1500.0, group="move")(bookies_replaced)
ROUND_S_MAX = 90.0


def main() -> None:
    """Arguments: service URL, web URL, a log file of the client, group, words of which a cell's name has one."""
    service, web, log, group, *only = sys.argv[1:]
    world = World(service, web, Path(log))
    chosen = {name: act for name, act in CELLS.items() if GROUPS[name] == group}
    rounds = int(os.environ.get("ROUNDS") or 1)
    code = run_cells(
        chosen, world, only, lambda name: SECONDS_MAX[name] or rounds * ROUND_S_MAX + 120.0
    )
    sys.stdout.flush()
    # Threads of a cell that hung are not waited for.
    os._exit(code)


if __name__ == "__main__":
    main()
