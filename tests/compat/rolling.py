"""Apache's bookies become ours one by one, by import and under load, and one goes back: docs/migration.md, followed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import fastbk.sync
from fastbk.devcluster.processes import wait_for
from tests.compat.autorecovery import daemon
from tests.compat.java_cells import Answer, run_cells
from tests.compat.members import ApacheMember, ConfFile, ConfMember, FileMember
from tests.compat.results import Result
from tests.compat.rig import Cluster, Rig

DECOMMISSION_S_MAX = 660.0
"""Its shell looks again only after ten seconds for each ledger that still had to be copied, ten minutes at most."""
LIMBO_S_MAX = 200.0
CELL_S_MAX = 900
RUN_S_MAX = 2000.0


def rolling_cells(rig: Rig, only: list[str]) -> Iterator[Result]:
    """Three of Apache's bookies, writers on two at a time, and AutoRecovery beside them.

    Its check of replicas is off: DbLedgerStorage does not answer it, and the auditor waits for nothing else meanwhile.
    """
    with rig.cluster(is_started=False, is_made_by_apache=True) as cluster:
        cluster.add_apache(3)
        cluster.start()
        with daemon(cluster, {"auditorReplicasCheckInterval": 0}):
            move = Move(cluster)
            answers: dict[str, Answer] = {
                "move-bookies": lambda: " ".join(one.bookie_id for one in cluster.members),
                "move-read-only": move.read_only,
                "move-import": move.take_over,
                "move-import-taken-back": move.take_over_and_back,
                "move-new-apache": move.new_apache,
                "move-decommission": move.decommission,
            }
            yield from run_cells(
                "java > apache, then ours",
                cluster,
                rig.programs,
                [cluster.metadata_uri, "v3", "rolling", *only],
                options=[f"-Dfastbk.compat.seconds={CELL_S_MAX}"],
                more_answers=answers,
                run_s_max=RUN_S_MAX,
            )


class Move:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def read_only(self, bookie_id: str) -> None:
        self._cluster.set_read_only(bookie_id, is_read_only=True)

    def take_over(self, bookie_id: str) -> None:
        """Stop one of Apache's, import what it holds, and start ours in its place."""
        old = self._apache(bookie_id)
        self._cluster.shell("autorecovery", "-disable")
        self._stop(old)
        self._start(self._import(old))
        self._cluster.shell("autorecovery", "-enable")

    def take_over_and_back(self, bookie_id: str) -> None:
        """Import, do not start, and have Apache's bookie go on."""
        old = self._apache(bookie_id)
        self._cluster.shell("autorecovery", "-disable")
        self._stop(old)
        new = self._import(old)
        uri = self._cluster.metadata_uri
        forget = (
            "cluster",
            "cookies",
            "--forget",
            bookie_id,
            "--yes",
            "--even-if-named",
            "--metadata",
            uri,
        )
        self._cluster.fastbk(*forget)
        cookie = old.folder / "ledgers" / "current" / "VERSION"
        self._cluster.shell("cookie_create", "--cookie-file", str(cookie), bookie_id)
        shutil.rmtree(new.folder)
        old.spawn()
        old.wait_ready()
        self._cluster.shell("autorecovery", "-enable")

    def new_apache(self) -> str:
        """Start another one of Apache's, with empty directories and an id of its own."""
        self._cluster.add_apache(1)
        self._cluster.start()
        member = self._cluster.members[-1]
        return member.bookie_id

    def decommission(self, bookie_id: str) -> None:
        """Stop one of ours, and have Apache's AutoRecovery empty it."""
        member = self._cluster.member(bookie_id)
        assert isinstance(member, FileMember)
        self._stop(member)
        words = ("decommissionbookie", "-bookieid", bookie_id)
        self._cluster.shell(*words, seconds_max=DECOMMISSION_S_MAX)
        with fastbk.sync.connect(self._cluster.metadata_uri) as client:
            for info in client.list_ledgers():
                named = [one for one in info.metadata.fragments if bookie_id in one.ensemble]
                if info.metadata.is_closed and named:
                    raise AssertionError(f"ledger {info.ledger_id} still names {bookie_id}")
        root = self._cluster.location.root
        if self._cluster.kazoo.exists(f"{root}/cookies/{bookie_id}"):
            raise AssertionError("its cookie is still there")

    def _import(self, old: ApacheMember) -> ConfMember:
        folder = self._cluster.folder / f"imported-{old.port}"
        folder.mkdir()
        directories = {
            "BK_journalDirectories": str(folder / "journal"),
            "BK_ledgerDirectories": str(folder / "ledgers"),
        }
        toml = folder / "bookie.toml"
        toml.write_text(
            self._cluster.fastbk("config", "convert", str(old.conf), variables=directories)
        )
        words = ("bookie", "import", "--config", str(toml), "--from-conf", str(old.conf), "--json")
        found = json.loads(self._cluster.fastbk(*words, "--dry-run"))
        if found["open_ledgers"]:
            raise AssertionError(f"{found['open_ledgers']} ledgers on it are not closed")
        done = json.loads(self._cluster.fastbk(*words, "--replace-cookie"))
        if done["entries"] != found["entries"] or not done["entries"]:
            raise AssertionError(f"{done['entries']} entries imported, {found['entries']} found")
        print(f"{old.bookie_id}: {done['ledgers']} ledgers, {done['entries']:,} entries imported")
        return ConfMember(
            folder, ConfFile(toml, old.port, old.http_port), self._cluster.registered_by
        )

    def _start(self, new: ConfMember) -> None:
        """Start it in the place of the one with its id, and wait until it is in limbo with nothing."""
        members = self._cluster.members
        members[[one.bookie_id for one in members].index(new.bookie_id)] = new
        new.spawn()
        new.wait_ready()
        # What a writer with a small ack quorum did not wait for is missing where the bookie was read-only by then.
        self._cluster.fastbk(
            "bookie", "repair", new.bookie_id, "--metadata", self._cluster.metadata_uri
        )

        def is_whole() -> bool:
            words = ("doctor", "--config", str(new.conf), "--problems", "--json")
            return "in limbo" not in self._cluster.fastbk(*words, codes=(0, 1))

        wait_for(is_whole, LIMBO_S_MAX, "the end of limbo")

    def _stop(self, member: FileMember) -> None:
        member.stop()
        self._cluster.wait_unregistered(member.bookie_id)

    def _apache(self, bookie_id: str) -> ApacheMember:
        member = self._cluster.member(bookie_id)
        assert isinstance(member, ApacheMember)
        return member
