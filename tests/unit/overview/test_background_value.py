import asyncio

from fastbk.errors import StorageError
from fastbk.overview.poller import BackgroundValue


async def test_a_read_that_hangs_delays_nobody_and_is_reported() -> None:
    ended = asyncio.Event()

    async def read() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    value = BackgroundValue("healing", read, 0, interval_s=0.0, timeout_s=0.01)
    value.refresh()
    assert value.value == 0
    await value.settled(5.0)
    assert ended.is_set()
    assert value.error == "healing: not read within 0.01 s"
    await value.close()


async def test_one_read_at_a_time_and_none_before_it_is_due() -> None:
    now_s, reads = 0.0, 0

    async def read() -> int:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0)
        return reads

    value = BackgroundValue("x", read, 0, interval_s=10.0, timeout_s=5.0, clock=lambda: now_s)
    value.refresh()
    value.refresh()
    await value.settled(5.0)
    value.refresh()
    await value.settled(5.0)
    assert (value.value, reads) == (1, 1)
    now_s = 10.0
    value.refresh()
    await value.settled(5.0)
    assert (value.value, reads) == (2, 2)


async def test_an_error_keeps_the_value_and_the_next_success_clears_it() -> None:
    failure: Exception | None = StorageError("the disk\nis gone")

    async def read() -> int:
        if failure is not None:
            raise failure
        return 7

    value = BackgroundValue("bookies", read, 3, interval_s=0.0, timeout_s=5.0)
    value.refresh()
    await value.settled(5.0)
    assert (value.value, value.error) == (3, "bookies: the disk is gone")
    failure = None
    value.refresh()
    await value.settled(5.0)
    assert (value.value, value.error) == (7, "")
