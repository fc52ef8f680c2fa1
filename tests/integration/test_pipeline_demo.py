"""The pipeline's demo on a small source: each step is there and has found what it has to; and what differs is found."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError

import fastbk.sync
from demo.pipeline import expected
from demo.pipeline.copies import choose, ledgers_of, same_records
from demo.pipeline.records import write_lines
from demo.pipeline.spark_query import TRIES, again_if_unstarted
from fastbk.errors import StorageError
from fastbk.stream.policy import PolicyPatch

PACKAGES, FILES_EACH = 240, 20
STANZA = """Package: {name}
Status: install ok installed
Installed-Size: {size}
Architecture: amd64
Version: 1:{size}-1
Description: what “{name}” is for
 and more of it,
 .
 on several lines
"""


@pytest.fixture
def dpkg(tmp_path: Path) -> Path:
    """A folder as dpkg keeps it, with names that are quoted, fields that are missing, and a section of two words."""
    folder = tmp_path / "dpkg"
    (folder / "info").mkdir(parents=True)
    stanzas = []
    for number in range(PACKAGES):
        stanza = STANZA.format(name=f"p{number}", size=number * 10)
        section = ("libs", "contrib/net", "admin")[number % 3]
        stanzas.append(f"{stanza}Section: {section}\n" if number % 7 else stanza)
        lines = "".join(f'{at:032x}  usr/share/p{number}/"{at} \\é\n' for at in range(FILES_EACH))
        qualified = f"p{number}:amd64" if number % 2 else f"p{number}"
        (folder / "info" / f"{qualified}.md5sums").write_text(lines)
    stanzas.append("Package: without-a-size\nArchitecture: all\nVersion: 0\nSection: admin\n")
    (folder / "status").write_text("\n".join(stanzas))
    return folder


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_step_finds_what_it_has_to(dpkg: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo.pipeline"], cwd=tmp_path, text=True, timeout=560,
        env={**os.environ, "DPKG": str(dpkg)}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("OK: all of it agreed")
    place = tmp_path / "fastbk-data" / "pipeline"
    report = json.loads((place / "report.json").read_bytes())
    packages, files = PACKAGES + 1, PACKAGES * FILES_EACH
    seconds = {name: one.pop("seconds") for name, one in report.items() if name != "agreed"}
    assert all(one > 0 for one in seconds.values())
    assert report["source"] == {"records": {"packages": packages, "files": files}}
    assert report["expected"] == report["table"]
    assert (report["table"]["packages"], report["table"]["files"]) == (packages, files)
    assert report["table"]["installed_kib"] == sum(range(PACKAGES)) * 10
    assert set(report["table"]["sections"]) == {"libs", "contrib/net", "admin", "none"}
    streaming = report["streaming"]
    assert streaming["first"]["rows"] == packages + files // 2
    assert streaming["second"]["rows"] == streaming["passed_over"] == files // 2
    assert streaming["first"]["batches"] + streaming["second"]["batches"] >= 4
    log = "pipeline/log"
    assert report["archive"]["streams"] == {f"{log}/packages": packages, f"{log}/files": files}
    assert report["restore"]["records"] == files
    for whole in (report["audit"]["clean"], report["repair"]["audit"]):
        assert (whole["is_whole"], whole["findings"]) == (True, [])
        assert whole["good"] == 3 * whole["entries"] > 0
    victim, found = report["damage"]["victim"], report["damage"]["audit"]
    (finding,) = found["findings"]
    named = f"{victim['bookie']}: ledger {victim['ledger_id']}, entry {victim['entry_id']}: "
    assert finding.startswith(named)
    assert (found["is_whole"], found["lost"], found["good"]) == (False, 0, 3 * found["entries"] - 1)
    assert report["repair"]["entries_copied"] == 1
    assert report["agreed"] is True
    assert (place / "packages.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert list((place / "parquet").glob("kind=packages/section=contrib%2Fnet/*.parquet"))


def test_what_is_appended_is_what_the_other_computation_counts(dpkg: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("DPKG", str(dpkg))
    written = write_lines(tmp_path / "source")
    found = expected.totals()
    assert (found.packages, found.files) == tuple(one.lines for one in written.values())
    (dpkg / "info" / "p7:amd64.md5sums").write_text(f"{1:032x}  usr/share/p7/other\n")
    other = expected.totals()
    assert other.files == found.files - FILES_EACH + 1
    assert other.digest != found.digest
    one = next(iter(written.values())).path.read_text().splitlines()[0]
    assert json.loads(json.loads(one)["payload"])["summary"] == "what “p0” is for"


def test_what_spark_did_not_get_to_begin_is_begun_again_and_nothing_else() -> None:
    late, other = (
        PySparkRuntimeError("a worker failed to connect back"),
        PySparkRuntimeError("else"),
    )
    waiting: list[Exception | int] = [late, late, late, 7, other, 8, *[late] * TRIES, 9]

    def act() -> int:
        found = waiting.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    assert again_if_unstarted(act) == 7
    with pytest.raises(PySparkRuntimeError, match="else"):
        again_if_unstarted(act)
    assert again_if_unstarted(act) == 8
    with pytest.raises(PySparkRuntimeError, match="connect back"):
        again_if_unstarted(act)
    assert waiting == [9]


def test_a_record_that_differs_and_one_that_is_missing_are_told(client: fastbk.sync.Client) -> None:
    namespace = client.namespace("pairs")
    namespace.create(PolicyPatch(roll_bytes=2000))

    def fill(name: str, *, key: bytes = b"k", header: bytes = b"h", count: int = 60) -> str:
        with namespace.stream(name).writer(create=True) as writer:
            for number in range(count):
                last = number == 50
                writer.append(
                    b"%060d" % number,
                    key=key if last else b"k",
                    headers=(("a", header if last else b"h"),),
                )
        return f"pairs/{name}"

    first = fill("first")
    assert same_records(client, first, fill("same"), lambda _: None) == 60
    for other in (fill("key", key=b"other"), fill("header", header=b"other")):
        with pytest.raises(StorageError, match=f"record 50 of {first}"):
            same_records(client, first, other, lambda _: None)
    short = fill("short", count=59)
    for pair in ((first, short), (short, first)):
        with pytest.raises(StorageError, match=f"{short} ends behind 59 records"):
            same_records(client, *pair, lambda _: None)
    victim = choose(client, first)
    assert victim.ledger_id in ledgers_of(client, [first])
    segments = namespace.stream("first").segments()
    assert len(segments) > 1
    assert victim.entry_id <= max(one.last_entry_id for one in segments)
    assert dataclasses.astuple(victim)[0].startswith("bookie-")
