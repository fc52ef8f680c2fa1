"""`fastbk ledger export` and `fastbk stream export`: the rows of the file are those of the reader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.ipc
import pyarrow.parquet

import fastbk.sync
from fastbk.arrow import read_ledger, read_stream
from fastbk.stream.positions import AtSeq
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli

WITHOUT_PYARROW = """
import sys
sys.modules["pyarrow"] = None
from fastbk.cli.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_ledgers_entries_become_rows(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = cluster.metadata_uri
    with fastbk.sync.connect(uri) as client, client.create_ledger(3, 3, 2) as writer:
        writer.append_many([b"entry %d" % one for one in range(1000)])
    cli, words = Cli(uri), ("ledger", "export", str(writer.ledger_id))
    place = tmp_path / "all.parquet"
    answer = cli.json(*words, str(place))
    assert answer.pop("seconds") >= 0
    assert answer == {
        "file": str(place),
        "entries": 1000,
        "bytes": place.stat().st_size,
        "gaps": [],
    }
    whole = read_ledger(uri, writer.ledger_id).read_all()
    assert pyarrow.parquet.read_table(place).equals(whole)
    place = tmp_path / "part.arrow"
    said = cli(*words, str(place), "--first", "10", "--last", "19")
    assert said.startswith(f"{place}: 10 entries, ")
    with pyarrow.ipc.open_file(place) as file:
        assert file.read_all().equals(whole.slice(10, 10).combine_chunks())
    said = cli.fails(*words, str(place), "--last", "1000")
    assert "entry 1000 is beyond the last acknowledged one, 999" in said


def test_a_streams_records_become_rows(cluster: LocalCluster, tmp_path: Path) -> None:
    uri = cluster.metadata_uri
    with fastbk.sync.connect(uri) as client:
        client.namespace("export").create()
        stream = client.namespace("export").create_stream("orders")
        with stream.writer() as writer:
            for at in range(300):
                key = b"k%d" % at if at % 2 else None
                writer.append_nowait(b"order %d" % at, key=key, headers=(("n", b"%d" % at),))
        place = tmp_path / "orders.parquet"
        cli, words = Cli(uri), ("stream", "export", "export/orders", str(place))
        assert cli(*words).startswith(f"{place}: 300 records, ")
        whole = read_stream(client, "export/orders", headers=True).read_all()
        assert pyarrow.parquet.read_table(place).to_pylist() == whole.to_pylist()
        answer = cli.json(*words, "--from", "seq:100", "--to", "seq:150")
        assert answer["records"] == 50
        part = read_stream(client, "export/orders", AtSeq(100), AtSeq(150), headers=True)
        assert pyarrow.parquet.read_table(place).to_pylist() == part.read_all().to_pylist()
        stream.truncate(AtSeq(20))
    assert "truncated" in cli.fails(*words, "--from", "0.0.0")
    assert pyarrow.parquet.read_table(place).num_rows == 50, "what was there before stays"
    assert list(tmp_path.iterdir()) == [place]


def test_what_cannot_be_is_said_before_anything_is_read(tmp_path: Path) -> None:
    cli = Cli("sqlite:/x")
    assert ".parquet, or .arrow" in cli.fails(
        "ledger", "export", "1", str(tmp_path / "a.csv"), code=2
    )
    words = ("stream", "export", "a/b", str(tmp_path / "a.arrow"), "--metadata", "sqlite:/x")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW, *words], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, "pip install 'fastbk[arrow]'" in done.stderr) == (2, True)
