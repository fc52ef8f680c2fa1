"""What the cells of Pulsar's Python client work with: a broker, topics, the one who kills, and a load that is checked.

It runs in an environment of its own, which has that client, and prints and asks as the Java programs do (`serve`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pulsar

from tests.compat.pulsar_checker import Reading, Sent, payload
from tests.compat.results import run_cell

POLL_S = 0.05
PATIENCE_S = 60.0
"""What has to come with nothing in its way comes within this time, also on a busy machine."""
HTTP_S_MAX = 60.0
KEYS = tuple(f"key-{number}" for number in range(20))
WINDOW = 400
"""So many messages are under way at most."""
PAUSE_S = 0.02
"""Between messages of all keys: a thousand a second."""


def until(condition: Callable[[], object], seconds_max: float, what: str) -> None:
    """Return once it holds. Raises TimeoutError."""
    deadline_s = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {seconds_max:.0f} s: {what}")
        time.sleep(POLL_S)


def check(is_right: object, what: str) -> None:
    """Raise AssertionError if it is not."""
    if not is_right:
        raise AssertionError(what)


def equal(expected: object, found: object, what: str) -> None:
    """Raise AssertionError if they differ."""
    check(expected == found, f"{what}: {found!r}, not {expected!r}")


class World:
    """A running broker, as cells see it."""

    def __init__(self, service: str, web: str, log: Path) -> None:
        self.service = service
        self._web = web
        self._log = log
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def client(self) -> Iterator[pulsar.Client]:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Info, str(self._log))
        client = pulsar.Client(self.service, operation_timeout_seconds=30, logger=logger)
        try:
            yield client
        finally:
            with contextlib.suppress(pulsar.PulsarException):
                client.close()

    def topic(self, what: str, namespace: str = "public/default") -> str:
        """Return the name of a new topic."""
        return f"persistent://{namespace}/{what}-{next(self._numbers)}"

    def namespace(self, name: str, **policies: object) -> str:
        """Make a namespace, if it is not there, with policies by their names in the admin API."""
        path = f"namespaces/public/{name}"
        with contextlib.suppress(FileExistsError):
            self.admin("PUT", path, {"replication_clusters": ["compat"]})
        for policy, value in policies.items():
            method = "PUT" if policy == "offloadDeletionLagMs" else "POST"
            self.admin(method, f"{path}/{policy}", value)
        return f"public/{name}"

    def admin(self, method: str, path: str, body: object = None) -> Any:
        """Ask the broker's admin API. Raises FileExistsError for 409, else RuntimeError with what it said."""
        request = urllib.request.Request(
            f"{self._web}/admin/v2/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=HTTP_S_MAX) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            if error.code == 409:
                raise FileExistsError(path) from None
            said = error.read().decode(errors="replace")[:300]
            raise RuntimeError(f"{method} {path}: {error.code} {said}") from None
        return json.loads(text) if text else None

    def about(self, method: str, topic: str, path: str, body: object = None) -> Any:
        """Ask the admin API about a topic."""
        return self.admin(method, f"{topic.replace('://', '/')}/{path}", body)

    def ledgers(self, topic: str) -> list[dict[str, Any]]:
        """Return what the broker says of a topic's ledgers."""
        found: list[dict[str, Any]] = self.about("GET", topic, "internalStats")["ledgers"]
        return found

    def unload(self, topic: str) -> None:
        """Have the broker close a topic: who comes next has its ledgers recovered and read from bookies."""
        until(lambda: self._is_unloaded(topic), PATIENCE_S, f"{topic} to be unloaded")

    def _is_unloaded(self, topic: str) -> bool:
        try:
            self.about("PUT", topic, "unload")
        except RuntimeError:
            return False
        return True

    def ask(self, *words: str) -> str:
        """Ask the one who started us, and return the answer. Raises RuntimeError."""
        with self._lock:
            print("ASK", *words, sep="\t", flush=True)
            answer = sys.stdin.readline().rstrip("\n")
        if not answer.startswith("ok"):
            raise RuntimeError(f"{' '.join(words)}: {answer}")
        return answer[2:].strip()

    def bookies(self) -> list[str]:
        return self.ask("bookies").split(",")


def run_cells(
    cells: dict[str, Callable[[World], object]],
    world: World,
    only: Sequence[str],
    seconds_max: Callable[[str], float],
) -> int:
    """Run those that are asked for and print a line each; return 1 if one failed. A cell may return what to say."""
    code = 0
    for name, act in cells.items():
        if only and not any(word in name for word in only):
            continue
        said: list[object] = [""]

        def run(act: Callable[[World], object] = act, said: list[object] = said) -> None:
            said[0] = act(world) or ""

        result = run_cell("", name, lambda run=run, name=name: in_time(run, seconds_max(name)))
        if result.verdict != "pass":
            code = 1
            with contextlib.suppress(RuntimeError):
                world.ask("put-back")
        reason = (result.reason or str(said[0])).replace("\t", " ")
        print("CELL", name, result.verdict, f"{result.seconds:.2f}", reason, sep="\t", flush=True)
    return code


def in_time(act: Callable[[], None], seconds_max: float) -> None:
    """Run it in a thread, which is left behind when it takes longer. Raises what it raises, TimeoutError."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds_max)
    if thread.is_alive():
        raise TimeoutError(f"not done within {seconds_max:.0f} s")
    if errors:
        raise errors[0]


class Load:
    """A producer and a consumer at work, until `finish`; a second subscription is read now and then.

    Deduplication is on: what the producer sends again after a lost connection is in the topic once.
    """

    def __init__(self, world: World, client: pulsar.Client, what: str) -> None:
        self._world = world
        self._client = client
        namespace = world.namespace("checked", deduplication=True)
        self.topic = world.topic(what, namespace)
        self.sent = Sent(KEYS)
        self.consumed = Reading("the consumer", self.sent)
        self.audited = Reading("the second subscription", self.sent, is_session=True)
        self._audit().close()
        self._consumer = client.subscribe(
            self.topic, "consumer", initial_position=pulsar.InitialPosition.Earliest
        )
        self._producer = client.create_producer(
            self.topic, producer_name=f"load-{what}", send_timeout_millis=0, max_pending_messages=0
        )
        self._window = threading.Semaphore(WINDOW)
        self._gate = threading.Lock()
        """Held to send a message, and by who wants none to be sent."""
        self._is_over = False
        self._settled_s = time.monotonic()
        self._longest_s = 0.0
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=act, daemon=True) for act in (self._produce, self._consume)
        ]
        for thread in self._threads:
            thread.start()

    def _audit(self) -> pulsar.Consumer:
        return self._client.subscribe(
            self.topic, "audit", initial_position=pulsar.InitialPosition.Earliest
        )

    def _produce(self) -> None:
        while not self._is_over:
            for key in KEYS:
                self._window.acquire()
                with self._gate:
                    if self._is_over:
                        return
                    number = self.sent.next(key)
                    settled = self._settled(key, number)
                    self._producer.send_async(payload(key, number), settled, partition_key=key)
            time.sleep(PAUSE_S)

    def _settled(self, key: str, number: int) -> Callable[[pulsar.Result, object], None]:
        def settled(result: pulsar.Result, _: object) -> None:
            is_acknowledged = result == pulsar.Result.Ok
            if not is_acknowledged and len(self._errors) < 5:
                self._errors.append(str(result))
            now_s = time.monotonic()
            self._longest_s = max(self._longest_s, now_s - self._settled_s)
            self._settled_s = now_s
            self.sent.settle(key, number, is_acknowledged=is_acknowledged)
            self._window.release()

        return settled

    def _consume(self) -> None:
        while not self._is_over:
            try:
                message = self._consumer.receive(timeout_millis=500)
            except pulsar.PulsarException:
                continue
            self.consumed.take(message.data())
            with contextlib.suppress(pulsar.PulsarException):
                # Of a connection that is gone: the message comes again.
                self._consumer.acknowledge(message)

    def more(self, count: int = 200, seconds_max: float = PATIENCE_S) -> None:
        """Wait until so many more messages are acknowledged. Raises TimeoutError."""
        target = self.sent.acknowledged + count
        until(lambda: self.sent.acknowledged >= target, seconds_max, f"{count} more messages")

    def audit(self) -> None:
        """Hold the load, and have both subscriptions read all. Raises AssertionError on any loss."""
        with self._gate:
            until(lambda: self.sent.under_way == 0, PATIENCE_S, "an end of what is under way")
            with contextlib.suppress(TimeoutError):
                until(lambda: self.consumed.is_complete, PATIENCE_S, "the consumer's end")
            self._world.unload(self.topic)
            self._read_all()
            self._settled_s = time.monotonic()
        faults = [*self.consumed.verdict(), *self.audited.verdict()]
        check(not faults, f"{len(faults)} faults: {'; '.join(faults[:5])}")

    def _read_all(self) -> None:
        consumer = self._audit()
        self.audited.begin_session()
        deadline_s = time.monotonic() + PATIENCE_S
        # A moment longer than until the last one: whether one comes twice.
        wait_ms = 3000
        while time.monotonic() < deadline_s:
            try:
                message = consumer.receive(timeout_millis=wait_ms)
            except pulsar.PulsarException:
                if self.audited.is_complete:
                    break
                continue
            deadline_s = time.monotonic() + PATIENCE_S
            self.audited.take(message.data())
            consumer.acknowledge(message)
            wait_ms = 1000 if self.audited.is_complete else 3000
        consumer.close()

    def finish(self) -> str:
        """Audit for the last time; return what there was."""
        self.audit()
        self.stop()
        failed = f", {self.sent.failed} failed ({', '.join(self._errors)})" if self._errors else ""
        return (
            f"{self.sent.acknowledged} acknowledged{failed}, {self.consumed.repeated} consumed again,"
            f" longest wait {self._longest_s:.1f} s"
        )

    def stop(self) -> None:
        self._is_over = True
        self._window.release()


@contextlib.contextmanager
def load(world: World, what: str) -> Iterator[Load]:
    """Give a load that has begun; `finish` is the caller's."""
    with world.client() as client:
        running = Load(world, client, what)
        try:
            running.more()
            yield running
        finally:
            running.stop()
