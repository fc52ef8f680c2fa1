"""How a state is made of changes, and the manifest's line; what is wrong with either is said before any task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from fastbk.errors import ConfigError
from fastbk.spark.jobs.folders import check_place

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
