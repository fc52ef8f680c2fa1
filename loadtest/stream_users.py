"""The kinds of users that write streams."""

from __future__ import annotations

import os

from locust import task

from loadtest.kept import NAMESPACE
from loadtest.users import DELIVERY_S_MAX, LoadUser, WrongBytes


class OnStream(LoadUser):
    """Has a stream of its own, and writes to it."""

    abstract = True
    is_exact = False
    """Each record has to be there once, after failures, too."""

    def begin(self) -> None:
        """Create the stream, or take it over again after a failure."""
        if not hasattr(self, "kept") or self.is_full():
            namespace = self.client.namespace(NAMESPACE)
            namespace.create(exist_ok=True)
            name = f"{os.getpid()}-{self.random.getrandbits(48):x}"
            self.stream = namespace.create_stream(name)
            self.kept = self.note(stream=name, is_exact=self.is_exact)
        self.open()

    def open(self) -> None:
        """Open what appends."""
        self.writer = self.opened.enter_context(self.stream.writer())

    def append(self, kind: str) -> bool:
        """Append a record and wait until it is durable; return whether it is."""
        number = self.kept.count
        # Noted before: locust may end this user in the middle of the request.
        self.kept.count += 1
        self.kept.failed.append(number)
        payload = self.kept.record(number)
        done = self.measure(kind, len(payload), lambda: self.writer.append(payload))
        if done is None:
            self.begin_again()
            return False
        self.kept.failed.pop()
        return True


class StreamAppends(OnStream):
    """Appends one record after the other to a stream."""

    @task
    def write(self) -> None:
        """Append a record."""
        self.roll()
        self.append("stream append")


class ProducerAppends(OnStream):
    """Appends one record after the other by a producer, and goes on behind its last number after a failure."""

    is_exact = True

    def open(self) -> None:
        """Open the producer; what it had appended before, its number says."""
        self.producer = self.opened.enter_context(self.stream.producer("load"))
        self.kept.count = self.producer.last_number + 1
        self.kept.failed.clear()

    @task
    def write(self) -> None:
        """Append a record."""
        self.roll()
        number = self.kept.count
        self.kept.count += 1
        self.kept.failed.append(number)
        payload = self.kept.record(number)

        def append() -> bool:
            self.producer.append(payload, number=number)
            return True

        if self.measure("producer append", len(payload), append) is None:
            self.begin_again()
        else:
            self.kept.failed.remove(number)


class Cursors(OnStream):
    """Appends ten records, reads them by a durable cursor, and acknowledges them."""

    def begin(self) -> None:
        """Open the writer, and the cursor where it stopped."""
        super().begin()
        self.cursor = self.opened.enter_context(self.stream.cursor("load", on_gap="raise"))
        self.seen = -1

    @task
    def read(self) -> None:
        """One round."""
        self.roll()
        if not all(self.append("stream append") for _ in range(10)):
            return
        wanted = self.kept.count - 1
        if (
            self.measure("cursor read", 10 * self.size_bytes, lambda: self.read_to(wanted)) is None
            or self.measure("cursor ack", 0, self.acknowledge) is None
        ):
            self.begin_again()

    def read_to(self, wanted: int) -> bool:
        """Read up to record `wanted`."""
        while self.seen < wanted:
            chunk = self.cursor.read(timeout=DELIVERY_S_MAX)
            if chunk is None:
                raise TimeoutError(f"not delivered: record {wanted}")
            for record in chunk:
                payload = bytes(record.payload)
                number = int.from_bytes(payload[:8], "big")
                if payload != self.kept.record(number):
                    raise WrongBytes(f"{self.kept.name} record {number}")
                self.seen = max(self.seen, number)
            self.last = chunk
        return True

    def acknowledge(self) -> bool:
        """Acknowledge what was read, and wait until that is stored."""
        self.cursor.ack(self.last)
        self.cursor.flush()
        return True
