"""Rig `spark`: driver, workers and executors of a streaming query are killed by SIGKILL, at every step of its sink.

Each life is a query of a driver of its own (`spark_query.py`) from one stream to another, from the checkpoint that the
one before has left. A life has several kills: of single processes first, which Spark or the driver start again, then of
the driver with its JVM. Some processes outlive their driver, and go on beside the next one. Some lives are on a
standalone cluster, where executors are JVMs of their own, and are killed with what they run, or outlive their driver
and go on under the next one. In some, what the query stands on dies in the same moment: a bookie, or ZooKeeper under a
commit (`spark_services.py`). After each life the output must hold the input's records up to some number, each once and
in order; at the end all, as another process reads them, and no draft and no ledger more. A step that is not reached
counts as a loss. INV-S8, INV-S13.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from itertools import islice
from pathlib import Path

import fastbk.sync
from fastbk.spark.session import light_home
from fastbk.stream.positions import AtSeq
from fastbk.stream.sync import SyncStream
from tests.fixtures.spark_standalone import StandaloneSpark
from tests.rigs.report import Plan, Report
from tests.rigs.spark_lives import Life, rounds
from tests.rigs.spark_points import METADATA, STEPS, Kill, Step
from tests.rigs.spark_query import INPUT, NAMESPACE, OUTPUT, RECORDS_A_BATCH
from tests.rigs.spark_services import Services

PATIENCE_S = 400.0
ZOMBIES_S = 30.0
"""How long a process that outlived its driver may go on at the end."""
LAST_LIVES = 3
ROOT = Path(__file__).parents[2]
KINDS = ("alone", "driver", "zombie", "executor", "orphan", "release", "bookie", "metadata")
READ_S = 120.0
JAVA = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "600m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA,
    "spark.task.maxFailures": "8",
}


@dataclass(slots=True)
class Tally:
    """What became of the kills of a kind at a step."""

    wanted: int = 0
    reached: int = 0
    lost: int = 0
    twice: int = 0
    found: Counter[str] = field(default_factory=Counter)
    """What Spark's logs and the stream knew when a driver was gone."""


def payload_of(number: int) -> bytes:
    """Return the bytes of a record, of many sizes."""
    return b"%08d" % number + bytes([number % 251]) * (number * 7919 % 700)


def judge(found: Sequence[bytes], first: int, count: int) -> tuple[int, int, list[str]]:
    """Return how many of the records `first`..`first + count - 1` are lost and how many there again, and what is wrong.

    Anything else is wrong, too, and so is another order.
    """
    times, wanted = Counter(found), [payload_of(at) for at in range(first, first + count)]
    lost = sum(one not in times for one in wanted)
    again = sum(number - 1 for number in times.values())
    known = set(wanted)
    other = sum(one not in known for one in times)
    wrong = [f"{lost} of {count} records are lost"] if lost else []
    wrong += [f"{again} records are there again"] if again else []
    wrong += [f"{other} records are nobody's"] if other else []
    if not wrong and list(found) != wanted:
        wrong.append("the records are in another order")
    return lost, again, wrong


def state_of(checkpoint: Path, output: SyncStream) -> str:
    """Return what is known of the last batch, by Spark's logs and by the stream."""

    def last(name: str) -> int:
        numbers = [int(one.name) for one in (checkpoint / name).glob("[0-9]*")]
        return max(numbers, default=-1)

    try:
        query = json.loads((checkpoint / "metadata").read_text())["id"]
    except (FileNotFoundError, ValueError):
        return "no query"
    offsets, commits = last("offsets"), last("commits")
    if offsets == commits:
        return "between batches"
    attached = output.attached_number(f"spark/{query}") >= offsets
    return "visible, not in Spark's log" if attached else "planned, not visible"


class Rig:
    """Streams, a checkpoint, and the lives between."""

    def __init__(
        self, services: Services, client: fastbk.sync.Client, folder: Path, report: Report
    ) -> None:
        space = client.namespace(NAMESPACE)
        space.create()
        self._source, self.output = space.create_stream(INPUT), space.create_stream(OUTPUT)
        self._client = client
        self._services = services
        self._folder = folder
        self._report = report
        self.written = self.checked = self.lives = 0
        self.tallies: dict[tuple[str, Step], Tally] = {}

    def fill(self, batches: int) -> None:
        """Append to the input until so many batches wait."""
        waiting = self.written - self.output.info().records
        count = max(batches * RECORDS_A_BATCH - waiting, 0)
        with self._source.writer() as writer:
            pending = [
                writer.append_nowait(payload_of(at), key=b"%d" % at)
                for at in range(self.written, self.written + count)
            ]
            for one in pending:
                one.result()
        self.written += count

    def live(self, kills: Sequence[Kill], master: str, *, java: str = "") -> int:
        """Run a driver to its end, which may be a kill; judge what is there then; return its exit code."""
        self.fill(len(kills) + 1)
        name, number = f"life{self.lives}", self.lives
        self.lives += 1
        archive = self._folder / "classes.jsa"
        if archive.exists():
            java = f"-XX:SharedArchiveFile={archive}"
        said = {
            "uri": self._services.uri,
            "rig_port": self._services.port,
            "checkpoint": str(self._folder / "checkpoint"),
            "folder": str(self._folder / name),
            "kills": [astuple(one) for one in kills],
            "master": master,
            "settings": {**SETTINGS, "spark.driver.extraJavaOptions": f"{JAVA} {java}"},
        }
        code = run_driver(said, self._folder, self._folder / f"{name}.log")
        reached = sum((self._folder / name / str(at)).exists() for at in range(len(kills)))
        # An orphan is held until the next driver has come to its step.
        if "orphan" not in {one.who for one in kills}:
            self._report.lose(self._services.settle(), f"life {number}, kept in {self._folder}")
        lost, again = self._judge(f"life {number}, kept in {self._folder}")
        for at, kill in enumerate(kills):
            tally = self.tallies.setdefault((kill.kind, kill.step), Tally())
            tally.wanted += 1
            tally.reached += at < reached
            tally.lost += lost
            tally.twice += again
            self._report.counts[kill.kind if at < reached else "not_reached"] += 1
            if at >= reached:
                self._report.lose([f"{kill} was not reached"], f"life {number}, {self._folder}")
            elif kill.who in ("driver", "zombie", "orphan"):
                tally.found[state_of(self._folder / "checkpoint", self.output)] += 1
        if code not in (0, -signal.SIGKILL):
            self._report.lose([f"life {number} ended with {code}"], str(self._folder))
        return code

    def _judge(self, case: str) -> tuple[int, int]:
        count = self.output.info().records
        with self.output.reader(AtSeq(self.checked)) as reader:
            found = [bytes(one.payload) for one in islice(reader, count - self.checked)]
        lost, again, wrong = judge(found, self.checked, count - self.checked)
        self._report.lose(wrong, case)
        self.checked = count
        return lost, again

    def end(self, master: str) -> None:
        """Let a query run to the end, and see that everything is there and nothing else."""
        # A zombie may overtake the last one: then that batch is run again, by the next.
        codes: list[int] = []
        while len(codes) < LAST_LIVES and 0 not in codes:
            codes.append(self.live((), master))
        if 0 not in codes:
            self._report.lose([f"the last lives ended with {codes}"], str(self._folder))
        if self.checked != self.written:
            wrong = [f"{self.checked} records of {self.written} are there at the end"]
            self._report.lose(wrong, str(self._folder))
        self._report.lose(self._read_elsewhere(), str(self._folder))
        self._report.lose(left_over(self._client, self.output), str(self._folder))
        self._report.counts["records"] = self.checked
        self._report.counts["segments"] = self.output.info().segments
        self._report.counts["lives"] = self.lives
        self._report.notes += table(self.tallies)

    def _read_elsewhere(self) -> list[str]:
        """Compare what the command line reads, in a process that shares nothing with us, with the input."""
        command = [sys.executable, "-m", "fastbk.cli", "stream", "read", f"{NAMESPACE}/{OUTPUT}"]
        command += ["--payload", "--metadata", self._services.near_uri]
        read = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=READ_S)
        wanted = b"".join(payload_of(at) + b"\n" for at in range(self.written))
        digests = [hashlib.sha256(one).hexdigest() for one in (wanted, read.stdout)]
        self._report.notes.append(
            f"{self.written} records, SHA-256 sent {digests[0]}, read {digests[1]}"
        )
        return (
            [] if digests[0] == digests[1] else [f"read elsewhere: {read.stderr.decode()[-500:]}"]
        )


def run_driver(said: Mapping[str, object], folder: Path, log: Path) -> int:
    """Run a driver (`spark_query.py`), and end whatever it has started; return its exit code."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(folder / "home"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "tests.rigs.spark_query", json.dumps(said)]
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=file, stderr=file, start_new_session=True
        )
        try:
            return process.wait(PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def left_over(client: fastbk.sync.Client, stream: SyncStream) -> list[str]:
    """Return drafts and ledgers of the output that nobody needs; what a zombie still holds is waited for."""
    end_s = time.monotonic() + ZOMBIES_S
    while True:
        info = stream.info()
        drafts = [one.name for one in stream.drafts()]
        ledgers = [
            one.ledger_id
            for one in client.list_ledgers()
            if one.metadata.custom.get("fastbk.stream") == info.id.encode()
        ]
        wrong = [f"drafts are left: {drafts}"] if drafts else []
        if len(ledgers) != info.segments:
            wrong.append(f"INV-S8: {len(ledgers)} ledgers for {info.segments} segments")
        if not wrong or time.monotonic() > end_s:
            return wrong
        stream.give_up_drafts([one for one in stream.drafts() if one.is_given_up])


def table(tallies: dict[tuple[str, Step], Tally]) -> list[str]:
    """Return a line for each step: of each kind how many were killed, of how many that were to be."""
    lines = [f"{'step':<32}" + "".join(f"{kind:>10}" for kind in KINDS) + "   lost  twice"]
    for step in dict.fromkeys((*STEPS, *METADATA)):
        ofs = [tallies.get((kind, step), Tally()) for kind in KINDS]
        if not any(one.wanted for one in ofs):
            continue
        counts = [f"{one.reached}/{one.wanted}" if one.wanted else "-" for one in ofs]
        lost, twice = sum(one.lost for one in ofs), sum(one.twice for one in ofs)
        found = sum((one.found for one in ofs), Counter())
        said = "; ".join(f"{what} {count}" for what, count in found.most_common())
        line = f"{step[1] + ' ' + step[0]:<32}" + "".join(f"{one:>10}" for one in counts)
        lines.append(f"{line}{lost:>7}{twice:>7}  {said}")
    missed = [
        f"{who} {step[1]} {step[0]}" for (who, step), one in tallies.items() if not one.reached
    ]
    return [*lines, "not reached: " + (", ".join(sorted(missed)) or "none")]


def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    with Services(folder) as services, fastbk.sync.connect(services.near_uri) as client:
        rig = Rig(services, client, folder, report)
        # The first life leaves an archive of Java's classes: the others start in half the time.
        local = "local[2,8]"
        rig.live((), local, java=f"-XX:ArchiveClassesAtExit={folder / 'classes.jsa'}")
        for life in rounds(rng, plan.only):
            if not plan.goes_on(report.cases):
                break
            report.cases += len(life.kills)
            if not life.workers:
                rig.live(life.kills, local)
            else:
                _live_on_cluster(rig, life, folder)
        rig.end(local)


def _live_on_cluster(rig: Rig, life: Life, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    cores = 2 // life.workers
    with StandaloneSpark(
        folder / "home", folder / "spark", cores, environment, life.workers
    ) as spark:
        rig.live(life.kills, spark.url)
        if life.heir:
            rig.live(life.heir, spark.url)
    shutil.rmtree(folder / "spark")


def run(plan: Plan) -> Report:
    """Kill about `plan.cases` processes; the folder is kept when something is lost."""
    report = Report("spark")
    with report.folder(plan) as folder:
        light_home(folder)
        _run(plan, report, folder)
    return report
