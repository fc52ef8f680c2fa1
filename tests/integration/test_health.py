"""`cluster status`, `top`, the console's page, `doctor` and `/readyz` agree, in each state of real bookies."""

from __future__ import annotations

import asyncio
import contextlib
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import pytest

import fastbk
from fastbk.autorecovery.auditor import AuditorOptions
from fastbk.autorecovery.healer import Healer
from fastbk.autorecovery.state import clock_ms
from fastbk.console.pages import problems_of
from fastbk.devcluster import Bookie
from fastbk.doctor import Finding, Status
from fastbk.errors import ClientClosed
from fastbk.meta.api import MetadataStore
from fastbk.meta.health_records import BACKUP_PATH as LAST_BACKUP
from fastbk.meta.health_records import LastBackup, note_backup
from fastbk.meta.records import Change
from fastbk.model.health import BACKUP_AGE_MAX_S
from fastbk.model.ledger import LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.native.disk import Disk
from fastbk.overview.poller import OverviewPoller
from fastbk.overview.values import Severity
from fastbk.storage.manifest import Damage, ManifestSlots
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.pages import json_page, page
from tests.fixtures.registrations import until_down
from tests.fixtures.wait import wait_until_async
from tests.integration.test_journal_damage import data_of, fill, flip_one_byte

WAIT_S = 60.0
SETTINGS = {"gc": {"interval": "200ms"}, "ledgers": {"flush_interval": "200ms"}}
FAST = AuditorOptions(
    bookie_interval_s=0.2, verify_interval_s=0.2, cycle_interval_s=0.2, confirm_after_s=0.2
)
DOCTORS = {"well": Status.OK, "degraded": Status.WARN, "in danger": Status.FAIL}


class _View:
    """What the console's list of problems needs of its view."""

    def __init__(self, overview: object) -> None:
        self.overview = overview
        self.streams = type("Streams", (), {"error": ""})()

    def bookie(self, bookie_id: str) -> object:
        return next((one for one in self.overview.bookies if one.bookie_id == bookie_id), None)  # type: ignore[attr-defined]


@dataclass
class Said:
    """What the five said at one time. Reasons are (verdict, name, text); `doctor` has (status, text)."""

    status: tuple[int, str]
    top: tuple[int, str]
    status_reasons: set[tuple[str, str, str]]
    top_reasons: set[tuple[str, str, str]]
    console: dict[str, Severity]
    ready: set[tuple[str, str, str]] = field(default_factory=set)
    doctor: set[tuple[Status, str]] = field(default_factory=set)
    doctor_codes: set[int] = field(default_factory=set)


class Verdicts:
    """Asks all five."""

    def __init__(self, cluster: LocalCluster, client: fastbk.Client, folder: Path) -> None:
        self.cluster = cluster
        self.client = client
        self.cli = Cli(cluster.metadata_uri)
        self._folder = folder

    async def status(self) -> tuple[int, str, set[tuple[str, str, str]]]:
        """Return the exit code, the verdict and the reasons of `cluster status`."""
        code, answer, _ = await self.cli.answer_async("cluster", "status")
        return code, answer["verdict"], _reasons(answer["reasons"])

    async def read(self, *, is_in_doctor: bool = False) -> Said:
        code, verdict, reasons = await self.status()
        top_code, top, _ = await self.cli.answer_async("top", "--json", "--interval", "0.5")
        async with OverviewPoller(self.client, cursors_max=0) as poller:
            await poller.settled(10.0)
            listed = problems_of(_View(await poller.poll()), ())  # type: ignore[arg-type]
        said = Said(
            (code, verdict),
            (top_code, top["verdict"]),
            reasons,
            _reasons(top["reasons"]),
            {one.text.partition("; next: ")[0]: one.severity for one in listed},
        )
        for bookie in self.cluster.bookies:
            with contextlib.suppress(OSError):
                found = await asyncio.to_thread(json_page, bookie, "/readyz")
                said.ready |= _reasons(found["verdict_reasons"])
                if is_in_doctor:
                    code, found_here = await asyncio.to_thread(self.doctor, bookie)
                    said.doctor_codes.add(code)
                    said.doctor |= {(one.status, one.why) for one in found_here}
        return said

    def doctor(self, bookie: Bookie) -> tuple[int, list[Finding]]:
        """Return the doctor's exit code, and what it says of a bookie's health and of the cluster's."""
        # The file has port 0 for the page: the doctor is given the one that it got.
        text = (bookie.directory / "bookie.toml").read_text()
        config = self._folder / f"{bookie.name}.toml"
        listen = f'\\g<1>"127.0.0.1:{bookie.http_port}"'
        config.write_text(re.sub(r'(\[http\]\s*listen = )"[^"]*"', listen, text))
        code, lines = self.cli.run("doctor", "--config", str(config), "--json")
        found = [msgspec.json.decode(line, type=Finding) for line in lines.splitlines()]
        return code, [one for one in found if one.name.startswith("health")]


def _reasons(listed: list[dict[str, str]]) -> set[tuple[str, str, str]]:
    return {(one["verdict"], one["name"], one["text"]) for one in listed}


async def agreed(
    verdicts: Verdicts,
    verdict: str,
    name: str = "",
    *,
    is_own: bool = True,
    in_doctor: bool | None = None,
) -> None:
    """Wait until all say so, by the same reason and with the same exit code.

    Args:
        verdicts: asks them.
        verdict: of the cluster.
        name: of a reason for it; "": there is none but remarks.
        is_own: it is a fact of one bookie that runs, so its own page says it, too.
        in_doctor: the doctor knows it; None: as `is_own`.
    """
    last: list[object] = []

    asks_doctor = is_own if in_doctor is None else in_doctor

    async def is_agreed() -> bool:
        code = 0 if verdict == "well" else 1
        first = await verdicts.status()
        last[:] = [first]
        if first[:2] != (code, verdict) or not {name} - {""} <= {one[1] for one in first[2]}:
            return False  # the others cost much more
        said = await verdicts.read(is_in_doctor=asks_doctor)
        last[:] = [said]
        if said.status != (code, verdict) or said.top != (code, verdict):
            return False
        if (max(said.console.values(), default=Severity.OK) >= Severity.WARN) != bool(code):
            return False
        mine = {one for one in said.status_reasons if one[1] == name}
        # The doctor of a bookie that is well says so; it has no part of what is wrong with others.
        if asks_doctor and (said.doctor_codes != {0} if code == 0 else 1 not in said.doctor_codes):
            return False
        if not name:
            return not said.ready and {one[0] for one in said.status_reasons} <= {"well"}
        if not mine or not all(one in said.top_reasons and one[2] in said.console for one in mine):
            return False
        if is_own and not mine <= said.ready:
            return False
        return not asks_doctor or all((DOCTORS[of], text) in said.doctor for of, _, text in mine)

    try:
        await wait_until_async(is_agreed, f"all say {verdict} by {name or 'nothing'}", WAIT_S)
    except BaseException as error:
        error.add_note(str(last))
        raise


async def until_well(verdicts: Verdicts) -> None:
    """Wait until the command says so: whether all five do is asked at both ends of the first test."""

    async def is_well() -> bool:
        return (await verdicts.status())[:2] == (0, "well")

    await wait_until_async(is_well, "the cluster is well", WAIT_S)


@pytest.fixture(scope="module")
def three() -> Iterator[LocalCluster]:
    """A cluster that each test leaves well, or as well as one without a backup is."""
    with LocalCluster(3, settings=SETTINGS) as cluster:
        yield cluster


@contextlib.asynccontextmanager
async def asked(cluster: LocalCluster) -> AsyncIterator[Verdicts]:
    with tempfile.TemporaryDirectory(prefix="fastbk-health-") as folder:
        async with fastbk.connect(cluster.metadata_uri) as client:
            yield Verdicts(cluster, client, Path(folder))


@contextlib.asynccontextmanager
async def healing(client: fastbk.Client) -> AsyncIterator[Healer]:
    healer, stop = Healer(client, "healer", FAST), asyncio.Event()
    task = asyncio.create_task(healer.run(stop))
    try:
        yield healer
    finally:
        stop.set()
        await task


async def test_all_five_agree_in_each_state(three: LocalCluster) -> None:
    async with asked(three) as verdicts:
        cluster, client = verdicts.cluster, verdicts.client
        await agreed(verdicts, "well")
        bookie = cluster.bookies[0]
        page(bookie, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": true}')
        await agreed(verdicts, "degraded", "read_only")
        page(bookie, "/api/v1/bookie/state/readonly", "PUT", '{"readOnly": false}')
        await until_well(verdicts)

        async with await client.create_ledger(3, 3, 2) as writer:
            await writer.append(b"x")
        await client.marks.update(writer.ledger_id, add=[MissingReplica(bookie.name, 0, 0)])
        await agreed(verdicts, "in danger", "copies_missing", is_own=False)
        await client.marks.update(writer.ledger_id, remove=[MissingReplica(bookie.name, 0, 0)])

        async with cluster.delayed(1, journal_ms=60), await client.create_ledger(3, 3, 3) as load:
            said: list[Said] = []

            async def is_slow() -> bool:
                for _ in range(60):
                    await load.append(b"x")
                said[:] = [await verdicts.read()]
                return "journal_slow" in {
                    name for _, name, _ in said[0].status_reasons & said[0].ready
                }

            await wait_until_async(is_slow, "the journal is called slow", WAIT_S)
            assert said[0].status == (1, "degraded") and said[0].top == (1, "degraded")
            assert max(said[0].console.values()) >= Severity.WARN

        async with cluster.frozen(0, "index"):
            await agreed(verdicts, "in danger", "frozen")
        await until_well(verdicts)
        await cluster.stop_bookie_async(2)
        await agreed(verdicts, "in danger", "bookie_down", is_own=False)
        await cluster.start_bookie_async(2)
        await until_well(verdicts)


async def test_an_old_backup_and_a_recovery_that_does_not_end(three: LocalCluster) -> None:
    async with asked(three) as verdicts:
        client, cli = verdicts.client, verdicts.cli
        await agreed(verdicts, "well")
        said = await verdicts.read(is_in_doctor=True)
        remark = ("well", "backup_missing", "metadata was never backed up")
        assert remark in said.status_reasons and remark in said.top_reasons
        assert said.console[remark[2]] is Severity.NOTE
        assert any(status is Status.OK and why.startswith(remark[2]) for status, why in said.doctor)

        file = str(verdicts.cluster.data / "backup")
        assert (await cli.answer_async("metadata", "backup", "--to", file))[0] == 0
        assert (await verdicts.read()).status_reasons == set()

        def age(store: MetadataStore) -> None:
            (found,) = store.records.read([LAST_BACKUP])
            assert found is not None
            store.records.change([Change(LAST_BACKUP, None, found.version)])
            note_backup(
                store,
                LastBackup(began_ms=clock_ms() - int(BACKUP_AGE_MAX_S * 1500), backup_id="old"),
            )

        await client.call_store(age)
        await agreed(verdicts, "degraded", "backup_old", is_own=False, in_doctor=True)
        assert (await cli.answer_async("metadata", "backup", "--to", f"{file}.2"))[0] == 0
        await until_well(verdicts)

        writer = await client.create_ledger(3, 3, 2)
        await writer.append(b"x")
        writer.abandon(ClientClosed("the writer is gone"))
        # As a client leaves it that began to recover the ledger, and died.
        info = await client.ledger_info(writer.ledger_id)
        begun = replace(info.metadata, state=LedgerState.IN_RECOVERY)
        await client.call_store(
            lambda store: store.update_ledger(info.ledger_id, begun, info.version)
        )
        async with healing(client):
            await agreed(verdicts, "degraded", "unfinished_recovery", is_own=False, in_doctor=True)
        assert (await cli.answer_async("ledger", "close", str(writer.ledger_id)))[0] == 0
        await until_well(verdicts)


async def test_limbo_after_a_flipped_byte(three: LocalCluster) -> None:
    async with asked(three) as verdicts:
        cluster, sick = verdicts.cluster, verdicts.cluster.bookies[2]
        sick.sections["ledgers"]["flush_interval"] = "1h"
        await cluster.restart_bookie_async(2)
        whole = await fill(verdicts.client, 3, 3, 2)
        await cluster.kill_async(2)
        flip_one_byte(sick, data_of(whole, 7))
        await cluster.start_bookie_async(2)
        await agreed(verdicts, "in danger", "limbo")
        code, answer, said = await verdicts.cli.answer_async("bookie", "repair", sick.name)
        assert (code, answer["entries_lost"]) == (0, 0), said
        await cluster.stop_bookie_async(2)
        sick.sections["ledgers"]["flush_interval"] = "200ms"
        await cluster.start_bookie_async(2)
        await until_well(verdicts)


async def test_damage_on_record_while_metadata_is_on_hold(three: LocalCluster) -> None:
    """It stays on record as long as the hold: a list of ledgers might not have all."""
    async with asked(three) as verdicts:
        cluster, sick, cli = verdicts.cluster, verdicts.cluster.bookies[2], verdicts.cli
        await fill(verdicts.client, 3, 3, 2)
        await cluster.stop_bookie_async(2)
        directory = sick.directory / "ledgers"
        with Disk(directory, "plain") as disk:
            slots = ManifestSlots(disk, str(directory))
            now = slots.load()
            damage = Damage(
                what="batch 7 is gone", file_id=1, first_sequence=7, last_sequence=7, found_s=1
            )
            slots.commit(
                msgspec.structs.replace(now, generation=now.generation + 1, damage=(damage,))
            )
        assert (await cli.answer_async("metadata", "hold", "--reason", "a test"))[0] == 0
        await cluster.start_bookie_async(2)
        await agreed(verdicts, "in danger", "damage_on_record")
        await agreed(verdicts, "in danger", "metadata_hold", is_own=False)
        assert (await cli.answer_async("metadata", "confirm", "--yes"))[0] == 0
        # The next start puts the bookie's ledgers into limbo, which ends at once: all is there.
        await cluster.restart_bookie_async(2)
        await until_well(verdicts)


async def test_a_lost_bookie_and_ledgers_that_cannot_be_closed() -> None:
    async with LocalCluster(4, settings=SETTINGS) as running, asked(running) as verdicts:
        cluster, client, cli = verdicts.cluster, verdicts.client, verdicts.cli
        names = [one.name for one in cluster.bookies]
        writer = await client.create_ledger(4, 3, 2)
        await writer.append(b"x")
        writer.abandon(ClientClosed("the writer is gone"))
        closed = await fill(client, 4, 3, 2)
        first, second, third, _ = writer.metadata.fragments[0].ensemble
        await cluster.kill_async(names.index(first))
        await until_down(client, first)
        await agreed(verdicts, "in danger", "bookie_down", is_own=False)
        assert "uncloseable" not in {name for _, name, _ in (await verdicts.read()).status_reasons}
        await cluster.kill_async(names.index(second))
        await until_down(client, second)

        # Nobody has marked it yet, and nobody runs who could.
        await agreed(verdicts, "in danger", "uncloseable", is_own=False)
        step = f"`fastbk ledger close {writer.ledger_id} --accept-loss --dry-run`"
        code, status, _ = await cli.answer_async("cluster", "status")
        (found,) = [one for one in status["reasons"] if one["name"] == "uncloseable"]
        away = ", ".join(sorted([first, second]))
        assert code == 1 and step in found["next_step"]
        assert found["text"] == f"ledger {writer.ledger_id} cannot be closed while {away} are away"
        code, answer, _ = await cli.answer_async("cluster", "under-replicated")
        told = {
            (one["ledger_id"], one["bookie_id"])
            for one in answer["missing"]
            if step in one["reason"]
        }
        assert code == 1 and told == {(writer.ledger_id, first), (writer.ledger_id, second)}
        code, answer, said = await cli.answer_async("bookie", "repair", third, "--patience", "1")
        assert answer["uncloseable"] == 1
        assert f"ledger {writer.ledger_id} is open, and cannot be closed" in said and step in said
        assert f"ledger {closed} is open" not in said

        await client.call_store(lambda store: store.coordination.set_lost_bookie_delay(1))
        # Half of the bookies are away: the auditor waits for an operator's word.
        async with healing(client) as healer:
            await wait_until_async(lambda: healer.auditor is not None, "it is elected", WAIT_S)
            await healer.state.release()
            await agreed(verdicts, "in danger", "bookie_lost", is_own=False)
            await agreed(verdicts, "in danger", "copies_missing", is_own=False)
