"""Rig `spark`: the driver and the workers of a streaming query are killed by SIGKILL, at every step of its sink.

Each life is a query of a driver of its own (`spark_query.py`) from one stream to another, from the checkpoint that the
one before has left; records come to the input between lives. In a third of the lives the process that commits outlives
its driver, and goes on beside the next one. At the end every record of the input must be in the output once, and no
draft and no ledger left over. INV-S8, INV-S13.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

import fastbk.sync
from fastbk.stream.blocking import BlockingStream
from fastbk.testing import LocalCluster
from tests.fixtures.spark import light_home
from tests.rigs.report import Plan, Report
from tests.rigs.spark_query import INPUT, NAMESPACE, OUTPUT, RECORDS_A_BATCH, VARIABLE, Kill

RECORDS_A_LIFE = 2 * RECORDS_A_BATCH
PATIENCE_S = 240.0
ZOMBIES_S = 30.0
"""How long a process that outlived its driver may go on at the end."""
ROOT = Path(__file__).parents[2]
COMMIT = ("attached_number", "drafts", "attach_drafts", "give_up_drafts")
TASK = ("begin_draft", "draw_ledger", "create_ledger", "effective_policy")
PASSES_MAX = 4


def drawn(rng: random.Random, folder: Path) -> Kill:
    """Return who is killed where: mostly the driver while it commits."""
    who = rng.choices(["driver", "zombie", "worker"], [3, 3, 3])[0]
    call = rng.choice(TASK if who == "worker" else (*COMMIT, *COMMIT, *TASK))
    folder.mkdir()
    return Kill(who, call, rng.choice(["before", "after"]), rng.randrange(PASSES_MAX), folder)


def live(uri: str, folder: Path, kill: Kill | None, name: str) -> int:
    """Run a driver to its end, which may be a kill; return its exit code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_HOME"] = str(folder / "home")
    environment[VARIABLE] = "" if kill is None else kill.text()
    command = [sys.executable, "-m", "tests.rigs.spark_query", uri, str(folder / "checkpoint")]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
        try:
            return process.wait(PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def payload_of(number: int) -> bytes:
    """Return the bytes of a record, of many sizes."""
    return b"%08d" % number + bytes([number % 251]) * (number * 7919 % 700)


def append(stream: BlockingStream, first: int, count: int) -> None:
    """Append records to the input."""
    with stream.writer() as writer:
        pending = [
            writer.append(payload_of(at), key=b"%d" % at) for at in range(first, first + count)
        ]
        for one in pending:
            one.result()


def judge(found: list[bytes], count: int) -> list[str]:
    """Return what was lost, repeated or made up."""
    times, wanted = Counter(found), {payload_of(at) for at in range(count)}
    lost = sum(one not in times for one in wanted)
    again = sum(number - 1 for number in times.values())
    other = sum(one not in wanted for one in times)
    wrong = [f"{lost} of {count} records are lost"] if lost else []
    wrong += [f"{again} records are there again"] if again else []
    return wrong + ([f"{other} records are nobody's"] if other else [])


def left_over(client: fastbk.sync.Client, stream: BlockingStream) -> list[str]:
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


def _run(plan: Plan, report: Report, folder: Path) -> None:
    rng = random.Random(plan.seed)
    with (
        LocalCluster(3, data=folder / "cluster") as cluster,
        fastbk.sync.connect(cluster.metadata_uri) as client,
    ):
        space = client.namespace(NAMESPACE)
        space.create()
        source, output = space.create_stream(INPUT), space.create_stream(OUTPUT)
        written = 0
        while plan.goes_on(report.cases):
            append(source, written, RECORDS_A_LIFE)
            written += RECORDS_A_LIFE
            kill = drawn(rng, folder / f"kill{report.cases}")
            code = live(cluster.metadata_uri, folder, kill, str(report.cases))
            was_killed = len(list(kill.folder.iterdir())) > kill.number
            report.counts[f"{kill.who}s_killed" if was_killed else "not_reached"] += 1
            if code not in (0, -signal.SIGKILL) and not was_killed:
                report.lose([f"life {report.cases} ended with {code}"], str(folder))
            report.cases += 1
        # A zombie may overtake the last one: then that batch is run again, by the next.
        codes = []
        while len(codes) < 3 and 0 not in codes:
            codes.append(live(cluster.metadata_uri, folder, None, f"last{len(codes)}"))
        if 0 not in codes:
            report.lose([f"the last lives ended with {codes}"], str(folder))
        count = output.info().records
        with output.reader("earliest") as reader:
            found = [bytes(one.payload) for one in islice(reader, count)]
        report.lose(judge(found, written), f"seed {plan.seed}, kept in {folder}")
        report.lose(left_over(client, output), str(folder))
        report.counts["records"] = count
        report.counts["segments"] = output.info().segments


def run(plan: Plan) -> Report:
    """Kill `plan.cases` queries; the folder is kept when something is lost."""
    report, began_s = Report("spark"), time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="fastbk-spark-", dir=plan.folder))
    light_home(folder)
    _run(plan, report, folder)
    if report.is_good:
        shutil.rmtree(folder)
    report.seconds = time.monotonic() - began_s
    return report
