"""Ingest: files into a stream, exactly once, by name and in the order that lines and rows have in each file.

    <manifest>/group-<n>.planned.json     files that go into the stream together, as they were when that was decided
    <manifest>/group-<n>.done.json        the same, when they are there

A group is one write of the exactly-once sink, under a key made of its files. A run that was cut off left at most one
group that is planned and not done: it is written again under its key, which does nothing where it is in the stream
already. So the stream has to remember the last key only, however many groups there are.

Spark reads files in splits and in an order of its own, so each row carries where it was: file, split, and its number in
the split. Rows are sorted by that into ranges, and the sink puts these behind each other.

The plan says which files go into the stream together, which were taken, and which have changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

import fastbk.sync
from fastbk.errors import ConfigError, StorageError
from fastbk.spark.jobs import claims
from fastbk.spark.jobs.folders import (
    PATTERN_CHARACTERS,
    FileStatus,
    check_place,
    delete,
    files_of,
    names_in,
    read_text,
    uri_of,
    write_text,
)
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from fastbk.stream.sync import SyncStream


# --- the plan -------------------------------------------------------------------------------------


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
        content = [[file.uri, file.size_bytes, file.modified_ms] for file in self.files]
        whole = json.dumps([content, sorted(self.plan.items())])
        return f"ingest-{self.number}-{hashlib.sha256(whole.encode()).hexdigest()[:32]}"

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        return sum(file.size_bytes for file in self.files)

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
            content = json.loads(text)
            files = tuple(FileStatus(**one) for one in content.pop("files"))
            return cls(**content, files=files)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{name} is no manifest of an ingest: {error!r}") from error


def check_files(files: Iterable[FileStatus], plan: IngestPlan) -> None:
    """Raise ConfigError for names and sizes that cannot be taken."""
    for file in files:
        if any(character in file.path for character in PATTERN_CHARACTERS):
            raise ConfigError(
                f"{file.path} has one of {PATTERN_CHARACTERS} in its name, which Spark takes for patterns: rename it"
            )
        if plan.format == "binary" and file.size_bytes > FILE_BYTES_MAX:
            raise ConfigError(
                f"{file.path} has {file.size_bytes:,} bytes, and a file that is one record {FILE_BYTES_MAX:,} at most"
            )


def check_done(done: Sequence[Group], plan: IngestPlan, stream_id: str | None) -> None:
    """Raise ConfigError where a manifest is of other data than this ingest. `stream_id`: None, there is no stream."""
    for one in done:
        if dict(one.plan) != plan.kept:
            raise ConfigError(
                f"{plan.manifest} is the manifest of an ingest of {_options_text(one.plan)}, and this one is of"
                f" {_options_text(plan.kept)}: give each a place of its own"
            )
        if one.stream_id and one.stream_id != stream_id:
            raise ConfigError(
                f"{plan.manifest} is of a stream {plan.stream} that is not there any more: give this ingest a new place"
            )


def _options_text(kept: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {value}" for name, value in kept.items() if value is not None)


def left_of(
    files: Sequence[FileStatus], done: Sequence[Group], plan: IngestPlan
) -> list[FileStatus]:
    """Return the files that are still to be taken, in their order. Raises ConfigError for those that changed."""
    taken = {file.uri: file for group in done for file in group.files}
    left: list[FileStatus] = []
    for file in files:
        before = taken.get(file.uri)
        if before is None or (before != file and plan.changed == "again"):
            left.append(file)
        elif before != file and plan.changed == "refuse":
            raise ConfigError(
                f"{file.path} changed since it was taken (it had {before.size_bytes:,} bytes, and has"
                f" {file.size_bytes:,}): --changed again takes all of it once more, --changed skip leaves it"
            )
    return left


def groups_of(files: Sequence[FileStatus], first: int, plan: IngestPlan) -> list[Group]:
    """Return the files in groups of at most plan.group_bytes, or of one that is larger, numbered from `first`."""
    groups: list[list[FileStatus]] = []
    size_bytes = 0
    for file in files:
        is_full = size_bytes + file.size_bytes > plan.group_bytes
        if not groups or is_full or len(groups[-1]) >= GROUP_FILES_MAX:
            groups.append([])
            size_bytes = 0
        groups[-1].append(file)
        size_bytes += file.size_bytes
    return [
        Group(number, tuple(some), plan.kept) for number, some in enumerate(groups, start=first)
    ]


# --- the run --------------------------------------------------------------------------------------


PARTITION_BYTES = 64 * 1024 * 1024
PARTITIONS_MAX = 200
PLACE = ("_file", "_split", "_row")
"""Where a row was."""


@dataclass(frozen=True, slots=True)
class Ingested:
    """What the stream has by this manifest, and what of it this run has done.

    Attributes:
        records: of all groups; those of a group whose run died behind its commit and whose files changed are not known.
    """

    groups: int
    files: int
    bytes: int
    records: int
    new_files: int
    new_records: int


def run(
    spark: SparkSession,
    uri: str,
    paths: Sequence[str],
    plan: IngestPlan,
    *,
    take_over: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Ingested:
    """Take what is left of these files, folders and patterns. take_over: another run that has the manifest is dead.

    Raises ConfigError, before anything is written, for what is not there, cannot be taken or changed since it was
    taken, and while another run has the manifest; before its group is written for a column that is not there.
    StorageError for a file that changes while it is read, and where another run took the manifest over.
    """
    place = claims.files_of(spark, f"{plan.manifest}/claims")
    with claims.claimed(place, lambda: _last_number(spark, plan), take_over=take_over) as claim:
        return _run(spark, uri, paths, plan, claim, report)


def _last_number(spark: SparkSession, plan: IngestPlan) -> int:
    numbers = [name.split(".")[0].removeprefix("group-") for name in names_in(spark, plan.manifest)]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def _run(
    spark: SparkSession,
    uri: str,
    paths: Sequence[str],
    plan: IngestPlan,
    claim: claims.Claim,
    report: Callable[[str], None],
) -> Ingested:
    manifest = uri_of(spark, plan.manifest) + "/"
    files = sorted(
        {
            file.uri: file
            for path in paths
            for file in files_of(spark, path)
            if not file.uri.startswith(manifest)
        }.values(),
        key=lambda one: one.uri,
    )
    check_files(files, plan)
    with fastbk.sync.connect(uri) as client:
        namespace, name = split_stream_path(plan.stream)
        stream = client.namespace(namespace).stream(name)
        stream_id = stream.info().id if stream.exists() else None
        if stream_id is None and not plan.create:
            raise ConfigError(
                f"there is no stream {plan.stream}: make it by fastbk stream create {plan.stream}, or have it made:"
                " --create"
            )
        done, planned = groups_in(spark, plan.manifest)
        check_done([*done, *planned], plan, stream_id)
        for one in planned:
            done += _settled(spark, plan, one, files, stream if stream_id else None)
        planned = [one for one in planned if one.number not in {other.number for other in done}]
        again = [one for one in planned if _is_as_planned(one, files)]
        left = left_of(files, [*done, *again], plan)
        next_number = 1 + max((one.number for one in [*done, *again]), default=0)
        groups = [*again, *groups_of(left, next_number, plan)]
        records = 0
        for index, group in enumerate(groups, 1):
            size = f"{format_count(len(group.files), 'file')}, {format_size(group.size_bytes)}"
            report(f"group {index} of {len(groups)}: {size}")
            claim.check()
            done.append(_taken(spark, uri, plan, group, stream))
            records += done[-1].records
            report(
                f"group {index} of {len(groups)}: {done[-1].records:,} records are in {plan.stream}"
            )
    return Ingested(
        len(done),
        len({file.uri for group in done for file in group.files}),
        sum(one.size_bytes for one in done),
        sum(max(0, one.records) for one in done),
        sum(len(one.files) for one in groups),
        records,
    )


def groups_in(spark: SparkSession, manifest: str) -> tuple[list[Group], list[Group]]:
    """Return the groups that are done, and those that are only planned, by number."""
    names = names_in(spark, manifest)
    finished = {name.split(".")[0] for name in names if name.endswith(".done.json")}
    found: dict[str, list[Group]] = {"done": [], "planned": []}
    for name in names:
        begin, _, kind = name.removesuffix(".json").partition(".")
        if kind in found and name.endswith(".json") and (kind == "done" or begin not in finished):
            place = f"{manifest}/{name}"
            found[kind].append(Group.from_json(read_text(spark, place), place))
    return found["done"], found["planned"]


def _is_as_planned(group: Group, files: Iterable[FileStatus]) -> bool:
    return set(group.files) <= set(files)


def _settled(
    spark: SparkSession,
    plan: IngestPlan,
    group: Group,
    files: Sequence[FileStatus],
    stream: SyncStream | None,
) -> list[Group]:
    """Decide about a group that a dead run planned: return it if it is done; forget it if it has to be planned anew.

    While its files are as they were it is simply written again, so neither happens.
    """
    if _is_as_planned(group, files):
        return []
    if stream is None or stream.attached_number(f"spark/{group.key}") < 0:
        delete(spark, _place(plan, group, "planned"))
        return []
    found = group.done(-1, stream.info().id)
    write_text(spark, _place(plan, group, "done"), found.to_json())
    return [found]


def _place(plan: IngestPlan, group: Group, kind: str) -> str:
    return f"{plan.manifest}/group-{group.number:06}.{kind}.json"


def _taken(
    spark: SparkSession, uri: str, plan: IngestPlan, group: Group, stream: SyncStream
) -> Group:
    """Write one group; return it as it is in the manifest."""
    rows = rows_of(spark, plan, [one.path for one in group.files])
    wanted, read = len(group.files), len(rows.inputFiles())
    if read != wanted:
        raise StorageError(f"Spark reads {read} of {wanted} files of group {group.number}")
    partitions = min(PARTITIONS_MAX, 1 + group.size_bytes // PARTITION_BYTES)
    ordered = rows.repartitionByRange(partitions, *PLACE).sortWithinPartitions(*PLACE).drop(*PLACE)
    place = _place(plan, group, "planned")
    if place.rpartition("/")[2] not in names_in(spark, plan.manifest):
        write_text(spark, place, group.to_json())
    seen = Observation()
    (
        ordered.observe(seen, f.count(f.lit(1)).alias("records"))
        .write.format("fastbk").mode("append")
        .options(metadata=uri, stream=plan.stream, idempotencyKey=group.key)
        .options(create=str(plan.create).lower(), onWriter="fence" if plan.is_fencing else "refuse")
        .save()
    )  # fmt: skip
    now = {one.uri: one for file in group.files for one in files_of(spark, file.path)}
    for one in group.files:
        if now.get(one.uri) != one:
            raise StorageError(
                f"{one.path} changed while it was read: what {plan.stream} has of it may be neither the old nor the new"
            )
    done = group.done(int(seen.get["records"]), stream.info().id)
    write_text(spark, _place(plan, group, "done"), done.to_json())
    return done


def rows_of(spark: SparkSession, plan: IngestPlan, paths: Sequence[str]) -> DataFrame:
    """Return what is to be written, value and perhaps key, and PLACE. Raises ConfigError for a missing column."""
    reader, some = spark.read, list(paths)
    if plan.format == "lines":
        found = reader.option("lineSep", "\n").text(some)
    elif plan.format == "json":
        found = reader.option("mode", "FAILFAST").json(some)
    elif plan.format == "csv":
        # Each file's own header counts, and has to be that of the others.
        options = {"header": "true", "mode": "FAILFAST", "enforceSchema": "false"}
        found = reader.options(**options).csv(some)
    elif plan.format == "parquet":
        found = reader.option("mergeSchema", "true").parquet(*some)
    else:
        found = reader.format("binaryFile").load(some)
    names = found.columns
    for what, name in (("key", plan.key), ("value", plan.value)):
        if name is not None and name not in names:
            raise ConfigError(
                f"there is no column {name} for the {what}: there are {', '.join(names)}"
            )
    whole = {"lines": "value", "binary": "content"}.get(plan.format)
    value, key = plan.value or whole, plan.key or ("path" if plan.format == "binary" else None)
    columns: list[Column] = [
        _bytes(found, value)
        if value
        else f.to_json(f.struct(*map(_column, names))).cast("binary").alias("value")
    ]
    columns[0] = columns[0].alias("value")
    if key is not None:
        columns.append(_bytes(found, key).alias("key"))
    return found.select(
        f.col("_metadata.file_path").alias(PLACE[0]),
        f.col("_metadata.file_block_start").alias(PLACE[1]),
        # Rows of a split are in one partition, in their order.
        f.monotonically_increasing_id().alias(PLACE[2]),
        *columns,
    )


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")


def _bytes(rows: DataFrame, name: str) -> Column:
    kind = rows.schema[name].dataType
    column = _column(name)
    if isinstance(kind, StructType | ArrayType | MapType):
        column = f.to_json(column)
    elif not isinstance(kind, BinaryType | StringType):
        column = column.cast("string")
    return column.cast("binary")
