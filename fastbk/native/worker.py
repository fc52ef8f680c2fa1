"""The network worker's C, typed: one call for all readable connections, one a wake-up.

Used by one thread, the event loop of a worker process. A connection is its slot, a small number, from `connect` until
`disconnect`. What has to be done for it comes back as bits (`PAUSE` ...), from the calls that name it and, for
connections that were waiting, from `collect`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from fastbk.native._bookie import ffi, lib
from fastbk.native.ffi import (
    NativeFullError,
    NativeObject,
    PoisonedError,
    check,
    create,
    error_of,
    fill_struct,
)
from fastbk.observe.names import SLOTS

if TYPE_CHECKING:
    from collections.abc import Sequence


PAUSE = lib.FBK_DO_PAUSE
RESUME = lib.FBK_DO_RESUME
COLD = lib.FBK_DO_COLD
WRITE = lib.FBK_DO_WRITE
FINISH = lib.FBK_DO_FINISH
ABORT = lib.FBK_DO_ABORT
BUFFER = lib.FBK_DO_BUFFER
COLLECT = lib.FBK_DO_COLLECT
TIGHT = lib.FBK_DO_TIGHT
DIGESTS = lib.FBK_DO_DIGESTS
END = lib.FBK_DO_END
OPEN = lib.FBK_DO_OPEN

CONNECTIONS_REFUSED = SLOTS["FBK_C_WORKER_CONNECTIONS_REFUSED"]
CONNECTIONS_FAILED = SLOTS["FBK_C_WORKER_CONNECTIONS_FAILED"]
BAD_VERSION = SLOTS["FBK_C_WORKER_BAD_VERSION"]
TLS_HANDSHAKES, TLS_FAILED = SLOTS["FBK_C_WORKER_TLS_HANDSHAKES"], SLOTS["FBK_C_WORKER_TLS_FAILED"]
TLS_REFUSED = SLOTS["FBK_C_WORKER_TLS_REFUSED"]
AUTHENTICATED, AUTH_FAILED = SLOTS["FBK_C_WORKER_AUTHENTICATED"], SLOTS["FBK_C_WORKER_AUTH_FAILED"]
REFUSED_RIGHTS = SLOTS["FBK_C_WORKER_REFUSED_RIGHTS"]
AUTH_ENDED = SLOTS["FBK_C_WORKER_AUTH_ENDED"]
PLACED_MAX = lib.FBK_PLACED_MAX
"""Adds, fences and forces of one worker and pair that the journal has not answered, at most."""

INFOS_DONE, INFOS_DONE_US = SLOTS["FBK_C_WORKER_INFOS_DONE"], SLOTS["FBK_C_WORKER_INFOS_DONE_US"]
INFOS_FAILED, INFOS_FAILED_US = (
    SLOTS["FBK_C_WORKER_INFOS_FAILED"],
    SLOTS["FBK_C_WORKER_INFOS_FAILED_US"],
)

TIGHT_RECEIVE_BYTES = lib.FBK_TIGHT_RECEIVE_BYTES
"""What a connection may receive at once while the memory for waiting input is half used."""

QUOTAS_MAX = lib.FBK_QUOTAS_MAX - 1
TAGS_MAX = lib.FBK_TAGS_MAX
QUOTA_STEP_S = lib.FBK_QUOTA_STEP_US / 1e6
DIGESTS_WANTED_MAX = 1024
"""Ledgers that `digests_wanted` returns at once, at most."""
PASSED_BYTES_MAX = 16 * 1024
"""Maximum bytes for `pass_output`: acknowledgements of many adds, and answers to small reads."""

LIMITS = {
    "unread_replies": SLOTS["FBK_C_WORKER_UNREAD_REPLIES_CUT"],
    "reply_backlog": SLOTS["FBK_C_WORKER_SLOW_READERS_CUT"],
    "write_timeout": SLOTS["FBK_C_WORKER_WRITE_TIMEOUTS"],
    "slow_frames": SLOTS["FBK_C_WORKER_SLOW_FRAMES_CUT"],
    "frame_timeout": SLOTS["FBK_C_WORKER_FRAME_TIMEOUTS"],
    "hello_timeout": SLOTS["FBK_C_WORKER_HELLO_TIMEOUTS"],
    "silent_connections": SLOTS["FBK_C_WORKER_SILENT_CLOSED"],
    "unauthenticated_connections": SLOTS["FBK_C_WORKER_UNAUTHENTICATED_CLOSED"],
    "connections": SLOTS["FBK_C_WORKER_CONNECTIONS_REFUSED"],
}
"""Limits that end a connection when it reaches them, and where that is counted."""
WAITS_QUOTA = SLOTS["FBK_C_WORKER_WAITS_QUOTA"]
SILENT_CLOSED = SLOTS["FBK_C_WORKER_SILENT_CLOSED"]
UNAUTHENTICATED_CLOSED = SLOTS["FBK_C_WORKER_UNAUTHENTICATED_CLOSED"]

Event = tuple[int, int]
"""A slot and its bits."""


class WorkerPair(msgspec.Struct, frozen=True, kw_only=True):
    """One journal/index pair as a worker meets it. Descriptors stay the caller's and must stay open."""

    segment_fd: int
    """The worker's own segment for this pair, writable."""
    journal_segment_fd: int
    index_segment_fd: int
    journal_bell_fd: int
    index_bell_fd: int


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `Worker` needs. Descriptors stay the caller's and must stay open."""

    worker: int
    epoch: int
    pairs: Sequence[WorkerPair]
    bell_fd: int
    settings: Sequence[object]
    """[bookie], [limits] and [network], or others with their names: C takes its bounds out of them."""
    receive_size_bytes: int = 256 * 1024
    """Of the buffer that all connections share."""
    is_reads_only: bool = False
    """There is no journal: adds, fences and forces are refused with READ_ONLY."""
    has_quotas: bool = False
    """Whether `set_quota` may be called."""
    is_admission_required: bool = False
    """A connection has no rights until `admit`, and else all."""
    pair_of_shard: Sequence[int] = (0,) * lib.FBK_SHARD_COUNT
    """Where the ledgers of each shard live (`fastbk.storage.identity`)."""


class Worker(NativeObject):
    """Connections' bytes in, ring records and replies out."""

    _gone = "this worker was closed"

    def __init__(self, options: WorkerOptions) -> None:
        """Map the three segments of each pair. Raises OSError, LayoutError (another build, epoch or pair)."""
        c_options = ffi.new("struct fbk_worker_options *")
        by_hand = ("pairs", "pair_count", "pair_of_shard", "settings")
        fill_struct(c_options, options, *by_hand, settings=options.settings)
        if len(options.pairs) > lib.FBK_PAIRS_MAX:
            raise ValueError(f"at most {lib.FBK_PAIRS_MAX} pairs, not {len(options.pairs)}")
        c_options.pair_count = len(options.pairs)
        for number, pair in enumerate(options.pairs):
            fill_struct(c_options.pairs[number], pair)
        c_options.pair_of_shard = list(options.pair_of_shard)
        super().__init__(
            create(lambda error: lib.fbk_worker_create(c_options, error), "start the worker")
        )
        self.connections_max = int(c_options.connections_max)
        self._size = ffi.new("uint32_t *")
        pointer = lib.fbk_worker_receive_buffer(self.handle, self._size)
        shared = memoryview(ffi.buffer(pointer, self._size[0]))
        self._wanted = ffi.new("int64_t[]", DIGESTS_WANTED_MAX)
        self._audits = ffi.new("struct fbk_worker_audit[]", lib.FBK_WORKER_AUDITS_MAX)
        self._passed = ffi.new("uint8_t[]", PASSED_BYTES_MAX)
        self._full = shared
        self._tight = shared[:TIGHT_RECEIVE_BYTES]
        self.receive_buffer = shared
        """Where every connection without a buffer of its own receives."""

    def close(self) -> None:
        """Unmap everything; a second time does nothing. The receive buffer must not be used any more."""
        self._end(lib.fbk_worker_destroy)

    def connect(self, fd: int) -> int | None:
        """Return a slot for a connected, non-blocking socket; None when all are taken."""
        try:
            return check(lib.fbk_worker_connect(self.handle, fd), "take a connection")
        except NativeFullError:
            return None

    def watch(self, slot: int) -> int:
        """Have `poll` receive from a connection from now on; return bits."""
        return lib.fbk_worker_watch(self.handle, slot)

    def await_bytes(self, slot: int) -> int:
        """Have OPEN come once a connection's socket is readable, and leave there what it has; return bits."""
        return lib.fbk_worker_await(self.handle, slot)

    def secure(self, slot: int, behind_bytes: int = 0) -> int:
        """Leave the bytes to a transport that encrypts; return ABORT if a request in the clear is under way.

        `behind_bytes`: of a request that may have come behind the COLD frame, and is answered encrypted.
        """
        return lib.fbk_worker_secure(self.handle, slot, behind_bytes)

    def behind(self, slot: int) -> bytes:
        """Return what was received behind the COLD frame."""
        pointer = lib.fbk_worker_behind(self.handle, slot, self._size)
        return bytes(ffi.buffer(pointer, self._size[0])) if self._size[0] else b""

    @property
    def poll_fd(self) -> int:
        """A descriptor that is readable while a watched connection is."""
        return lib.fbk_worker_poll_fd(self.handle)

    def poll(self) -> tuple[list[Event], bool]:
        """Receive from all watched connections that are readable; return what `collect` does. Raises PoisonedError."""
        return self._collected(lib.fbk_worker_poll(self.handle), "receive")

    def disconnect(self, slot: int) -> int:
        """Forget a connection; return bits. Its socket is not touched again; must come before that is closed."""
        return lib.fbk_worker_disconnect(self.handle, slot)

    def receive(self, slot: int, size_bytes: int) -> int:
        """Take what was received; return bits. Raises PoisonedError: shared memory is broken."""
        todo = lib.fbk_worker_receive(self.handle, slot, size_bytes)
        if todo < 0:
            raise _error_of(todo, "receive")
        self.receive_buffer = self._tight if todo & TIGHT else self._full
        return todo

    def own_buffer(self, slot: int) -> memoryview:
        """Return where a connection with BUFFER receives the rest of its frame; good for one receive."""
        pointer = lib.fbk_worker_buffer(self.handle, slot, self._size)
        return memoryview(ffi.buffer(pointer, self._size[0]))

    def cold_frame(self, slot: int) -> bytes:
        """Return the frame that COLD announced."""
        pointer = lib.fbk_worker_cold(self.handle, slot, self._size)
        return bytes(ffi.buffer(pointer, self._size[0]))

    def is_apache(self, slot: int) -> bool:
        """Return whether a connection speaks Apache's protocols: so does its COLD frame."""
        return lib.fbk_worker_is_apache(self.handle, slot) != 0

    def proceed(self, slot: int, *, is_open: bool = True) -> int:
        """Go on after a COLD frame was answered; return bits. `is_open`: its hello was accepted."""
        return check(lib.fbk_worker_continue(self.handle, slot, is_open), "continue")

    def send(self, slot: int, frame: bytes, *, is_last: bool = False) -> int:
        """Send a frame; return bits. `is_last`: nothing more is taken from that connection."""
        return check(lib.fbk_worker_send(self.handle, slot, frame, len(frame), is_last), "send")

    def take_output(self, slot: int) -> bytearray:
        """Return the replies that WRITE announced; the caller hands them to the transport."""
        size_bytes = lib.fbk_worker_output_bytes(self.handle, slot)
        output = bytearray(size_bytes)
        lib.fbk_worker_take_output(
            self.handle, slot, ffi.from_buffer("uint8_t[]", output), size_bytes
        )
        return output

    def admit(self, slot: int, rights: int, tagged_rights: int = 0) -> None:
        """Say what a client may do from now on (INV-N2): bits of `fastbk.security.rights.Right`.

        `tagged_rights`: with ledgers that it shows tags for (INV-N4); those it has shown are forgotten.
        """
        lib.fbk_worker_admit(self.handle, slot, rights, tagged_rights)

    def grant(self, slot: int, ledger_id: int) -> None:
        """Say that a connection has shown a good tag for a ledger; the oldest beyond TAGS_MAX is forgotten."""
        check(lib.fbk_worker_grant(self.handle, slot, ledger_id), "keep a tag")

    def pass_output(self, slot: int) -> bytes:
        """Return the replies for a transport that most likely writes them at once; b"": there are more than a few.

        If it does not, it is `handed` them."""
        size_bytes = lib.fbk_worker_pass_output(self.handle, slot, self._passed, PASSED_BYTES_MAX)
        return bytes(ffi.buffer(self._passed, size_bytes))

    def handed(self, slot: int, size_bytes: int) -> None:
        """Say that the transport is busy with what it was passed, until `writable`."""
        lib.fbk_worker_handed(self.handle, slot, size_bytes)

    def writable(self, slot: int) -> int:
        """Say that the transport has written all it was given; return bits."""
        return check(lib.fbk_worker_writable(self.handle, slot), "go on writing")

    def collect(self) -> tuple[list[Event], bool]:
        """Answer all that is durable and all that the index answered.

        Return events, and whether to call again without waiting for the bell. Raises PoisonedError."""
        return self._collected(lib.fbk_worker_collect(self.handle), "collect")

    def _collected(self, result: int, what: str) -> tuple[list[Event], bool]:
        if result < 0:
            raise _error_of(result, what)
        return self._events(result % lib.FBK_WORKER_MORE), result >= lib.FBK_WORKER_MORE

    def counter(self, slot: int) -> int:
        """Return one of this worker's own counters."""
        return lib.fbk_worker_counter(self.handle, slot)

    def silent(self, count_max: int) -> list[tuple[int, int, bool]]:
        """Return connections that nothing is under way for: slot, sweeps since the last byte, whether there was one."""
        found = ffi.new("struct fbk_worker_silent[]", count_max)
        count = lib.fbk_worker_silent(self.handle, found, count_max)
        return [(one.connection, one.sweeps, one.has_sent != 0) for one in found[0:count]]

    def sweep(self) -> list[Event]:
        """Look at deadlines; about once a second."""
        return self._events(check(lib.fbk_worker_sweep(self.handle), "sweep"))

    def digests_wanted(self) -> list[int]:
        """Return ledgers that DIGESTS announced; each is wanted again later if it is not answered."""
        count = lib.fbk_worker_digests_wanted(self.handle, self._wanted, DIGESTS_WANTED_MAX)
        return [self._wanted[i] for i in range(count)]

    def digests_known(self, digests: Sequence[tuple[int, int | None]]) -> None:
        """Check entries of Apache's clients from now on by these digest types; None: metadata names none."""
        count = len(digests)
        ledger_ids = ffi.new("int64_t[]", [ledger_id for ledger_id, _ in digests])
        types = ffi.new("uint8_t[]", [digest_type or 0 for _, digest_type in digests])
        lib.fbk_worker_digests_known(self.handle, ledger_ids, types, count)

    def set_quota(
        self, number: int, adds_per_s: int, bytes_per_s: int, ledgers_per_s: float
    ) -> None:
        """Say what quota `number`, from 1 to QUOTAS_MAX, allows from now on; 0 is no bound.

        All ledgers are new to it."""
        lib.fbk_worker_set_quota(self.handle, number, adds_per_s, bytes_per_s, ledgers_per_s)

    def use_quota(self, slot: int, number: int) -> None:
        """Have a connection's adds count in quota `number`; 0: in none."""
        lib.fbk_worker_use_quota(self.handle, slot, number)

    @property
    def quota_waits(self) -> int:
        """Connections that wait for their quota: `collect` has to be called every QUOTA_STEP_S meanwhile."""
        return lib.fbk_worker_quota_waits(self.handle)

    def audits(self) -> tuple[list[tuple[int, int, int, int]], int]:
        """Return what clients did since the last call: slot, operation (FBK_AUDIT_*), ledger, status.

        And how many more there were.
        """
        dropped = ffi.new("uint64_t *")
        count = lib.fbk_worker_audits(self.handle, self._audits, dropped)
        found = self._audits[0:count] if count else ()
        return [
            (one.connection, one.operation, one.ledger_id, one.status) for one in found
        ], dropped[0]

    def drain(self) -> list[Event]:
        """Take no more requests, of no connection."""
        return self._events(check(lib.fbk_worker_drain(self.handle), "drain"))

    def leave(self) -> None:
        """Tell the journal not to wait for this worker any more; nothing but `close` may follow."""
        lib.fbk_worker_leave(self.handle)

    @property
    def pending(self) -> int:
        """Requests under way, long polls not counted."""
        return lib.fbk_worker_pending(self.handle)

    @property
    def is_read_only(self) -> bool:
        """Whether normal adds are refused to some ledgers: an index says so, or there is no journal."""
        return lib.fbk_worker_is_read_only(self.handle) != 0

    def count(self, counter: int, amount: int = 1) -> None:
        """Count what only Python sees: one of this module's counters."""
        lib.fbk_worker_count(self.handle, counter, amount)

    def _events(self, count: int) -> list[Event]:
        if not count:
            return []
        events = lib.fbk_worker_events(self.handle)
        return [(events[i].connection, events[i].todo) for i in range(count)]


def _error_of(status: int, what: str) -> Exception:
    if status == lib.FBK_E_POISONED:
        return PoisonedError(f"{what}: what journal or index left in shared memory can't be")
    return error_of(status, what)
