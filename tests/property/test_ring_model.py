"""The ring against a deque, and against a producer that writes anything (A6).

The C side is `tests/native/ring_driver.c` under ASan and UBSan: whatever the memory says, the consumer may answer
"corrupt", but never read outside the ring, never hang, and never deliver a record that was not pushed whole.
"""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.compile import build_program

RING_BYTES = 4096
HEADER_BYTES = 96


class Driver:
    """A running ring_driver; one command, one line of answer."""

    def __init__(self) -> None:
        program = build_program(["ring_driver.c"], ["base/checksum.c", "base/segment.c"], "asan")
        self.process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def do(self, command: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, f"the driver died at {command!r}: {self.process.wait(10)}"
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver()
    yield made
    made.close()


def size_of(payload_bytes: int) -> int:
    return HEADER_BYTES + (payload_bytes + 7) // 8 * 8


operations = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(0, 700), st.integers(1, 255)),
        st.tuples(st.just("pop")),
    ),
    max_size=60,
)


@given(operations=operations)
def test_a_ring_is_a_deque(driver: Driver, operations: list[tuple[str, int, int]]) -> None:
    driver.do("reset")
    model: deque[tuple[int, int, int]] = deque()
    used = 0
    for operation in operations:
        if operation[0] == "push":
            _, payload, fill = operation
            answer = driver.do(f"push {payload} {fill}")
            if used + size_of(payload) > RING_BYTES:
                assert answer == "full"
            else:
                assert answer.startswith("pushed ")
                model.append((size_of(payload), payload, fill if payload else 0))
                used += size_of(payload)
        elif model:
            size, payload, fill = model.popleft()
            assert driver.do("pop") == f"record {size} {payload} {fill}"
            used -= size
        else:
            assert driver.do("pop") == "empty"


@given(
    payloads=st.lists(st.integers(0, 300), min_size=1, max_size=8),
    offset=st.integers(0, RING_BYTES - 1),
    byte=st.integers(0, 255),
)
def test_one_changed_byte_is_found_or_was_padding(
    driver: Driver, payloads: list[int], offset: int, byte: int
) -> None:
    driver.do("reset")
    starts = []
    for number, payload in enumerate(payloads):
        answer = driver.do(f"push {payload} {number + 1}")
        if answer != "full":
            starts.append((payload, number + 1))
    driver.do(f"poke {offset} {byte}")
    for payload, fill in starts:
        answer = driver.do("pop")
        if answer == "corrupt":
            return
        assert answer == f"record {size_of(payload)} {payload} {fill if payload else 0}"


@given(written=st.integers(0, 2**64 - 1), payloads=st.lists(st.integers(0, 300), max_size=4))
def test_a_cursor_can_say_anything(driver: Driver, written: int, payloads: list[int]) -> None:
    driver.do("reset")
    for payload in payloads:
        driver.do(f"push {payload} 7")
    driver.do(f"written {written}")
    for _ in range(len(payloads) + 1):
        answer = driver.do("pop")
        assert answer in ("empty", "corrupt") or answer.startswith("record ")
        if not answer.startswith("record "):
            break
    driver.do("reset")


@given(
    size=st.one_of(st.integers(0, 2**32 - 1), st.integers(0, RING_BYTES + 200)),
    payload=st.one_of(st.integers(0, 2**32 - 1), st.integers(0, RING_BYTES + 200)),
)
def test_a_sealed_header_can_say_anything(driver: Driver, size: int, payload: int) -> None:
    driver.do("reset")
    assert driver.do(f"push {1000} 1").startswith("pushed ")
    driver.do(f"header {size} {payload}")
    answer = driver.do("pop")
    if size == size_of(payload) and size <= size_of(1000):
        assert answer == "corrupt" or payload == 0  # the payload's own checksum
    else:
        assert answer == "corrupt"
