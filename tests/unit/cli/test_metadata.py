"""`fastbk metadata`: makes and shows clusters, and asks before it forgets one."""

from __future__ import annotations

import io
import json
import sys
from contextlib import closing
from pathlib import Path

import pytest

from fastbk.admin.metadata_backup import ArchiveWriter, End, Head, Ledger, Ledgers
from fastbk.admin.metadata_rebuild import Rebuilt
from fastbk.cli.__main__ import main
from fastbk.cli.metadata import _rebuilt_lines
from fastbk.meta import open_store
from fastbk.meta.records import Change
from fastbk.meta.rollback import Mark
from tests.fixtures.metadata import metadata, service
from tests.fixtures.zookeeper import ZooKeeperPlace

Captured = pytest.CaptureFixture[str]


class Terminal(io.StringIO):
    """Standard input as a terminal at which somebody types this."""

    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_init_makes_a_cluster_once(zookeeper: ZooKeeperPlace, capsys: Captured) -> None:
    uri = zookeeper.location("/made").uri
    assert main(["metadata", "init", "--metadata", uri, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["uri"] == uri
    assert main(["metadata", "init", "--metadata", uri]) == 1
    assert "there is a cluster at" in capsys.readouterr().err
    with closing(open_store(uri)) as store:
        assert store.instance_id() == made["instance_id"]
        with closing(store.register_bookie(service(), writable=True)):
            assert main(["metadata", "show", "--metadata", uri, "--json"]) == 0
            shown = json.loads(capsys.readouterr().out)
            assert shown["writable_bookies"] == ["b1:3181"]
            assert (shown["instance_id"], shown["layout"]) == (made["instance_id"], "hierarchical")
            assert main(["metadata", "show", "--metadata", uri]) == 0
            assert "b1:3181" in capsys.readouterr().out
            assert main(["metadata", "format", "--yes", "--metadata", uri]) == 1
            assert "stop them first: b1:3181" in capsys.readouterr().err


def test_format_asks_and_needs_a_yes(
    zookeeper: ZooKeeperPlace, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = zookeeper.uri()
    with closing(open_store(uri)) as store:
        store.create_ledger(7, metadata())
        # Nobody is at the terminal of a test.
        assert main(["metadata", "format", "--metadata", uri]) == 2
        assert "--yes" in capsys.readouterr().err
        assert main(["metadata", "format", "--metadata", uri, "--dry-run"]) == 0
        assert "would forget all ledgers" in capsys.readouterr().out
        monkeypatch.setattr(sys, "stdin", Terminal("no\n"))
        assert main(["metadata", "format", "--metadata", uri]) == 1
        assert store.list_ledgers() == [7]
        capsys.readouterr()
        monkeypatch.setattr(sys, "stdin", Terminal("yes\n"))
        assert main(["metadata", "format", "--metadata", uri, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["instance_id"] == store.instance_id()
        assert store.list_ledgers() == []


def test_sqlite_is_made_and_shown_too(tmp_path: Path, capsys: Captured) -> None:
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    assert main(["metadata", "show", "--metadata", uri]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main(["metadata", "init", "--metadata", uri]) == 0
    assert main(["metadata", "init", "--metadata", uri]) == 1
    assert main(["metadata", "format", "--metadata", uri, "--yes"]) == 2
    capsys.readouterr()
    assert main(["metadata", "show", "--metadata", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uri"] == uri
    assert main(["metadata", "init", "--metadata", "memory:x"]) == 2


def test_a_rebuild_says_how_many_lines_it_leaves_out() -> None:
    done = Rebuilt(
        streams={f"{number:02x}": [*range(21)] for number in range(21)},
        notes={number: ("a", "b") for number in range(21)},
    )
    lines = _rebuilt_lines(done)
    assert "  and 22 more: --json lists all" in lines, "of 42 notes"
    assert "  and 1 more: --json lists all" in lines, "of 21 streams"
    assert next(one for one in lines if one.startswith("stream 00")).endswith(", 19 and 1 more")


@pytest.mark.parametrize("stored", [b"-5", b"soon"])
def test_a_delay_of_lost_bookies_that_is_none_is_shown(
    stored: bytes, tmp_path: Path, capsys: Captured
) -> None:
    uri = f"sqlite:{tmp_path}/metadata.sqlite"
    assert main(["metadata", "init", "--metadata", uri]) == 0
    words = ["cluster", "heal", "status", "--metadata", uri]
    with closing(open_store(uri)) as store:
        main(words)
        assert "a lost bookie may be away for 600 s" in capsys.readouterr().out
        store.coordination.set_lost_bookie_delay(30)
        main(words)
        assert "a lost bookie may be away for 30 s" in capsys.readouterr().out
        path = "autorecovery/lost_bookie_delay"
        (known,) = store.records.read([path])
        assert known is not None
        store.records.change([Change(path, stored, known.version)])
    assert main(words) == 1
    said = capsys.readouterr().out
    assert "a lost bookie may be away for 600 s" in said
    assert f"problem: {path}: {stored!r} is no number; the default holds" in said
    assert main([*words, "--json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["lost_bookie_delay_s"] == 600.0 and len(shown["bad_records"]) == 1


def test_what_a_backup_has_and_nobody_can_read_ends_check_and_restore_with_1(
    tmp_path: Path, capsys: Captured
) -> None:
    """As an older version, whose bounds were wider, may have backed it up."""
    file, whole = tmp_path / "older", metadata(5).to_bytes()
    items = Ledgers([Ledger(6, whole, 0), Ledger(7, whole[:-5], 0), Ledger(8, whole, 0)])
    end = End(ended_ms=1, highest_drawn_id=8, records=0, ledgers=3, bookies=0, changes=0)
    head = Head(
        instance_id="i",
        began_ms=1,
        mark=Mark(),
        is_enabled=True,
        lost_bookie_delay_s=None,
        software="fastbk 0.2.0",
    )
    with file.open("wb") as opened:
        writer = ArchiveWriter(opened)
        for frame in (head, items, end):
            writer.write(frame)
    uri = f"sqlite:{tmp_path}/metadata"
    assert main(["metadata", "check", str(file)]) == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("UNREADABLE")]
    assert "ledger 7: " in line and "a restore passes it over" in line
    assert main(["metadata", "check", str(file), "--json"]) == 1
    (named,) = json.loads(capsys.readouterr().out)["not_restorable"]
    for _ in range(2):
        assert main(["metadata", "restore", str(file), "--metadata", uri]) == 1
        out = capsys.readouterr().out
        assert f"NOT RESTORED        {named}" in out and "After `confirm` bookies delete" in out
    with closing(open_store(uri)) as store:
        assert store.list_ledgers() == [6, 8]
    whole_file = tmp_path / "now"
    assert main(["metadata", "backup", "--to", str(whole_file), "--metadata", uri]) == 0
    assert main(["metadata", "check", str(whole_file)]) == 0
