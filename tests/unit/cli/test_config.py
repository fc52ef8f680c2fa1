"""`fastbk config`: what a file comes to, in words and in JSON, and Apache's format turned into ours."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from fastbk import config as toml
from fastbk.cli.__main__ import main
from fastbk.server.configuration import bookie_file
from fastbk.server.configuration.bookie_config import BookieConfig
from fastbk.server.configuration.checks import check

Captured = pytest.CaptureFixture[str]

TEXT = """
bookieId = b1
advertisedAddress = 192.0.2.7
metadataServiceUri = sqlite:{folder}/metadata.sqlite
journalDirectories = {folder}/journal
ledgerDirectories = {folder}/one,{folder}/two
gcWaitTime = 5000
indexDirectories = {folder}/one
gcWaitTim = 1
"""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BK_flushInterval", "2000")
    path = tmp_path / "bk_server.conf"
    path.write_text(TEXT.format(folder=tmp_path))
    return path


def test_check_tells_the_verdict_of_every_key(conf: Path, capsys: Captured) -> None:
    assert main(["config", "check", str(conf)]) == 0
    told = capsys.readouterr().out
    assert "honoured   gcWaitTime = 5000  -> gc.interval  (line 7)" in told
    assert "honoured   flushInterval = 2000  -> ledgers.flush_interval  (BK_flushInterval)" in told
    assert "ignored    indexDirectories" in told
    assert "did you mean gcWaitTime?" in told
    assert "note       pair 1: journal in" in told
    assert "a bookie would start with it\n" in told
    assert main(["config", "check", str(conf), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] and answer["problems"] == []
    assert answer["unknown"] == ["gcWaitTim"]
    (gc,) = (one for one in answer["keys"] if one["key"] == "gcWaitTime")
    assert gc["verdict"] == "honoured" and gc["settings"] == ["gc.interval"]


def test_check_of_a_file_that_must_not_start_fails_with_the_reason(
    conf: Path, capsys: Captured
) -> None:
    with conf.open("a") as file:
        file.write("zkEnableSecurity=true\n")
    assert main(["config", "check", str(conf)]) == 1
    told = capsys.readouterr().out
    assert "refused    zkEnableSecurity = true  (line 10)" in told
    assert "PROBLEM    line 10: zkEnableSecurity = true: nodes in ZooKeeper" in told
    assert main(["config", "check", str(conf), "--json"]) == 1
    assert not json.loads(capsys.readouterr().out)["ok"]
    assert main(["config", "check", str(conf.with_name("none.conf"))]) == 1
    assert "cannot read it" in capsys.readouterr().out


def test_check_refuses_a_uri_that_the_bookie_refuses(conf: Path, capsys: Captured) -> None:
    conf.write_text(re.sub("sqlite:.*", "metadata-store:etcd:http://h:2379", conf.read_text()))
    assert main(["config", "check", str(conf)]) == 1
    assert "only ZooKeeper is known here" in capsys.readouterr().out


def test_check_takes_a_file_of_ours(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "bookie.toml"
    path.write_text("[gc]\nintervall = 5\n")
    assert main(["config", "check", str(path)]) == 1
    assert "did you mean interval?" in capsys.readouterr().out


def test_show_says_where_each_setting_comes_from(conf: Path, capsys: Captured) -> None:
    assert main(["config", "show", str(conf), "--json"]) == 0
    rows = {one["setting"]: one for one in json.loads(capsys.readouterr().out)["settings"]}
    assert rows["gc.interval"]["value"] == "5s"
    assert rows["gc.interval"]["origin"] == "gcWaitTime (line 7)"
    assert rows["ledgers.flush_interval"]["origin"] == "flushInterval (BK_flushInterval)"
    assert rows["ledgers.readers"]["origin"] == ""
    assert main(["config", "show", str(conf)]) == 0
    assert "ledgers.readers" in capsys.readouterr().out


def test_convert_prints_a_file_that_configures_the_same_bookie(
    conf: Path, capsys: Captured
) -> None:
    assert main(["config", "convert", str(conf)]) == 0
    told = capsys.readouterr()
    config = toml.from_document(tomllib.loads(told.out), BookieConfig, "converted")
    check(config)
    assert config == bookie_file.load(conf)
    assert "# gcWaitTime (line 7)\ninterval =" in told.out
    assert "indexDirectories" in told.out
    assert main(["config", "convert", str(conf.with_suffix(".toml"))]) == 2


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("gcWaitTime", ["honoured", "600000", "gc.interval", '"1min"']),
        ("tlsProviderFactoryClass", ["honoured", "prefer", "tls.mode"]),
        ("zkEnableSecurity", ["refused", "nodes in ZooKeeper"]),
        ("pageSize", ["ignored", "8192"]),
        ("dbStorage_rocksDB_new", ["ignored", "RocksDB"]),
        ("journal.file_size", ['"128MiB"', "journalMaxSizeMB"]),
        ("journal.file_size_bytes", ['"128MiB"']),
        ("storage.range.store.dirs", ["ignored"]),
    ],
)
def test_explain_says_what_a_key_means_here(key: str, words: list[str], capsys: Captured) -> None:
    assert main(["config", "explain", key]) == 0
    told = capsys.readouterr().out
    assert all(word in told for word in words), told
    assert main(["config", "explain", key, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["key"]


def test_explain_without_a_key_lists_all(capsys: Captured) -> None:
    assert main(["config", "explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["honoured", "gcWaitTime", "gc.interval"] for line in lines)
    assert main(["config", "explain", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(lines) > 250


@pytest.mark.parametrize(
    ("key", "hint"), [("gcWaitTim", "gcWaitTime?"), ("gc.nothing", "gc.nothing")]
)
def test_explain_of_nothing_is_a_usage_error(key: str, hint: str, capsys: Captured) -> None:
    assert main(["config", "explain", key]) == 2
    assert hint in capsys.readouterr().err
