"""`fastbk top` in a real terminal (tmux) on real bookies, and its plain and JSON forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastbk.testing import LocalCluster
from tests.fixtures.appending import appending
from tests.fixtures.cli import Cli
from tests.fixtures.wait import crowd, wait_until

JOURNAL_MS = 30
SHOWN_WITHIN_S = 5.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Three bookies of this file's own; the test that stops one is the last that looks at them."""
    with LocalCluster() as made:
        yield made


class Pane:
    """A command in a terminal of its own, of 80 columns and 24 lines unless said otherwise."""

    def __init__(
        self, folder: Path, *words: str, columns: int = 80, lines: int = 24, **variables: str
    ) -> None:
        self._socket = folder / "tmux"
        environment = {**os.environ, **variables}
        environment.pop("TMUX", None)
        subprocess.run(
            [*self._tmux(), "new-session", "-d", "-x", str(columns), "-y", str(lines), *words],
            env=environment, check=True, timeout=30,
        )  # fmt: skip

    def _tmux(self) -> list[str]:
        return ["tmux", "-S", str(self._socket), "-f", "/dev/null"]

    def text(self, *, escapes: bool = False) -> str:
        """Return what stands on the screen; "" once the command has ended."""
        words = [*self._tmux(), "capture-pane", "-p", *(["-e"] if escapes else [])]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=30).stdout

    def press(self, *keys: str) -> None:
        """Type keys, by tmux's names."""
        subprocess.run([*self._tmux(), "send-keys", *keys], check=True, timeout=30)

    def close(self) -> None:
        """End the command and its terminal."""
        subprocess.run([*self._tmux(), "kill-server"], check=False, capture_output=True, timeout=30)


@contextmanager
def top(cluster: LocalCluster, folder: Path, *options: str, **variables: str) -> Iterator[Pane]:
    """Run `fastbk top` on a cluster."""
    words = [
        sys.executable,
        "-m",
        "fastbk.cli",
        "top",
        "--metadata",
        cluster.metadata_uri,
        *options,
    ]
    pane = Pane(folder, *words, PYTHONPATH=os.getcwd(), **variables)
    try:
        yield pane
    finally:
        pane.close()


def rows(text: str) -> list[str]:
    """Return the lines of bookies."""
    lines = text.splitlines()
    titles = next((n for n, line in enumerate(lines) if "BOOKIE " in line), len(lines))
    return [line for line in lines[titles + 1 : titles + 4] if "bookie-" in line]


def is_first(pane: Pane, *texts: str) -> Callable[[], bool]:
    def condition() -> bool:
        found = rows(pane.text())
        return len(found) == 3 and all(text in found[0] for text in texts)

    return condition


@pytest.mark.long
def test_a_journal_delayed_by_30_ms_is_at_the_top_within_5_s(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    with appending(cluster), top(cluster, tmp_path) as pane:
        wait_until(
            lambda: all("ms" in row for row in rows(pane.text()) or [""]), "figures of all bookies"
        )
        wait_until(lambda: "all well" in pane.text(), "no bookie has a problem", 60.0)
        began_s = time.monotonic()
        with cluster.delayed(2, journal_ms=JOURNAL_MS):
            wait_until(
                is_first(pane, "!  bookie-3", "slow journal"), f"it is at the top:\n{pane.text()}",
                SHOWN_WITHIN_S * crowd(),
            )  # fmt: skip
            print(f"at the top after {time.monotonic() - began_s:.1f} s\n{pane.text()}")
            assert "1 with warnings" in pane.text()
        is_well = is_first(pane, "bookie-1")
        wait_until(
            lambda: is_well() or is_disk_slow(pane), "it is well again, or the disk of all is slow"
        )


def is_disk_slow(pane: Pane) -> bool:
    """Return whether a journal is said to be slow that nobody has delayed: the bookies share a disk."""
    return any("slow journal" in row and "bookie-3" not in row for row in rows(pane.text()))


def test_keys_filters_details_and_a_frozen_bookie(cluster: LocalCluster, tmp_path: Path) -> None:
    with top(cluster, tmp_path) as pane:
        wait_until(is_first(pane, "bookie-1"), "three bookies")
        with cluster.frozen(1):
            wait_until(is_first(pane, "!! bookie-2", "no answer"), "the frozen one is at the top")
            # the cursor stayed at another bookie, second or last now
            pane.press("Up", "Up", "Enter")
            wait_until(lambda: "┌─ bookie bookie-2" in pane.text(), "its details")
            wait_until(lambda: "!! no answer for" in pane.text(), "its problem")
            pane.press("q")
        wait_until(is_first(pane, "   bookie-1"), "it answers again")
        pane.press("/")
        wait_until(lambda: "show rows with this text" in pane.text(), "the line of the filter")
        pane.press("b", "o", "o", "k", "i", "e", "-", "3", "Enter")
        wait_until(
            lambda: [row.split()[0] for row in rows(pane.text())] == ["bookie-3"], "one bookie"
        )
        pane.press("Escape")
        wait_until(is_first(pane, "bookie-1"), "all bookies")
        pane.press("?")
        wait_until(lambda: "columns (rates" in pane.text(), "help")
        pane.press("q")
        wait_until(is_first(pane, "bookie-1"), "back")
        pane.press("q")
        wait_until(lambda: not pane.text(), "the end")


def test_no_color_leaves_the_marks(cluster: LocalCluster, tmp_path: Path) -> None:
    with top(cluster, tmp_path, NO_COLOR="1") as pane, cluster.frozen(0):
        wait_until(is_first(pane, "!! bookie-1", "no answer"), "the frozen one is at the top")
        assert "\x1b[41m" not in pane.text(escapes=True)


def test_once_prints_tables_and_json_the_same_values(cluster: LocalCluster) -> None:
    cli = Cli(cluster.metadata_uri)
    with appending(cluster):
        code, raw = cli.run("top", "--once", "--interval", "1")
        text = raw.decode()
        # A busy disk makes a journal slow, and then the cluster is no healthy one.
        assert (code == 0) == ("  well  " in text.splitlines()[0])
        assert len(rows(text)) == 3
        assert "3 bookies: " in text
    cluster.stop_bookie(1)
    code, raw = cli.run("top", "--json", "--interval", "1")
    assert code == 1
    found = json.loads(raw)
    first = found["bookies"][0]
    assert (first["bookie_id"], first["state"]) == ("bookie-2", "down")
    assert first["problems"][0]["severity"] == 3
    assert found["errors"] == []


def test_a_cluster_without_bookies_is_no_healthy_one(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'metadata.sqlite'}"
    cli = Cli(uri)
    code, raw = cli.run("top", "--once", "--interval", "0.5")
    assert (code != 0, raw) == (True, b"")
    assert str(tmp_path) in cli.err
    assert cli.run("metadata", "init")[0] == 0
    code, raw = cli.run("top", "--json", "--interval", "0.5")
    assert (code != 0, raw) == (True, b"")
    assert "has no bookie: start one" in cli.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--interval", "0.1"], "must be from 0.5"),
        (["--cursors", "-1"], "0 or more"),
        ([], "needs a terminal"),
    ],
)
def test_what_cannot_be_done_is_said(cluster: LocalCluster, words: list[str], text: str) -> None:
    cli = Cli(cluster.metadata_uri)
    code, _ = cli.run("top", *words)
    assert code != 0
    assert text in cli.err
