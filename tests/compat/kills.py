"""Rounds of SIGKILL in a cluster of bookies of both kinds, judged for lost entries."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

from tests.compat.java_cells import Answer, run_cells
from tests.compat.results import Result
from tests.compat.rig import Cluster, Rig

BACK_S_MAX = 120.0
ROUND_S_MAX = 60
RUNNING_MIN = 4
"""The largest ensemble: writers always find bookies."""


def kill_rounds(rig: Rig, rounds: int, seed: int, *, kind: str) -> Iterator[Result]:
    """Seven bookies, of both kinds or all of Apache's; Java's writers and readers over both protocols."""
    ours, apache = {"mixed": (5, 2), "apache": (0, 7)}[kind]
    with rig.cluster(ours=ours, apache=apache) as cluster:
        killer = Killer(cluster)
        arguments = [cluster.metadata_uri, "v3", "kills"]
        options = [
            f"-Dfastbk.compat.rounds={rounds}",
            f"-Dfastbk.compat.seed={seed}",
            f"-Dfastbk.compat.seconds={rounds * ROUND_S_MAX}",
        ]
        answers: dict[str, Answer] = {
            "kill-some": killer.kill,
            "all-back": killer.all_back,
        }
        yield from run_cells(
            f"java > {kind}, kills",
            cluster,
            rig.programs,
            arguments,
            options=options,
            more_answers=answers,
            run_s_max=rounds * ROUND_S_MAX,
        )


class Killer:
    """Kills, and starts again at once, so that writers see bookies come back, too."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._starting: dict[str, threading.Thread] = {}
        self._errors: list[Exception] = []

    def kill(self, count: str, seed: str) -> str:
        """SIGKILL so many bookies, of those that are back, and have them started again; returns their ids."""
        while len(self._back()) - int(count) < RUNNING_MIN:
            self._check()
            time.sleep(0.05)
        victims = random.Random(int(seed)).sample(self._back(), int(count))
        for bookie_id in victims:
            self._cluster.member(bookie_id).kill()
            self._starting[bookie_id] = threading.Thread(target=self._restore, args=(bookie_id,))
            self._starting[bookie_id].start()
        return ",".join(victims)

    def _back(self) -> list[str]:
        """Return the ids of the bookies that take writes."""
        ids = [each.bookie_id for each in self._cluster.members]
        return [
            each
            for each in ids
            if each not in self._starting or not self._starting[each].is_alive()
        ]

    def _restore(self, bookie_id: str) -> None:
        try:
            self._cluster.restore(bookie_id)
        except Exception as error:
            self._errors.append(error)

    def _check(self) -> None:
        if self._errors:
            raise self._errors[0]

    def all_back(self) -> None:
        for thread in self._starting.values():
            thread.join(BACK_S_MAX)
        self._check()
