"""What an ingest is to do: which files go into the stream together, which were taken, and which have changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from fastbk.errors import ConfigError
from fastbk.spark.jobs.folders import PATTERN_CHARACTERS, FileStatus, check_place
from fastbk.stream.paths import split_stream_path

FORMATS = ("lines", "json", "csv", "parquet", "binary")
CHANGED = ("refuse", "again", "skip")
GROUP_BYTES = 1024 * 1024 * 1024
GROUP_FILES_MAX = 10_000
FILE_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024
"""Of a file that is one record, which has 4 MiB with its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPlan:
    """What is asked for. Raises ConfigError.

    Attributes:
        stream: where to. manifest: a place of its own that says which files are in the stream.
        format: one of FORMATS. key, value: columns; value None: lines and files as they are, rows as JSON.
        create: the stream is made if it is not there. is_fencing: a writer that has it open is fenced.
        changed: what becomes of a file that changed after it was taken, one of CHANGED.
        group_bytes: of files that go into the stream together, all or none.
    """

    stream: str
    manifest: str
    format: str = "lines"
    key: str | None = None
    value: str | None = None
    create: bool = False
    is_fencing: bool = False
    changed: str = "refuse"
    group_bytes: int = GROUP_BYTES

    def __post_init__(self) -> None:
        split_stream_path(self.stream)
        check_place(self.manifest)
        for what, given, known in (
            ("format", self.format, FORMATS),
            ("changed", self.changed, CHANGED),
        ):
            if given not in known:
                raise ConfigError(f"{what} {given} is none of {', '.join(known)}")
        if self.format == "lines" and (self.key or self.value):
            raise ConfigError(
                "lines have no columns for a key or value: name the format, such as json or csv"
            )
        if self.group_bytes < 1:
            raise ConfigError("a group has at least one byte")

    @property
    def kept(self) -> dict[str, str | None]:
        """What has to stay the same from run to run."""
        return {
            "stream": self.stream, "format": self.format, "key": self.key, "value": self.value,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Files that go into the stream together, in this order, under a key that is theirs.

    Attributes:
        plan: what IngestPlan.kept was. records, stream_id: when it is done; records -1: nobody counted.
    """

    number: int
    files: tuple[FileStatus, ...]
    plan: Mapping[str, str | None]
    records: int = -1
    stream_id: str = ""

    @property
    def key(self) -> str:
        """The idempotency key: the same files as they are now, for the same stream in the same form, have the same."""
        said = [[one.uri, one.size_bytes, one.modified_ms] for one in self.files]
        whole = json.dumps([said, sorted(self.plan.items())])
        return f"ingest-{self.number}-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(one.size_bytes for one in self.files)

    def done(self, records: int, stream_id: str) -> Group:
        """Return it as it stands in the manifest when it is in the stream."""
        return replace(self, records=records, stream_id=stream_id)

    def to_json(self) -> str:
        """Return the manifest's text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, name: str) -> Group:
        """Return what a manifest's file says. Raises ConfigError."""
        try:
            said = json.loads(text)
            files = tuple(FileStatus(**one) for one in said.pop("files"))
            return cls(**said, files=files)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{name} is no manifest of an ingest: {error!r}") from error


def check_files(files: Iterable[FileStatus], plan: IngestPlan) -> None:
    """Raise ConfigError for names and sizes that cannot be taken."""
    for one in files:
        if any(character in one.path for character in PATTERN_CHARACTERS):
            raise ConfigError(
                f"{one.path} has one of {PATTERN_CHARACTERS} in its name, which Spark takes for patterns: rename it"
            )
        if plan.format == "binary" and one.size_bytes > FILE_BYTES_MAX:
            raise ConfigError(
                f"{one.path} has {one.size_bytes:,} bytes, and a file that is one record {FILE_BYTES_MAX:,} at most"
            )


def check_done(done: Sequence[Group], plan: IngestPlan, stream_id: str | None) -> None:
    """Raise ConfigError where a manifest is of other data than this ingest. `stream_id`: None, there is no stream."""
    for one in done:
        if dict(one.plan) != plan.kept:
            raise ConfigError(
                f"{plan.manifest} is the manifest of an ingest of {_said(one.plan)}, and this one is of"
                f" {_said(plan.kept)}: give each a place of its own"
            )
        if one.stream_id and one.stream_id != stream_id:
            raise ConfigError(
                f"{plan.manifest} is of a stream {plan.stream} that is not there any more: give this ingest a new place"
            )


def _said(kept: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in kept.items() if value is not None)


def left_of(
    files: Sequence[FileStatus], done: Sequence[Group], plan: IngestPlan
) -> list[FileStatus]:
    """Return the files that are still to be taken, in their order. Raises ConfigError for those that changed."""
    taken = {one.uri: one for group in done for one in group.files}
    left: list[FileStatus] = []
    for one in files:
        before = taken.get(one.uri)
        if before is None or (before != one and plan.changed == "again"):
            left.append(one)
        elif before != one and plan.changed == "refuse":
            raise ConfigError(
                f"{one.path} changed since it was taken (it had {before.size_bytes:,} bytes, and has"
                f" {one.size_bytes:,}): --changed again takes all of it once more, --changed skip leaves it"
            )
    return left


def groups_of(files: Sequence[FileStatus], first: int, plan: IngestPlan) -> list[Group]:
    """Return the files in groups of at most plan.group_bytes, or of one that is larger, numbered from `first`."""
    groups: list[list[FileStatus]] = []
    size_bytes = 0
    for one in files:
        is_full = size_bytes + one.size_bytes > plan.group_bytes
        if not groups or is_full or len(groups[-1]) >= GROUP_FILES_MAX:
            groups.append([])
            size_bytes = 0
        groups[-1].append(one)
        size_bytes += one.size_bytes
    return [
        Group(number, tuple(some), plan.kept) for number, some in enumerate(groups, start=first)
    ]
