"""Rebuild: a stream of changes, replayed in parallel, becomes the current state by key: a table.

    <to>/state/version=<n>/*.parquet     key, seq, timestamp, value of each key's last change
    <to>/manifest/version=<n>/*.json     up to where the stream is in it, what was counted, how it was made
    <to>/claims/run=<n>                  whose version <n> is, while it is being made (claims.py)

A run reads what is new since the last version, reduces it part by part, then by key together with that version, and
writes another one, whose number is its claim's: higher than any before, but not always by one. Its manifest comes last
and is what makes a version count: what a run that was cut off has left is deleted by the next. All counts come out of
the pass that writes, summed behind the shuffle, so a task that is run again counts once.

The plan says how a state is made of changes. What is wrong with it is said before any task.

Decision 76.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from fastbk.errors import ConfigError, DataLost, StorageError
from fastbk.spark.jobs.claims import Claim, claimed, files_of
from fastbk.spark.jobs.folders import (
    check_place,
    delete,
    names_in,
    number_of,
    read_manifests,
    write_manifest,
)
from fastbk.spark.offset_resolver import OffsetResolver, StreamBounds
from fastbk.spark.options import read_options, reading_of
from fastbk.stream.positions import DLSN

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# --- the plan -------------------------------------------------------------------------------------


FORMATS = ("parquet", "orc")
CORRUPT = "_corrupt"
"""Where Spark puts JSON that it cannot read."""
EXAMPLE = "--schema 'id long, name string, op string' --key id --deletes op=d"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildPlan:
    """What to rebuild, and how.

    Attributes:
        stream: its path. to: the place, wherever Spark can write.
        format: of the files: parquet or orc.
        partitions: read in at least so many parts, and written in at most so many files; None: Spark's choice.
        schema: as DDL, of JSON values; None: values are bytes as they are.
        key: the JSON column that is the key, with dots for nested ones; None: the record's own key.
        sequence: the JSON column whose greatest value is the last change; None: the stream's own order.
        deletes: "null": an empty value deletes its key; "column=value": that in a JSON column does, too.
        skip_keyless: records without a key are counted and passed by, else they are an error.
        from_scratch: replay all that the stream has, whatever is there.
    """

    stream: str
    to: str
    format: str = "parquet"
    partitions: int | None = None
    schema: str | None = None
    key: str | None = None
    sequence: str | None = None
    deletes: str = "null"
    skip_keyless: bool = False
    from_scratch: bool = False

    def __post_init__(self) -> None:
        check_place(self.to)
        if self.format not in FORMATS:
            raise ConfigError(f"--format {self.format}: there are {' and '.join(FORMATS)}")
        if self.partitions is not None and self.partitions < 1:
            raise ConfigError("--partitions must be 1 or more")
        if self.deletes != "null" and not all(self.deletes.partition("=")):
            raise ConfigError(f"--deletes {self.deletes}: write null, or column=value: op=d")
        for option, column in self._columns():
            if self.schema is None:
                raise ConfigError(
                    f"{option} {column} is a JSON column, so say what there is: {EXAMPLE}"
                )

    @property
    def delete_mark(self) -> tuple[str, str] | None:
        """The column and its value that delete a key, if there are such."""
        column, equals, value = self.deletes.partition("=")
        return (column, value) if equals else None

    def _columns(self) -> list[tuple[str, str]]:
        mark = self.delete_mark
        given = {
            "--key": self.key, "--sequence": self.sequence, "--deletes": mark[0] if mark else None,
        }  # fmt: skip
        return [(option, column) for option, column in given.items() if column is not None]

    def value_schema(self) -> StructType | None:
        """Return the schema of values, None: bytes. Needs Spark to run. Raises ConfigError."""
        if self.schema is None:
            return None
        try:
            schema = cast("StructType", StructType.fromDDL(self.schema))
        except PySparkException as error:
            (reason, *_) = str(error).strip().splitlines()
            raise ConfigError(f"--schema {self.schema}: {reason}; write {EXAMPLE}") from error
        for option, column in self._columns():
            check_column(schema, option, column)
        return schema


def check_column(schema: StructType, option: str, path: str) -> None:
    """Raise ConfigError unless a schema has this column, with dots for nested ones, and it can be compared."""
    at: DataType = schema
    for name in path.split("."):
        if not isinstance(at, StructType) or name not in at.names:
            there = ", ".join(at.names) if isinstance(at, StructType) else at.simpleString()
            raise ConfigError(f"{option} {path}: there is no {name} in {there}")
        at = at[name].dataType
    if isinstance(at, StructType | ArrayType | MapType | VariantType):
        raise ConfigError(f"{option} {path} is {at.simpleString()}: name a single value")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVersion:
    """A manifest's line: a version that holds a stream from record begins_seq to before end_seq.

    Attributes:
        stream, format, schema, key, sequence, deletes: as the plan has them; "": not given.
        id: the stream's. first, first_seq, end, end_seq: what this run has read, from `first` to before `end`.
        records: how many these are. deletes_seen: of them, those that delete. keyless: of them, those passed by.
        keys: in the state. columns: of its files, as Spark's JSON.
    """

    version: int
    stream: str
    format: str
    schema: str
    key: str
    sequence: str
    deletes: str
    id: str
    first: str
    first_seq: int
    end: str
    end_seq: int
    records: int
    begins_seq: int
    keys: int = 0
    deletes_seen: int = 0
    keyless: int = 0
    columns: str = ""
    rebuilt_at: str = ""

    def made_with(self) -> dict[str, str]:
        """Return what must be the same from one version to the next."""
        names = ("stream", "format", "schema", "key", "sequence", "deletes")
        return {name: getattr(self, name) for name in names}


# --- the run --------------------------------------------------------------------------------------


VERSION = "version="
VERSIONS_KEPT = 2
"""The last one, and the one before, which somebody may be reading."""
FINISHED = "_SUCCESS"
"""What Spark leaves in a folder when all of it is written."""


def run(
    spark: SparkSession,
    uri: str | None,
    plan: RebuildPlan,
    *,
    take_over: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> StateVersion:
    """Bring the state up to what is published now; return the manifest's line, the last one if nothing is new.

    A stream that has no records yet makes no version; the line is one of version 0, which is written nowhere.
    take_over: another run that has the place is dead, or may fail. Raises ConfigError: wrong options, other ones than
    this state was made with, records that do not fit them, another run that has the place; StreamNotFound; DataLost
    where the stream lacks what the state would need; StorageError if not every record was counted once, or another run
    took the place over (the version does not count).
    """
    table_schema = plan.value_schema()
    claims = files_of(spark, f"{plan.to}/claims")
    with claimed(claims, lambda: _last_number(spark, plan.to), take_over=take_over) as claim:
        return _run(spark, uri, plan, table_schema, claim, report)


def _run(
    spark: SparkSession,
    uri: str | None,
    plan: RebuildPlan,
    table_schema: StructType | None,
    claim: Claim,
    report: Callable[[str], None],
) -> StateVersion:
    options = reading_of(uri, plan.stream)
    resolver = OffsetResolver(read_options(options, streaming=False))
    now = resolver.now(plan.stream)
    last = last_line(spark, plan.to)
    number = claim.number
    before = None if plan.from_scratch else last
    wanted = _wanted(plan, now, before, number)
    if wanted.records == 0 and before is not None:
        _sweep(spark, plan.to, number)
        return before
    if wanted.records == 0:
        if last is not None:
            raise ConfigError(f"{plan.stream} has no records now: {plan.to} stays as it is")
        return replace(wanted, version=0)
    report(f"version {number}: {wanted.records:,} new records of {plan.stream}")
    if before is None and wanted.first_seq > 0:
        report(
            f"version {number}: the stream begins at record {wanted.first_seq}, and so does the state"
        )
    reader = spark.read.format("fastbk").options(
        **options,
        startingOffsets=json.dumps({plan.stream: wanted.first}),
        endingOffsets=json.dumps({plan.stream: wanted.end}),
        minPartitions=str(plan.partitions or 1),
    )
    rows = changes(reader.load(), plan, table_schema)
    if before is not None:
        kept = _table(spark, plan.to, before).withColumns(dict.fromkeys(_COUNTED, f.lit(0)))
        rows = rows.unionByName(kept.withColumn("kept", (~f.col("deleted")).cast("int")))
    claim.check()
    line = _written(spark, rows, plan, wanted, before)
    report(f"version {number}: {line.keys:,} keys written")
    claim.check()
    write_manifest(spark, f"{plan.to}/manifest/{VERSION}{number:06}", [line])
    _sweep(spark, plan.to, number)
    return line


_COUNTED = ("records", "keyless", "corrupt", "unordered", "kept")
"""Columns of 0 or 1 beside each change, summed by key."""


def changes(rows: DataFrame, plan: RebuildPlan, value_schema: StructType | None) -> DataFrame:
    """Return a stream's rows as changes: those of a state's table, and what is counted."""
    is_empty = f.length("value") == 0
    if value_schema is None:
        value, corrupt = f.col("value"), f.lit(False)
    else:
        with_corrupt = StructType([*value_schema.fields]).add(CORRUPT, "string")
        text = f.when(~is_empty, f.col("value").cast("string"))
        json_options = {"columnNameOfCorruptRecord": CORRUPT}
        rows = rows.withColumn("parsed", f.from_json(text, with_corrupt, json_options))
        value = f.col("parsed").dropFields(CORRUPT)
        # Of text that is no object at all there may be neither columns nor a reason.
        corrupt = ~is_empty & (f.col("parsed").isNull() | f.col(f"parsed.{CORRUPT}").isNotNull())
    deleted = is_empty
    if plan.delete_mark is not None:
        column, mark = plan.delete_mark
        deleted |= f.coalesce(_field(column).cast("string") == mark, f.lit(False))
    key = f.col("key") if plan.key is None else _field(plan.key)
    order = f.col("seq") if plan.sequence is None else _field(plan.sequence)
    return rows.select(
        key.alias("key"),
        "seq",
        "timestamp",
        order.alias("sequence"),
        deleted.alias("deleted"),
        f.when(~deleted, value).alias("value"),
        f.lit(1).alias("records"),
        key.isNull().cast("int").alias("keyless"),
        corrupt.cast("int").alias("corrupt"),
        order.isNull().cast("int").alias("unordered"),
        f.lit(0).alias("kept"),
    )


def _field(path: str) -> Column:
    return f.col(".".join(f"`{name}`" for name in ("parsed", *path.split("."))))


def _written(
    spark: SparkSession,
    rows: DataFrame,
    plan: RebuildPlan,
    wanted: StateVersion,
    before: StateVersion | None,
) -> StateVersion:
    """Write the version of these changes and the rows of the version before; return its line. Raises as run."""
    is_new = f.col("records") == 1
    sums = [f.sum(name).alias(name) for name in _COUNTED]
    reduced = rows.groupBy("key").agg(
        f.max_by(
            f.struct("seq", "timestamp", "sequence", "deleted", "value"),
            f.struct("sequence", "seq"),
        ).alias("last"),
        f.min(f.when(is_new, f.col("seq"))).alias("first_seq"),
        f.max(f.when(is_new, f.col("seq"))).alias("last_seq"),
        f.min(f.when((f.col("corrupt") + f.col("unordered")) > 0, f.col("seq"))).alias("wrong_seq"),
        f.sum((is_new & f.col("deleted")).cast("long")).alias("deletes"),
        *sums,
    )
    seen = Observation()
    has_key = f.col("key").isNotNull()
    observed = reduced.observe(
        seen,
        *(f.sum(name).alias(name) for name in (*_COUNTED, "deletes")),
        f.min("first_seq").alias("first_seq"),
        f.max("last_seq").alias("last_seq"),
        f.min("wrong_seq").alias("wrong_seq"),
        f.count(f.when(has_key & ~f.col("last.deleted"), 1)).alias("keys"),
        f.count(f.when(has_key & f.col("last.deleted"), 1)).alias("gone"),
    )
    state = observed.where(has_key).select("key", "last.*")
    if plan.sequence is None:
        state = state.where(~f.col("deleted"))  # nothing older comes later: no need to remember it
    if plan.partitions is not None:
        state = state.coalesce(plan.partitions)
    place = f"{plan.to}/state/{VERSION}{wanted.version:06}"
    state.write.mode("overwrite").format(plan.format).save(place)
    counts = seen.get
    _check(counts, plan, wanted, before)
    line = replace(
        wanted,
        keys=counts["keys"],
        deletes_seen=counts["deletes"],
        keyless=counts["keyless"],
        columns=state.schema.json(),
        rebuilt_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    rows_there = _table(spark, plan.to, line).count()
    rows_wanted = line.keys + (counts["gone"] if plan.sequence is not None else 0)
    if rows_there != rows_wanted:
        raise StorageError(
            f"{place} holds {rows_there} rows, and {rows_wanted} were written; it does not count: run it again"
        )
    return line


def _check(
    counts: dict[str, Any], plan: RebuildPlan, wanted: StateVersion, before: StateVersion | None
) -> None:
    """Raise for what was counted and is not as it should be; the version has no manifest yet."""
    if before is not None and counts["kept"] != before.keys:
        raise StorageError(
            f"version {before.version} in {plan.to} was made with {before.keys} keys and has {counts['kept']} now, so"
            " its files are not all there, or others, too: --from-scratch makes it anew of what the stream has now"
        )
    found = (counts["records"], counts["first_seq"], counts["last_seq"])
    if found != (wanted.records, wanted.first_seq, wanted.end_seq - 1):
        records, first, last = found
        raise StorageError(
            f"{plan.stream}: records {wanted.first_seq}..{wanted.end_seq - 1} were to be replayed, and {records} from"
            f" {first} to {last} were; this version does not count: run it again"
        )
    if counts["corrupt"]:
        raise ConfigError(
            f"{plan.stream}: {counts['corrupt']} records are no JSON of this schema, the first of them record"
            f" {counts['wrong_seq']}: mend the schema, or rebuild without it, values as they are"
        )
    if counts["keyless"] and not plan.skip_keyless:
        column = "key" if plan.key is None else f"JSON column {plan.key}"
        raise ConfigError(
            f"{plan.stream}: {counts['keyless']} records have no {column}: pass them by with --no-key skip, or take the"
            " key from a JSON column with --schema and --key"
        )
    if counts["unordered"]:
        raise ConfigError(
            f"{plan.stream}: {counts['unordered']} records have no {plan.sequence}, the first of them record"
            f" {counts['wrong_seq']}, so nothing says which are older: leave --sequence out for the stream's own order"
        )


def _wanted(
    plan: RebuildPlan, now: StreamBounds, before: StateVersion | None, version: int
) -> StateVersion:
    """Return the line of the next version, with nothing counted. Raises ConfigError, DataLost."""
    first, end = now.first, now.end
    wanted = StateVersion(
        version=version,
        stream=plan.stream,
        format=plan.format,
        schema=plan.schema or "",
        key=plan.key or "",
        sequence=plan.sequence or "",
        deletes=plan.deletes,
        id=end.stream_id,
        first=str(first.dlsn),
        first_seq=first.seq,
        end=str(end.dlsn),
        end_seq=end.seq,
        records=end.seq - first.seq,
        begins_seq=first.seq,
    )
    if before is None:
        return wanted
    anew = "--from-scratch makes it anew of what the stream has now"
    if before.made_with() != wanted.made_with():
        differences = _differences(before.made_with(), wanted.made_with())
        raise ConfigError(f"{plan.to} was made otherwise: {differences}; {anew}")
    if before.id != end.stream_id:
        raise DataLost(
            f"{plan.stream} was deleted and made anew since {before.rebuilt_at}, its records are others: {anew}"
        )
    if before.end_seq < first.seq:
        raise DataLost(
            f"{plan.stream}: records {before.end_seq}..{first.seq - 1} were truncated before they were replayed:"
            f" {anew}; run more often, or hold them with a cursor"
        )
    return replace(
        wanted,
        first=str(max(DLSN.parse(before.end), first.dlsn)),
        first_seq=before.end_seq,
        records=end.seq - before.end_seq,
        begins_seq=before.begins_seq,
    )


def _differences(was: Mapping[str, str], is_now: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} was {was[name] or 'not given'} and is {is_now[name] or 'not given'}"
        for name in was
        if was[name] != is_now[name]
    )


def state_of(spark: SparkSession, to: str) -> DataFrame:
    """Return the last version: `key`, `seq` and `timestamp` of its last change, and its `value`, a struct if parsed.

    Raises ConfigError if there is none.
    """
    line = last_line(spark, to)
    if line is None:
        raise ConfigError(f"{to} holds no state: fastbk spark rebuild shop/orders --to {to}")
    return (
        _table(spark, to, line).where(~f.col("deleted")).select("key", "seq", "timestamp", "value")
    )


def last_line(spark: SparkSession, to: str) -> StateVersion | None:
    """Return the line of the last version that counts, None if there is none."""
    return max(_lines(spark, to), key=lambda line: line.version, default=None)


def _lines(spark: SparkSession, to: str) -> list[StateVersion]:
    manifests = read_manifests(spark, f"{to}/manifest/*", StateVersion)
    names = StateVersion.__dataclass_fields__
    return [StateVersion(**{name: row[name] for name in names}) for row in manifests]


def _table(spark: SparkSession, to: str, line: StateVersion) -> DataFrame:
    schema = StructType.fromJson(json.loads(line.columns))
    place = f"{to}/state/{VERSION}{line.version:06}"
    return spark.read.schema(schema).format(line.format).load(place)


def _last_number(spark: SparkSession, to: str) -> int:
    """Return the highest number of what counts, and of what is not finished: who writes it may not be gone yet."""
    counted = [number_of(name, VERSION) for name in names_in(spark, f"{to}/manifest")]
    unfinished = [
        number_of(name, VERSION)
        for name in names_in(spark, f"{to}/state")
        if FINISHED not in names_in(spark, f"{to}/state/{name}")
    ]
    return max([*counted, *unfinished], default=0)


def _sweep(spark: SparkSession, to: str, number: int) -> None:
    """Delete what is before `number` and is none of the last versions that count.

    Manifests first, so that none is without its rows.
    """
    kept = sorted(line.version for line in _lines(spark, to))[-VERSIONS_KEPT:]
    for folder in ("manifest", "state"):
        for name in names_in(spark, f"{to}/{folder}"):
            if 0 < (one := number_of(name, VERSION)) < number and one not in kept:
                delete(spark, f"{to}/{folder}/{name}")
