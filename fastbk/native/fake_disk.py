"""The fake disk for tests: loses, tears, fails, fills and lies on command, and repeats it from a seed.

Any number of `Disk` handles share one `FakeDisk`, so that several parts of a bookie, in one process, see one disk.
What it does and where it is stricter than real disks is in `src/fake_disk/fake_disk.h`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastbk.native._bookie import ffi, lib
from fastbk.native.disk import DEPTH, Disk
from fastbk.native.ffi import check, error_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastbk.native.cdata import CData

KINDS = {
    "any": lib.FBK_FAKE_ANY,
    "create": lib.FBK_FAKE_CREATE,
    "open": lib.FBK_FAKE_OPEN,
    "write": lib.FBK_FAKE_WRITE,
    "sync": lib.FBK_FAKE_SYNC,
    "read": lib.FBK_FAKE_READ,
    "rename": lib.FBK_FAKE_RENAME,
    "unlink": lib.FBK_FAKE_UNLINK,
    "sync_directory": lib.FBK_FAKE_SYNC_DIRECTORY,
    "make_directory": lib.FBK_FAKE_MAKE_DIRECTORY,
    "list": lib.FBK_FAKE_LIST,
    "preallocate": lib.FBK_FAKE_PREALLOCATE,
}
ACTIONS = {
    "fail": lib.FBK_FAKE_FAIL,
    "short": lib.FBK_FAKE_SHORT,
    "cut": lib.FBK_FAKE_CUT,
    "lie": lib.FBK_FAKE_LIE,
}
MODES = {
    "lose": lib.FBK_FAKE_LOSE_ALL,
    "keep": lib.FBK_FAKE_KEEP_ALL,
    "random": lib.FBK_FAKE_RANDOM,
}
DELIVERIES = {
    "at_once": lib.FBK_FAKE_AT_ONCE,
    "newest_first": lib.FBK_FAKE_NEWEST_FIRST,
    "shuffled": lib.FBK_FAKE_SHUFFLED,
    "held": lib.FBK_FAKE_HELD,
}
KIND_NAMES = {number: name for name, number in KINDS.items()}
FOREVER = 2**64 - 1


@dataclass(frozen=True)
class FakeEvent:
    """One operation in the log. `file` is the file's number on this disk, 0 for operations on names."""

    number: int
    kind: str
    result: int
    file: int
    offset_bytes: int
    size_bytes: int
    flags: int


@dataclass(frozen=True)
class Snapshot:
    """A copy that the disk took of itself at a moment, and what the watched word was then."""

    moment: int
    watched: int
    disk: FakeDisk


class FakeDisk:
    """One disk in memory with its controls. It begins with the directory `/` only.

    Paths lead from there: `x`, `./x` and `/x` are the same.
    """

    def __init__(self, capacity_bytes: int = 0, seed: int = 0) -> None:
        """Make an empty disk; `capacity_bytes` 0 means without limit."""
        fake = lib.fbk_fake_create(capacity_bytes, seed)
        if fake == ffi.NULL:
            raise MemoryError
        self._fake: CData | None = fake
        self._disks: list[Disk] = []

    @property
    def handle(self) -> CData:
        """The `struct fbk_fake *`, for sibling modules in `fastbk.native` only."""
        if self._fake is None:
            raise ValueError("this disk was destroyed")
        return self._fake

    def disk(self, depth: int = DEPTH) -> Disk:
        """Return a new backend on this disk. `destroy` of the fake disk destroys it too."""
        error = ffi.new("int32_t *")
        io = lib.fbk_fake_io(self.handle, depth, error)
        if io == ffi.NULL:
            raise error_of(error[0], "open a fake disk")
        disk = Disk.of_handle(io)
        self._disks.append(disk)
        return disk

    def copy(self) -> FakeDisk:
        """Return an independent copy, what is not durable included; without open files, faults and log."""
        fake = lib.fbk_fake_copy(self.handle)
        if fake == ffi.NULL:
            raise MemoryError
        return FakeDisk._of(fake)

    @staticmethod
    def _of(fake: CData) -> FakeDisk:
        disk = FakeDisk.__new__(FakeDisk)
        disk._fake = fake
        disk._disks = []
        return disk

    def take_snapshots(self, first: int, stride: int, watched: CData | None = None) -> None:
        """Copy the disk while something runs on it: each copy is a crash to look at.

        Args:
            first: the first moment meant, 1 = the next. A moment is the beginning of an operation that changes
                something, and the completion of a write with that write still in doubt.
            stride: moments from one copy to the next; 0 = take none any more. At most 1,024 wait for `snapshots`.
            watched: a `uint64_t *` that is read with each copy; has to live until the next call.
        """
        lib.fbk_fake_take_snapshots(self.handle, first, stride, ffi.NULL if watched is None else watched)

    def snapshots(self) -> Iterator[Snapshot]:
        """Give out the copies taken since the last call, oldest first; whoever takes one destroys it."""
        moment, watched = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        while True:
            fake = lib.fbk_fake_next_snapshot(self.handle, moment, watched)
            if fake == ffi.NULL:
                return
            yield Snapshot(moment[0], watched[0], FakeDisk._of(fake))

    @property
    def moments(self) -> int:
        """How many moments there were, with or without a copy."""
        return lib.fbk_fake_moments(self.handle)

    def fault(
        self, action: str, kind: str = "any", *, nth: int = 1, times: int = 1, errno: int = 0
    ) -> None:
        """Order a fault.

        Args:
            action: "fail" (with `errno`; any part of a write is done), "short" (half done and so reported), "cut"
                (the power goes, this operation in doubt) or "lie" (reported done, nothing durable).
            kind: of KINDS; which operations are counted.
            nth: the first one meant, counted from now, 1 = the next.
            times: how many from there on; FOREVER for all.
            errno: of "fail".
        """
        result = lib.fbk_fake_fault(self.handle, KINDS[kind], nth, times, ACTIONS[action], errno)
        check(result, "order a fault")

    def clear_faults(self) -> None:
        """Forget all faults that were ordered."""
        lib.fbk_fake_clear_faults(self.handle)

    def cut(self) -> None:
        """Cut the power: every operation answers ESHUTDOWN until `restart`."""
        lib.fbk_fake_cut(self.handle)

    @property
    def is_off(self) -> bool:
        """Whether the power is cut."""
        return lib.fbk_fake_is_off(self.handle)

    def restart(self, mode: str = "random", seed: int = 0) -> None:
        """Resolve what was not durable ("lose", "keep" or "random" by `seed`), close all files, power on."""
        lib.fbk_fake_restart(self.handle, MODES[mode], seed)

    def set_capacity(self, capacity_bytes: int) -> None:
        """Change the limit; 0 = none. Files keep what they have."""
        lib.fbk_fake_set_capacity(self.handle, capacity_bytes)

    @property
    def used_bytes(self) -> int:
        """What all files hold, in whole pages."""
        return lib.fbk_fake_used_bytes(self.handle)

    def deliver(self, delivery: str) -> None:
        """Choose when writes complete: "at_once", "newest_first", "shuffled" or "held" (see `release`)."""
        check(lib.fbk_fake_set_delivery(self.handle, DELIVERIES[delivery]), "set the delivery")

    def release(self, nth: int = 0) -> None:
        """Let the nth (0 = oldest) held write complete. Raises FileNotFoundError if there is none."""
        check(lib.fbk_fake_release(self.handle, nth), "release a write")

    @property
    def in_flight(self) -> int:
        """Writes begun and not complete."""
        return lib.fbk_fake_in_flight(self.handle)

    def corrupt(
        self, path: str | os.PathLike[str], offset_bytes: int, size_bytes: int = 1, mask: int = 0xFF
    ) -> None:
        """Flip bits of a file at rest, of the durable content too."""
        name = os.fsencode(path)
        check(lib.fbk_fake_corrupt(self.handle, name, offset_bytes, size_bytes, mask), "corrupt")

    def make_unreadable(self, path: str | os.PathLike[str], from_bytes: int, to_bytes: int) -> None:
        """Let reads that touch [from, to) fail with EIO; an empty range ends that."""
        name = os.fsencode(path)
        check(lib.fbk_fake_bad_range(self.handle, name, from_bytes, to_bytes), "make unreadable")

    def operations(self, kind: str = "any") -> int:
        """Return how many operations (of one kind) there were."""
        if kind == "any":
            return lib.fbk_fake_operations(self.handle)
        return lib.fbk_fake_operations_of(self.handle, KINDS[kind])

    def log(self, first: int = 0) -> list[FakeEvent]:
        """Return the operations so far, from the one with index `first` on."""
        most = max(self.operations() - first, 0)
        events = ffi.new("struct fbk_fake_event[]", most or 1)
        count = check(lib.fbk_fake_log(self.handle, first, events, most), "read the log")
        return [
            FakeEvent(
                number=event.number,
                kind=KIND_NAMES[event.kind],
                result=event.result,
                file=event.file,
                offset_bytes=event.offset_bytes,
                size_bytes=event.size_bytes,
                flags=event.flags,
            )
            for event in events[0:count]
        ]

    def destroy(self) -> None:
        """Give everything back; its `Disk`s are destroyed first."""
        if self._fake is not None:
            for disk in self._disks:
                disk.destroy()
            lib.fbk_fake_destroy(self._fake)
            self._fake = None

    def __enter__(self) -> FakeDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()
