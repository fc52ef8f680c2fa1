"""Which files of a journal directory are replayed, up to where, and what is missing.

Names, listing and the order of files; `journal_pool.py` makes and recycles them. The formats are in
README.md beside this file. Everything here looks only at headers; batches are read by
`fastbk.native.journal.JournalScan`.

Decision 15.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from fastbk.errors import StorageError
from fastbk.native.journal import (
    NO_END,
    JournalEnd,
    JournalHeader,
    JournalScan,
    read_header,
)
from fastbk.storage.directories import JOURNAL_LOG, JOURNALS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from fastbk.native.disk import Disk
    from fastbk.storage.manifest import LogEntry, Manifest


name_of, id_of = JOURNALS.name, JOURNALS.id_of

CUT_SHARE_MIN = 1 / 8
OLD_FILES_LISTED_MAX = 256
"""So many old files the `replayed` message names, 100 bytes each: of more the journal is told when it runs."""


class FoundFile(msgspec.Struct, frozen=True):
    """A file in the directory: the id of its name and what its header says.

    A header with a lower id than the name is that of a file renamed for re-use and not used since.
    """

    file_id: int
    path: str
    header: JournalHeader

    @property
    def is_used(self) -> bool:
        """Whether it was ever written to under this name."""
        return self.header.state in ("valid", PASSED) and self.header.file_id == self.file_id


PASSED = "passed"
"""State of a header that was not read: the mark has passed the file."""


def find_files(
    disk: Disk, directory: str, *, lock: bool = True, passed: Collection[int] = ()
) -> list[FoundFile]:
    """Return all journal files in `directory` with their headers, by rising id.

    Args:
        lock: each one is waited for until no dead writer can change it any more.
        passed: files of `passed_files`: they are neither read nor waited for, there may be tens of thousands.

    Raises OSError, TimeoutError, FormatTooNewError.
    """
    found = []
    for file_id in JOURNALS.ids_in(disk, directory):
        path = os.path.join(directory, name_of(file_id))
        header = passed_header(file_id) if file_id in passed else read_header(disk, path, lock=lock)
        found.append(FoundFile(file_id, path, header))
    return found


def passed_files(logs: Iterable[LogEntry]) -> frozenset[int]:
    """Return the journal files among a manifest's logs whose headers replay can do without.

    The mark has passed those that are sealed. But the newest may be the last that was written to: then its header and
    its batches say where the journal ended.
    """
    sealed = {log.log_id ^ JOURNAL_LOG for log in logs if log.is_journal_file and log.sealed}
    return frozenset(sealed - {max(sealed, default=0)})


def next_file_id_of(manifest: Manifest) -> int:
    """Return an id above those of all journal files that a manifest names: some of them may be lost."""
    named = [log.log_id ^ JOURNAL_LOG for log in manifest.logs if log.is_journal_file]
    return 1 + max([manifest.mark_file_id, *named])


def passed_header(file_id: int) -> JournalHeader:
    """Return what stands for the header of a file that the mark has passed, and with it all before it."""
    return JournalHeader(
        state=PASSED,
        size_bytes=0,
        block_size_bytes=0,
        file_id=file_id,
        salt=0,
        incarnation=0,
        file_size_bytes=0,
        predecessor_file_id=0,
        predecessor_sequence=0,
        predecessor_crc=0,
        first_sequence=0,
        first_record_sequence=0,
        created_s=0,
        pair=0,
        adopts=True,
        bookie_id="",
    )


class Damage(msgspec.Struct, frozen=True):
    """Batches that were acknowledged, or may have been, and can't be read.

    Attributes:
        reason: for people. file_id: where they were. first_sequence: the first of them.
        last_sequence: the last of them, 0 = unknown.
    """

    reason: str
    file_id: int
    first_sequence: int
    last_sequence: int = 0

    def message(self) -> dict[str, object]:
        """Return it for the `replayed` message and the manifest."""
        return msgspec.structs.asdict(self)


class ReplayFile(msgspec.Struct, frozen=True):
    """A file to replay. `end_sequence`: the last batch that counts; NO_END where no successor says so.

    `adopts`: it may hold runs that stay where they are.
    """

    file_id: int
    path: str
    end_sequence: int
    adopts: bool = False

    def scan(
        self,
        disk: Disk,
        incarnation: int,
        mark_sequence: int,
        *,
        mark_offset_bytes: int = 0,
        lock: bool = False,
    ) -> JournalScan:
        """Read its batches behind the mark that count. Arguments and errors are `JournalScan`'s."""
        return JournalScan(
            disk,
            self.path,
            self.file_id,
            incarnation,
            mark_sequence=mark_sequence,
            mark_offset_bytes=mark_offset_bytes,
            end_sequence=self.end_sequence,
            lock=lock,
        )


class OldFile(msgspec.Struct, frozen=True):
    """A file that was left: may be recycled when the mark is at `last_sequence` (INV-J3).

    `kept`: not even then, but only when the index says so: it is a log, or could be one.
    """

    file_id: int
    path: str
    last_sequence: int
    size_bytes: int
    kept: bool = False

    def message(self) -> dict[str, int]:
        """Return it for the `replayed` message."""
        return {
            "file_id": self.file_id,
            "last_sequence": self.last_sequence,
            "size_bytes": self.size_bytes,
        }


class ReplayPlan(msgspec.Struct):
    """What to do with a journal directory at start.

    Attributes:
        mark_sequence: batches up to it are in finished flushes.
        files: to be read, in this order.
        behind: used files that hold nothing above the mark.
        unused: names without content that counts: to be taken for new files.
        damage: found by looking at headers alone.
        next_file_id: above every id ever seen here.
    """

    mark_sequence: int
    files: list[ReplayFile] = msgspec.field(default_factory=list)
    behind: list[OldFile] = msgspec.field(default_factory=list)
    unused: list[OldFile] = msgspec.field(default_factory=list)
    damage: list[Damage] = msgspec.field(default_factory=list)
    next_file_id: int = 1
    sizes: dict[int, int] = msgspec.field(default_factory=dict)
    last_used: JournalHeader | None = None


def plan_replay(
    found: Sequence[FoundFile], mark_sequence: int, incarnation: int, *, next_file_id: int = 1
) -> ReplayPlan:
    """Order the files, bound each by its successor's header (INV-J4), find what is missing.

    `next_file_id`: no lower id is given to a file: a manifest names those of files that are lost.
    Raises StorageError when a file belongs to another bookie's or an earlier incarnation's journal.
    """
    plan = ReplayPlan(mark_sequence, next_file_id=next_file_id)
    used = []
    for file in sorted(found, key=lambda each: each.file_id):
        plan.next_file_id = max(plan.next_file_id, file.file_id + 1)
        plan.sizes[file.file_id] = file.header.size_bytes
        if file.is_used:
            if file.header.state != PASSED and file.header.incarnation != incarnation:
                raise StorageError(
                    f"{file.path} belongs to incarnation {file.header.incarnation:016x}, not to"
                    f" {incarnation:016x}: put the right journal directory back"
                )
            used.append(file)
        elif file.header.state == "valid" and file.header.file_id > file.file_id:
            raise StorageError(
                f"{file.path} holds journal file {file.header.file_id}: it was renamed by hand"
            )
        elif file.header.state != "damaged":
            plan.unused.append(OldFile(file.file_id, file.path, 0, file.header.size_bytes))
    damaged = [file for file in found if file.header.state == "damaged"]
    _check_beginning(plan, used, damaged)
    for index, file in enumerate(used):
        _plan_file(plan, file, used[index + 1] if index + 1 < len(used) else None, damaged)
    _plan_damaged(plan, used, damaged)
    plan.last_used = used[-1].header if used else None
    return plan


def _check_beginning(plan: ReplayPlan, used: list[FoundFile], damaged: list[FoundFile]) -> None:
    """The oldest file has to begin at the mark or before it."""
    if used:
        first = used[0].header
        if first.predecessor_sequence > plan.mark_sequence and not _between(
            damaged, 0, used[0].file_id
        ):
            plan.damage.append(
                Damage(
                    f"the journal file before {used[0].file_id} is missing",
                    first.predecessor_file_id,
                    plan.mark_sequence + 1,
                    first.predecessor_sequence,
                )
            )
    elif plan.mark_sequence > 0 and not damaged:
        # The last file that was written to is never recycled before the next one's header is durable.
        plan.damage.append(Damage("there is no journal file", 0, plan.mark_sequence + 1))


def _between(files: Iterable[FoundFile], low: int, high: int) -> list[FoundFile]:
    return [file for file in files if low < file.file_id < high]


def _plan_file(
    plan: ReplayPlan, file: FoundFile, successor: FoundFile | None, damaged: list[FoundFile]
) -> None:
    if successor is None:
        plan.files.append(ReplayFile(file.file_id, file.path, NO_END, file.header.adopts))
        return
    end = successor.header.predecessor_sequence
    is_next = successor.header.predecessor_file_id == file.file_id
    if end <= plan.mark_sequence or file.header.state == PASSED:
        plan.behind.append(OldFile(file.file_id, file.path, end, file.header.size_bytes))
        return
    end_sequence = end if is_next else NO_END
    plan.files.append(ReplayFile(file.file_id, file.path, end_sequence, file.header.adopts))
    if not is_next and not _between(damaged, file.file_id, successor.file_id):
        plan.damage.append(
            Damage(
                f"the journal file between {file.file_id} and {successor.file_id} is missing",
                successor.header.predecessor_file_id,
                max(file.header.first_sequence, plan.mark_sequence + 1),
                end,
            )
        )


def _plan_damaged(plan: ReplayPlan, used: list[FoundFile], damaged: list[FoundFile]) -> None:
    """A file whose header is lost holds batches up to its successor's predecessor."""
    for file in damaged:
        after = next((each.header for each in used if each.file_id > file.file_id), None)
        before = [each.header.first_sequence for each in used if each.file_id < file.file_id]
        if after is not None and after.predecessor_sequence <= plan.mark_sequence:
            plan.behind.append(
                OldFile(file.file_id, file.path, after.predecessor_sequence, file.header.size_bytes)
            )
            continue
        first = max(before[-1] if before else 1, plan.mark_sequence + 1)
        last = after.predecessor_sequence if after is not None else 0
        plan.damage.append(
            Damage(
                f"both headers of journal file {file.file_id} are damaged",
                file.file_id,
                first,
                last,
            )
        )


class ReplayEnd(msgspec.Struct, frozen=True):
    """Where replay ended: what the next file's header names, and what may be recycled later."""

    next_file_id: int
    predecessor_file_id: int
    predecessor_sequence: int
    predecessor_crc: int
    next_record_sequence: int
    old_files: list[OldFile]
    damage: list[Damage]
    predecessor_end_bytes: int = 0
    """Where the last file may be cut once its successor's header is durable; 0: not at all."""

    def with_kept(self, listed_files: Collection[int], logs: Iterable[LogEntry] = ()) -> ReplayEnd:
        """Return the same, with the files kept that a manifest lists as logs; `logs`: those of all such manifests."""
        log_id = JOURNAL_LOG | self.predecessor_file_id
        counted_bytes = max((log.durable_bytes for log in logs if log.log_id == log_id), default=0)
        # Any other one will be taken again: better as large as it is. And what a manifest counts stays, though no
        # batch can be read there any more: its runs may be whole.
        is_log = self.predecessor_file_id in listed_files
        may_cut = is_log and counted_bytes <= self.predecessor_end_bytes
        files = [
            msgspec.structs.replace(file, kept=file.file_id in listed_files)
            for file in self.old_files
        ]
        return msgspec.structs.replace(
            self,
            old_files=files,
            predecessor_end_bytes=self.predecessor_end_bytes if may_cut else 0,
        )

    def message(self) -> dict[str, object]:
        """Return these fields of the `replayed` message.

        Kept files are left out: they may be tens of thousands, and the journal needs to know of one when it is free.
        Of the others, too, as many as that may be there: a deletion freed them, and they were not removed yet.
        """
        return msgspec.structs.asdict(self) | {
            "old_files": [file.message() for file in self._listed_now],
            "damage": [each.message() for each in self.damage],
        }

    @property
    def files_named_later(self) -> list[int]:
        """Files that the journal may take again and the `replayed` message does not name."""
        listed = {file.file_id for file in self._listed_now}
        return [
            file.file_id for file in self.old_files if not file.kept and file.file_id not in listed
        ]

    @property
    def _listed_now(self) -> list[OldFile]:
        """The newest that are not kept, the file first that names the journal's end until the next one's header does.

        Not those whose size nobody has looked at.
        """
        files = [file for file in self.old_files if not file.kept and file.size_bytes > 0]
        files.sort(key=lambda file: (-file.last_sequence, file.file_id))
        return files[:OLD_FILES_LISTED_MAX]


def conclude_replay(plan: ReplayPlan, ends: Sequence[JournalEnd]) -> ReplayEnd:
    """Return where replay ended; `ends` are those of the scans of `plan.files`, in their order.

    No sequence is given twice: what follows begins behind the mark and behind everything that any header
    names, even where files are damaged or missing.
    """
    damage = list(plan.damage)
    old_files = [*plan.unused, *plan.behind]
    sequence, crc, record_sequence = 0, 0, 0
    for file, end in zip(plan.files, ends, strict=True):
        if end.kind == "damage":
            damage.append(_damage_of(file, end, plan.mark_sequence))
        if end.last_sequence >= sequence:
            sequence, crc = end.last_sequence, end.last_crc
        record_sequence = max(record_sequence, end.next_record_sequence)
        last = end.last_sequence if file.end_sequence == NO_END else file.end_sequence
        last = max(last, end.later_sequence)
        old_files.append(OldFile(file.file_id, file.path, last, plan.sizes[file.file_id]))
        if last > sequence:
            sequence, crc = last, 0
    highest = max([plan.mark_sequence, *(each.last_sequence for each in damage)])
    if highest > sequence:
        sequence, crc = highest, 0
    last_used = plan.last_used
    return ReplayEnd(
        next_file_id=plan.next_file_id,
        predecessor_file_id=last_used.file_id if last_used is not None else 0,
        predecessor_sequence=sequence,
        predecessor_crc=crc,
        next_record_sequence=record_sequence,
        old_files=sorted(old_files, key=lambda each: each.file_id),
        damage=damage,
        predecessor_end_bytes=0 if damage else _end_to_cut_at(plan, ends, sequence),
    )


def _end_to_cut_at(plan: ReplayPlan, ends: Sequence[JournalEnd], sequence: int) -> int:
    """Return where the last file ends if it adopts and much of it is unused, else 0.

    Only if its last batch is that of the journal: then nothing that counts, or that a manifest lists, lies behind it.
    And only if nothing is damaged: then it stays as it is for whoever wants to look.
    """
    last_used = plan.last_used
    if not plan.files or last_used is None or plan.files[-1].file_id != last_used.file_id:
        return 0
    end = ends[-1]
    if not plan.files[-1].adopts or end.kind not in ("closing", "tail"):
        return 0
    if end.read_error or end.passed_damage or end.last_sequence != sequence:
        return 0
    is_worth_it = is_worth_a_cut(plan.sizes[last_used.file_id], end.end_bytes)
    return end.end_bytes if is_worth_it else 0


def is_worth_a_cut(size_bytes: int, end_bytes: int) -> bool:
    """Return whether so much of a file that adopts would stay unused that it is cut behind its last batch."""
    return size_bytes - end_bytes > CUT_SHARE_MIN * size_bytes


def _damage_of(file: ReplayFile, end: JournalEnd, mark_sequence: int) -> Damage:
    first = max(end.last_sequence, mark_sequence) + 1
    if end.read_error:
        reason = f"journal file {file.file_id} can't be read: {os.strerror(-end.read_error)}"
    elif end.later_sequence:
        reason = (
            f"batch {first} of journal file {file.file_id} is damaged: batch {end.later_sequence} behind it"
            f" says that {end.later_acked_through} was acknowledged"
        )
    else:
        reason = (
            f"journal file {file.file_id} ends at batch {end.last_sequence}, its successor says"
            f" {file.end_sequence}"
        )
    last = 0 if file.end_sequence == NO_END else file.end_sequence
    return Damage(reason, file.file_id, first, max(last, end.later_sequence))
