"""Ingest: files into a stream, exactly once, by name and in the order that lines and rows have in each file.

    <manifest>/group-<n>.planned.json     files that go into the stream together, as they were when that was decided
    <manifest>/group-<n>.done.json        the same, when they are there

A group is one write of the exactly-once sink, under a key made of its files. A run that was cut off left at most one
group that is planned and not done: it is written again under its key, which does nothing where it is in the stream
already. So the stream has to remember the last key only, however many groups there are.

Spark reads files in splits and in an order of its own, so each row carries where it was: file, split, and its number in
the split. Rows are sorted by that into ranges, and the sink puts these behind each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

import fastbk.sync
from fastbk.errors import ConfigError, StorageError
from fastbk.spark.jobs import claims
from fastbk.spark.jobs.folders import (
    FileStatus,
    delete,
    files_of,
    names_in,
    read_text,
    uri_of,
    write_text,
)
from fastbk.spark.jobs.ingest_plan import (
    Group,
    IngestPlan,
    check_done,
    check_files,
    groups_of,
    left_of,
)
from fastbk.stream.paths import split_stream_path
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from fastbk.stream.namespace.sync_namespace import SyncStream

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
    say: Callable[[str], None] = lambda _: None,
) -> Ingested:
    """Take what is left of these files, folders and patterns. take_over: another run that has the manifest is dead.

    Raises ConfigError, before anything is written, for what is not there, cannot be taken or changed since it was
    taken, and while another run has the manifest; before its group is written for a column that is not there.
    StorageError for a file that changes while it is read, and where another run took the manifest over.
    """
    place = claims.files_of(spark, f"{plan.manifest}/claims")
    with claims.claimed(place, lambda: _last_number(spark, plan), take_over=take_over) as claim:
        return _run(spark, uri, paths, plan, claim, say)


def _last_number(spark: SparkSession, plan: IngestPlan) -> int:
    numbers = [name.split(".")[0].removeprefix("group-") for name in names_in(spark, plan.manifest)]
    return max((int(one) for one in numbers if one.isdigit()), default=0)


def _run(
    spark: SparkSession,
    uri: str,
    paths: Sequence[str],
    plan: IngestPlan,
    claim: claims.Claim,
    say: Callable[[str], None],
) -> Ingested:
    manifest = uri_of(spark, plan.manifest) + "/"
    files = sorted(
        {
            one.uri: one
            for path in paths
            for one in files_of(spark, path)
            if not one.uri.startswith(manifest)
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
        for at, group in enumerate(groups, 1):
            size = f"{format_count(len(group.files), 'file')}, {format_size(group.size_bytes)}"
            say(f"group {at} of {len(groups)}: {size}")
            claim.check()
            done.append(_taken(spark, uri, plan, group, stream))
            records += done[-1].records
            say(f"group {at} of {len(groups)}: {done[-1].records:,} records are in {plan.stream}")
    return Ingested(
        len(done),
        len({one.uri for group in done for one in group.files}),
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
