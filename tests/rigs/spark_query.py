"""A streaming query from one stream to another, to be killed: the driver that rig `spark` starts again and again.

    python -m tests.rigs.spark_query <metadata uri> <checkpoint folder>

It ends when it has written what was there. FASTBK_RIG_KILL says who dies where: see `Kill`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSourceStreamArrowWriter

from fastbk.native.process import die_with_parent
from fastbk.spark.sink import FastbkStreamWriter
from fastbk.spark.sink_options import write_options
from fastbk.spark.source import FastbkSource
from fastbk.spark.worker_client import client_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from fastbk.sync import Client

NAMESPACE, INPUT, OUTPUT = "rig", "in", "out"
RECORDS_A_BATCH = 300
VARIABLE = "FASTBK_RIG_KILL"
_WRAPPED = ("namespace", "stream", "create_ledger")


@dataclass(frozen=True)
class Kill:
    """Who dies at which pass through which call.

    Attributes:
        who: "driver": it, the JVM and this process; "zombie": the first two, and this process goes on; "worker": this
            process alone.
        call: a method of a client, stream or ledger that the sink uses.
        when: "before" it or "after" it.
        number: from 0; passes are counted over all processes, in `folder`.
        group: the process group of the driver.
    """

    who: str
    call: str
    when: str
    number: int
    folder: Path
    group: int = 0

    def text(self) -> str:
        """Return what VARIABLE is set to."""
        return f"{self.who} {self.call} {self.when} {self.number} {self.folder}"

    @classmethod
    def of(cls, text: str, group: int) -> Kill:
        """Return what `text` says."""
        who, call, when, number, folder = text.split(" ", 4)
        return cls(who, call, when, int(number), Path(folder), group)

    def look(self, call: str, when: str) -> None:
        """Die if this is the pass."""
        if (call, when) != (self.call, self.when) or self._passed() != self.number:
            return
        if self.who in ("driver", "zombie"):
            os.killpg(self.group, signal.SIGKILL)
        if self.who != "zombie":
            os.kill(os.getpid(), signal.SIGKILL)

    def _passed(self) -> int:
        number = 0
        while True:
            try:
                os.close(os.open(self.folder / str(number), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                number += 1
            else:
                return number


class Wrapped:
    """A client, stream or ledger whose calls are places to die at."""

    def __init__(self, inner: object, kill: Kill) -> None:
        self._inner = inner
        self._kill = kill

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def called(*arguments: object, **named: object) -> object:
            self._kill.look(name, "before")
            result = found(*arguments, **named)
            self._kill.look(name, "after")
            return Wrapped(result, self._kill) if name in _WRAPPED else result

        return called


def connect(uri: str | None) -> Client:
    """Return this process's client, with places to die at where the environment says so."""
    client, text = client_of(uri), os.environ.get(VARIABLE)
    if not text:
        return client
    return cast("Client", Wrapped(client, Kill.of(text, int(os.environ["FASTBK_RIG_GROUP"]))))


class KilledSource(FastbkSource):
    """The data source, whose sink dies."""

    @classmethod
    def name(cls) -> str:
        return "fastbk-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        options = write_options(self.options, schema, streaming=True, overwrite=overwrite)
        return FastbkStreamWriter(options, connect)


def run(uri: str, checkpoint: str) -> None:
    """Run the query to the end of what is there."""
    from fastbk.spark.session import session
    from tests.rigs import spark_query  # so that workers find the class by its module's name

    settings: Mapping[str, str] = {
        "spark_sql_shuffle_partitions": "2",
        "spark_driver_memory": "600m",
    }
    spark = session("rig", "local[2,4]", **settings)
    spark.dataSource.register(spark_query.KilledSource)
    options = {"metadata": uri}
    rows = (
        spark.readStream.format("fastbk")
        .options(**options, stream=f"{NAMESPACE}/{INPUT}", minPartitions="2")
        .option("startingOffsets", "earliest")
        .option("maxEntriesPerTrigger", str(RECORDS_A_BATCH))
        .load()
    )
    query = (
        rows.select("key", "value")
        .writeStream.format("fastbk-killed")
        .options(**options, stream=f"{NAMESPACE}/{OUTPUT}", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def main(arguments: list[str], act: Callable[[str, str], None] = run) -> int:
    """Run what the command line says, in a process group of its own."""
    os.environ["FASTBK_RIG_GROUP"] = str(os.getpgid(0))
    act(*arguments)
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1:]))
